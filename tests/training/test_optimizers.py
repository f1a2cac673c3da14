"""Optimizers against the update written out with numpy in float64, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.training import optimizers

RATES = (0.0, 0.01, 0.02, 0.015, 0.01)
SHAPES = {'layer/kernel': (3, 4), 'layer/bias': (4,), 'norm/scale': (4,)}


def nested(flat):
  out = {}
  for path, x in flat.items():
    a, b = path.split('/')
    out.setdefault(a, {})[b] = x
  return out


def draws():
  draw = np.random.default_rng(0)
  params = {k: draw.normal(size=s) for k, s in SHAPES.items()}
  grads = [
    {k: 10.0 ** draw.integers(-4, 1) * draw.normal(size=s) for k, s in SHAPES.items()}
    for _ in RATES
  ]
  return params, grads


def reference(
  params, grads, *, corrected, b1, b2, eps, weight_decay, decays, clip_norm, adapted=()
):
  """Decoupled Adam as the released codes write it, parameter by parameter; LAMB with the parameters
  that have a ratio.
  """
  params, m, v = dict(params), {k: 0.0 for k in params}, {k: 0.0 for k in params}
  for t, (g, rate) in enumerate(zip(grads, RATES), start=1):
    norm = np.sqrt(sum((x**2).sum() for x in g.values()))
    scale = min(1.0, clip_norm / norm) if clip_norm else 1.0
    for k in params:
      m[k] = b1 * m[k] + (1 - b1) * g[k] * scale
      v[k] = b2 * v[k] + (1 - b2) * (g[k] * scale) ** 2
      size = np.sqrt(1 - b2**t) / (1 - b1**t) if corrected else 1.0
      update = size * m[k] / (np.sqrt(v[k]) + eps) + (
        weight_decay * params[k] if k in decays else 0.0
      )
      norms = np.linalg.norm(params[k]), np.linalg.norm(update)
      ratio = norms[0] / norms[1] if k in adapted and min(norms) > 0 else 1.0
      params[k] = params[k] - rate * ratio * update
  return params


@pytest.mark.parametrize('name', optimizers.BY_NAME)
@pytest.mark.parametrize('clip_norm', [0.0, 0.5])
@pytest.mark.parametrize('no_decay', [(), (r'norm/', r'bias$')])
def test_updates_equal_the_formula_step_by_step(name, clip_norm, no_decay):
  params, grads = draws()
  fields = dict(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.1, clip_norm=clip_norm)
  more = {'no_adaptation': (r'bias$',)} if name == 'lamb' else {}
  tx = optimizers.BY_NAME[name](
    lambda s: jnp.asarray(RATES)[s], list(SHAPES), no_decay=no_decay, **fields, **more
  )
  ours = nested({k: jnp.asarray(x, jnp.float32) for k, x in params.items()})
  state = tx.init(ours)
  for step, g in enumerate(grads):
    updates, state = tx.update(
      nested({k: jnp.asarray(x, jnp.float32) for k, x in g.items()}), state, ours, step=step
    )
    ours = jax.tree.map(jnp.add, ours, updates)
  expected = reference(
    params,
    grads,
    corrected=name == 'adamw',
    decays=set(SHAPES) if not no_decay else {'layer/kernel'},
    adapted={'layer/kernel', 'norm/scale'} if name == 'lamb' else (),
    **fields,
  )
  for k, x in expected.items():
    a, b = k.split('/')
    np.testing.assert_allclose(ours[a][b], x, rtol=2e-5, atol=2e-6, err_msg=k)


@pytest.mark.parametrize(
  'name,share', [('adamw_uncorrected', 0.1 / np.sqrt(0.001)), ('adamw', 1.0)]
)
def test_the_first_update_is_3_162_times_the_sign_without_correction_and_1_with_it(name, share):
  tx = optimizers.BY_NAME[name](
    lambda s: 1.0, ['w'], b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.0, no_decay=(), clip_norm=0.0
  )
  params = {'w': jnp.zeros(3)}
  updates, _ = tx.update({'w': jnp.array([5.0, -7.0, 9.0])}, tx.init(params), params, step=0)
  np.testing.assert_allclose(updates['w'], [-share, share, -share], rtol=1e-4)
  assert share == pytest.approx(3.1623 if name == 'adamw_uncorrected' else 1.0, rel=1e-4)


@pytest.mark.parametrize(
  'regex',
  [
    'nrom/',
    '(',
  ],
)
def test_a_decay_rule_that_matches_nothing_is_refused(regex):
  with pytest.raises(errors.UserError, match='no_decay'):
    optimizers.adamw(
      lambda s: 1.0,
      list(SHAPES),
      b1=0.9,
      b2=0.98,
      eps=1e-6,
      weight_decay=0.1,
      no_decay=(regex,),
      clip_norm=0.0,
    )


@pytest.mark.parametrize('name', optimizers.BY_NAME)
@pytest.mark.parametrize(
  'field,value',
  [
    ('b1', 1.0),
    ('b1', -0.1),
    ('b2', 1.5),
    ('b2', float('nan')),
    ('eps', 0.0),
    ('weight_decay', -0.01),
    ('clip_norm', -1.0),
  ],
)
def test_a_number_that_makes_no_optimizer_is_refused(name, field, value):
  fields = {
    **dict(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.1, no_decay=(), clip_norm=0.0),
    field: value,
  }
  with pytest.raises(errors.UserError, match=f'optimizer.{field} is {value}'):
    optimizers.BY_NAME[name](
      lambda s: 1.0, list(SHAPES), **fields, **({'no_adaptation': ()} if name == 'lamb' else {})
    )


def lamb(paths, **changes):
  fields = dict(
    b1=0.9,
    b2=0.999,
    eps=1e-6,
    weight_decay=0.1,
    no_decay=('bias$',),
    no_adaptation=('bias$',),
    clip_norm=0.0,
  )
  return optimizers.lamb(lambda s: 0.5, paths, **{**fields, **changes})


def test_each_layer_of_a_stack_has_its_own_trust_ratio_and_what_layers_share_has_one():
  draw = np.random.default_rng(1)
  params = [
    jnp.asarray(draw.normal(size=(3, 4)) * scale, jnp.float32) for scale in (1.0, 10.0, 0.1)
  ]
  grads = [jnp.asarray(draw.normal(size=(3, 4)), jnp.float32) for _ in params]

  def update(name, tree, g):
    tree, g = {name: {'kernel': tree}}, {name: {'kernel': g}}
    tx = lamb([f'{name}/kernel'], no_decay=(), no_adaptation=())
    return tx.update(g, tx.init(tree), tree, step=0)[0][name]['kernel']

  alone = [update('dense', p, g) for p, g in zip(params, grads)]
  np.testing.assert_allclose(
    update('layers', jnp.stack(params), jnp.stack(grads)), jnp.stack(alone), rtol=1e-6
  )
  together = update('dense', jnp.stack(params), jnp.stack(grads))
  assert abs(together / jnp.stack(alone) - 1).max() > 0.1
  # the rate times the parameter's norm
  np.testing.assert_allclose(jnp.linalg.norm(alone[1]), 0.5 * jnp.linalg.norm(params[1]), rtol=1e-6)


def test_a_parameter_or_an_update_of_zeros_has_the_ratio_1():
  params = {'a': {'kernel': jnp.zeros((2, 2))}, 'b': {'kernel': jnp.ones((2, 2))}}
  tx = lamb(['a/kernel', 'b/kernel'], weight_decay=0.0, no_decay=(), no_adaptation=())
  updates, _ = tx.update(
    {'a': {'kernel': jnp.ones((2, 2))}, 'b': {'kernel': jnp.zeros((2, 2))}},
    tx.init(params),
    params,
    step=0,
  )
  np.testing.assert_allclose(updates['a']['kernel'], -0.5 * 0.1 / np.sqrt(0.001), rtol=1e-4)
  assert not np.asarray(updates['b']['kernel']).any()


def test_a_rule_about_trust_ratios_that_matches_nothing_is_refused():
  with pytest.raises(errors.UserError, match="no_adaptation has 'nrom/'"):
    lamb(['norm/scale', 'norm/bias'], no_adaptation=('nrom/',))
