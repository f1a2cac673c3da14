"""Tags and choices: units of a batch, dropout, costs of a step."""

import functools

import jax
import numpy as np
import small_networks as small

from bertzoo_jax import objectives
from bertzoo_jax.model import head_modules
from bertzoo_jax.objectives import heads as head_table
from bertzoo_jax.objectives import networks
from tests.found import call_part

UNITS, OPTIONS, LENGTH = 4, 3, 8


@functools.cache
def made(name, dropout=0.0):
  """(objective, parameters)."""
  encoder = small.encoder(dropout=0.0, attention_dropout=0.0, num_layers=1)
  fields = {
    'choice': dict(head='tanh', input_dropout=0.0),
    'tagging': dict(labels=('O', 'B', 'I')),
  }[name]
  objective = call_part(objectives, name, encoder, dropout=dropout, **fields)
  return objective, small.parameters(objective, seed=1, scale=0.1)


def units():
  draw = np.random.default_rng(0)
  shape = (UNITS, OPTIONS, LENGTH)
  there = np.ones((UNITS, OPTIONS), np.float32)
  there[1, 2] = 0
  return {
    'input_ids': draw.integers(5, small.VOCAB, shape).astype(np.int32),
    'token_type_ids': np.zeros(shape, np.int32),
    'segment_ids': np.ones(shape, np.int32),
    'labels': np.array([0, 1, 2, 0], np.int32),
    'label_weights': np.array([1, 1, 1, 0], np.float32),
    'option_weights': there,
    'row_keys': draw.integers(0, 1 << 30, (UNITS, 2)).astype(np.uint32),
  }


@functools.partial(jax.jit, static_argnums=0)
def _loss(objective, params, batch, key, whole):
  normalizers = objective.normalizers(whole)
  return objective.loss(params, batch, normalizers, (), key, key is not None)


def loss(objective, params, batch, key=None, whole=None):
  value, (_, sums) = _loss(objective, params, batch, key, whole or batch)
  return float(value), jax.tree.map(float, sums)


predict = jax.jit(networks.predict, static_argnums=0)


def test_an_option_s_score_does_not_depend_on_the_other_options():
  (objective, params), batch = made('choice'), units()
  encoder = objective.networks[0].encoder
  found = np.asarray(predict(encoder, params, batch)['choice'])
  turned = {k: x[:, ::-1] if x.ndim > 1 and k != 'row_keys' else x for k, x in batch.items()}
  np.testing.assert_allclose(predict(encoder, params, turned)['choice'], found[:, ::-1], atol=1e-5)
  assert found[1, 2] == head_modules.FORBIDDEN and np.abs(found[0]).max() < 1e3


def test_options_that_fill_and_units_without_weight_count_nothing():
  (objective, params), batch = made('choice'), units()
  other = {k: x.copy() for k, x in batch.items()}
  other['input_ids'][1, 2] = other['input_ids'][3] = 7
  assert loss(objective, params, other) == loss(objective, params, batch)
  other['input_ids'][1, 1] = 7
  assert loss(objective, params, other) != loss(objective, params, batch)


def test_parts_of_a_batch_of_options_add_up_to_the_whole():
  objective, params = made('choice', dropout=0.3)
  batch, key = units(), jax.random.key(3)
  parts = [{k: x[a : a + 2] for k, x in batch.items()} for a in (0, 2)]
  whole, _ = loss(objective, params, batch, key)
  each = [loss(objective, params, part, key, batch)[0] for part in parts]
  assert abs(sum(each) - whole) < 1e-6 and min(each) > 0


def test_each_option_has_a_draw_of_dropout_of_its_own_and_none_without_a_key():
  objective, params = made('choice', dropout=0.5)
  encoder, batch = objective.networks[0].encoder, units()
  same = {k: np.repeat(x[:, :1], OPTIONS, axis=1) if x.ndim == 3 else x for k, x in batch.items()}
  same['option_weights'] = np.ones((UNITS, OPTIONS), np.float32)
  hidden = networks.encode(encoder, params['encoder'], head_table.rows_of_options(same), None)
  drawn = head_table.choice('tanh', 0.5).logits(encoder, params, hidden, same, jax.random.key(0))
  assert len(np.unique(np.asarray(drawn).round(5))) == UNITS * OPTIONS
  plain = np.asarray(head_table.choice('tanh').logits(encoder, params, hidden, same))
  np.testing.assert_allclose(plain, plain[:, :1].repeat(OPTIONS, axis=1), atol=1e-5)


def test_only_first_tokens_count_in_the_loss_of_tags():
  objective, params = made('tagging')
  draw = np.random.default_rng(0)
  batch = {k: x[:, 0] if x.ndim == 3 else x for k, x in units().items()}
  batch['labels'] = draw.integers(0, 3, (UNITS, LENGTH)).astype(np.int32)
  batch['label_weights'] = (draw.random((UNITS, LENGTH)) < 0.5).astype(np.float32)
  value, sums = loss(objective, params, batch)
  other = {**batch, 'labels': np.where(batch['label_weights'] > 0, batch['labels'], 0)}
  assert loss(objective, params, other)[0] == value
  encoder = objective.networks[0].encoder
  logits = np.asarray(predict(encoder, params, batch)['tag'], np.float64)
  shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  own = -np.log(np.take_along_axis(shares, batch['labels'][..., None], -1))[..., 0]
  wanted = (own * batch['label_weights']).sum() / batch['label_weights'].sum()
  assert abs(value - wanted) < 1e-5
  assert sums['words']['tag_loss'] > 0
