"""Ids that are out of range, and the entropy of unigrams."""

import contextlib

import numpy as np
import pytest
import toys

from bertzoo_jax.common import errors
from bertzoo_jax.training import data


@pytest.mark.parametrize(
  'name,good,bad',
  [
    ('masked_positions', toys.LENGTH - 1, toys.LENGTH),
    ('token_type_ids', 2, 3),
    ('pair_labels', 1, 2),
    ('masked_positions', 0, -1),
    ('token_type_ids', 0, -1),
    ('pair_labels', 0, -1),
  ],
)
def test_positions_segments_and_labels_out_of_range_are_refused_on_the_host(name, good, bad):
  batch = {**toys.batch(0), 'token_type_ids': np.zeros((8, toys.LENGTH), np.int32)}
  batch[name].flat[3] = good
  data.check_ids(batch, toys.VOCAB, 'here')
  batch[name].flat[3] = bad
  with pytest.raises(errors.UserError, match=f'here: {name} has the .* {bad}, they end at'):
    data.check_ids(batch, toys.VOCAB, 'here')


@pytest.mark.parametrize(
  'row, taken',
  [
    ([1, 1, 1, 1], True),
    ([1, 1, 0, 0], True),
    ([0, 0, 1, 1], True),
    ([0, 0, 0, 0], True),
    ([1, 1, 2, 0], False),
    ([2, 2, 0, 0], False),
    ([1, 0, 1, 0], False),
    ([0, 1, 0, 1], False),
  ],
)
def test_a_row_without_position_ids_is_one_pack_on_the_host(row, taken):
  packs = np.array([[[1, 1, 1, 0], row]])
  data.check_ids({'segment_ids': packs, 'position_ids': packs}, 5, 'here')
  with contextlib.nullcontext() if taken else pytest.raises(errors.UserError, match='no position'):
    data.check_ids({'segment_ids': packs}, 5, 'here')


def test_a_batch_with_the_names_of_before_is_refused_with_the_new_ones():
  batch = toys.batch(0)
  batch['pack_ids'] = np.ones_like(batch['input_ids'])
  with pytest.raises(errors.UserError, match='here: pack_ids are called segment_ids .*rename both'):
    data.check_ids(batch, toys.VOCAB, 'here')


@pytest.mark.parametrize('bad', [-1, toys.VOCAB])
def test_ids_out_of_the_vocabulary_are_refused_on_the_host(bad):
  for name in ('input_ids', 'masked_targets'):
    batch = toys.batch(0)
    data.check_ids(batch, toys.VOCAB, 'here')
    batch[name][3, 1] = bad
    with pytest.raises(errors.UserError, match=f'here: {name} has the id {bad}'):
      data.check_ids(batch, toys.VOCAB, 'here')


def test_entropy_of_a_uniform_distribution_is_the_logarithm():
  assert data.entropy(np.array([5, 5, 0, 5, 5])) == pytest.approx(np.log(4))
