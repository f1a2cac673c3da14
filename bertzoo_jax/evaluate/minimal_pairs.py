"""Scores pairs of sentences: a pair is right if its good sentence has the higher log-likelihood.

A pair may also have a context before each sentence, and more than two of them (`pair_files.Item`).
"""

import os
from typing import NamedTuple

import numpy as np

from bertzoo_jax import hf
from bertzoo_jax import pretrained
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.common import tables
from bertzoo_jax.evaluate import likelihoods
from bertzoo_jax.evaluate import pair_files
from bertzoo_jax.evaluate import scores as scoring
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import tokenizer as hf_tokenizer


class Accuracy(NamedTuple):
  group: str  # '' for pairs without one, and for all pairs
  pairs: int  # how many
  accuracy: float  # share of the pairs that are right; a tie is wrong
  standard_error: float  # √(p(1−p)/n)
  ties: int  # pairs whose sentences score the same


class Result(NamedTuple):
  address: str  # address of the weights
  step: int | None  # step of the checkpoint; None for a Hugging Face directory
  network: str  # which of two networks was scored; '' if there is only one
  how: str  # the context of a predicted token, see `likelihoods`
  groups: list[Accuracy]  # Accuracy of each group, in the order of the file
  total: Accuracy  # Accuracy of all pairs
  notes: list[str]  # sentences that explain the numbers


def evaluate(address: str, path: str, *, group_by: str = '', by: str | None = None) -> Result:
  """Scores the pairs of a file.

  address: W, W@STEP or W@best; hf:DIR or hf:OWNER/NAME[@REVISION]. path, group_by: see
  `pair_files.read`. by: a way of `likelihoods.ways`; None for the network's default.

  Raises UserError: an address without a network; a network that gives no probability of a token,
  that never saw a mask, or that did not learn this way; a sentence that is too long; a file of
  another form.
  """
  pairs = pair_files.read(path, group_by)
  subject, tokenizer = opened(address, by)
  scores, lengths, unknown = scored(subject, tokenizer, pairs)
  notes, count = [*subject.notes], sum(map(len, lengths))
  if unknown:
    notes.append(
      f'{unknown:,} of {count:,} sentences have tokens that the vocabulary does not know.'
    )
  return Result(address, subject.step, subject.name, subject.how, *accuracies(pairs, scores), notes)


def scored(subject, tokenizer, pairs) -> tuple[list[np.ndarray], list[np.ndarray], int]:
  """(log-likelihoods of the texts of each pair; numbers of scored tokens; number of texts with
  unknown tokens). Raises UserError for scores that are no numbers, and a sentence that is too long.
  """
  texts = [text for pair in pairs for text in pair.texts]
  starts = [start for pair in pairs for start in pair.starts]
  encoded = tokenizer.encode_with_offsets(texts, special_text=True)
  ids = [x.tolist() for x, *_ in encoded]
  # a token is of the option if it ends after the context
  spans = [(int((ends <= start).sum()), len(ends)) for (*_, ends), start in zip(encoded, starts)]
  if subject.how == likelihoods.WORDS:
    subject = subject._replace(words=dict(zip(map(tuple, ids), tokenizer.words_of(texts))))
  nats = likelihoods.log_likelihoods(subject, ids, spans)
  if not np.isfinite(nats).all():
    raise errors.UserError('The network gives scores that are no numbers: give another checkpoint.')
  unknown = sum(subject.special['unk'] in text for text in ids)
  split = lambda x: np.split(x, np.cumsum([len(pair.texts) for pair in pairs])[:-1])
  return split(nats), split(np.array([end - first for first, end in spans])), unknown


def accuracies(pairs, scores) -> tuple[list[Accuracy], Accuracy]:
  """(Accuracy of each group, of all). scores: of the texts of each pair."""
  groups = {}
  for pair, likeliest in zip(pairs, map(best, scores)):
    counted = likeliest == [pair.right], len(likeliest) > 1
    groups.setdefault(pair.group, []).append(counted)
  total = [counted for group in groups.values() for counted in group]
  return [_accuracy(name, group) for name, group in groups.items()], _accuracy('', total)


def best(scores) -> list[int]:
  """The indices of the highest scores: several for a tie."""
  return np.flatnonzero(scores == scores.max()).tolist()


def opened(address: str, by: str | None = None):
  """(the network to score at an address, its tokenizer). by, errors: see `evaluate`."""
  if not os.fspath(address).startswith('hf:'):
    run = pretrained.open_run(address)
    tokenizer = tokenizers.open_folder(storage.path(run.workdir) / 'tokenizer')
    return run_subject(run, tokenizer.special, by), tokenizer
  network = pretrained.open(address)
  tokenizer = tokenizers.open_folder(network.tokenizer_folder)
  ways = likelihoods.ways(network.params, network.learned)
  if not ways:
    raise errors.UserError(
      f'{address} is a {network.hf}, which gives no probability of a token: give a masked language '
      'model. Of a discriminator and its generator that is the generator.'
    )
  encoder = pretrained.encoder(network)
  how, frame = _way(ways, by, address), network.shape.single
  subject = likelihoods.Subject(
    '', encoder, network.params, how, tokenizer.special, frame, ahead=network.predicts_next
  )
  return subject, tokenizer


def _way(ways, by, address) -> str:
  """`by`, or the default way. Raises UserError for a way that is not in `ways`."""
  if by is not None and by not in ways:
    raise errors.UserError(
      f'--score_by={by.replace(" ", "_")}: the network of {address} is scored by '
      f'{", ".join(ways)}, as it learned.'
    )
  return by or ways[0]


def run_subject(
  run: pretrained.Run, special: dict[str, int], by: str | None = None
) -> likelihoods.Subject:
  """The network of a run to score: the generator, if it fills the masks of another network's rows.

  special: ids of the run's tokenizer. by, errors: see `evaluate`.
  """
  in_order = 'masking' in run.config and run.config.masking.name == 'in_order'
  ways = {
    n.name: likelihoods.ways(n.extract(run.params), n.learned, in_order) for n in run.networks
  }
  able = [n for n in run.networks if ways[n.name]]
  if not able:
    raise errors.UserError(
      f'objective={run.config.objective.name} trains no network that gives the probability of a '
      'token: give a run that predicts tokens.'
    )
  chosen = next((n for n in able if n.name == 'generator'), able[0])
  how, notes = _way(ways[chosen.name], by, run.workdir), ()
  if how in (likelihoods.MASKED, likelihoods.WORDS) and not _shows_masks(run.config.masking):
    raise errors.UserError(
      f'masking={run.config.masking.name} of {run.workdir} never shows [MASK], so it has '
      'not learned to fill one: give a run with masking.substitute=mask and a first share of '
      'masking.corruption above 0.'
    )
  if chosen is not run.networks[0]:
    notes = (
      f'the generator is scored; the {run.networks[0].name} is not, since the rows that it reads '
      'have no masks.',
    )
  params, encoder = chosen.extract(run.params), chosen.encoder
  name = architectures.fitting(run.config.hf, encoder.activation, hf.flatten(params))
  shape = architectures.choose(name).tokens or hf_tokenizer.Shape()
  return likelihoods.Subject(
    chosen.name, encoder, params, how, special, shape.single, run.step, notes, chosen.predicts_next
  )


def _shows_masks(masking) -> bool:
  """Whether the rows of a masking have masks; True for a masking without these fields."""
  if 'substitute' in masking and masking.substitute != 'mask':
    return False
  return 'corruption' not in masking or masking.corruption[0] > 0


def _accuracy(group, counted) -> Accuracy:
  right, ties = map(sum, zip(*counted))
  share = right / len(counted)
  return Accuracy(group, len(counted), share, scoring.binomial(share, len(counted)), ties)


def table(result: Result) -> str:
  total = result.total._replace(group='all')
  rows = result.groups if len(result.groups) > 1 or result.groups[0].group else []
  lines = [('pairs of', 'number', 'accuracy ± standard error', 'ties')]
  for row in [*rows, total]:
    value = f'{row.accuracy:.2%} ± {row.standard_error:.2%}'
    lines.append((row.group, f'{row.pairs:,}', value, f'{row.ties:,}'))
  notes = [*result.notes, *[f'{total.ties:,} ties are counted as wrong.'] * bool(total.ties)]
  return '\n'.join([tables.aligned(lines), *(f'note: {note}' for note in notes)])
