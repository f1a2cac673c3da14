import types

import made
import numpy as np
import pytest
import tokenizers

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import batches
from bertzoo_jax.tasks import features
from bertzoo_jax.tasks import frames
from bertzoo_jax.tasks import words
from bertzoo_jax.tasks.examples import Text
from tests.found import call_part

SPECIAL = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
FIRST = ('cls:0 A:0 sep:0', 'cls:0 A:0 sep:0 B:{} sep:{}')
LAST = ('A:0 sep:0 cls:2', 'A:0 sep:0 B:1 sep:1 cls:2')


def frame(length, segments=2, single=FIRST[0], pair=FIRST[1]):
  return frames.Frame(single, pair, SPECIAL, segments, length)


def encode(texts):
  return [np.array([int(word) for word in text.split()], np.int32) for text in texts]


def texts(examples, given):
  tokenizer = types.SimpleNamespace(encode_as_transformers=encode)
  return call_part(features, 'texts', examples, None, tokenizer, given)


def made_examples(rng, count, is_pair, longest):
  text = lambda: ' '.join(str(i) for i in rng.integers(5, 40, rng.integers(0, longest)))
  a, b = [text() for _ in range(count)], [text() for _ in range(count)]
  return made.examples(*map(Text, a, b if is_pair else [None] * count))


def library(length, given):
  vocabulary = {f'[{i}]': i for i in range(5)} | {str(i): i for i in range(5, 40)}
  out = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token='[1]'))
  out.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  in_words = lambda role: f'${role}' if role in 'AB' else f'[{SPECIAL[role]}]'
  text = lambda is_pair: ' '.join(f'{in_words(x)}:{segment}' for x, segment in given.words(is_pair))
  how = dict(single=text(False), pair=text(True), special_tokens=[('[2]', 2), ('[3]', 3)])
  out.post_processor = tokenizers.processors.TemplateProcessing(**how)
  out.enable_truncation(length, strategy='longest_first')
  return out


@pytest.mark.parametrize('shape', [FIRST, LAST])
@pytest.mark.parametrize('is_pair', [True, False])
@pytest.mark.parametrize('length', [5, 6, 7, 8, 13, 24, 100])
def test_rows_equal_those_of_the_tokenizers_library_at_every_length(length, is_pair, shape):
  examples = made_examples(np.random.default_rng(length), 100, is_pair, 30)
  rows = texts(examples, frame(length, 2, *shape))
  theirs = library(length, frame(length, 2, *shape))
  given = list(zip(examples.column('a'), examples.column('b'))) if is_pair else examples.column('a')
  for i, wanted in enumerate(theirs.encode_batch(given)):
    here = slice(rows.offsets[i], rows.offsets[i + 1])
    assert rows.ids[here].tolist() == wanted.ids, (i, given[i])
    assert rows.segments[here].tolist() == wanted.type_ids, (i, given[i])
    cut = wanted.overflowing != [] or len(wanted.ids) < rows.uncut[i]
    assert cut == (rows.uncut[i] > length)


@pytest.mark.parametrize(
  'segments, shape, wanted',
  [
    (2, FIRST, [0, 0, 0, 0, 1, 1]),
    (0, FIRST, [0, 0, 0, 0, 0, 0]),
    (0, LAST, [0, 0, 0, 1, 1, 2]),  # computed segments have no table
    (2, (FIRST[0], 'cls:0 A:0 sep:0 sep:0 B:0 sep:0'), [0] * 7),
  ],
)
def test_segments_that_the_encoder_lacks_become_0(segments, shape, wanted):
  rows = texts(made.examples(Text('5 6', '7')), frame(16, segments, *shape))
  assert rows.segments.tolist() == wanted

  examples = made.examples(Text('5', '7'))
  texts(examples, frame(5))
  with pytest.raises(errors.UserError, match='--config.length=5 or more'):
    texts(examples, frame(4))


def test_a_task_has_rows_of_its_encoders_frame(tmp_path):
  made.write(tmp_path, train_tsv='text_a\ttext_b\tlabel\nab\tc\tx\n\td\ty\nabcdefghijkl\tc\ty\n')
  shape = types.SimpleNamespace(single=LAST[0], pair=LAST[1], padding='left')
  files = dict(train='train.tsv', dev='train.tsv')
  task = made.opened(tmp_path, 'pairs', files, shape=shape, length=10)
  a = 10 + ord('a')
  train = task.splits['train']
  assert train.row(0).tolist() == [a, a + 1, 3, a + 2, 3, 2]
  assert train.row(1).tolist() == [3, a + 3, 3, 2]
  assert train.lengths.tolist() == [6, 4, 10] and train.truncated.tolist() == [False, False, True]
  assert task.padding == 'left' and task.pad == 0
  assert train.source.column('a')[1] == '' and train.source.column('b')[1] == 'd'
  report = task.report()
  assert 'longest 16; 33.3% cut to 10' in report and 'dev: 3 of 3 examples are in train' in report


def test_the_hash_of_a_task_changes_with_its_rows_and_every_byte_that_is_read(tmp_path):
  made.write(tmp_path, train_tsv='text\tlabel\nab\tx\ncd\ty\n')
  files = dict(train='train.tsv', dev='train.tsv')
  before = made.opened(tmp_path, files=files).hash
  assert made.opened(tmp_path, files=files).hash == before
  assert made.opened(tmp_path, files=files, length=3).hash != before
  assert made.opened(tmp_path, files=files, labels=('y', 'x')).hash != before
  made.write(tmp_path, train_tsv='text\tlabel\nab\tx\ncd\ty\n\n')
  assert made.opened(tmp_path, files=files).hash != before


def test_of_a_very_long_sentence_the_row_of_a_token_is_found_without_a_table_of_both():
  starts = words._starts(10**6, 8, 2)  # the table would have 1.3 TB
  assert words._nearest(np.arange(10**6), starts, starts + 8)[-1] == len(starts) - 1


@pytest.fixture(scope='module')
def task(tmp_path_factory):
  folder = tmp_path_factory.mktemp('task')
  rng = np.random.default_rng(0)
  lines = ''.join(f'{"x" * rng.integers(0, 60)}{i}\t{"ab"[i % 2]}\n' for i in range(23))
  made.write(folder, train_tsv='text\tlabel\n' + lines)
  return made.opened(folder, files=dict(train='train.tsv', dev='train.tsv'), length=50)


def batch(task, step, padding='right'):
  how = dict(length_buckets=batches.buckets(50), padding=padding, pad=0)
  return batches.train_batch(task.splits['train'], step, batch_size=5, seed=0, **how)


def test_every_epoch_visits_each_row_once_in_an_order_of_its_own():
  rows_of = lambda steps, size, seed: np.concatenate(
    [batches.rows_of(23, s, batch_size=size, seed=seed) for s in range(steps)]
  )
  epochs = (rows := rows_of(23, 5, 1)).reshape(5, 23)
  assert (np.sort(epochs) == np.arange(23)).all()
  assert len({tuple(epoch) for epoch in epochs}) == 5 and (rows_of(23, 5, 2) != rows).any()
  # n = step·B + i: the batch size changes nothing of the order
  assert (rows_of(5, 23, 1) == rows).all()
  assert sorted(batches.rows_of(3, 0, batch_size=9, seed=0)) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_batch_is_the_same_whenever_it_is_made(task):
  first, _, again = (batch(task, step) for step in (7, 3, 7))
  np.testing.assert_equal(first, again)


@pytest.mark.parametrize('padding', ['right', 'left'])
def test_rows_are_padded_on_their_side_to_the_smallest_bucket(task, padding):
  split, lengths = task.splits['train'], set()
  for step in range(12):
    made_batch = batch(task, step, padding)
    rows = batches.rows_of(23, step, batch_size=5, seed=0)
    both = zip(made_batch['input_ids'], made_batch['segment_ids'])
    assert [x[pack > 0].tolist() for x, pack in both] == [split.row(i).tolist() for i in rows]
    length = made_batch['input_ids'].shape[1]
    longest = split.lengths[rows].max()
    assert length == min(b for b in (16, 32, 48, 50) if b >= longest)
    ends = made_batch['segment_ids'][:, -1 if padding == 'left' else 0]
    assert (ends == 1).all() and (np.diff(made_batch['segment_ids']) != 0).sum(axis=1).max() <= 1
    assert (made_batch['input_ids'][made_batch['segment_ids'] == 0] == 0).all()
    assert made_batch['labels'].tolist() == split.labels[rows].tolist()
    assert made_batch['label_weights'].tolist() == [1] * 5
    kinds = {name: value.dtype.name for name, value in made_batch.items()}
    assert set(kinds.values()) == {'int32', 'float32'} and kinds['label_weights'] == 'float32'
    lengths.add(length)
  assert len(lengths) > 1


def test_scoring_visits_each_row_once_and_predictions_go_back_in_order(task):
  split, out, seen = task.splits['dev'], np.full(23, -1), 0
  how = dict(length_buckets=batches.buckets(50), padding='right', pad=0)
  for rows, made_batch in batches.ordered_batches(split, 5, **how):
    lengths = made_batch['segment_ids'].sum(axis=1)
    assert len(lengths) == 5 and (lengths > 0).all()
    assert made_batch['label_weights'].tolist() == [1] * len(rows) + [0] * (5 - len(rows))
    out[rows], seen = lengths[: len(rows)], seen + len(rows)
  assert seen == 23 and out.tolist() == split.lengths.tolist()


def test_buckets_end_with_the_length():
  assert batches.buckets(128) == (16, 32, 48, 64, 96, 128)
  assert batches.buckets(100)[-2:] == (96, 100) and batches.buckets(8) == (8,)
