"""tests/trajectories compares these losses, and the loss of tags, with torch."""

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

ROWS, LENGTH, OPTIONS = 4, 12, 3
# name: fields of the objective
OBJECTIVES = {
  'span': {},
  'span_conditional': dict(head='tanh', hidden_size=0, answerable_weight=0.5, dropout=0.0),
  'choice': dict(head='tanh', input_dropout=0.0),
}
predict = jax.jit(networks.predict, static_argnums=0)


@functools.cache
def made(name, **changes):
  encoder = small.encoder(dropout=0.0, attention_dropout=0.0, num_layers=1)
  objective = call_part(objectives, name, encoder, **{**OBJECTIVES[name], **changes})
  return objective, small.parameters(objective, seed=1, scale=0.2)


@functools.partial(jax.jit, static_argnums=0)
def _loss(objective, params, batch, key, whole):
  normalizers = objective.normalizers(whole)
  return objective.loss(params, batch, normalizers, (), key, key is not None)


def loss(objective, params, batch, key=None, whole=None):
  """(loss, sums); whole: the batch of which this is a part."""
  value, (_, sums) = _loss(objective, params, batch, key, whole or batch)
  return float(value), jax.tree.map(float, sums)


def questions(length=LENGTH):
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


def test_padding_and_rows_that_fill_a_batch_change_nothing():
  of, other = made('span_conditional'), questions()
  value, sums = loss(*of, questions())
  assert loss(*of, questions(LENGTH + 5))[0] == pytest.approx(value, rel=1e-5)
  other['labels'][3] = 4, 4
  assert loss(*of, other)[0] == value
  other['label_weights'][3] = 1
  assert abs(loss(*of, other)[0] - value) > 1e-3
  assert 0 <= sums['rows']['start_accuracy'] <= 3


@pytest.mark.parametrize('name', ['span', 'span_conditional'])
def test_the_end_depends_on_the_start_only_in_the_conditional_head(name):
  (objective, params), batch = made(name), questions()
  before = loss(objective, params, batch)[1]['rows']
  batch['labels'][0, 0] = 5
  after = loss(objective, params, batch)[1]['rows']
  # of the first row, the loss of the start changes; all else is the end's
  if name == 'span_conditional':
    assert before['answerable_loss'] == after['answerable_loss']
  else:
    start = predict(objective.networks[0].encoder, params, batch)['start']
    log = jax.nn.log_softmax(jnp.where(batch['segment_ids'] > 0, start, -1e30))
    moved = (log[0, 4] - log[0, 5]) / 2
    assert after['span_loss'] - before['span_loss'] == pytest.approx(float(moved), abs=1e-5)


def test_a_beam_has_the_scores_of_its_starts_one_by_one():
  (objective, params), batch = made('span_conditional'), questions()
  encoder = objective.networks[0].encoder
  beam = predict(encoder, params, batch)
  head = head_table.find(params)['span_head']

  @jax.jit
  def read(params, starts_BK):
    hidden = networks.encode(encoder, params['encoder'], batch, None)
    return head.logits(encoder, params, hidden, batch, starts_BK=starts_BK)

  for k in range(3):
    places = beam['start_place'][:, k : k + 1].astype(np.int32)
    start, _, end, none = read(params, places)
    shares = np.take_along_axis(jax.nn.softmax(start), places, axis=1)[:, 0]
    best = jax.nn.softmax(end[:, 0])
    np.testing.assert_allclose(beam['start_share'][:, k], shares, rtol=1e-5)
    np.testing.assert_allclose(beam['end_share'][:, k, 0], best.max(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(beam['end_place'][:, k, 0], best.argmax(axis=1))
    np.testing.assert_allclose(beam['impossible'], none, rtol=1e-5)
  assert beam['start_place'].shape == (ROWS, head_modules.BEAM)
  for mask, places in zip(batch['answer_mask'], beam['start_place'].astype(int)):
    assert set(places.tolist()) == set(np.flatnonzero(mask)) | {-1}


def test_an_unknown_head_is_told():
  with pytest.raises(errors.UserError, match='objective.head'):
    made('span_conditional', head='linear')


def units():
  draw = np.random.default_rng(0)
  shape, there = (ROWS, OPTIONS, LENGTH), np.ones((ROWS, OPTIONS), np.float32)
  there[1, 2] = 0
  return {
    'input_ids': draw.integers(5, small.VOCAB, shape).astype(np.int32),
    'token_type_ids': np.zeros(shape, np.int32),
    'segment_ids': np.ones(shape, np.int32),
    'labels': np.array([0, 1, 2, 0], np.int32),
    'label_weights': np.array([1, 1, 1, 0], np.float32),
    'option_weights': there,
    'row_keys': draw.integers(0, 1 << 30, (ROWS, 2)).astype(np.uint32),
  }


def test_an_option_s_score_does_not_depend_on_the_other_options():
  (objective, params), batch = made('choice', dropout=0.3), units()
  encoder = objective.networks[0].encoder
  scores = np.asarray(predict(encoder, params, batch)['choice'])
  turned = {k: x[:, ::-1] if x.ndim > 1 and k != 'row_keys' else x for k, x in batch.items()}
  again = predict(encoder, params, turned)['choice']
  np.testing.assert_allclose(again, scores[:, ::-1], atol=1e-5)
  assert scores[1, 2] == head_modules.FORBIDDEN and np.abs(scores[0]).max() < 1e3


def test_options_that_fill_and_units_without_weight_count_nothing():
  of, batch, other = made('choice', dropout=0.3), units(), units()
  other['input_ids'][1, 2] = other['input_ids'][3] = 7
  assert loss(*of, other) == loss(*of, batch)
  other['input_ids'][1, 1] = 7
  assert loss(*of, other) != loss(*of, batch)


def test_parts_of_a_batch_of_options_add_up_to_the_whole():
  of, batch, key = made('choice', dropout=0.3), units(), jax.random.key(3)
  whole, _ = loss(*of, batch, key)
  halves = [{k: x[a : a + 2] for k, x in batch.items()} for a in (0, 2)]
  each = [loss(*of, half, key, batch)[0] for half in halves]
  assert abs(sum(each) - whole) < 1e-6 and min(each) > 0


def test_each_option_has_a_draw_of_dropout_of_its_own_and_none_without_a_key():
  (objective, params), batch = made('choice', dropout=0.3), units()
  encoder = objective.networks[0].encoder
  same = {k: np.repeat(x[:, :1], OPTIONS, axis=1) if x.ndim == 3 else x for k, x in batch.items()}
  same['option_weights'] = np.ones((ROWS, OPTIONS), np.float32)

  @jax.jit
  def both(params, key):
    hidden = networks.encode(encoder, params['encoder'], head_table.rows_of_options(same), None)
    head = head_table.choice('tanh', 0.5)
    return [head.logits(encoder, params, hidden, same, key) for key in (key, None)]

  drawn, plain = map(np.asarray, both(params, jax.random.key(0)))
  assert len(np.unique(drawn.round(5))) == ROWS * OPTIONS
  np.testing.assert_allclose(plain, plain[:, :1].repeat(OPTIONS, axis=1), atol=1e-5)
