"""Writes a trained model as a Hugging Face directory, then reloads and compares it.

    python -m bertzoo_jax.export --workdir W[@STEP|@best] --out DIR [--architecture CLASS]
      [--all_checkpoints] [--push OWNER/NAME[@BRANCH]]

Before the directory gets its name, it is loaded with transformers, and logits and token ids are
compared with ours. Without torch and transformers, our own reader takes their place. A model that
differs is not exported.
"""

import functools
import json
import pathlib
import re

from absl import flags

from bertzoo_jax import cli
from bertzoo_jax import tokenizers
from bertzoo_jax.common import amounts
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import hub
from bertzoo_jax.common import storage
from bertzoo_jax.common import trust
from bertzoo_jax.hf import architecture as hf_architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import card
from bertzoo_jax.hf import sentence_vectors
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf import tokenizer as hf_tokenizer
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import step_folders
from bertzoo_jax.runs import workdir as workdirs
from bertzoo_jax.tasks import kinds

# Tokens per compared row, for a network without a position table. Logits of longer rows would take
# gigabytes.
_LONGEST = 1024


def export(
  address: str, out, architecture: str | None = None, push=None
) -> list[verify.Comparison] | None:
  """Exports a checkpoint; returns the comparisons, or None without torch or transformers.

  Args:
    address: W, W@STEP, W@best, or an average as W@ema.
    out: directory, local or gs://; appears only when it is complete. If the run trains several
      networks, each has a folder in it.
    architecture: name of the class of the first network, or `package.module:NAME`. None takes the
      config's class, or one that fits if that does not.
    push: function (finished folder, names of its files), called before the folder becomes `out`;
      None for none.

  Raises UserError: `out` is not empty, no such checkpoint, no config.json beside it, parameters
  without a place in the architecture, or a comparison fails.
  """
  from bertzoo_jax import objectives  # with jax: --help does not wait for these
  from bertzoo_jax.runs import checkpoint

  out = storage.path(out)
  folders.check_free(out)
  params, step, workdir = checkpoint.load_params(address)
  workdir, average = storage.path(workdir), checkpoint.parse_address(address)[2] or ''
  if average.startswith('average:'):
    steps = ', '.join(map(str, checkpoint.averaged(workdir, step, average)))
    average = f'{average}, the mean of the steps {steps}'
  config = workdirs.run_config(workdir)
  phase = configuration.phase_at(config, step).config
  trained = objectives.build_networks(phase, weights.vocabulary_size(params))
  rows, lines, written = [], [], []
  with folders.scratch(out) as folder:
    tokenizer = _copy(workdir / 'tokenizer', pathlib.Path(folder) / 'tokenizer')
    root, described = pathlib.Path(folder) / 'model', _card_config(config, phase)
    for i, network in enumerate(trained):
      directory = root / network.name if len(trained) > 1 else root
      directory.mkdir(parents=True)
      wished = architecture if i == 0 else None
      wished = wished or _architecture(config.hf, network, params, aloud=i == 0)
      compared, tensors, aside, files = _write_network(
        directory, wished, network, params, described, tokenizer, workdir, step, average
      )
      rows = None if compared is None else [*rows, *compared]
      written += [str((directory / name).relative_to(root)) for name in files]
      place = out / network.name if len(trained) > 1 else out
      lines.append(
        f'{place}: {wished}, step {step:,}{average and f" ({average})"}, '
        f'{sum(x.size for x in tensors.values()):,} parameters in {len(tensors)} tensors'
      )
      if other := architectures.choose(wished).computes(network.encoder).note:
        lines.append(other.replace('**', ''))
      if aside:
        lines.append(
          f'{place / weights.HEADS_FILE}: {", ".join(aside)}, for which {wished} has no place; '
          f'--init hf:{place} reads it'
        )
    if push:
      push(root, written)
    folders.install(root, out)
  held = {place for network in trained for place in network.places(params).values()}
  if left := sorted({path.split('/')[0] for path in weights.flatten(params).keys() - held}):
    lines.append(f'not exported, since no class has a place for it: {", ".join(left)}')
  print('\n'.join(lines))
  return rows


def _card_config(config, phase) -> dict:
  """The config for the card: that of the last trained phase, with the rows of every phase."""
  phases = [
    (p.steps, {'length': p.config.length, 'batch_size': p.config.batch_size} if overrides else {})
    for p, (_, overrides) in zip(configuration.phases(config), config.phases)
  ]
  rows = config.batch_size or config.batch_tokens // config.length
  return {**phase.to_dict(), 'phases': phases, 'length': config.length, 'batch_size': rows}


def _write_network(
  directory, architecture, network, params, config, folder, workdir, step, average
):
  """Fills a directory. Returns (comparisons or None, tensors, names of the heads in HEADS_FILE,
  names of the files).
  """
  from bertzoo_jax.objectives import objective

  a, encoder = architectures.choose(architecture), network.encoder
  whole = weights.flatten(network.extract(params))
  flat = hf_architecture.placed(a, whole)
  aside = {path: x for path, x in whole.items() if path not in flat}
  params = weights.unflatten(flat)
  apart = sorted({path.split('/')[0] for path in aside})
  if objective.one_way(weights.unflatten(whole), network.learned):  # never saw a mask
    config = {key: section for key, section in config.items() if key != 'masking'}
  special, files, tokenizer = _tokenizer(folder, config, a, encoder, task_heads.in_paths(whole))
  task = task_heads.Task()
  if task_heads.in_paths(whole):
    task = task_heads.task_of(config['objective'], kinds.get(config['objective']['name']))
  tensors, hf_json = convert(a, flat, encoder, special, task, aside)
  if network.learned != (objective.MASKED,):
    hf_json[hf_architecture.LEARNED] = list(network.learned)
  weights.save(directory / 'model.safetensors', tensors)
  if aside:
    weights.save(directory / weights.HEADS_FILE, aside)
  _write(directory / 'config.json', json.dumps(hf_json, indent=2) + '\n')
  files, vectors = files if a.tokens is not None else {}, None
  if files and 'pooling' in config['objective'] and 'normalize' in config['objective']:
    vectors = sentence_vectors.in_config(config)
    files |= sentence_vectors.files(vectors, encoder.hidden_size, encoder.padding_side)
  for name, text in files.items():
    (directory / name).parent.mkdir(exist_ok=True)
    _write(directory / name, text)
  if network.name:
    print(f'{network.name}: {architecture}')
  length = encoder.max_positions or config['length']
  if hf_architecture.POSITION_TABLE not in flat:
    length = min(length, _LONGEST)
  rows = _verify(directory, a, encoder, params, special, tokenizer, length)
  attempts = [a for a in workdirs.attempts(workdir) if a.get('start_step', 0) < max(step, 1)]
  run = card.Run(
    card.with_learned(a, network.learned, apart),
    encoder,
    sizes=a.sizes(encoder, special),
    config=config,
    step=step,
    tensors=tensors,
    corpus=workdirs.corpus_record(workdir),
    metrics={}  # the run's metrics are of other weights
    if average
    else _metrics(workdir, step, config['metrics'] if 'metrics' in config else ()),
    commits=list(dict.fromkeys(a['commit'] for a in attempts if a.get('commit'))),
    init=workdirs.first_weights(workdir),
    checked=_checked(rows, a),
    aside=apart,
    average=average,
    base_models=workdirs.base_models(workdir),
    outputs=task,
    vectors=vectors,
  )
  _write(directory / 'README.md', card.text(run))
  names = [*files, 'config.json', 'README.md', weights.WEIGHTS, *[weights.HEADS_FILE] * bool(aside)]
  return rows, tensors, apart, names


def convert(
  a: hf_architecture.Architecture,
  params: dict,
  encoder,
  special: dict[str, int],
  task: task_heads.Task | None = None,
  aside: dict | None = None,
) -> tuple[dict, dict]:
  """(tensors by Hugging Face name, content of config.json). params: flat; encoder: linen module;
  special: ids by name; task: of its head; aside: heads that the class has no place for, flat.
  """
  known = architectures.ARCHITECTURES
  hf_architecture.check(a, params, known)
  hf_json = hf_architecture.config(a, encoder, special, len(params[weights.WORD_TABLE]), known)
  hf_json |= task_heads.config(a, {**params, **(aside or {})}, task or task_heads.Task())
  return hf_architecture.to_hf(a, params, a.sizes(encoder, special)), hf_json


def _tokenizer(folder, config, a, encoder, head):
  """(ids of special pieces, {file name: content}, the tokenizer). A fine-tuned network keeps the
  tokenizer files of the Hugging Face directory that it began with. head: of the task, or ''.
  """
  # the task was learned at this length
  length = config['length'] if head else encoder.max_positions or 0
  # training read each word with a blank before it, and transformers refuses words without one
  splits_words = head == task_heads.TAG
  if not hf_tokenizer.made_here(folder):
    tokenizer = tokenizers.open_folder(folder)
    tokenizer = tokenizer.for_words() if splits_words else tokenizer
    content = tokenizer.json if splits_words else None
    files = hf_tokenizer.published(folder, length if head else 0, content)
    return tokenizer.special, files, tokenizer
  content, special = hf_tokenizer.read(folder)
  tokenizer = tokenizers.load(folder, config['tokenizer'])
  if splits_words:
    tokenizer = tokenizer.for_words()
    content = json.loads(tokenizer.parsing_engine().to_str())
  files = hf_tokenizer.files(
    content,
    special,
    shape=(a.tokens or hf_tokenizer.Shape())._replace(padding=encoder.padding_side),
    max_length=length,
    segments=encoder.type_vocab_size or a.segments,
    model=tokenizer.vocabulary.model,
  )
  return special, files, tokenizer


def _verify(directory, a, encoder, params, special, tokenizer, length):
  """Prints and returns the comparisons. Without transformers, compares with our own reader and
  returns None. Raises UserError if a comparison fails.
  """
  missing, known = verify.missing_packages(), a.name in architectures.ARCHITECTURES
  if missing:
    print(
      f'Not compared with transformers: {" and ".join(missing)} not installed here. To compare: '
      f'{errors.install("hf")}, and export again.'
    )
    if not known:
      return None
  sizes = weights.vocabulary_size(params), length, encoder.type_vocab_size, special['pad']
  batch = verify.random_batch(*sizes, padding=encoder.padding_side)
  if task_heads.ROW in params:
    batch = verify.with_single_texts(batch)
  if task_heads.CHOICE in params:
    batch = verify.as_options(verify.with_single_texts(batch))
  computed = a.computes(encoder)
  rows = verify.compare_logits(
    verify.our_logits(computed.encoder, params, batch),
    _read_again(directory, params, batch) if missing else verify.logits(directory, a, batch),
    batch['segment_ids'],
    computed.unread,
  )
  if a.tokens is not None and not missing:
    rows += verify.compare_tokens(directory, tokenizer.encode_as_transformers, special, a.tokens)
  rows += uncompared(params)
  print(verify.table(rows))
  if failed := [f'{r.what}: {r.difference}' for r in rows if not r.holds]:
    reader = 'transformers' if a.logits is None else f'The reference of {a.name}'
    reader, remedy = 'bertzoo_jax' if missing else reader, 'correct its file or the encoder.'
    if known:
      remedy = 'please report it with the versions of torch and transformers.'
    raise errors.UserError(
      f'{reader} reads the export differently ({"; ".join(failed)}), so nothing was written: '
      f'{remedy}'
    )
  return None if missing else rows


def _read_again(directory, params, batch):
  """Like verify.logits, computed by our own reader of directories."""
  from bertzoo_jax import pretrained

  again = pretrained.open(f'hf:{directory}')
  mine = {name: again.params[name] for name in params if name in again.params}
  return {**verify.our_logits(pretrained.encoder(again), mine, batch), 'unloaded': []}


def uncompared(params: dict) -> list[verify.Comparison]:
  """A failed comparison for each head that is written but not compared."""
  from bertzoo_jax.objectives import heads as head_table

  strange = sorted(params.keys() - {'encoder', *head_table.TABLE})
  return [
    verify.Comparison(head, 'it is written but not compared', 'compared', False) for head in strange
  ]


def _architecture(wished, network, params, aloud) -> str:
  """The requested class, or one that fits the network. aloud: print a line if another is taken."""
  activation = network.encoder.activation
  flat = weights.flatten(network.extract(params))
  name = architectures.fitting(wished, activation, flat)
  if name != wished and aloud:
    print(f'config.hf={architectures.fitting_note(wished, activation, flat)}')
  return name


def _checked(rows, a) -> str:
  if rows is None:
    return (
      'Not compared with transformers when it was exported (torch or transformers was missing '
      'there).'
    )
  torch = trust.torch()
  import transformers

  reference = '' if a.logits is None else f'the reference of {a.name}, '
  return (
    f'Reloaded with {reference}transformers {transformers.__version__} and torch '
    f'{torch.__version__} when it was exported:\n\n```\n'
    f'{verify.table(rows)}\n```'
  )


def _metrics(workdir, step: int, also=()) -> dict:
  """{name: newest value up to a step} of losses, accuracies and the metrics in `also`."""
  wanted = '|'.join(['loss', 'accuracy', 'bits', 'rtd', *map(re.escape, also)])
  return {
    name: value
    for row in metrics.read(workdir)
    if row['step'] <= step
    for name, value in row.items()
    if value is not None and re.search(wanted, name)
  }


def _copy(source, target: pathlib.Path) -> pathlib.Path:
  if not source.exists():
    raise errors.UserError(
      f'{source} does not exist: a workdir holds a copy of its tokenizer; copy CORPUS/tokenizer '
      'there.'
    )
  target.mkdir()
  for path in source.iterdir():
    if not path.is_dir():
      (target / path.name).write_bytes(path.read_bytes())
  return target


def _write(path: pathlib.Path, content: str | bytes) -> None:
  path.write_bytes(content.encode('utf-8') if isinstance(content, str) else content)


def _targets(workdir, out, branch, every) -> dict:
  """{branch: (address, folder)}. every: also kept checkpoints, as step-STEP, and as chck_1M … where
  run.keep_words kept them; `workdir` is main.
  """
  if not every:
    return {branch or hub.MAIN: (workdir, out)}
  if branch:
    raise errors.UserError(
      f'--all_checkpoints names its branches itself, as step-STEP and main: leave @{branch} out.'
    )
  from bertzoo_jax.runs import checkpoint

  run = checkpoint.parse_address(workdir)[0]
  named = {amounts.revision(n): step for n, step in step_folders.words(run).items()}
  steps = {f'step-{s}': s for s in step_folders.steps(run) if s not in named.values()}
  by_step = sorted((steps | named).items(), key=lambda one: one[1])
  targets = {name: (f'{run}@{s}', out / name) for name, s in by_step}
  return {**targets, hub.MAIN: (workdir, out / hub.MAIN)}


def main(asked):
  name, _, branch = (asked.push or '').partition('@')
  every = asked.all_checkpoints
  targets = _targets(asked.workdir, storage.path(asked.out), branch, every)
  if name and (missing := verify.missing_packages()):
    raise errors.UserError(
      f'--push needs {" and ".join(missing)}, since only a verified export is pushed: '
      f'{errors.install("hf")}.'
    )
  repository = hub.Repository(name) if name else None
  for branch, (_, out) in list(targets.items()):
    if every and repository and out.exists() and repository.has(branch):
      print(f'{name}@{branch}: pushed before')  # its folder comes last
      del targets[branch]
      continue
    folders.check_free(out)
    if repository:
      repository.check_free(branch)
  for branch, (address, out) in targets.items():
    push = functools.partial(repository.push, branch) if repository else None
    export(address, out, asked.architecture, push)
    if repository:
      print(f'{name}@{branch}: pushed')


if __name__ == '__main__':
  cli.required(
    workdir='Run to export: W (newest checkpoint), W@STEP or W@best.',
    out='Directory to make; must be absent or empty.',
  )
  cli.texts(
    architecture='Class of Hugging Face, in place of config.hf: '
    f'{", ".join(architectures.ARCHITECTURES)}, or package.module:NAME for an Architecture of your '
    'own.',
    push='OWNER/NAME[@BRANCH] of the Hugging Face hub; a new repository is private.',
  )
  flags.DEFINE_bool(
    'all_checkpoints',
    False,
    'Every kept checkpoint in a folder of --out (and a branch) step-STEP, or chck_1M … by '
    'run.keep_words, and --workdir in main.',
  )
  cli.run(main)
