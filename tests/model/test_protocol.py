"""Usual members of an encoder."""

import pytest
from flax import linen as nn

from bertzoo_jax.common import errors
from bertzoo_jax.model import protocol


def _of(**fields):
  """A module with these fields, and members that are none."""
  own = {name: value for name, value in fields.items() if name.islower()}
  members = {'__annotations__': dict.fromkeys(own, int), **own}
  return protocol.encoder(type('Own', (nn.Module,), members))(**own)


def test_half_of_an_encoder_has_half_of_the_sizes_that_are_its_fields():
  halved = lambda **fields: protocol.shares(_of(**fields), 0.5, 0.5)
  sizes = dict(hidden_size=8, num_layers=4)
  assert halved(**sizes) == dict(hidden_size=4, num_layers=2)
  assert halved(**sizes, intermediate_size=32)['intermediate_size'] == 16
  assert halved(**sizes, num_heads=4)['num_heads'] == 2


def test_an_encoder_whose_width_is_no_field_is_asked_for_its_own_resized():
  with pytest.raises(errors.UserError, match='Own has no field hidden_size.*write `resized`'):
    _of(num_layers=4).resized(0.5, 1.0)
