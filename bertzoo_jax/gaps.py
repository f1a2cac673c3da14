"""What a run has learned, on one screen: its curve, gaps in held-out text that it fills, and how
often it is right beside counts of words.

    python -m bertzoo_jax.gaps --workdir W[@STEP|@best] --corpus CORPUS
                               [--gaps 10] [--draw 0] [--top 5] [--require 1.5]

The curve is the held-out loss per masked token over the steps. A dotted line marks the unigram
entropy of the training text: the loss of word counts alone.

The gaps are whole words that the run's masking hid in held-out rows. They are drawn at random
(--draw=1 draws others); no row has two. The rest of the row is as it stands in the text. Each gap
is filled before training (by the weights that the run began with), after it, by bigrams, and by the
most frequent token of the training text.

The accuracies are over all masked tokens of the held-out rows. The bigrams are counted on the
training text. They read the same rows as the network: both neighbours of a masked token, unless a
neighbour is masked, too.

With --top=K the last lines say how often the truth is among the K likeliest tokens, and how often
among the K most frequent ones. They count masked tokens that the row hides: behind a mask, replaced
by another token, or predicted in an order.

With --require the command ends with code 3 where the loss is not that many nats below the unigram
entropy, or the accuracy is below the bigrams'.
"""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from bertzoo_jax import cli

if __name__ == '__main__':  # before TensorFlow is imported
  cli.quiet_tensorflow()

from bertzoo_jax import objectives  # noqa: E402
from bertzoo_jax.batches import masked  # noqa: E402
from bertzoo_jax.common import errors  # noqa: E402
from bertzoo_jax.common import storage  # noqa: E402
from bertzoo_jax.corpus import bigrams  # noqa: E402
from bertzoo_jax.evaluate import held_out  # noqa: E402
from bertzoo_jax.evaluate import scores  # noqa: E402
from bertzoo_jax.objectives import networks  # noqa: E402
from bertzoo_jax.pretrained import initial_weights  # noqa: E402
from bertzoo_jax.runs import curve  # noqa: E402
from bertzoo_jax.runs import metrics  # noqa: E402
from bertzoo_jax.runs import workdir as workdirs  # noqa: E402
from bertzoo_jax.training import data as training_data  # noqa: E402

_COLUMNS = ('truth', 'before', 'after', 'bigrams', 'most frequent')


class NotLearned(errors.UserError):
  """A run that is not better than counts of words, where that was required."""

  code = 3


class Gap(NamedTuple):
  """A gap and what fills it.

  Attributes:
    sentence: with ____ for the gap.
    truth, before, after, bigrams, most_frequent: tokens, as text.
  """

  sentence: str
  truth: str
  before: str
  after: str
  bigrams: str
  most_frequent: str


class Top(NamedTuple):
  """How often the truth is among K tokens.

  Attributes:
    count: K.
    predictions: number of masked tokens that are counted; the row hides each of them.
    accuracy: share whose truth is among the network's K likeliest tokens.
    frequent: share whose truth is among the K most frequent tokens.
  """

  count: int
  predictions: int
  accuracy: float
  frequent: float


class Found(NamedTuple):
  """What was found.

  Attributes:
    step: of the checkpoint.
    curve: (step, held-out loss per masked token), from step 0.
    entropy: unigram entropy of the training text, nats.
    loss, accuracy: of the network; predictions: over how many masked tokens.
    bigram_accuracy, frequent_accuracy: of the two counts, over the same tokens.
    gaps: Gap of each that was drawn.
    top: Top, or None where it was not asked for.
  """

  step: int
  curve: list[tuple[int, float]]
  entropy: float
  loss: float
  accuracy: float
  predictions: int
  bigram_accuracy: float
  frequent_accuracy: float
  gaps: list[Gap]
  top: Top | None = None


def find(
  address: str,
  path: str,
  *,
  gaps: int = 10,
  draw: int = 0,
  top: int = 0,
  batches: int = 50,
  cache_dir: str | None = None,
) -> Found:
  """Fills the gaps and counts.

  Args:
    address, path, batches, cache_dir: see `scores.evaluate`.
    gaps: how many are drawn, at most; draw: the seed of their choice.
    top: K of Found.top; 0: Found.top is None.

  Raises:
    UserError: what evaluate raises; an objective that fills no masks.
  """
  run = held_out.opened(address, path, cache_dir)
  network = next((n for n in run.networks if 'mlm_head' in n.of(run.params)), None)
  if network is None:
    raise errors.UserError(
      f'objective={run.config.objective.name} trains no network that fills masks: give the '
      '--workdir of a run that predicts masked tokens.'
    )
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # pretrain has said them
    rows = held_out.rows_of(run.corpus, run.config, run.config.format, 'held_out', batches)

  # host: the text and its counts
  text = masked.Masked(rows, run.corpus.special)
  counted = bigrams.count(run.corpus.splits['train'], run.corpus.vocab_size)
  by_bigrams_N = bigrams.guesses(counted, *text.neighbours(text.rows['input_ids']))
  frequent = int(counted.share.argmax())
  tokenizer = run.corpus.tokenizer()
  drawn_G = masked.drawn(text, tokenizer, gaps, draw)
  beside_G = [tokens[drawn_G] for tokens in text.neighbours(text.originals)]

  # device: the network before and after
  before, after = (network.of(p) for p in (_first_weights(run), run.params))
  loss = {}
  for name, params in (('before', before), ('after', after)):
    measured = scores.masked_scores(name, network.encoder, params, rows)
    loss[name], accuracy = (
      next(s.value for s in measured if s.measure == m) for m in ('loss', 'accuracy')
    )
  filled = [_fill(network.encoder, params, text.alone(drawn_G)) for params in (before, after)]
  filled.append(bigrams.guesses(counted, *beside_G))

  spelt = lambda token: tokenizer.decode([token]).strip()
  at = [(0, loss['before'])] + [
    (row['step'], row['held_out_mlm_loss'])
    for row in metrics.read(run.workdir)
    if row.get('held_out_mlm_loss') is not None and row['step'] <= run.step
  ]
  return Found(
    run.step,
    at,
    training_data.entropy(run.corpus.unigrams),
    loss['after'],
    accuracy,
    len(text.targets),
    float(np.mean(by_bigrams_N == text.targets)),
    float(np.mean(frequent == text.targets)),
    [
      Gap(
        masked.sentence(text, n, tokenizer),
        *map(spelt, (text.targets[n], *guesses, frequent)),
      )
      for n, *guesses in zip(drawn_G, *filled)
    ],
    _top(network.encoder, after, rows, text, counted.share, top) if top else None,
  )


def _top(encoder, params, batches, text, share_V, count) -> Top:
  """The Top of the masked tokens that their rows hide."""

  def likelier(params, batch, memory):
    states_BPD, _, _ = networks.predictions(encoder, params['encoder'], batch, None)
    logits_BPV = networks.vocabulary_logits(encoder, params, states_BPD)
    truth_BP1 = jnp.take_along_axis(logits_BPV, batch['masked_targets'][..., None], axis=-1)
    return jnp.sum(logits_BPV > truth_BP1, axis=-1), memory

  likelier_RP = scores.through(likelier, encoder, params, batches)
  likelier_N = likelier_RP[text.rows['masked_weights'] > 0]
  hidden_N = text.rows['input_ids'][text.row, text.position] != text.targets
  if 'order' in text.rows:  # a query stream does not see what it predicts
    hidden_N[:] = True
  frequent = np.argsort(-share_V, kind='stable')[:count]
  return Top(
    count,
    int(hidden_N.sum()),
    float(np.mean(likelier_N[hidden_N] < count)),
    float(np.mean(np.isin(text.targets[hidden_N], frequent))),
  )


def _first_weights(run):
  """The parameters that the run began with."""
  objective = objectives.of(run.config, run.corpus.vocab_size)
  fresh = jax.jit(objective.init)(jax.random.key(run.config.seed))
  init = workdirs.first_weights(run.workdir)
  if init is None:
    return fresh
  tokenizer = storage.path(run.workdir) / 'tokenizer'
  return initial_weights.parameters(fresh, init, objective, tokenizer, run.config.hf)[0]


def _fill(encoder, params, batch):
  """The network's likeliest token at the first masked position of each row."""

  def read(params, batch, memory):
    states_BPD, _, _ = networks.predictions(encoder, params['encoder'], batch, None)
    return networks.vocabulary_logits(encoder, params, states_BPD[:, :1]).argmax(-1)[:, 0], memory

  return scores.through(read, encoder, params, [batch]).tolist()


def screen(found: Found) -> str:
  """The screen of a run."""
  below = found.entropy - found.loss
  lines = [
    f'Held-out loss per masked token, nats: {found.loss:.2f} at step {found.step:,}, '
    f'{abs(below):.2f} {"below" if below >= 0 else "above"} the unigram entropy',
    '',
    curve.draw(found.curve, found.entropy, 'unigram entropy'),
    '',
    f'{len(found.gaps)} gaps in held-out text, drawn at random (✓: as in the text)',
    '',
    '     ' + ''.join(f'{name:<17}' for name in _COLUMNS).rstrip(),
  ]
  for number, gap in enumerate(found.gaps, 1):
    truth, *guesses = gap[1:]
    cells = [truth, *(f'{g} ✓' if g == truth else g for g in guesses)]
    lines += [f'{number:>3}  {gap.sentence}', '     ' + ''.join(f'{c:<17}' for c in cells).rstrip()]
  right = [sum(g[i] == g.truth for g in found.gaps) for i in (3, 4, 5)]
  frequent = found.gaps[0].most_frequent if found.gaps else ''
  lines += ['', f'Right, of {found.predictions:,} held-out masked tokens and of the gaps above']
  for name, accuracy, gaps in zip(
    ('this network', 'bigrams, both neighbours', f'most frequent token: {frequent}'),
    (found.accuracy, found.bigram_accuracy, found.frequent_accuracy),
    right,
  ):
    lines.append(f'     {name:<28}{accuracy:>7.1%}{gaps:>6} of {len(found.gaps)}')
  if found.top:
    most = f'{found.top.count} tokens'
    lines += [
      '',
      f'Truth among {most}, of {found.top.predictions:,} masked tokens that the row hides',
      f'     {"likeliest by this network":<28}{found.top.accuracy:>7.1%}',
      f'     {"most frequent":<28}{found.top.frequent:>7.1%}',
    ]
  return '\n'.join(lines)


def check(found: Found, least: float) -> None:
  """Raises NotLearned where the run is less than `least` nats below the unigram entropy, or less
  often right than bigrams.
  """
  below = found.entropy - found.loss
  if not below >= least:  # also of a loss that is not a number
    side = 'above' if below < 0 else 'below'
    raise NotLearned(
      f'The held-out loss is {abs(below):.2f} nats {side} the unigram entropy, {least:g} nats '
      'below were required: train longer, or see docs/settings.md.'
    )
  if found.accuracy < found.bigram_accuracy:
    raise NotLearned(
      f'The network is right for {found.accuracy:.1%} of the masked tokens, bigrams for '
      f'{found.bigram_accuracy:.1%}: train longer, or see docs/settings.md.'
    )


def main(_):
  found = find(
    _WORKDIR.value,
    _CORPUS.value,
    gaps=_GAPS.value,
    draw=_DRAW.value,
    top=_TOP.value,
    batches=_BATCHES.value,
    cache_dir=_CACHE_DIR.value,
  )
  print(screen(found), flush=True)
  if _REQUIRE.value is not None:
    check(found, _REQUIRE.value)


if __name__ == '__main__':
  _WORKDIR = flags.DEFINE_string(
    'workdir', None, 'Run to show: W (newest checkpoint), W@STEP or W@best.', required=True
  )
  _CORPUS = flags.DEFINE_string(
    'corpus',
    None,
    "Corpus with the run's tokenizer and held-out text, local or gs://.",
    required=True,
  )
  _GAPS = flags.DEFINE_integer('gaps', 10, 'Gaps that are shown, at most.', lower_bound=1)
  _DRAW = flags.DEFINE_integer('draw', 0, 'Seed that draws the gaps.', lower_bound=0)
  _TOP = flags.DEFINE_integer(
    'top', 0, 'K: count how often the truth is among the K likeliest tokens. 0: no.', lower_bound=0
  )
  _BATCHES = flags.DEFINE_integer(
    'batches', 50, 'Of config.batch_size held-out rows, at most.', lower_bound=1
  )
  _REQUIRE = flags.DEFINE_float(
    'require',
    None,
    'Nats below the unigram entropy. The command fails unless the loss is so low and the accuracy '
    "at least the bigrams'.",
  )
  _CACHE_DIR = flags.DEFINE_string(
    'cache_dir', None, 'Local folder to which a corpus in an object store is mirrored once.'
  )
  cli.run(main)
