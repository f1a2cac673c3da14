"""Scores on masked tokens, next sentences and sentence order of held-out text (Lan et al. 2019,
Table 5). docs/commands.md explains each set of rows.
"""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import tables
from bertzoo_jax.evaluate import held_out
from bertzoo_jax.objectives import generator as generators
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective as objectives
from bertzoo_jax.objectives import probe
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import workdir as workdirs

PAIRS = ('nsp', 'sop')
# Rows per forward pass: a batch of thousands of rows would not fit a device.
_ROWS = 64
_PARTS = 8  # parts of a row with a loss each


class Score(NamedTuple):
  """One measure of one network."""

  network: str  # its name
  rows: str  # 'mlm', 'nsp' or 'sop'
  num_rows: int  # rows that were read
  measure: str  # 'accuracy' or 'loss'
  value: float
  standard_error: float
  count: int  # number of predictions
  base_rate: float | None  # share of label 1; None for masked tokens
  how: str  # 'head' or 'linear probe'; with a memory 'head, memory' or 'head, no memory'
  fitted_rows: int | None  # rows of the train split that a probe was fitted on; None for a head
  # the first and the last place in the row, from 1, of its predictions; None for all
  places: tuple[int, int] | None = None


class Evaluation(NamedTuple):
  workdir: str  # folder of the run
  step: int  # step of its checkpoint
  corpus: str  # hash of the text
  scores: list[Score]  # in the order of networks and sets of rows
  notes: list[str]  # sentences that say which scores were left out, and explain the numbers
  places: list[Score]  # losses of masked tokens in each eighth of the row


def evaluate(
  address: str,
  path: str,
  *,
  batches: int = 50,
  cache_dir: str | None = None,
  masking_of: str | None = None,
) -> Evaluation:
  """Scores the networks of a run.

  Args:
    address: W, W@STEP or W@best.
    path: a corpus with the run's tokenizer, held-out text in it.
    batches: batches of config.batch_size rows per set, at most.
    cache_dir: local folder for the mirror of a corpus in an object store.
    masking_of: workdir of the run whose masking the mlm rows get; None for this run.

  Raises UserError: no such checkpoint, a corpus of another vocabulary or without held-out text, a
  run without a network, or with one from left to right.
  """
  if batches < 1:
    raise errors.UserError(f'--batches is {batches}: at least 1 is needed.')
  run, corpus = held_out.opened(address, path, cache_dir)
  params, step, workdir, config, trained = run
  if any(objectives.one_way(n.extract(params), n.learned) for n in trained):
    raise errors.UserError(
      f'objective={config.objective.name} trains a network that sees no later tokens, but this '
      'command reads both sides of a mask: see its held-out loss per token in metrics.jsonl.'
    )
  notes = notes_on(workdir, corpus)
  if kind := checkpoint.parse_address(address)[2]:
    notes.append(f'the weights are an average ({kind}).')
  sets = {'mlm': held_out.rows_of(corpus, config, config.format, 'held_out', batches, notes)}
  if masking_of is not None:
    masked = held_out.masked_as(config, masking_of)
    rows = held_out.rows_of(corpus, masked, config.format, 'held_out', batches, notes)
    if ('order' in rows[0]) != ('order' in sets['mlm'][0]):
      raise errors.UserError(
        f'masking={masked.masking.name} of {masking_of} and masking={config.masking.name} of '
        f'{workdir} are of different kinds: one has an order in which tokens are predicted, the '
        'other none. Give --masking_of a run of the same kind.'
      )
    sets['mlm'] = rows
  for pairs in PAIRS:
    try:
      sets[pairs] = _pairs(notes, corpus, config, pairs, 'held_out', batches)
    except errors.UserError as e:
      notes.append(f'{pairs} rows are left out. {e}')
  scores = []
  for network in trained:
    name, tree = network.name or 'network', network.extract(params)
    if 'mlm_head' in tree:
      rows = [networks.shifted_left(b) if network.predicts_next else b for b in sets['mlm']]
      scores += masked_scores(name, network.encoder, tree, rows, network.predicts_next)
    for pairs in [p for p in PAIRS if p in sets]:
      train = (
        None if 'pair_head' in tree else _pairs(notes, corpus, config, pairs, 'train', batches)
      )
      scores.append(pair_score(name, network.encoder, tree, pairs, sets[pairs], train))
  whole = [s for s in scores if s.places is None]
  places = [s for s in scores if s.places is not None]
  return Evaluation(str(workdir), step, corpus.hash, whole, notes, places)


def masked_scores(
  name: str, encoder, params: dict, batches: list[dict], ahead: bool = False
) -> list[Score]:
  """Accuracy and loss at the masked positions, then the loss in each eighth of the row.

  An encoder with a memory is scored twice: with the memory, which goes from each row of a batch to
  the same row of the next, and without.

  params: of the network, which has an 'mlm_head'. ahead: whether batches are of
  networks.shifted_left.
  """
  first = encoder.first_memory
  if first is None or not jax.tree.leaves(jax.eval_shape(lambda: first(1))):
    return _masked_scores(name, encoder, params, batches, ahead, 'head')
  return [
    *_masked_scores(name, encoder, params, batches, ahead, 'head, memory', first),
    *_masked_scores(name, encoder, params, batches, ahead, 'head, no memory'),
  ]


def _masked_scores(name, encoder, params, batches, ahead, how, first=lambda rows: ()):
  """[accuracy, loss, losses by place]. first: rows → the memory before the first batch."""

  def read(params, batch, memory):
    out = networks.predictions(encoder, params['encoder'], batch, None, memory=memory)
    logits_BPV = networks.vocabulary_logits(encoder, params, out.states_BPD)
    return networks.nll(logits_BPV, batch['masked_targets']), out.memory

  nll_BP, correct_BP = through(read, encoder, params, batches, first)
  joined = lambda feature: np.concatenate([b[feature] for b in batches])
  weights_BP = joined('masked_weights').astype(np.float64)
  places_BP = joined('masked_positions') + ahead  # places of tokens, not of outputs
  num_rows, length = int((weights_BP.max(axis=1) > 0).sum()), batches[0]['input_ids'].shape[1]

  def score(measure, x_BP, places=None):
    within_BP = weights_BP
    if places is not None:
      within_BP = weights_BP * ((places_BP >= places[0] - 1) & (places_BP < places[1]))
    total, count = max(within_BP.sum(), 1.0), int((within_BP > 0).sum())
    mean = lambda x_BP: float((x_BP * within_BP).sum() / total)
    x_BP = x_BP.astype(np.float64)
    value = mean(x_BP)
    error = mean((x_BP - value) ** 2) ** 0.5 / max(count, 1) ** 0.5
    error = binomial(value, count) if measure == 'accuracy' else error
    return Score(name, 'mlm', num_rows, measure, value, error, count, None, how, None, places)

  ends = [round(i * length / _PARTS) for i in range(_PARTS + 1)]
  by_place = [score('loss', nll_BP, (a + 1, b)) for a, b in zip(ends, ends[1:])]
  all_places = score('accuracy', correct_BP), score('loss', nll_BP)
  return [*all_places, *(s for s in by_place if s.count)]


def baseline(name: str, accuracy: Score, value: float) -> Score:
  """The Score of an accuracy of counts of words. accuracy: of a network on the same predictions."""
  error = binomial(float(value), accuracy.count)
  return accuracy._replace(network=name, value=float(value), standard_error=error, how='counts')


def pair_score(
  name: str, encoder, params: dict, pairs: str, batches: list[dict], train: list[dict] | None
) -> Score:
  """Accuracy on pairs, by the network's head, or by a probe fitted on train batches."""
  labels_B = _labels(batches)
  if train is None:
    head = heads.pair().made(encoder)
    read = lambda params, row_BD: head.apply({'params': params['pair_head']}, row_BD)
    predicted_B = np.argmax(row_vectors(encoder, params, batches, read), axis=-1)
  else:
    predicted_B = probe.fit(row_vectors(encoder, params, train), _labels(train)).predict(
      row_vectors(encoder, params, batches)
    )
  accuracy, count, rate = float(np.mean(predicted_B == labels_B)), len(labels_B), np.mean(labels_B)
  how = ('head', None) if train is None else ('linear probe', len(_labels(train)))
  error = binomial(accuracy, count)
  return Score(name, pairs, count, 'accuracy', accuracy, error, count, float(rate), *how)


def row_vectors(
  encoder, params: dict, batches: list[dict], head=lambda params, row_BD: row_BD
) -> np.ndarray:
  """head(params, pooled vectors) of all rows, in order. If the encoder's rows end with the
  classifier, it is first moved to the end of each row.
  """
  if encoder.padding_side == 'left':
    batches = [_classifier_last(batch) for batch in batches]

  def read(params, batch, memory):
    if 'mlm_head' not in params:  # this network never saw a mask
      batch = {**batch, 'input_ids': generators.fill(batch, batch['masked_targets'])[0]}
    hidden_BLD = networks.encode(encoder, params['encoder'], batch, None)
    return head(params, encoder.pooled(hidden_BLD, batch)), memory

  return through(read, encoder, params, batches)


def table(evaluation: Evaluation) -> str:
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
  notes = [f'note: {note}' for note in evaluation.notes]
  return '\n'.join([tables.aligned(lines), *_places(evaluation), *notes])


def _places(evaluation) -> list[str]:
  """The losses by place, a row per network; [] without any."""
  values = {(s.network, s.how, s.places): f'{s.value:.4f}' for s in evaluation.places}
  places = sorted({s.places for s in evaluation.places})
  lines = [('mlm loss at tokens', 'how', *(f'{a}–{b}' for a, b in places))]
  for network in dict.fromkeys((s.network, s.how) for s in evaluation.places):
    lines.append((*network, *(values.get((*network, at), '–') for at in places)))
  return ['', tables.aligned(lines)] if places else []


def to_json(result: NamedTuple) -> str:
  """A NamedTuple as JSON, by its fields, with the NamedTuples inside it."""
  return json.dumps(tables.plain(result), indent=1, ensure_ascii=False) + '\n'


def notes_on(workdir, corpus) -> list[str]:
  """A sentence if the run was trained on other text."""
  record = workdirs.corpus_record(workdir)
  trained = record.get('hash')
  if trained is None or corpus.hash in (trained, *record.get('corpora', {}).values()):
    return []
  return [
    f'the run was trained on the corpus {trained[:12]}…, this one is {corpus.hash[:12]}…: see that '
    'the run has not read its held-out text.'
  ]


def _pairs(notes, corpus, config, pairs, split, batches):
  if corpus.manifest['splitter'] == 'none':
    raise errors.UserError(
      'The corpus was not split into sentences: prepare one with '
      '--config.corpus.splitter=rules:LANG (or lines, or regex:PATTERN), and train on it.'
    )
  return held_out.rows_of(corpus, config, held_out.segment_pairs(pairs), split, batches, notes)


def through(read, encoder, params, batches, first=lambda rows: (), rows: int | None = None):
  """The values of read(params, batch, memory) → (values, memory) of all rows of batches, as numpy
  arrays [N, …] (a tuple of them for a tuple).

  first: number of rows → the memory before the first batch. Each row of a batch continues with the
    memory of the same row of the batch before.
  rows: per forward pass; None for as many as fit a device with logits of whole rows.
  """
  most = rows or _ROWS
  compiled, params, out, memories = _compiled(read, encoder), jax.device_put(params), [], {}
  with jax.default_matmul_precision('highest'):
    for batch in batches:
      size = len(batch['input_ids'])
      step = min(size, most)
      for start in range(0, size, step):
        # one shape, hence one program: copies of the last row fill it up
        chosen = np.minimum(np.arange(start, start + step), size - 1)
        memory = memories[start] if start in memories else first(step)
        part = {name: x[chosen] for name, x in batch.items()}
        got, memories[start] = compiled(params, part, memory)
        out.append([np.asarray(x)[: size - start] for x in jax.tree.leaves(got)])
  parts = [np.concatenate(arrays) for arrays in zip(*out)]
  return jax.tree.unflatten(jax.tree.structure(got), parts)


def kept(make):
  """make(*args), made anew for other arguments than at the last call; they need no hash."""
  last = [None, None]

  def latest(*args):
    if last[0] != args:
      last[:] = args, make(*args)
    return last[1]

  return latest


@kept  # likelihoods of several lengths share their programs
def _compiled(read, encoder):
  def narrowed(params, batch, memory):
    if encoder.type_vocab_size:  # a network with one segment reads both texts as that segment
      token_type_ids = jnp.minimum(batch['token_type_ids'], encoder.type_vocab_size - 1)
      batch = {**batch, 'token_type_ids': token_type_ids}
    return read(params, batch, memory)

  return jax.jit(narrowed)


def _classifier_last(batch):
  """The batch with each row's classifier at its end, in a segment of its own; no `order`."""
  end_B1 = (batch['segment_ids'] > 0).sum(axis=1, keepdims=True)
  place_BL = np.arange(batch['segment_ids'].shape[1]) + 0 * end_B1
  behind_BL = np.where(place_BL < end_B1, 0, place_BL)
  source_BL = np.where(place_BL < end_B1 - 1, place_BL + 1, behind_BL)
  ids_BL, segments_BL = (
    np.take_along_axis(batch[name], source_BL, axis=1) for name in ('input_ids', 'token_type_ids')
  )
  segments_BL = np.where(place_BL == end_B1 - 1, segments_BL.max() + 1, segments_BL)
  masked_BP = batch['masked_positions']
  classifier_BP = np.where(batch['masked_weights'] > 0, end_B1 - 1, 0)
  moved = {
    **batch,
    'input_ids': ids_BL,
    'token_type_ids': segments_BL.astype(np.int32),
    'masked_positions': np.where(masked_BP > 0, masked_BP - 1, classifier_BP).astype(np.int32),
  }
  return {name: x for name, x in moved.items() if name != 'order'}


def _labels(batches):
  return np.concatenate([b['pair_labels'] for b in batches])


def binomial(p: float, n: int) -> float:
  """The standard error of a share p of n."""
  return (p * (1.0 - p) / max(n, 1)) ** 0.5
