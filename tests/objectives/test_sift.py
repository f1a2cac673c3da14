"""tests/trajectories/test_sift_steps.py compares SiFT with torch."""

import functools
import math

import jax
import numpy as np
import optax
import pytest
import small_networks as small

from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import head_modules
from bertzoo_jax.objectives import sift
from bertzoo_jax.training import sharding
from bertzoo_jax.training import step as steps
from tests.found import call_part

ROWS, LENGTH, LABELS = 8, 12, ('a', 'b', 'c')
SIZES = dict(num_layers=2, hidden_size=32, num_heads=4, intermediate_size=32)
DISENTANGLED = {**small.SECTION, **small.DISENTANGLED, **SIZES}
ON = dict(weight=5.0, rate=0.05, init=0.1)
SECTIONS = {'disentangled': DISENTANGLED, 'transformer': {**small.SECTION, **SIZES}}
SECTIONS['two_stream'] = {**small.TWO_STREAM, **SIZES}


@functools.lru_cache
def of(kind='classification', section='disentangled', dropout=0.1, **own):
  """(objective, parameters). own: fields of SiFT beside or in place of ON; weight=None: without the
  section.
  """
  encoder = small.encoder(section=SECTIONS[section], dropout=dropout, attention_dropout=dropout)
  fields = {
    'classification': dict(input_dropout=0.0, labels=LABELS),
    'regression': dict(input_dropout=0.0),
    'span_conditional': dict(hidden_size=0, answerable_weight=0.5),
  }[kind]
  if own.get('weight', 0.0) is not None:
    usual = {**ON, **({'loss': 'mse'} if kind == 'regression' else {})}
    fields['sift'] = parts.sift(**{**usual, **own})
  made = call_part(objectives, kind, encoder, head='tanh', dropout=dropout, **fields)
  return made, small.parameters(made, scale=0.2)


def batch():
  draw = np.random.default_rng(0)
  real = np.arange(LENGTH) < draw.integers(4, LENGTH + 1, ROWS)[:, None]
  labels = draw.integers(0, 3, ROWS).astype(np.int32)
  return {
    'input_ids': np.where(real, draw.integers(5, small.VOCAB, real.shape), 0).astype(np.int32),
    'token_type_ids': np.zeros(real.shape, np.int32),
    'segment_ids': real.astype(np.int32),
    'labels': labels,
    'label_weights': np.asarray([1.0] * (ROWS - 1) + [0.0], np.float32),
  }


def keyed(seed=0):
  """The batch as the step hands it to an objective."""
  return {**batch(), 'row_keys': row_keys.batch_keys(jax.random.key(seed), ROWS)}


@functools.cache
def updated(accumulation, mesh=None):
  """(parameters, metrics) after a step with dropout, by plain gradient descent."""
  placed = sharding.mesh(mesh, jax.devices()[: math.prod(mesh)]) if mesh else None
  objective, params = of()
  tx = optax.with_extra_args_support(optax.sgd(0.3))
  how = dict(seed=0, accumulation=accumulation, mesh=placed)
  step = steps.make_train_step(objective, tx, lambda step: 0.3, **how)
  state, metrics = jax.jit(step)(small.state(objective, tx, params, ROWS), batch())
  return jax.device_get((state.params, metrics))


@pytest.mark.slow
def test_microbatches_and_meshes_give_the_same_update_dropout_included():
  (params, metrics), (whole, expected) = updated(2, (2, 1, 1)), updated(1)
  for name in ('loss', 'sift_divergence', 'class_loss', 'grad_norm'):
    np.testing.assert_allclose(metrics[name], expected[name], rtol=2e-6, err_msg=name)
  assert small.worst(params, whole) < 1e-6
  moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), whole, of()[1])
  assert max(jax.tree.leaves(moved)) > 1e-3


def program(made):
  objective, params = made
  rows, key = keyed(), jax.random.key(0)
  loss = lambda p: objective.loss(p, rows, objective.normalizers(rows), (), key, True)
  return str(jax.make_jaxpr(loss)(params))


def test_weight_0_is_the_program_without_the_section():
  without, zero, five = (program(of(section='transformer', weight=w)) for w in (None, 0.0, 5.0))
  assert without == zero != five


def test_evaluation_takes_the_network_without_the_norm_and_the_perturbation():
  (made, params), (plain, _) = of(), of(weight=0.0)
  totals = made.normalizers(batch())
  evaluated = lambda made, p: steps.make_eval_step(made)(p, batch(), totals, (), 0)[0]
  both = jax.jit(lambda p: [evaluated(x, p) for x in (made, plain)])
  assert small.worst(*both(params)) == 0


def test_the_first_perturbation_is_normal_clipped_and_of_the_row_alone():
  keys_B2 = row_keys.batch_keys(jax.random.key(0), 64)
  all_BLE = np.asarray(sift.drawn(keys_B2, (40, 50), 0.01))
  assert all_BLE.dtype == np.float32 and np.abs(all_BLE).max() == np.float32(0.02)
  clipped = np.mean(np.abs(all_BLE) == np.float32(0.02))
  assert abs(clipped - math.erfc(math.sqrt(2))) < 3e-3  # beyond two standard deviations
  inner = np.abs(all_BLE) < 0.01
  assert abs(inner.mean() - math.erf(math.sqrt(0.5))) < 6e-3 and abs(all_BLE.mean()) < 1e-4
  some_BLE = np.asarray(sift.drawn(keys_B2[5:7], (40, 50), 0.01))
  np.testing.assert_array_equal(some_BLE, all_BLE[5:7])
  assert np.abs(np.corrcoef(all_BLE[:4].reshape(4, -1)) - np.eye(4)).max() < 0.1
  dropped = row_keys.keep(keys_B2, 0.5, (40, 50))
  assert abs(np.corrcoef(all_BLE.ravel(), np.asarray(dropped).ravel())[0, 1]) < 0.02


def test_the_perturbed_pass_draws_dropout_of_its_own():
  made, params = of(section='transformer', dropout=0.1, init=1e-20, rate=0.0, loss='mse')
  totals, key = made.normalizers(batch()), jax.random.key(0)
  rows = lambda keys_B2: {**batch(), 'row_keys': keys_B2}
  sums = jax.jit(lambda keys_B2: made.loss(params, rows(keys_B2), totals, (), key, True)[1][1])
  one, other = (float(sums(keyed(s)['row_keys'])['sift']['sift_divergence']) for s in (0, 1))
  assert one > 1e-3 and one != other


def test_a_row_whose_gradient_is_not_finite_keeps_its_perturbation():
  draw = lambda i: np.random.default_rng(i).normal(size=(3, 4, 5)).astype(np.float32)
  delta_BLE, gradient_BLE = draw(0), draw(1)
  gradient_BLE[1, 2, 3], gradient_BLE[2, 3] = np.inf, 0.0
  found_BLE = np.asarray(sift.ascended(delta_BLE, gradient_BLE, 0.1))
  np.testing.assert_array_equal(found_BLE[1], delta_BLE[1])
  np.testing.assert_array_equal(found_BLE[2, 3], delta_BLE[2, 3])
  grown_LE = found_BLE[0] - delta_BLE[0]
  np.testing.assert_allclose(np.abs(grown_LE).max(axis=-1), 0.1, rtol=1e-5)
  np.testing.assert_array_equal(np.sign(grown_LE), np.sign(gradient_BLE[0]))


def test_starts_and_ends_are_compared_over_the_tokens_of_a_row():
  kind = 'span_conditional'
  objective, params = of(kind, 'transformer', dropout=0.0)
  rows = keyed()
  rows['labels'] = np.tile(np.array([[1, 2]], np.int32), (ROWS, 1))
  rows['answer_mask'], rows['impossible'] = rows['segment_ids'], np.zeros(ROWS, np.float32)
  totals = objective.normalizers(rows)
  learned = lambda made, key: lambda p: made.loss(p, rows, made.normalizers(rows), (), key, True)
  loss = lambda made, key: jax.jit(learned(made, key))(params)
  value, (_, sums) = loss(objective, jax.random.key(0))
  mean = float(sums['sift']['sift_divergence']) / float(totals['sift'])
  # of unlike distributions over at most LENGTH tokens; padding is in neither
  assert np.isfinite(value) and 0 < mean < 4 * math.log(LENGTH)
  plain, _ = of(kind, 'transformer', dropout=0.0, weight=0.0)
  without, (_, own) = loss(plain, None)
  near = dict(rtol=1e-3)  # the clean pass has one norm more
  np.testing.assert_allclose(float(value), float(without) + ON['weight'] * mean, **near)
  np.testing.assert_allclose(sums['rows']['span_loss'], own['rows']['span_loss'], **near)


def test_places_that_are_not_allowed_have_no_share_of_the_mean_square():
  a, b = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
  never = np.full((3, 2), head_modules.FORBIDDEN, np.float32)
  longer = [np.concatenate([x, never], axis=1) for x in (a, b)]
  np.testing.assert_allclose(sift.mse(*longer), ((a - b) ** 2).mean(-1), rtol=1e-6)


def test_an_encoder_that_it_does_not_fit_is_refused_in_one_sentence():
  norm = 'TwoStream.* no norm .*objective.sift.weight=0'
  for kind, section, own, words in (
    ('classification', 'two_stream', {}, norm),
    ('regression', 'transformer', dict(loss='symmetric_kl'), 'objective.sift.loss=mse'),
  ):
    with pytest.raises(errors.UserError, match=words) as e:
      of(kind, section, **own)
    assert '\n' not in str(e.value)
  of('classification', 'two_stream', weight=0.0)  # and without SiFT is trained
