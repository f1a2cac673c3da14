"""Scores a trained model on masked tokens, next sentences and sentence order of held-out text (Lan
et al. 2019, Table 5).

    python -m bertzoo_jax.evaluate --workdir W[@STEP|@best] --corpus CORPUS
                                   [--batches 50] [--json FILE]

Three sets of held-out rows, each made as for pretraining, with the masking of the run's config: the
paper builds its sets so.

    mlm   rows of the config's own format; accuracy and loss (nats) at the masked positions
    nsp   two segments, the second the true next one (label 0) or one of another document (1)
    sop   two segments that follow each other, in true (0) or swapped order (1)

Pairs are told by the network's own pair head, also by one that was trained on other pairs: that is
what Table 5 measures. A network without one gets a linear probe: logistic regression on the vector
of position 0, fitted on rows of the train split. A network without a vocabulary head has never seen
a mask; it reads the pairs with the masked tokens put back. A network with a vocabulary head reads
masks, also if a generator filled them in training. A network with a memory is scored twice on mlm
rows: with the memory, batch after batch of the held-out lanes, and without. A network whose rows
end with the classifier gets pairs in that form.

Printed with a standard error: of accuracies √(p(1−p)/n), of losses the deviation by √n, as if all
predictions were independent. The base rate is the share of label 1. Float32; the same command gives
the same numbers.
"""

import json
import warnings
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from bertzoo_jax.common import cli

if __name__ == '__main__':  # before TensorFlow is imported
  cli.quiet_tensorflow()

from bertzoo_jax import hf  # noqa: E402
from bertzoo_jax.assembly import pretrained  # noqa: E402
from bertzoo_jax.batches import pipeline  # noqa: E402
from bertzoo_jax.common import errors  # noqa: E402
from bertzoo_jax.common import storage  # noqa: E402
from bertzoo_jax.corpus import corpus as corpora  # noqa: E402
from bertzoo_jax.corpus import mirror  # noqa: E402
from bertzoo_jax.objectives import generator as generators  # noqa: E402
from bertzoo_jax.objectives import networks  # noqa: E402
from bertzoo_jax.objectives import probe  # noqa: E402
from bertzoo_jax.training import workdir as workdirs  # noqa: E402

PAIRS = ('nsp', 'sop')
_FIT_ROWS = 1 << 15  # that a probe is fitted on, at most
_ROWS = (
  64  # that go through a network together: a batch of thousands of rows would not fit a device
)
_ONE_NETWORK = 'network'  # what a nameless one is called


class Score(NamedTuple):
  """One measure of one network.

  Attributes:
    network: its name.
    rows: 'mlm', 'nsp' or 'sop'.
    num_rows: rows that were read.
    measure: 'accuracy' or 'loss'.
    value, standard_error: of the measure.
    count: predictions that it is the mean of.
    base_rate: share of label 1; None of masked tokens.
    how: 'head' or 'linear probe'; of a network with a memory 'head, memory' or 'head, no memory'.
    fitted_rows: of the train split, that a probe saw; None of a head.
  """

  network: str
  rows: str
  num_rows: int
  measure: str
  value: float
  standard_error: float
  count: int
  base_rate: float | None
  how: str
  fitted_rows: int | None


class Evaluation(NamedTuple):
  """What was measured.

  Attributes:
    workdir: of the run; step: of its checkpoint.
    corpus: hash of the text.
    scores: in the order of networks and sets of rows.
    notes: sentences on what was left out, and on what is to know of the numbers.
  """

  workdir: str
  step: int
  corpus: str
  scores: list[Score]
  notes: list[str]


def evaluate(
  address: str, path: str, *, batches: int = 50, cache_dir: str | None = None
) -> Evaluation:
  """Scores the networks of a run.

  Args:
    address: W, W@STEP or W@best.
    path: a corpus with the run's tokenizer, held-out text in it.
    batches: of config.batch_size rows of each set, at most.
    cache_dir: local folder for the mirror of a corpus in an object store.

  Raises:
    UserError: no such checkpoint, a corpus of another vocabulary or without held-out text, a run
      without a network, or with one from left to right.
  """
  if batches < 1:
    raise errors.UserError(f'--batches is {batches}: at least 1 is needed.')
  params, step, workdir, config, corpus, trained = opened(address, path, cache_dir)
  if any('next_head' in network.of(params) for network in trained):
    raise errors.UserError(
      f'objective={config.objective.name} trains a network that sees no later tokens, but this '
      'command reads both sides of a mask: see its held-out loss per token in metrics.jsonl.'
    )
  notes = _notes(workdir, corpus)
  held_out = {'mlm': _rows(notes, corpus, config, config.format, 'held_out', batches)}
  for pairs in PAIRS:
    try:
      held_out[pairs] = _pairs(notes, corpus, config, pairs, 'held_out', batches)
    except errors.UserError as e:
      notes.append(f'{pairs} rows are left out. {e}')
  scores = []
  for network in trained:
    name, own = network.name or _ONE_NETWORK, network.of(params)
    if 'mlm_head' in own:
      scores += masked_scores(name, network.encoder, own, held_out['mlm'])
    for pairs in [p for p in PAIRS if p in held_out]:
      train = None if 'pair_head' in own else _pairs(notes, corpus, config, pairs, 'train', batches)
      scores.append(pair_score(name, network.encoder, own, pairs, held_out[pairs], train))
  return Evaluation(str(workdir), step, corpus.hash, scores, notes)


class Opened(NamedTuple):
  """A run beside a corpus.

  Attributes:
    params: of the checkpoint; step: its step.
    workdir: of the run; config: of the phase that took that step.
    corpus: open, with the run's vocabulary and held-out text.
    networks: that the run's objective trains.
  """

  params: dict
  step: int
  workdir: str
  config: Any
  corpus: corpora.Corpus
  networks: tuple


def opened(address: str, path: str, cache_dir: str | None = None) -> Opened:
  """A run and held-out text for it; arguments and errors as of `evaluate`."""
  run = pretrained.open_run(address)
  workdir, config = run.workdir, run.config
  corpus = corpora.open(mirror.local(path, cache_dir), config.run.corpus_cache)
  corpora.check(corpus, tokenizer=config.tokenizer, splitting=config.corpus)
  corpora.verify(corpus.path)
  _check_vocabulary(workdir, corpus)
  if not corpus.splits['held_out'].num_tokens:
    raise errors.UserError(
      f'{corpus.path} has no held-out text to score: prepare one with more text or a larger '
      '--config.corpus.held_out.'
    )
  return Opened(run.params, run.step, workdir, config, corpus, run.networks)


def segment_pairs(pairs: str) -> dict:
  """The format of the pairs, with all its fields. Chunks of one sentence make no row, so that both
  labels are equally likely.
  """
  return dict(
    name='segment_pairs',
    pairs=pairs,
    short_rate=0.1,
    negative_rate=0.5,
    negatives='documents',
    lone_sentences='skip',
  )


def rows_of(corpus, config, format, split: str, batches: int) -> list[dict]:
  """At most `batches` batches of config.batch_size rows, each row once; smaller ones if the split
  has fewer rows.

  'held_out' gives the rows of pretraining's evaluation, spread over the split. 'train' gives the
  first ones of an epoch, at most what a probe is fitted on.

  Args:
    corpus: an open corpus.
    config: of the phase; its masking, length, batch_size and seed are used.
    format: section.
    split: 'train' or 'held_out'.
    batches: n.

  Raises:
    UserError: the split has no row of the format, or what pipeline.build refuses.
  """
  fields = dict(
    format=format, masking=config.masking, length=config.length, seed=config.seed, split=split
  )
  size = config.batch_size
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    pipe = pipeline.build(corpus, **fields, batch_size=size)
    # labels of rows that fill a batch would count twice
    if 'pair_labels' in pipe.features and pipe.rows_per_epoch < size:
      size = pipe.rows_per_epoch
      pipe = pipeline.build(corpus, **fields, batch_size=size)
  for sentence in pipe.warnings:
    warnings.warn(sentence, stacklevel=2)
  if split == 'held_out':
    return list(pipe.evaluation_batches(batches))
  return [
    pipe.batch(step)
    for step in range(max(1, min(batches, pipe.rows_per_epoch // size, _FIT_ROWS // size)))
  ]


def masked_scores(name: str, encoder, params: dict, batches: list[dict]) -> list[Score]:
  """Accuracy and loss at the masked positions.

  An encoder with a memory is scored twice: with the memory, which goes from each row of a batch to
  the same row of the next, and without.

  params: of the network, which has an 'mlm_head'.
  """
  first = getattr(encoder, 'first_memory', None)
  if first is None or not jax.tree.leaves(jax.eval_shape(lambda: first(1))):
    return _masked_scores(name, encoder, params, batches, 'head')
  return [
    *_masked_scores(name, encoder, params, batches, 'head, memory', first),
    *_masked_scores(name, encoder, params, batches, 'head, no memory'),
  ]


def _masked_scores(name, encoder, params, batches, how, first=lambda rows: ()):
  """[accuracy, loss]. first: rows → the memory before the first batch."""

  def read(params, batch, memory):
    found = networks.predictions(encoder, params['encoder'], batch, None, memory=memory)
    logits_BPV = networks.vocabulary_logits(encoder, params, found.states_BPD)
    return networks.nll(logits_BPV, batch['masked_targets']), found.memory

  nll_BP, correct_BP = through(read, encoder, params, batches, first)
  weights_BP = np.concatenate([b['masked_weights'] for b in batches]).astype(np.float64)
  num_rows, count, total = (
    int((weights_BP.max(axis=1) > 0).sum()),
    int((weights_BP > 0).sum()),
    max(weights_BP.sum(), 1.0),
  )
  mean = lambda x: float((x * weights_BP).sum() / total)
  accuracy, loss = mean(correct_BP.astype(np.float64)), mean(nll_BP.astype(np.float64))
  deviation = mean((nll_BP.astype(np.float64) - loss) ** 2) ** 0.5
  score = lambda *measured: Score(name, 'mlm', num_rows, *measured, count, None, how, None)
  return [
    score('accuracy', accuracy, _binomial(accuracy, count)),
    score('loss', loss, deviation / max(count, 1) ** 0.5),
  ]


def pair_score(
  name: str, encoder, params: dict, pairs: str, batches: list[dict], train: list[dict] | None
) -> Score:
  """Accuracy on pairs, by the network's pair head or, where train batches are given, by a probe
  that is fitted on them.
  """
  labels_B = _labels(batches)
  if train is None:
    read = lambda params, row_BD: networks.pair_head(encoder).apply(
      {'params': params['pair_head']}, row_BD
    )
    said_B = np.argmax(row_vectors(encoder, params, batches, read), axis=-1)
  else:
    said_B = probe.fit(row_vectors(encoder, params, train), _labels(train)).predict(
      row_vectors(encoder, params, batches)
    )
  accuracy = float(np.mean(said_B == labels_B))
  how, fitted = ('head', None) if train is None else ('linear probe', len(_labels(train)))
  return Score(
    name,
    pairs,
    len(labels_B),
    'accuracy',
    accuracy,
    _binomial(accuracy, len(labels_B)),
    len(labels_B),
    float(np.mean(labels_B)),
    how,
    fitted,
  )


def row_vectors(
  encoder, params: dict, batches: list[dict], head=lambda params, row_BD: row_BD
) -> np.ndarray:
  """head(params, the vectors that classify rows) of all rows, in order. For an encoder whose rows
  end with the classifier, the classifier is moved to the end of each row first.
  """
  if encoder.padding_side == 'left':
    batches = [_classifier_last(batch) for batch in batches]

  def read(params, batch, memory):
    if 'mlm_head' not in params:  # it has never seen a mask
      batch = {**batch, 'input_ids': generators.fill(batch, batch['masked_targets'])[0]}
    hidden_BLD = networks.encode(encoder, params['encoder'], batch, None)
    return head(params, encoder.row_vectors(hidden_BLD, batch)), memory

  return through(read, encoder, params, batches)


def table(evaluation: Evaluation) -> str:
  """The scores, aligned, and the notes."""
  lines = [('network', 'rows', 'measure', 'value ± standard error', 'base rate', 'how')]
  for s in evaluation.scores:
    value = (
      f'{s.value:.2%} ± {s.standard_error:.2%}'
      if s.measure == 'accuracy'
      else f'{s.value:.4f} ± {s.standard_error:.4f} nats'
    )
    rate = '–' if s.base_rate is None else f'{s.base_rate:.1%}'
    how = s.how if s.fitted_rows is None else f'{s.how} on {s.fitted_rows:,} train rows'
    lines.append((s.network, f'{s.rows} {s.num_rows:,}', s.measure, value, rate, how))
  widths = [max(map(len, column)) for column in zip(*lines)]
  rows = [
    '  '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines
  ]
  return '\n'.join([*rows, *(f'note: {note}' for note in evaluation.notes)])


def to_json(evaluation: Evaluation) -> str:
  """The evaluation as JSON, with the fields of Evaluation and Score."""
  return (
    json.dumps(
      {**evaluation._asdict(), 'scores': [s._asdict() for s in evaluation.scores]},
      indent=1,
      ensure_ascii=False,
    )
    + '\n'
  )


def _check_vocabulary(workdir, corpus):
  """Rows of other words are refused: every id would be another word's."""
  theirs, ours = (
    hf.vocabulary(storage.path(workdir) / 'tokenizer'),
    hf.vocabulary(corpus.path / 'tokenizer'),
  )
  if theirs and ours and (difference := hf.vocabulary_difference(ours, theirs)):
    raise errors.UserError(
      f'{workdir} was trained with another vocabulary than that of {corpus.path}: {difference} '
      f'Prepare the text with --tokenizer {storage.path(workdir) / "tokenizer"}.'
    )


def _notes(workdir, corpus):
  """A sentence if the run was trained on other text."""
  trained = workdirs.corpus_record(workdir).get('hash')
  if trained in (None, corpus.hash):
    return []
  return [
    f'the run was trained on the corpus {trained[:12]}…, this one is {corpus.hash[:12]}…: see that '
    'the run has not read its held-out text.'
  ]


def _pairs(notes, corpus, config, pairs, split, batches):
  if corpus.manifest['splitter'] == 'none':
    raise errors.UserError(
      'The corpus was not split into sentences: prepare one with '
      '--config.corpus.splitter=rules:LANG (or lines, '
      'or regex:PATTERN), and train on it.'
    )
  return _rows(notes, corpus, config, segment_pairs(pairs), split, batches)


def _rows(notes, *args):
  """rows_of(*args); what it warns of is added to the notes, once."""
  with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter('always')
    batches = rows_of(*args)
  notes += [sentence for w in said if (sentence := str(w.message)) not in notes]
  return batches


def through(read, encoder, params, batches, first=lambda rows: ()):
  """The values of read(params, batch, memory) → (values, memory) of all rows of batches, as numpy
  arrays [N, …] (a tuple of them for a tuple).

  first: number of rows → the memory before the first batch. Each row of a batch continues with the
    memory of the same row of the batch before.
  """

  def narrowed(params, batch, memory):
    if encoder.type_vocab_size:  # a network of one segment reads both as that one
      batch = {
        **batch,
        'segment_ids': jnp.minimum(batch['segment_ids'], encoder.type_vocab_size - 1),
      }
    return read(params, batch, memory)

  compiled, params, out, memories = jax.jit(narrowed), jax.device_put(params), [], {}
  with jax.default_matmul_precision('highest'):
    for batch in batches:
      size = len(batch['input_ids'])
      step = min(size, _ROWS)
      for start in range(0, size, step):
        # one shape, hence one program: the last row fills up
        rows = np.minimum(np.arange(start, start + step), size - 1)
        memory = memories[start] if start in memories else first(step)
        part = {name: x[rows] for name, x in batch.items()}
        got, memories[start] = compiled(params, part, memory)
        out.append([np.asarray(x)[: size - start] for x in jax.tree.leaves(got)])
  parts = [np.concatenate(arrays) for arrays in zip(*out)]
  return jax.tree.unflatten(jax.tree.structure(got), parts)


def _classifier_last(batch):
  """The batch with each row's classifier moved from the first place to the last, in a segment of
  its own. All tokens of a row see each other.
  """
  end_B1 = (batch['pack_ids'] > 0).sum(axis=1, keepdims=True)
  place_BL = np.arange(batch['pack_ids'].shape[1]) + 0 * end_B1
  source_BL = np.where(
    place_BL < end_B1 - 1, place_BL + 1, np.where(place_BL < end_B1, 0, place_BL)
  )
  ids_BL, segments_BL = (
    np.take_along_axis(batch[name], source_BL, axis=1) for name in ('input_ids', 'segment_ids')
  )
  segments_BL = np.where(place_BL == end_B1 - 1, segments_BL.max() + 1, segments_BL)
  masked_BP = batch['masked_positions']
  of_classifier_BP = np.where(batch['masked_weights'] > 0, end_B1 - 1, 0)
  moved = {
    **batch,
    'input_ids': ids_BL,
    'segment_ids': segments_BL.astype(np.int32),
    'masked_positions': np.where(masked_BP > 0, masked_BP - 1, of_classifier_BP).astype(np.int32),
  }
  return {name: x for name, x in moved.items() if name != 'order'}


def _labels(batches):
  return np.concatenate([b['pair_labels'] for b in batches])


def _binomial(p, n):
  return (p * (1.0 - p) / max(n, 1)) ** 0.5


def main(_):
  if _JSON.value and storage.path(_JSON.value).exists():
    raise errors.UserError(
      f'{_JSON.value} exists and is not overwritten: give another name, or remove it first.'
    )
  found = evaluate(
    _WORKDIR.value, _CORPUS.value, batches=_BATCHES.value, cache_dir=_CACHE_DIR.value
  )
  print(
    f'{found.workdir} at step {found.step:,} on held-out text of the corpus {found.corpus[:12]}'
  )
  print(table(found))
  if _JSON.value:
    storage.write_text(_JSON.value, to_json(found))


if __name__ == '__main__':
  _WORKDIR = flags.DEFINE_string(
    'workdir', None, 'Run to score: W (newest checkpoint), W@STEP or W@best.', required=True
  )
  _CORPUS = flags.DEFINE_string(
    'corpus',
    None,
    "Corpus with the run's tokenizer and held-out text, local or gs://.",
    required=True,
  )
  _BATCHES = flags.DEFINE_integer(
    'batches', 50, 'Of config.batch_size rows of each set, at most; a probe is fitted on as many.'
  )
  _CACHE_DIR = flags.DEFINE_string(
    'cache_dir', None, 'Local folder to which a corpus in an object store is mirrored once.'
  )
  _JSON = flags.DEFINE_string(
    'json', None, 'File to write the scores to; an existing one is refused.'
  )
  cli.run(main)
