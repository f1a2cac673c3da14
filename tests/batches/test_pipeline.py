"""batch(step) is a pure function: of hosts, of seeking, of threads, over epoch borders. Settings
that cannot work are refused at once.
"""

import pathlib
import re
import threading
import warnings

import numpy as np
import pytest
from small_networks import with_targets

from bertzoo_jax import parts
from bertzoo_jax.batches import epochs
from bertzoo_jax.batches import masking as maskings
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus
from bertzoo_jax.corpus import splits
from configs import bert
from tests.batches import masking_rows
from tests.found import call_part

V, SPECIAL = 200, dict(pad=0, unk=1, cls=2, sep=3, mask=4)
MASKING = dict(
  name='token',
  rate=0.15,
  corruption=(0.8, 0.1, 0.1),
  rounding='nearest',
  maskable='text',
  random_tokens='all',
  sampling='distinct',
  repeat=0,
)
HOW = dict(masking=MASKING, length=32, batch_size=8, seed=0)
FORMATS = {
  name: dict(parts.section(x, **({'reuse_length': 8} if name == 'memory_segments' else {})))
  for name, x in parts.SECTIONS['format'].items()
}


def _text(documents=30, seed=0):
  """(tokens, sentence starts, document starts) of documents with 0 to 12 sentences of 0 to 20
  tokens.
  """
  draw = np.random.default_rng(seed)
  sentences = draw.integers(0, 13, documents)
  sentences[0] = 5
  lengths = draw.integers(0, 21, sentences.sum())
  return (
    draw.integers(5, V, lengths.sum()),
    np.append(0, np.cumsum(lengths)),
    np.append(0, np.cumsum(sentences)),
  )


def _quiet(text, **settings):
  """A pipeline without its warnings."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    return pipeline.build(text, **settings)


def _build(name='segment_pairs', masking=None, documents=30, **fields):
  text = corpus.in_memory(*_text(documents), V, SPECIAL, held_out=_text(9, seed=1))
  settings = HOW | dict(seed=3, masking=MASKING | (masking or {}))
  return _quiet(text, format=FORMATS[name], **(settings | fields))


def _same(one, two):
  assert one.keys() == two.keys()
  for name in one:
    np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def _border(pipe, batch_size=8):
  """The first step whose batch holds rows of two epochs; of lanes, whose batches never do, the
  first step of the second.
  """
  n = pipe.rows_per_epoch
  return next(
    (s for s in range(100 * n) if s * batch_size // n != ((s + 1) * batch_size - 1) // n),
    n // batch_size,
  )


@pytest.mark.parametrize('name', FORMATS)
def test_seeking_equals_walking(name):
  pipe = _build(name)
  border = _border(pipe)
  walked, sought = (list(_build(name).iterate(a, border + 4)) for a in (0, border - 1))
  assert len(walked) == border + 4
  for step, batch in enumerate(walked):
    _same(batch, pipe.batch(step))
  for one, two in zip(walked[border - 1 :], sought, strict=True):
    _same(one, two)


def _slow_but(names):
  """The formats, of which all but these are long proofs."""
  slow = lambda name: [pytest.mark.slow] * (name not in names)
  return [pytest.param(name, marks=slow(name)) for name in FORMATS]


@pytest.mark.parametrize('name', FORMATS)
@pytest.mark.parametrize('hosts', [2, pytest.param(4, marks=pytest.mark.slow)])
def test_hosts_together_hold_the_same_global_batch(name, hosts):
  whole = _build(name)
  border = _border(whole)
  parts = [_build(name, host=(i, hosts)) for i in range(hosts)]
  for step in (0, border, border + 1):
    shares = [part.batch(step) for part in parts]
    _same(whole.batch(step), {k: np.concatenate([p[k] for p in shares]) for k in shares[0]})


def test_a_batch_may_be_longer_than_an_epoch():
  build = lambda **host: _build('full_sentences', documents=4, batch_size=64, **host)
  pipe = build()
  assert pipe.rows_per_epoch < 32 and 'fewer than a batch' in pipe.warnings[0]
  _same(pipe.batch(3), next(iter(pipe.iterate(3, 4))))
  halves = [build(host=(i, 2)).batch(3) for i in range(2)]
  _same(pipe.batch(3), {k: np.concatenate([h[k] for h in halves]) for k in halves[0]})


@pytest.mark.parametrize('name', ['full_sentences', 'doc_sentences'])
def test_an_epoch_visits_every_row_once_and_each_in_its_own_order(name):
  pipe = _build(name, batch_size=1)
  n = pipe.rows_per_epoch
  orders = [[tuple(with_targets(pipe.batch(e * n + i))[0]) for i in range(n)] for e in range(3)]
  assert len(set(orders[0])) == n
  assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
  assert orders[0] != orders[1] != orders[2]


def test_masks_are_new_in_every_epoch_or_repeat_as_asked():
  def masks(repeat, epochs):
    pipe = _build('full_sentences', dict(repeat=repeat), batch_size=1)
    n = pipe.rows_per_epoch
    return [
      {
        tuple(with_targets(b)[0]): tuple(b['input_ids'][0])
        for b in pipe.iterate(e * n, (e + 1) * n)
      }
      for e in range(epochs)
    ]

  dynamic, static = masks(0, 3), masks(2, 4)
  assert dynamic[0] != dynamic[1] != dynamic[2] and dynamic[0] != dynamic[2]
  assert static[0] == static[2] and static[1] == static[3] and static[0] != static[1]
  assert static[0] == dynamic[0] and static[1] == dynamic[1]


def test_repeat_repeats_the_row_list_of_a_pair_format_too():
  pipe = _build('segment_pairs', dict(repeat=1), batch_size=1)
  n = pipe.rows_per_epoch
  epochs = [
    sorted(tuple(b['input_ids'][0]) for b in pipe.iterate(e * n, (e + 1) * n)) for e in range(2)
  ]
  assert epochs[0] == epochs[1]
  pipe = _build('segment_pairs', dict(repeat=0), batch_size=1)
  # lists differ in length, so the border is that of epoch 0
  assert len({len(pipe._source.order.lists.get(e)) for e in range(6)}) > 1


def test_a_longer_list_is_not_finished_and_a_shorter_one_wraps():
  pipe = _build('segment_pairs', batch_size=1, seed=2)
  n = pipe.rows_per_epoch
  lengths = [len(pipe._source.order.lists.get(e)) for e in range(8)]
  longer, shorter = int(np.argmax(lengths)), int(np.argmin(lengths))
  assert lengths[longer] > n > lengths[shorter]
  for epoch in (longer, shorter):
    rows = [
      tuple(b['input_ids'][0]) + tuple(b['masked_positions'][0])
      for b in pipe.iterate(epoch * n, (epoch + 1) * n)
    ]
    # two short rows may be equal by chance
    assert len(rows) == n and len(set(rows)) >= min(n, lengths[epoch]) - 2


def test_seed_phase_and_split_change_the_batch_and_nothing_else_does():
  base = _build('full_sentences').batch(0)
  _same(base, _build('full_sentences').batch(0))
  for change in (dict(seed=4), dict(phase=1), dict(split='held_out')):
    assert (base['input_ids'] != _build('full_sentences', **change).batch(0)['input_ids']).any()


@pytest.mark.parametrize('border', (5, pytest.param(40, marks=pytest.mark.slow)))
def test_phases_of_unlike_batches_read_the_rows_of_one_phase_of_one_row_per_step(border):
  config = bert.get_config('tiny')
  config.length, config.batch_size, config.seed = 32, 8, 3
  config.format, config.masking = FORMATS['segment_pairs'], MASKING
  config.phases = ((border, {}), (3, {'batch_tokens': 96}), (2, {'batch_size': 64}))
  text = corpus.in_memory(*_text(), V, SPECIAL)
  phases = configuration.phases(config)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    pipes = [pipeline.for_phase(text, phase) for phase in phases]
    one = _build(batch_size=1)
  batches = [pipe.batch(step) for pipe, phase in zip(pipes, phases) for step in range(phase.steps)]
  assert [len(b['input_ids']) for b in batches] == [8] * border + [3] * 3 + [64] * 2
  whole = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
  rows = [one.batch(step) for step in range(8 * border + 9 + 128)]
  _same(whole, {name: np.concatenate([r[name] for r in rows]) for name in rows[0]})
  assert 8 * border % one.rows_per_epoch, 'the phases meet inside an epoch'


@pytest.mark.parametrize('name', FORMATS)
def test_features_have_the_declared_shapes_and_dtypes_and_stand_in_the_table(name):
  pipe = _build(name, host=(1, 2))
  batch = pipe.batch(0)
  assert {k: ((8, *v.shape[1:]), v.dtype) for k, v in batch.items()} == {
    k: (s, np.dtype(d)) for k, (s, d) in pipe.features.items()
  }
  assert all(len(v) == 4 for v in batch.values())
  table = (pathlib.Path(pipeline.__file__).parent / 'README.md').read_text()
  listed = {
    m[0]: (m[1], m[2])
    for m in re.findall(r'^\| `(\w+)` \| (\w+) \| (\[[BLP, ]+\]) \|', table, re.MULTILINE)
  }
  for feature, (shape, dtype) in pipe.features.items():
    letters = {8: 'B', 32: 'L', pipe.num_predictions: 'P'}
    axes = ', '.join(letters[n] for n in shape)
    assert listed[feature] == (np.dtype(dtype).name, f'[{axes}]')


# --- evaluation ---


def test_evaluation_covers_the_held_out_rows_once_with_fixed_masks():
  pipe = _build('full_sentences', split='held_out')
  n = pipe.rows_per_epoch
  batches = list(pipe.evaluation_batches(1000))
  for one, two in zip(batches, pipe.evaluation_batches(1000), strict=True):
    _same(one, two)
  assert len(batches) == -(-n // 8)
  weights = np.concatenate([b['masked_weights'].sum(1) for b in batches])
  assert (weights[:n] > 0).all() and not weights[n:].any()
  tokens = np.concatenate([with_targets(b) for b in batches])[:n]
  # in the order of the text, nothing lost
  assert tokens[tokens >= 5].tolist() == _text(9, seed=1)[0].tolist()
  real = np.concatenate([b['segment_ids'] for b in batches]).sum(1)
  # what is counted by tokens counts no filler, whose masks nobody fills
  assert (real[:n] > 0).all() and not real[n:].any()
  halves = [
    _build('full_sentences', split='held_out', host=(i, 2)).evaluation_batches(1000)
    for i in range(2)
  ]
  for whole, *shares in zip(batches, *halves, strict=True):
    _same(whole, {k: np.concatenate([p[k] for p in shares]) for k in whole})


def test_evaluation_is_the_same_for_every_seed_and_phase():
  for one, two in zip(
    _build(split='held_out').evaluation_batches(9),
    _build(split='held_out', seed=4, phase=1).evaluation_batches(9),
    strict=True,
  ):
    _same(one, two)
  assert not np.array_equal(_build().batch(0)['input_ids'], _build(phase=1).batch(0)['input_ids'])


@pytest.mark.parametrize('name', FORMATS)
def test_held_out_rows_predict_text_only_whatever_a_masking_takes(name):
  changes = dict(maskable='all_but_padding', sampling='independent', rate=0.3)
  pipe = _build(name, changes, split='held_out')
  features, keys = pipe._source.rows(0, np.arange(8) % pipe.rows_per_epoch, shuffled=False)
  fields = MASKING | changes
  mask = call_part(
    maskings, fields.pop('name'), 32, corpus.in_memory(*_text(), V, SPECIAL), **fields
  )
  wished = masking_rows.run(mask, features, keys)  # as in training
  here = next(iter(pipe.evaluation_batches(1000)))
  text = ~np.isin(features['input_ids'], [i for role, i in SPECIAL.items() if role != 'unk'])
  counts = np.take_along_axis(text, wished['masked_positions'], axis=1)
  counts &= np.arange(8)[:, None] < pipe.rows_per_epoch
  assert (wished['masked_weights'] > counts).any()
  np.testing.assert_array_equal(here['masked_weights'], wished['masked_weights'] * counts)
  np.testing.assert_array_equal(
    here['input_ids'], np.where(text, wished['input_ids'], features['input_ids'])
  )
  for same in ('masked_positions', 'masked_targets'):
    np.testing.assert_array_equal(here[same], wished[same])


def test_documents_of_one_sentence_are_remarked_on_where_pairs_are_made():
  alone = corpus.in_memory(np.full(40, 9), range(0, 41, 4), range(11), V, SPECIAL)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    pair, whole = (
      pipeline.build(alone, format=FORMATS[f], **HOW) for f in ('segment_pairs', 'full_sentences')
    )
  assert any('100% of the documents have a single sentence' in w for w in pair.warnings)
  assert (pair.batch(0)['pair_labels'] == 1).all()
  assert not any('single sentence' in w for w in whole.warnings)


def test_evaluation_of_few_batches_takes_rows_spread_over_the_split():
  pipe = _build('full_sentences', split='held_out', batch_size=2)
  batches = list(pipe.evaluation_batches(2))
  everything = [tuple(r) for b in pipe.evaluation_batches(1000) for r in with_targets(b)]
  picked = [everything.index(tuple(r)) for b in batches for r in with_targets(b)]
  assert len(batches) == 2 and picked == [i * pipe.rows_per_epoch // 4 for i in range(4)]


@pytest.mark.parametrize('size', [8, 64])
def test_evaluation_of_pairs_has_each_row_once_and_padding_behind_the_last(size):
  pipe = _build('segment_pairs', split='held_out', batch_size=size)
  n, batches = pipe.rows_per_epoch, list(pipe.evaluation_batches(1000))
  assert n % 8 and n < 64 and len(batches) == -(-n // size)
  real = np.concatenate([b['segment_ids'] for b in batches]).any(axis=1)
  assert real.tolist() == [i < n for i in range(len(real))]


# --- refusals ---


@pytest.mark.parametrize(
  'fields,message',
  [
    (dict(batch_size=6, host=(0, 4)), 'batch_size is 6'),
    (dict(batch_size=0), 'batch_size is 0'),
    (dict(length=3), 'length is 3'),
    (dict(split='heldout'), "Did you mean 'held_out'"),
    (dict(format=dict(name='segment_pair')), "Did you mean 'segment_pairs'"),
    (dict(masking=dict(name='tokens')), "Did you mean 'token'"),
  ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(fields, message):
  text = corpus.in_memory(*_text(), V, SPECIAL, held_out=_text(9))
  with pytest.raises(errors.UserError, match=message):
    pipeline.build(text, **(HOW | dict(format=FORMATS['segment_pairs']) | fields))


@pytest.mark.parametrize('text', [([], [0], [0]), ([], [0, 0], [0, 1]), ([], [0], [0, 0])])
def test_a_corpus_without_tokens_is_refused(text):
  with pytest.raises(errors.UserError, match='empty'):
    pipeline.build(corpus.in_memory(*text, V, SPECIAL), format=FORMATS['full_sentences'], **HOW)


# Each format has one of them in every run, and the intricate one all.
SMALLEST = [[1]], [[1], [], [0]], [[0, 1, 0]], [[1], [1]], [[200]]


@pytest.mark.parametrize(
  'lengths, name',
  [
    pytest.param(
      lengths, name, marks=[pytest.mark.slow] * (name != 'segment_pairs' and i % len(SMALLEST) != j)
    )
    for i, name in enumerate(sorted(set(FORMATS) - {'memory_segments'}))
    for j, lengths in enumerate(SMALLEST)
  ],
)
def test_the_smallest_corpora_make_batches(name, lengths):
  flat = [n for document in lengths for n in document]
  text = (
    np.full(sum(flat), 9),
    np.append(0, np.cumsum(flat)),
    np.append(0, np.cumsum([len(d) for d in lengths])),
  )
  with pytest.warns(UserWarning):
    how = HOW | dict(format=FORMATS[name], length=16, batch_size=40)
    pipe = pipeline.build(corpus.in_memory(*text, V, SPECIAL), **how)
  for step, batch in enumerate(pipe.iterate(0, 3)):
    _same(batch, pipe.batch(step))
    assert (batch['masked_weights'].sum(1) > 0).all()


@pytest.mark.parametrize('name', ['full_sentences', 'segment_pairs'])
def test_an_id_beyond_the_vocabulary_is_refused_on_the_host_with_its_place(name):
  text = corpus.in_memory(*_text(), V, SPECIAL)
  text.splits['train']._shards[0].tokens[17] = V  # as a damaged shard would
  pipe = pipeline.build(text, format=FORMATS[name], **HOW)
  steps = pipe.rows_per_epoch // 8 + 1
  for read in (lambda: [pipe.batch(s) for s in range(steps)], lambda: list(pipe.iterate(0, steps))):
    with pytest.raises(errors.UserError, match=rf"Token 17 of the split 'train' is {V}"):
      read()


def test_the_next_list_is_built_in_the_background_and_old_ones_go():
  pipe = _build('segment_pairs', batch_size=1)
  n = pipe.rows_per_epoch
  pipe.batch(n // 4)
  assert set(pipe._source.order.lists._built) == {(0, 0)}
  pipe.batch(n - 1)
  for thread in [t for t in threading.enumerate() if t.daemon and isinstance(t, epochs._Builder)]:
    thread.join()
  assert set(pipe._source.order.lists._built) == {(0, 0), (1, 0)}
  pipe.batch(5 * n)
  assert len(pipe._source.order.lists._built) == 2


# --- parts of a large split ---


def _in_parts(monkeypatch, name, **fields):
  """A pipeline over five shards in three parts."""
  monkeypatch.setattr(splits, 'PART_SENTENCES', 130)
  shards = [splits.Shard(*(np.asarray(a) for a in _text(12, seed))) for seed in range(5)]
  text = corpus.in_memory(*_text(), V, SPECIAL)
  text.splits['train'] = splits.Split(shards)
  assert text.splits['train'].num_parts == 3
  return _quiet(text, **(HOW | dict(format=FORMATS[name], batch_size=4, seed=3) | fields))


@pytest.mark.parametrize('name', _slow_but(('segment_pairs', 'full_sentences', 'memory_segments')))
def test_in_parts_too_a_batch_is_a_function_of_its_step_for_any_number_of_hosts(name, monkeypatch):
  pipe = _in_parts(monkeypatch, name)
  steps = 2 * pipe.rows_per_epoch // 4 + 2
  walked = list(pipe.iterate(0, steps))
  hosts = [_in_parts(monkeypatch, name, host=(i, 2)) for i in range(2)]
  for step in (steps - 1, 0, steps // 2, steps // 3):
    _same(walked[step], _in_parts(monkeypatch, name).batch(step))
    shares = [host.batch(step) for host in hosts]
    _same(walked[step], {k: np.concatenate([p[k] for p in shares]) for k in shares[0]})


def test_an_epoch_visits_every_part_and_nearly_every_row_of_it(monkeypatch):
  pipe = _in_parts(monkeypatch, 'full_sentences', batch_size=1)
  lists = [len(pipe._source.order.lists.get(0, part)) for part in range(3)]
  assert abs(pipe.rows_per_epoch - sum(lists)) < 0.25 * sum(lists)
  rows = [pipe.batch(step) for step in range(pipe.rows_per_epoch)]
  seen = {r['input_ids'].tobytes() for r in rows}
  assert len(seen) > 0.8 * len(rows)
  visited = [pipe._source.order._visited(epoch).tolist() for epoch in range(3)]
  assert visited[0] != visited[1] or visited[1] != visited[2]
