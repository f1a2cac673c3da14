"""Loads the parameters named by --init.

An address is W, W@STEP or W@best (a run), hf:DIR or hf:ID[@revision] (a Hugging Face directory).
--init takes one address, or one for each network of the objective with commas between.
"""

import functools

import numpy as np

from bertzoo_jax import hf
from bertzoo_jax import pretrained
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.common import vocabulary
from bertzoo_jax.hf import task_heads
from bertzoo_jax.pretrained import carried
from bertzoo_jax.training import optimizers


def parameters(
  fresh: dict,
  init: str,
  objective,
  tokenizer,
  architecture: str | None = None,
  labels: tuple[str, ...] = (),
  layers: str = '',
  carry: bool = False,
  positions: str = 'copied',
) -> tuple[dict, list[str]]:
  """(`fresh` with the parameters loaded from the addresses, lines that list them).

  * One address, a run that has all networks of the objective: all its parameters are taken. If its
    networks do not share the same parameters with each other as those of the objective do, each
    network is loaded separately.
  * Several addresses: each gives one network, in order. A run with several networks gives the
    network of the same name.

  A shared parameter comes from the first address that has it.

  init: the addresses, as --init has them. tokenizer: folder of the run's tokenizer files, or None.
  architecture: the run's config.hf. labels: see hf.merge. layers: numbers of the layers to take
  from a deeper network (`layers_of`); '' for all. carry: whether to convert word tables from
  another vocabulary (pretrained/carried.py); else another vocabulary is refused.

  Raises UserError if there are more addresses than networks; an address holds no parameter of its
  network; a vocabulary or a shape differs; or a frozen parameter is not loaded.
  """
  addresses = storage.addresses(init)
  if len(addresses) > max(1, len(objective.networks)):
    raise errors.UserError(
      f'--init has {len(addresses)} addresses, the objective {len(objective.networks)} network(s): '
      'give one address, or one for each network, with commas between.'
    )
  open_run = functools.cache(pretrained.open_run)
  if len(addresses) == 1 and not layers and _shares_otherwise(open_run, init, objective, fresh):
    addresses *= len(objective.networks)
  flat, lines, taken, computed = hf.flatten(fresh), [], {}, []
  # A network with `insert` comes last. Its residual table is its loaded table minus the table of
  # the other network, so the other network must be loaded before.
  pairs = zip(addresses, objective.networks)
  for address, network in sorted(pairs, key=lambda pair: pair[1].insert is not None):
    may_be_whole = len(addresses) == 1 and not layers
    loaded, report, folder, whole = _weights(
      open_run, address, network, objective if may_be_whole else None, architecture
    )
    spare = []
    if layers:
      loaded, report, spare = _shallower(loaded, report, layers, network.encoder)
    if carry:
      old, new = tokenizers.open_folder(folder), tokenizers.open_folder(tokenizer)
      loaded, words = carried.parameters(loaded, old, new)
      spare += words
    elif check_vocabulary(address, folder, tokenizer):
      loaded, words = hf.without_spare_words(loaded, network.encoder.vocab_size)
      spare += words
    encoder = {
      k: getattr(network.encoder, k)
      for k in report.encoder
      if k != 'name' and hasattr(network.encoder, k)
    }
    if whole:
      merged, lines = hf.merge(fresh, loaded, report, encoder, labels, positions)
      return _with_frozen(merged, fresh, objective, init), [*spare, *lines]
    places = network.places(fresh)
    if not places.keys() & hf.flatten(loaded).keys():
      raise errors.UserError(
        f'--init {address} has no parameter of the {network.name or "network"}: give weights of '
        'such a network.'
      )
    ours = network.extract(hf.unflatten(flat))
    merged, network_lines = hf.merge(ours, loaded, report, encoder, labels, positions)
    ours, merged = hf.flatten(ours), hf.flatten(merged)
    arrays = {
      path: merged[path]
      for path, place in places.items()
      if merged[path] is not ours[path] and place not in taken
    }
    if network.insert is None:
      flat |= {places[path]: x for path, x in arrays.items()}
    else:
      computed.append((network, arrays))
    network_lines += spare + [
      f'shared: {path} is as in {taken[place]}' for path, place in places.items() if place in taken
    ]
    taken |= {place: address for path, place in places.items() if place not in taken}
    lines += [f'{network.name}: {line}' if network.name else line for line in network_lines]
  for network, arrays in computed:
    flat |= network.insert(arrays, flat)
  lines += [f'{network.name}: fresh' for network in objective.networks[len(addresses) :]]
  return _with_frozen(hf.unflatten(flat), fresh, objective, init), lines


def layers_of(words: str, depth: int) -> tuple[int, ...]:
  """The numbers, from 0, of the layers to take from a network of `depth` layers.

  words: first:N (as RBT3 and RBTL3, N = 3), every:K (0, K, 2·K, …), or numbers with commas between.
  Raises UserError for anything else, and for a layer that does not exist.
  """
  how, mark, number = words.partition(':')
  with errors.unreadable(
    f'init_layers={words!r}: write first:3, every:4, or numbers of layers from 0, as in 0,4,8'
  ):
    if mark:
      count = int(number)
      layers = {'first': range(count), 'every': range(0, depth, count)}[how]
    else:
      layers = [int(word) for word in words.split(',')]
  if not layers or min(layers) < 0 or max(layers) >= depth or list(layers) != sorted(set(layers)):
    raise errors.UserError(
      f'init_layers={words!r}, but the weights have {depth} layers: give numbers from 0 to '
      f'{depth - 1} in order, each at most once.'
    )
  return tuple(layers)


def _shallower(loaded, report, words, encoder):
  """(the parameters with only the layers that `words` selects, their Report, lines for the log)."""
  wanted = encoder.num_layers
  depth = report.encoder['num_layers']
  numbers = layers_of(words, depth)
  if len(numbers) != wanted:
    raise errors.UserError(
      f'init_layers={words!r} selects {len(numbers)} layers of {depth}, but the network has '
      f'{wanted}: set config.encoder.num_layers={len(numbers)}.'
    )
  flat = hf.flatten(loaded)
  stacks = {p: x for p, x in flat.items() if p.startswith('encoder/layers/') and len(x) > 1}
  if {len(x) for x in stacks.values()} - {depth}:
    raise errors.UserError(
      f'init_layers={words!r}: layers of {report.source} share parameters in groups, so single '
      'layers cannot be taken: leave init_layers out.'
    )
  line = f'layers: {", ".join(map(str, numbers))} (from 0) of the {depth} of {report.source}'
  report = report._replace(encoder={**report.encoder, 'num_layers': wanted})
  period = lambda field: field('global_every', 1) if field('window', 0) else 1
  theirs, ours = period(report.encoder.get), period(lambda *named: getattr(encoder, *named))
  kind = lambda number, period: 'local' if number % period else 'global'
  changed = [
    f'layer {number} was {kind(number, theirs)} and is {kind(place, ours)} now, as layer {place}: '
    f'take first:{wanted}, or layers that keep their place in a period of {theirs}'
    for place, number in enumerate(numbers)
    if kind(number, theirs) != kind(place, ours)
  ]
  flat |= {path: x[np.array(numbers)] for path, x in stacks.items()}
  return hf.unflatten(flat), report, [line, *changed]


def _with_frozen(params, fresh, objective, init):
  """Returns the parameters. Raises UserError if a frozen one was not loaded."""
  before = hf.flatten(fresh)
  for path, x in hf.flatten(params).items():
    if x is before[path] and optimizers.matching(path, objective.frozen):
      raise errors.UserError(
        f'--init {init} has no {path}, which this objective keeps frozen: give --init '
        'DISCRIMINATOR,GENERATOR with a generator that was trained with a head.'
      )
  return params


def _weights(open_run, address, network, objective, architecture):
  """(nested dict of numpy arrays, hf.Report, folder of the tokenizer, whether these are all of a
  run's parameters).

  objective: if the run has the networks of this objective, all its parameters are taken. None: only
  those of `network` are taken.
  """
  if address.startswith('hf:'):
    folder = pretrained.directory(address)
    return *hf.load(folder, architecture), folder, False
  loaded, step, workdir, config, theirs = open_run(address)
  whole = objective is not None and [n.name for n in theirs] == [n.name for n in objective.networks]
  chosen = next((n for n in theirs if n.name == network.name), theirs[0])
  loaded = loaded if whole else chosen.extract(loaded)
  fields = [k for k in config.encoder if k != 'name' and hasattr(chosen.encoder, k)]
  section = {k: getattr(chosen.encoder, k) for k in fields}
  labels = task_heads.labels_in(config.objective)
  report = hf.Report(f'{workdir} at step {step}', config.hf, section, (), labels=labels)
  return loaded, report, storage.path(workdir) / 'tokenizer', whole


def _shares_otherwise(open_run, address, objective, fresh) -> bool:
  """Whether an address is a run that has the objective's networks, but shares parameters otherwise.

  Networks of a run can share parameters with each other. If the run and the objective differ in
  this, the same path may be a word table in one, and a summand of a word table in the other.
  """
  if address.startswith('hf:') or len(objective.networks) < 2:
    return False
  theirs, loaded = open_run(address).networks, open_run(address).params
  if [n.name for n in theirs] != [n.name for n in objective.networks]:
    return False
  for their, our in zip(theirs, objective.networks):
    their_places, our_places = their.places(loaded), our.places(fresh)
    if (their.insert is None) != (our.insert is None) or any(
      their_places[path] != our_places[path] for path in their_places.keys() & our_places.keys()
    ):
      return True
  return False


def check_vocabulary(address, theirs, ours) -> bool:
  """Whether the vocabularies are known to be equal. theirs, ours: folders.

  Raises UserError if they are known to differ: words would silently get the rows of other words.
  """
  a, b = vocabulary.read_folder(ours) if ours else None, vocabulary.read_folder(theirs)
  if a and b:  # Theirs may have more pieces at the end (added tokens): those rows are dropped.
    b = {piece: i for piece, i in b.items() if piece in a or i < len(a)}
  if a and b and (difference := vocabulary.difference_of(a, b)):
    raise errors.UserError(
      f'--init {address} was trained with another vocabulary: {difference} Prepare the corpus with '
      f'--tokenizer {address if address.startswith("hf:") else theirs}, or take '
      '--vocabulary=carry, which converts the old word table.'
    )
  return bool(a and b)
