"""Batches that are refused on the host, and the entropy of unigrams."""

import contextlib

import numpy as np
import pytest
import toys

from bertzoo_jax.common import errors
from bertzoo_jax.training import data


def refused(words):
  """The context in which a sentence is expected, or none if words is None."""
  return pytest.raises(errors.UserError, match=words) if words else contextlib.nullcontext()


# feature: the least and the greatest number that it may hold
LIMITS = {
  'input_ids': (0, toys.VOCAB - 1),
  'masked_targets': (0, toys.VOCAB - 1),
  'masked_positions': (0, toys.LENGTH - 1),
  'token_type_ids': (0, 2),
  'pair_labels': (0, 1),
}


@pytest.mark.parametrize('name', LIMITS)
def test_ids_positions_segments_and_labels_out_of_range_are_refused_on_the_host(name):
  least, most = LIMITS[name]
  batch = {**toys.batch(0), 'token_type_ids': np.zeros((8, toys.LENGTH), np.int32)}
  for value in (least, most, least - 1, most + 1):
    batch[name].flat[3] = value
    bad = value not in (least, most)
    with refused(f'here: {name} has the .* {value}, .* at {most}:' if bad else None):
      data.check_ids(batch, toys.VOCAB, 'here')


@pytest.mark.parametrize('row', ['1111', '1100', '0011', '0000', '1120', '2200', '1010', '0101'])
def test_a_row_without_position_ids_is_one_pack_on_the_host(row):
  packs = np.array([[[1, 1, 1, 0], [*map(int, row)]]])
  data.check_ids({'segment_ids': packs, 'position_ids': packs}, 5, 'here')
  taken = row in ('1111', '1100', '0011', '0000')
  with refused(None if taken else 'no position'):
    data.check_ids({'segment_ids': packs}, 5, 'here')


def test_a_batch_with_the_names_of_before_is_refused_with_the_new_ones():
  batch = {**toys.batch(0), 'pack_ids': np.ones((8, toys.LENGTH), np.int32)}
  with refused('here: pack_ids are called segment_ids .*rename both'):
    data.check_ids(batch, toys.VOCAB, 'here')


def test_entropy_of_a_uniform_distribution_is_the_logarithm():
  assert data.entropy(np.array([5, 5, 0, 5, 5])) == pytest.approx(np.log(4))
