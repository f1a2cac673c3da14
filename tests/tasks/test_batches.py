"""Batches as a function of (seed, step), and every row once for scoring."""

import made
import numpy as np
import pytest

from bertzoo_jax.tasks import batches


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


def real_rows(batch):
  return [ids[pack > 0].tolist() for ids, pack in zip(batch['input_ids'], batch['segment_ids'])]


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
    assert real_rows(made_batch) == [split.row(i).tolist() for i in rows]
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
    assert made_batch['input_ids'].shape[0] == 5
    assert made_batch['label_weights'].tolist() == [1] * len(rows) + [0] * (5 - len(rows))
    assert (made_batch['segment_ids'].sum(axis=1) > 0).all()
    out[rows] = made_batch['segment_ids'].sum(axis=1)[: len(rows)]
    seen += len(rows)
  assert seen == 23 and out.tolist() == split.lengths.tolist()


def test_buckets_end_with_the_length():
  assert batches.buckets(128) == (16, 32, 48, 64, 96, 128)
  assert batches.buckets(100)[-2:] == (96, 100) and batches.buckets(8) == (8,)
