"""Fills gaps in held-out text with a run, shows its loss curve, and compares its accuracy with
counts of words. docs/commands.md explains each number.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertzoo_jax import objectives
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.evaluate import bigrams
from bertzoo_jax.evaluate import held_out
from bertzoo_jax.evaluate import masked
from bertzoo_jax.evaluate import scores
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective
from bertzoo_jax.pretrained import initial_weights
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import workdir as workdirs
from bertzoo_jax.training import data as training_data

_COLUMNS = ('truth', 'before', 'after', 'bigrams', 'most frequent')
NETWORK, BIGRAMS, FREQUENT = 'this network', 'bigrams, both neighbours', 'most frequent token'


class NotLearned(errors.UserError):
  """The run is not better than word counts, as --require demands."""

  code = 3


class Gap(NamedTuple):
  """A sentence with ____ for a gap, the token of the text, and the guesses."""

  sentence: str
  truth: str
  before: str
  after: str
  bigrams: str
  most_frequent: str


class Top(NamedTuple):
  count: int  # K
  predictions: int  # number of masked tokens that the row hides: those that are counted
  accuracy: float  # share whose truth is among the network's K likeliest tokens
  frequent: float  # share whose truth is among the K most frequent tokens


class Report(NamedTuple):
  """A run and counts of words on the same held-out text."""

  step: int  # step of the checkpoint
  curve: list[tuple[int, float]]  # (step, held-out loss per masked token), from step 0
  entropy: float  # unigram entropy of the training text, nats
  loss: scores.Score  # Score of the network's loss, nats
  # Scores of the accuracy of NETWORK, and of the baselines BIGRAMS and FREQUENT
  accuracies: list[scores.Score]
  gaps: list[Gap]  # the drawn ones
  top: Top | None = None  # Top, or None without --top
  notes: tuple[str, ...] = ()  # a sentence if the run was trained on other text


def find(
  address: str, path: str, *, gaps=10, draw=0, top=0, batches=50, cache_dir: str | None = None
) -> Report:
  """Fills the gaps and counts.

  address, path, batches, cache_dir: see `scores.evaluate`. gaps: number of gaps to draw, at most;
  draw: seed of the choice. top: K of Report.top; 0: Report.top is None.

  Raises UserError: see `scores.evaluate`; also for an objective that fills no masks.
  """
  run, corpus = held_out.opened(address, path, cache_dir)
  fills = lambda n: 'mlm_head' in n.extract(run.params) and objective.MASKED in n.learned
  network = next(filter(fills, run.networks), None)
  if network is None:
    raise errors.UserError(
      f'objective={run.config.objective.name} trains no network that fills masks: give the '
      '--workdir of a run that predicts masked tokens.'
    )
  rows = held_out.rows_of(corpus, run.config, run.config.format, 'held_out', batches)

  # host: the text and its counts
  text, tokenizer = masked.Masked(rows, corpus.special), corpus.tokenizer()
  counted = bigrams.count(corpus.splits['train'], corpus.vocab_size)
  by_bigrams_N = bigrams.guesses(counted, *text.neighbours(text.rows['input_ids']))
  frequent = int(counted.share.argmax())
  drawn_G = masked.drawn(text, tokenizer, gaps, draw)
  beside_G = [tokens[drawn_G] for tokens in text.neighbours(text.originals)]

  # device: the network before and after
  before, after = (network.extract(p) for p in (_first_weights(run, corpus), run.params))
  read = networks.shifted_left if network.predicts_next else lambda batch: batch
  rows, alone = [read(b) for b in rows], read(text.alone(drawn_G))
  _, first_loss = scores.masked_scores(NETWORK, network.encoder, before, rows)[:2]
  accuracy, loss = scores.masked_scores(NETWORK, network.encoder, after, rows)[:2]
  filled = [_fill(network.encoder, params, alone) for params in (before, after)]
  filled.append(bigrams.guesses(counted, *beside_G))

  curve = [(row['step'], row.get('held_out_mlm_loss')) for row in metrics.read(run.workdir)]
  spelt = lambda token: tokenizer.decode([token]).strip()
  baseline = lambda name, right_N: scores.baseline(name, accuracy, np.mean(right_N))
  return Report(
    run.step,
    [(0, first_loss.value), *((n, x) for n, x in curve if x is not None and n <= run.step)],
    training_data.entropy(corpus.unigrams),
    loss,
    [
      accuracy,
      baseline(BIGRAMS, by_bigrams_N == text.targets),
      baseline(FREQUENT, frequent == text.targets),
    ],
    [
      Gap(masked.sentence(text, n, tokenizer), *map(spelt, (text.targets[n], *guesses, frequent)))
      for n, *guesses in zip(drawn_G, *filled)
    ],
    _top(network.encoder, after, rows, text, counted.share, top) if top else None,
    tuple(scores.notes_on(run.workdir, corpus)),
  )


def _top(encoder, params, batches, text, share_V, count) -> Top:
  """The Top, over masked tokens that their rows hide."""

  def likelier(params, batch, memory):
    logits_BPV = _logits(encoder, params, batch)
    truth_BP1 = jnp.take_along_axis(logits_BPV, batch['masked_targets'][..., None], axis=-1)
    return jnp.sum(logits_BPV > truth_BP1, axis=-1), memory

  likelier_N = scores.through(likelier, encoder, params, batches)[text.rows['masked_weights'] > 0]
  hidden_N = text.rows['input_ids'][text.row, text.position] != text.targets
  if 'order' in text.rows:  # a query stream does not see its predictions
    hidden_N[:] = True
  frequent = np.argsort(-share_V, kind='stable')[:count]
  among_N = np.isin(text.targets[hidden_N], frequent)
  share = float(np.mean(likelier_N[hidden_N] < count))
  return Top(count, int(hidden_N.sum()), share, float(np.mean(among_N)))


def _first_weights(run, corpus):
  """The parameters that the run began with."""
  trained = objectives.build(run.config, corpus.vocab_size)
  fresh = jax.jit(trained.init)(jax.random.key(run.config.seed))
  init = workdirs.first_weights(run.workdir)
  if init is None:
    return fresh
  tokenizer = storage.path(run.workdir) / 'tokenizer'
  args, how = (fresh, init, trained, tokenizer, run.config.hf), workdirs.first_taken(run.workdir)
  how |= {'carry': how.pop('vocabulary', '') == 'carry'}
  return initial_weights.parameters(*args, **how)[0]


def _fill(encoder, params, batch):
  """The network's likeliest token at the first masked position of each row."""
  first = lambda params, batch: _logits(encoder, params, batch, first=1)[:, 0]
  read = lambda params, batch, memory: (first(params, batch).argmax(-1), memory)
  return scores.through(read, encoder, params, [batch]).tolist()


def _logits(encoder, params, batch, first=None):
  """logits_BPV of the first predictions of each row."""
  states_BPD, _, _ = networks.predictions(encoder, params['encoder'], batch, None)
  return networks.vocabulary_logits(encoder, params, states_BPD[:, :first])


def screen(report: Report) -> str:
  lines = [
    f'Held-out loss per masked token, nats: {report.loss.value:.2f} at step {report.step:,}, '
    f'{_below(report)}',
    '',
    metrics.curve_in_text(report.curve, report.entropy, 'unigram entropy'),
    '',
    f'{len(report.gaps)} gaps in held-out text, drawn at random (✓: as in the text)',
    '',
    '     ' + ''.join(f'{name:<17}' for name in _COLUMNS).rstrip(),
  ]
  for number, gap in enumerate(report.gaps, 1):
    truth, *guesses = gap[1:]
    cells = [truth, *(f'{g} ✓' if g == truth else g for g in guesses)]
    lines += [f'{number:>3}  {gap.sentence}', '     ' + ''.join(f'{c:<17}' for c in cells).rstrip()]
  count = report.accuracies[0].count
  lines += ['', f'Right, of {count:,} held-out masked tokens and of the gaps above']
  most = report.gaps[0].most_frequent if report.gaps else ''
  for score, column in zip(report.accuracies, ('after', 'bigrams', 'most_frequent')):
    name = f'{FREQUENT}: {most}' if score.network == FREQUENT else score.network
    right = sum(getattr(gap, column) == gap.truth for gap in report.gaps)
    lines.append(f'     {name:<28}{score.value:>7.1%}{right:>6} of {len(report.gaps)}')
  if top := report.top:
    lines += [
      '',
      f'Truth among {top.count} tokens, of {top.predictions:,} masked tokens that the row hides',
      f'     {"likeliest by this network":<28}{top.accuracy:>7.1%}',
      f'     {"most frequent":<28}{top.frequent:>7.1%}',
    ]
  return '\n'.join([*lines, *report.notes])


def _below(report, unit='') -> str:
  below = report.entropy - report.loss.value
  return f'{abs(below):.2f}{unit} {"above" if below < 0 else "below"} the unigram entropy'


def check(report: Report, least: float) -> None:
  """Raises NotLearned unless the loss is at least `least` nats below the unigram entropy, and the
  accuracy at least that of bigrams.
  """
  if not report.entropy - report.loss.value >= least:  # also true if the loss is NaN
    raise NotLearned(
      f'The held-out loss is {_below(report, " nats")}, {least:g} nats below were required: train '
      'longer, or see docs/settings.md.'
    )
  network, counts = (score.value for score in report.accuracies[:2])
  if network < counts:
    raise NotLearned(
      f'The network is right for {network:.1%} of the masked tokens, bigrams for {counts:.1%}: '
      'train longer, or see docs/settings.md.'
    )
