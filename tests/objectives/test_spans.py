"""Objectives of questions: inputs that the loss does not depend on, and the beam."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import objectives
from bertzoo_jax.common import errors
from bertzoo_jax.model import head_modules
from bertzoo_jax.objectives import heads as head_table
from bertzoo_jax.objectives import networks
from tests.found import call_part

ROWS, LENGTH = 4, 12
# name: fields of the objective
OBJECTIVES = {
  'span': {},
  'span_conditional': dict(head='tanh', hidden_size=0, answerable_weight=0.5, dropout=0.0),
}


@functools.cache
def made(name):
  """(objective, parameters)."""
  encoder = small.encoder(dropout=0.0, attention_dropout=0.0, num_layers=1)
  objective = call_part(objectives, name, encoder, **OBJECTIVES[name])
  return objective, small.parameters(objective, scale=0.2)


predict = jax.jit(networks.predict, static_argnums=0)


def batch(length=LENGTH):
  draw = np.random.default_rng(0)
  real = np.arange(length) < np.asarray([LENGTH, 9, 7, 10])[:, None]
  ids = np.zeros((ROWS, length), np.int32)
  ids[:, :LENGTH] = draw.integers(5, small.VOCAB, (ROWS, LENGTH))
  mask = real & (np.arange(length) >= 4)
  mask[:, 0] = True
  return {
    'input_ids': np.where(real, ids, 0),
    'token_type_ids': np.zeros_like(ids),
    'segment_ids': real.astype(np.int32),
    'row_keys': np.arange(2 * ROWS, dtype=np.uint32).reshape(ROWS, 2),
    'answer_mask': mask.astype(np.int32),
    'labels': np.asarray([[4, 6], [0, 0], [5, 5], [8, 9]], np.int32),
    'impossible': np.asarray([0, 1, 0, 0], np.float32),
    'label_weights': np.asarray([1, 1, 1, 0], np.float32),
  }


@functools.partial(jax.jit, static_argnums=0)
def loss_of(objective, params, data):
  value, (_, sums) = objective.loss(params, data, objective.normalizers(data), (), None, False)
  return value, sums['rows']


def test_padding_and_rows_that_fill_a_batch_change_nothing():
  objective, params = made('span_conditional')
  loss, sums = loss_of(objective, params, batch())
  wider, _ = loss_of(objective, params, batch(LENGTH + 5))
  np.testing.assert_allclose(loss, wider, rtol=1e-5)
  other = batch()
  other['labels'][3] = 4, 4
  np.testing.assert_array_equal(loss, loss_of(objective, params, other)[0])
  other['label_weights'][3] = 1
  assert abs(loss - loss_of(objective, params, other)[0]) > 1e-3
  assert 0 <= sums['start_accuracy'] <= 3


@pytest.mark.parametrize('name', OBJECTIVES)
def test_the_end_depends_on_the_start_only_in_the_conditional_head(name):
  (objective, params), data = made(name), batch()
  before = jax.device_get(loss_of(objective, params, data)[1])  # its arguments may be in place
  data['labels'][0, 0] = 5
  _, after = loss_of(objective, params, data)
  # of the first row, the loss of the start changes; all else is the end's
  if name == 'span_conditional':
    assert before['answerable_loss'] == after['answerable_loss']
  else:
    start = predict(objective.networks[0].encoder, params, data)
    log = jax.nn.log_softmax(jnp.where(data['segment_ids'] > 0, start['start'], -1e30))
    moved = (log[0, 4] - log[0, 5]) / 2
    np.testing.assert_allclose(after['span_loss'] - before['span_loss'], moved, atol=1e-5)


def test_a_beam_has_the_scores_of_its_starts_one_by_one():
  objective, params = made('span_conditional')
  encoder, data = objective.networks[0].encoder, batch()
  found = predict(encoder, params, data)
  encode = jax.jit(lambda p: networks.encode(encoder, p, data, None))
  hidden = encode(params['encoder'])
  head = head_table.find(params)['span_head']
  read = jax.jit(lambda x: head.logits(encoder, params, hidden, data, starts_BK=x))
  for k in range(3):
    places = found['start_place'][:, k : k + 1].astype(np.int32)
    start, _, end, none = read(places)
    shares = jax.nn.softmax(start)
    np.testing.assert_allclose(
      found['start_share'][:, k], jnp.take_along_axis(shares, places, axis=1)[:, 0], rtol=1e-5
    )
    best = jax.nn.softmax(end[:, 0])
    np.testing.assert_allclose(found['end_share'][:, k, 0], best.max(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(found['end_place'][:, k, 0], best.argmax(axis=1))
    np.testing.assert_allclose(found['impossible'], none, rtol=1e-5)
  assert found['start_place'].shape == (ROWS, head_modules.BEAM)
  allowed = [set(np.flatnonzero(row)) for row in data['answer_mask']]
  for row, places in enumerate(found['start_place'].astype(int)):
    assert set(places.tolist()) == allowed[row] | {-1}


def test_an_unknown_head_is_told():
  fields = {**OBJECTIVES['span_conditional'], 'head': 'linear'}
  with pytest.raises(errors.UserError, match='objective.head'):
    call_part(objectives, 'span_conditional', small.encoder(), **fields)
