import pathlib
import re
import threading
import warnings
from unittest import mock

import numpy as np
import pytest
from small_networks import with_targets

from bertzoo_jax import parts
from bertzoo_jax.batches import ahead
from bertzoo_jax.batches import epochs
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus
from bertzoo_jax.corpus import splits
from configs import bert
from tests.batches import masking_rows

V, SPECIAL = 200, dict(pad=0, unk=1, cls=2, sep=3, mask=4)
MASKING = dict(parts.token(random_tokens='all'))
HOW = dict(masking=MASKING, length=32, batch_size=8, seed=0)
FORMATS = {
  name: dict(parts.section(x, **({'reuse_length': 8} if name == 'memory_segments' else {})))
  for name, x in parts.SECTIONS['format'].items()
}


def _text(documents=30, seed=0):
  """(tokens, sentence starts, document starts): 0 to 12 sentences of 0 to 20 tokens a document."""
  draw = np.random.default_rng(seed)
  sentences = draw.integers(0, 13, documents)
  sentences[0] = 5
  lengths = draw.integers(0, 21, sentences.sum())
  starts = (np.append(0, np.cumsum(sizes)) for sizes in (lengths, sentences))
  return draw.integers(5, V, lengths.sum()), *starts


def _quiet(text, **settings):
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


def _joined(batches):
  return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}


@pytest.fixture(autouse=True)
def threads(monkeypatch):
  """test_ahead.py: tf.data gives the same batches; it takes a second to begin."""
  monkeypatch.setattr(ahead, 'driver', lambda: 'threads')


def _border(pipe, batch_size=8):
  """The first step whose batch holds rows of two epochs; of lanes, whose batches never do, the
  first step of the second.
  """
  n = pipe.rows_per_epoch
  both = lambda step: step * batch_size // n != ((step + 1) * batch_size - 1) // n
  return next(filter(both, range(100 * n)), n // batch_size)


def test_a_batch_may_be_longer_than_an_epoch():
  build = lambda **host: _build('full_sentences', documents=4, batch_size=64, **host)
  pipe = build()
  assert pipe.rows_per_epoch < 32 and 'fewer than a batch' in pipe.warnings[0]
  _same(pipe.batch(3), next(iter(pipe.iterate(3, 4))))
  _same(pipe.batch(3), _joined([build(host=(i, 2)).batch(3) for i in range(2)]))


@pytest.mark.parametrize('name', ['full_sentences', 'doc_sentences'])
def test_an_epoch_visits_every_row_once_and_each_in_its_own_order(name):
  pipe = _build(name, batch_size=1)
  n = pipe.rows_per_epoch
  orders = [[tuple(with_targets(pipe.batch(e * n + i))[0]) for i in range(n)] for e in range(3)]
  assert len(set(orders[0])) == n
  assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
  assert orders[0] != orders[1] != orders[2]


def test_masks_are_new_in_every_epoch_or_repeat_as_asked():
  def epochs_of(repeat, epochs, name='full_sentences'):
    pipe = _build(name, dict(repeat=repeat), batch_size=1)
    n = pipe.rows_per_epoch
    batches = [[pipe.batch(e * n + i) for i in range(n)] for e in range(epochs)]
    return [{tuple(with_targets(b)[0]): tuple(b['input_ids'][0]) for b in x} for x in batches]

  dynamic, static = epochs_of(0, 3), epochs_of(2, 4)
  assert dynamic[0] != dynamic[1] != dynamic[2] and dynamic[0] != dynamic[2]
  assert static[0] == static[2] and static[1] == static[3] and static[0] != static[1]
  assert static[:2] == dynamic[:2]
  one, two = epochs_of(1, 2, 'segment_pairs')  # with its list of rows
  assert one == two


def test_a_longer_list_is_not_finished_and_a_shorter_one_wraps():
  pipe = _build('segment_pairs', batch_size=1, seed=2)
  n = pipe.rows_per_epoch
  lengths = [len(pipe._source.order.lists.get(e)) for e in range(8)]
  longer, shorter = int(np.argmax(lengths)), int(np.argmin(lengths))
  assert lengths[longer] > n > lengths[shorter]
  for epoch in (longer, shorter):
    batches = (pipe.batch(epoch * n + i) for i in range(n))
    rows = {(*b['input_ids'][0], *b['masked_positions'][0]) for b in batches}
    assert len(rows) >= min(n, lengths[epoch]) - 2  # two short rows may be equal by chance


def test_seed_phase_and_split_change_the_batch_and_nothing_else_does():
  base = _build('full_sentences').batch(0)
  _same(base, _build('full_sentences').batch(0))
  for change in (dict(seed=4), dict(phase=1), dict(split='held_out')):
    assert (base['input_ids'] != _build('full_sentences', **change).batch(0)['input_ids']).any()


def test_phases_of_unlike_batches_read_the_rows_of_one_phase_of_one_row_per_step():
  config = bert.get_config('tiny')
  config.length, config.batch_size, config.seed = 32, 8, 3
  config.format, config.masking = FORMATS['segment_pairs'], MASKING
  config.phases = ((5, {}), (3, {'batch_tokens': 96}), (2, {'batch_size': 64}))
  text = corpus.in_memory(*_text(), V, SPECIAL)
  phases = configuration.phases(config)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    pipes = [pipeline.for_phase(text, phase) for phase in phases]
    one = _build(batch_size=1)
  batches = [pipe.batch(step) for pipe, phase in zip(pipes, phases) for step in range(phase.steps)]
  assert [len(b['input_ids']) for b in batches] == [8] * 5 + [3] * 3 + [64] * 2
  _same(_joined(batches), _joined([one.batch(step) for step in range(40 + 9 + 128)]))
  assert 40 % one.rows_per_epoch, 'the phases meet inside an epoch'


@pytest.mark.parametrize('name', FORMATS)
def test_features_have_the_declared_shapes_and_dtypes_and_stand_in_the_table(name):
  pipe = _build(name, host=(1, 2))
  batch = pipe.batch(0)
  declared = {k: ((4, *s[1:]), np.dtype(d)) for k, (s, d) in pipe.features.items()}
  assert {k: (v.shape, v.dtype) for k, v in batch.items()} == declared
  table = (pathlib.Path(pipeline.__file__).parent / 'README.md').read_text()
  cells = re.findall(r'^\| `(\w+)` \| (\w+) \| (\[[BLP, ]+\]) \|', table, re.MULTILINE)
  letters = {4: 'B', 32: 'L', pipe.num_predictions: 'P'}
  for feature, (shape, dtype) in declared.items():
    assert (feature, dtype.name, f'[{", ".join(letters[n] for n in shape)}]') in cells


def test_evaluation_covers_the_held_out_rows_once_with_fixed_masks_for_every_seed_and_phase():
  pipe = _build('full_sentences', split='held_out')
  n = pipe.rows_per_epoch
  batches = list(pipe.evaluation_batches(1000))
  for how in ({}, dict(seed=4, phase=1)):
    again = _build('full_sentences', split='held_out', **how).evaluation_batches(1000)
    for one, two in zip(batches, again, strict=True):
      _same(one, two)
  assert len(batches) == -(-n // 8)
  whole = _joined(batches)
  weights, real = whole['masked_weights'].sum(1), whole['segment_ids'].sum(1)
  # what is counted by tokens counts no filler, whose masks nobody fills
  for filled in (weights, real):
    assert (filled[:n] > 0).all() and not filled[n:].any()
  tokens = np.concatenate([with_targets(b) for b in batches])[:n]
  # in the order of the text, nothing lost
  assert tokens[tokens >= 5].tolist() == _text(9, seed=1)[0].tolist()
  build = lambda i: _build('full_sentences', split='held_out', host=(i, 2))
  halves = [build(i).evaluation_batches(1000) for i in range(2)]
  for batch, *shares in zip(batches, *halves, strict=True):
    _same(batch, _joined(shares))


@pytest.mark.parametrize('name', FORMATS)
def test_held_out_rows_predict_text_only_whatever_a_masking_takes(name):
  changes = dict(maskable='all_but_padding', sampling='independent', rate=0.3)
  pipe = _build(name, changes, split='held_out')
  features, keys = pipe._source.rows(0, np.arange(8) % pipe.rows_per_epoch, shuffled=False)
  mask = masking_rows.build(MASKING | changes, 32, corpus.in_memory(*_text(), V, SPECIAL))
  wished = masking_rows.run(mask, features, keys)  # as in training
  here = next(iter(pipe.evaluation_batches(1000)))
  text = ~np.isin(features['input_ids'], [i for role, i in SPECIAL.items() if role != 'unk'])
  counts = np.take_along_axis(text, wished['masked_positions'], axis=1)
  counts &= np.arange(8)[:, None] < pipe.rows_per_epoch
  assert (wished['masked_weights'] > counts).any()
  ids = np.where(text, wished['input_ids'], features['input_ids'])
  weights = wished['masked_weights'] * counts
  names = 'input_ids', 'masked_weights', 'masked_positions', 'masked_targets'
  changed = wished | dict(input_ids=ids, masked_weights=weights)
  _same({name: here[name] for name in names}, {name: changed[name] for name in names})


def test_documents_of_one_sentence_are_remarked_on_where_pairs_are_made():
  alone = corpus.in_memory(np.full(40, 9), range(0, 41, 4), range(11), V, SPECIAL)
  build = lambda name: _quiet(alone, format=FORMATS[name], **HOW)
  pair, whole = build('segment_pairs'), build('full_sentences')
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


REFUSED = [
  (dict(batch_size=6, host=(0, 4)), 'batch_size is 6'),
  (dict(batch_size=0), 'batch_size is 0'),
  (dict(length=3), 'length is 3'),
  (dict(split='heldout'), "Did you mean 'held_out'"),
  (dict(format=dict(name='segment_pair')), "Did you mean 'segment_pairs'"),
  (dict(masking=dict(name='tokens')), "Did you mean 'token'"),
  (dict(text=([], [0], [0])), 'empty'),
  (dict(text=([], [0, 0], [0, 1])), 'empty'),
]


def test_settings_and_texts_that_cannot_work_are_refused_at_the_start():
  for fields, message in REFUSED:
    fields = HOW | dict(format=FORMATS['segment_pairs'], text=_text()) | fields
    text = corpus.in_memory(*fields.pop('text'), V, SPECIAL, held_out=_text(9))
    with pytest.raises(errors.UserError, match=message):
      pipeline.build(text, **fields)


@pytest.mark.parametrize('name', sorted({*FORMATS} - {'memory_segments'}))
def test_the_smallest_corpora_make_batches(name):
  ends = lambda sizes: np.append(0, np.cumsum(sizes))
  for lengths in ([[1]], [[1], [], [0]], [[0, 1, 0]], [[1], [1]], [[200]]):
    sizes = [n for document in lengths for n in document]
    text = np.full(sum(sizes), 9), ends(sizes), ends([len(d) for d in lengths])
    how = HOW | dict(format=FORMATS[name], length=16)
    pipe = _quiet(corpus.in_memory(*text, V, SPECIAL), **how)
    for step in range(2):
      assert (pipe.batch(step)['masked_weights'].sum(1) > 0).all(), lengths


@pytest.mark.parametrize('name', ['full_sentences', 'segment_pairs'])
def test_an_id_beyond_the_vocabulary_is_refused_on_the_host_with_its_place(name):
  text = corpus.in_memory(*_text(), V, SPECIAL)
  text.splits['train']._shards[0].tokens[17] = V  # as a damaged shard would
  pipe = pipeline.build(text, format=FORMATS[name], **HOW)
  with pytest.raises(errors.UserError, match=rf"Token 17 of the split 'train' is {V}"):
    list(pipe.iterate(0, pipe.rows_per_epoch // 8 + 1))


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


def _in_parts(name, **fields):
  """A pipeline over five shards in three parts."""
  shards = [splits.Shard(*(np.asarray(a) for a in _text(12, seed))) for seed in range(5)]
  text = corpus.in_memory(*_text(), V, SPECIAL)
  with mock.patch.object(splits, 'PART_SENTENCES', 130):
    text.splits['train'] = splits.Split(shards)
  assert text.splits['train'].num_parts == 3
  return _quiet(text, **(HOW | dict(format=FORMATS[name], seed=3) | fields))


@pytest.mark.parametrize('build', [_build, _in_parts])
@pytest.mark.parametrize('name', FORMATS)
def test_a_batch_is_a_function_of_its_step_for_any_number_of_hosts(name, build):
  pipe = build(name)
  border = _border(pipe)
  walked, sought = (list(build(name).iterate(a, 2 * border + 4)) for a in (0, border - 1))
  assert len(walked) == 2 * border + 4
  for step, batch in enumerate(walked):
    _same(batch, pipe.batch(step))
  for one, two in zip(walked[border - 1 :], sought, strict=True):
    _same(one, two)
  for hosts in (2, 4):
    shares = [build(name, host=(i, hosts)) for i in range(hosts)]
    for step in (2 * border + 2, 0, border, border + 1):
      _same(walked[step], _joined([share.batch(step) for share in shares]))


def test_an_epoch_visits_every_part_and_nearly_every_row_of_it():
  pipe = _in_parts('full_sentences', batch_size=1)
  lists = [len(pipe._source.order.lists.get(0, part)) for part in range(3)]
  assert abs(pipe.rows_per_epoch - sum(lists)) < 0.25 * sum(lists)
  rows = [pipe.batch(step) for step in range(pipe.rows_per_epoch)]
  seen = {r['input_ids'].tobytes() for r in rows}
  assert len(seen) > 0.8 * len(rows)
  visited = [pipe._source.order._visited(epoch).tolist() for epoch in range(3)]
  assert visited[0] != visited[1] or visited[1] != visited[2]
