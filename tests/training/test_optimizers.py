"""Optimizers against the update written out with numpy in float64, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.common import trees
from bertzoo_jax.training import optimizers
from tests import found
from tests.found import call_part

ADAMS = ('adamw', 'adamw_uncorrected', 'lamb')
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


def reference(params, grads, *, corrected, decays, adapted=(), multipliers=(), groups=(), **fields):
  """Decoupled Adam as the released codes write it, parameter by parameter; LAMB with the parameters
  that have a ratio. multipliers: of the rate, 1 where there is none. groups: lists of parameters
  that are clipped together.
  """
  b1, b2, eps, weight_decay, clip_norm = (
    fields[k] for k in ('b1', 'b2', 'eps', 'weight_decay', 'clip_norm')
  )
  multipliers, groups = dict(multipliers), groups or [list(params)]
  params, m, v = dict(params), {k: 0.0 for k in params}, {k: 0.0 for k in params}
  for t, (g, rate) in enumerate(zip(grads, RATES), start=1):
    scale = {}
    for group in groups:
      norm = np.sqrt(sum((g[k] ** 2).sum() for k in group))
      scale.update(dict.fromkeys(group, min(1.0, clip_norm / norm) if clip_norm else 1.0))
    for k in params:
      m[k] = b1 * m[k] + (1 - b1) * g[k] * scale[k]
      v[k] = b2 * v[k] + (1 - b2) * (g[k] * scale[k]) ** 2
      size = np.sqrt(1 - b2**t) / (1 - b1**t) if corrected else 1.0
      update = size * m[k] / (np.sqrt(v[k]) + eps) + weight_decay * params[k] * (k in decays)
      norms = np.linalg.norm(params[k]), np.linalg.norm(update)
      ratio = norms[0] / norms[1] if k in adapted and min(norms) > 0 else 1.0
      params[k] = params[k] - rate * multipliers.get(k, 1.0) * ratio * update
  return params


def built(name, schedule, paths, **fields):
  return call_part(optimizers, name, schedule, paths, **found.fields('optimizer', name, **fields))


@pytest.mark.parametrize('name', ADAMS)
@pytest.mark.parametrize('clip_norm', [0.0, 0.5])
@pytest.mark.parametrize('no_decay', [(), (r'norm/', r'bias$')])
def test_updates_equal_the_formula_step_by_step(name, clip_norm, no_decay):
  params, grads = draws()
  fields = dict(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.1, clip_norm=clip_norm)
  more = {'no_adaptation': (r'bias$',)} if name == 'lamb' else {}
  tx = built(name, lambda s: jnp.asarray(RATES)[s], SHAPES, no_decay=no_decay, **fields, **more)
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


def lamb(paths, **changes):
  fields = dict(weight_decay=0.1, no_decay=('bias$',), no_adaptation=('bias$',), clip_norm=0.0)
  return built('lamb', lambda s: 0.5, paths, **{**fields, **changes})


def test_a_parameter_or_an_update_of_zeros_has_the_ratio_1():
  params = {'a': {'kernel': jnp.zeros((2, 2))}, 'b': {'kernel': jnp.ones((2, 2))}}
  tx = lamb(trees.paths_of(params), weight_decay=0.0, no_decay=(), no_adaptation=())
  grads = {'a': {'kernel': jnp.ones((2, 2))}, 'b': {'kernel': jnp.zeros((2, 2))}}
  updates, _ = tx.update(grads, tx.init(params), params, step=0)
  np.testing.assert_allclose(updates['a']['kernel'], -0.5 * 0.1 / np.sqrt(0.001), rtol=1e-4)
  assert not np.asarray(updates['b']['kernel']).any()


def test_a_rule_about_trust_ratios_that_matches_nothing_is_refused():
  with pytest.raises(errors.UserError, match="no_adaptation has 'nrom/'"):
    lamb({'norm/scale': (4,), 'norm/bias': (4,)}, no_adaptation=('nrom/',))


# A stack of four layers; `tied` has one copy for layers 0 and 1, and one for layers 2 and 3.
LAYERED = {
  'embeddings/table': (5, 3),
  'head/kernel': (3,),
  'layers/dense/bias': (4, 3),
  'layers/dense/kernel': (4, 3, 3),
  'layers/tied/kernel': (2, 3, 3),
}


def test_a_rule_that_names_a_layer_gives_each_copy_its_own_value():
  table = ((r'dense/bias$', 1.0), (r'layers/1/', 2.0), (r'layers/3/', 3.0), (r'^emb', 4.0))
  found = optimizers.policy(table, LAYERED, 0.0)
  expected = {
    'embeddings/table': 4.0,
    'head/kernel': 0.0,
    'layers/dense/bias': 1.0,  # the plain path matches first
    'layers/dense/kernel': np.reshape([0.0, 2.0, 0.0, 3.0], (4, 1, 1)),
    'layers/tied/kernel': np.reshape([2.0, 3.0], (2, 1, 1)),  # as the last layer of each copy
  }
  assert found.keys() == expected.keys()
  for path, value in expected.items():
    assert np.shape(found[path]) == np.shape(value)
    np.testing.assert_array_equal(found[path], value, err_msg=path)


def test_layers_are_counted_in_each_stack_and_copies_where_all_are_shared():
  shapes = {
    'layers/a': (1, 3),
    'layers/b': (1, 3),
    'other/layers/a': (6, 3),
    'other/layers/b': (2, 3),
  }
  table = ((r'layers/0/', 1), (r'layers/2/', 2), (r'layers/5/', 3))
  found = optimizers.policy(table, shapes, 0)
  assert (found['layers/a'], found['layers/b']) == (1, 1)
  np.testing.assert_array_equal(found['other/layers/a'][:, 0], [1, 0, 2, 0, 0, 3])
  np.testing.assert_array_equal(found['other/layers/b'][:, 0], [2, 3])


def by_copy(tree):
  """{path, or path and number of a copy: array} of arrays by path."""
  return {
    (path, i): x
    for path, leaf in tree.items()
    for i, x in (enumerate(leaf) if path.startswith('layers/') else [(None, leaf)])
  }


@pytest.mark.parametrize('name', ADAMS)
def test_updates_by_layer_equal_the_formula_for_each_layer_alone(name):
  draw = np.random.default_rng(3)
  params = {k: draw.normal(size=s) for k, s in LAYERED.items()}
  grads = [
    {k: 10.0 ** draw.integers(-2, 2) * draw.normal(size=s) for k, s in LAYERED.items()}
    for _ in RATES
  ]
  fields = dict(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.1, clip_norm=0.5)
  tx = built(
    name,
    lambda s: jnp.asarray(RATES)[s],
    LAYERED,
    **fields,
    no_decay=(r'bias$', r'layers/1/'),
    rates=((r'layers/0/', 0.25), (r'layers/', 0.5), (r'^emb', 0.125)),
    clip_groups=(r'^emb', r'layers/[23]/dense'),
    **({'no_adaptation': (r'bias$', r'layers/3/')} if name == 'lamb' else {}),
  )
  f32 = lambda tree: {k: jnp.asarray(x, jnp.float32) for k, x in tree.items()}
  ours = f32(params)
  state = tx.init(ours)
  for step, g in enumerate(grads):
    updates, state = tx.update(f32(g), state, ours, step=step)
    ours = jax.tree.map(jnp.add, ours, updates)
  copies = by_copy(params)
  embeddings = [('embeddings/table', None)]
  upper = [(f'layers/dense/{leaf}', i) for leaf in ('bias', 'kernel') for i in (2, 3)]
  # A tied copy has the values of its last layer: 1 and 3.
  undecayed = {('layers/dense/kernel', 1), ('layers/tied/kernel', 0)}
  unadapted = {('layers/dense/kernel', 3), ('layers/tied/kernel', 1)}
  expected = reference(
    copies,
    [by_copy(g) for g in grads],
    corrected=name == 'adamw',
    decays={k for k in copies if 'bias' not in k[0] and k not in undecayed},
    adapted={k for k in copies if 'bias' not in k[0] and k not in unadapted}
    if name == 'lamb'
    else (),
    multipliers={
      **{k: 0.5 for k in copies if 'layers/' in k[0]},
      **{(f'layers/dense/{leaf}', 0): 0.25 for leaf in ('bias', 'kernel')},
      ('embeddings/table', None): 0.125,
    },
    groups=[embeddings, upper, [k for k in copies if k not in (*embeddings, *upper)]],
    **fields,
  )
  for k, x in by_copy(ours).items():
    np.testing.assert_allclose(x, expected[k], rtol=5e-5, atol=5e-6, err_msg=str(k))


@pytest.mark.parametrize('name', ADAMS)
def test_a_state_has_the_kinds_that_checkpoints_hold(name):
  params = {k: jnp.ones(s) for k, s in LAYERED.items()}
  more = {'no_adaptation': (r'bias$',)} if name == 'lamb' else {}
  more |= dict(no_decay=(r'bias$',), clip_norm=0.3)
  state = built(name, lambda s: 0.3, LAYERED, **more).init(params)
  empty = optax.EmptyState()
  kinds = (empty, optimizers.AdamState(0, params, params), optax.MaskedState(empty))
  kinds += (empty, empty) if name == 'lamb' else (empty,)
  assert jax.tree.structure(state) == jax.tree.structure(kinds)


@pytest.mark.parametrize('name', optimizers.BY_NAME)
def test_a_first_moment_of_bfloat16_is_rounded_between_updates_that_are_those_of_float32(name):
  draw = np.random.default_rng(6)
  arrays = lambda: {k: jnp.asarray(draw.normal(size=s), jnp.float32) for k, s in LAYERED.items()}
  params, grads = arrays(), arrays()
  to = lambda dtype, state: jax.tree_util.tree_map_with_path(
    lambda path, x: x.astype(dtype) if 'mu' in jax.tree_util.keystr(path) else x, state
  )
  own = {'no_adaptation': ()} if name == 'lamb' else {}
  own |= {'matrices': ()} if name == 'muon' else {}
  whole, small = (
    built(name, lambda s: 0.1, LAYERED, no_decay=(), mu_dtype=dtype, **own)
    for dtype in ('float32', 'bfloat16')
  )
  state = small.init(params)
  for step in range(3):
    expected, after = whole.update(grads, to('float32', state), params, step=step)
    updates, state = small.update(grads, state, params, step=step)
    jax.tree.map(np.testing.assert_array_equal, updates, expected)
    jax.tree.map(np.testing.assert_array_equal, state, to('bfloat16', after))
  kept = {x.dtype.name for x in jax.tree.leaves(state) if x.ndim}
  assert kept == {'bfloat16', 'float32'}


def adamw(**changes):
  return built('adamw', lambda s: 1.0, LAYERED, **{'clip_norm': 1.0, **changes})


@pytest.mark.parametrize(
  'changes, words',
  [
    (dict(rates=(('nrom/', 0.5),)), "rates has 'nrom/', which matches no parameter"),
    (dict(rates=(('layers/4/', 0.5),)), "like 'layers/0/dense/bias'"),
    (dict(no_decay=('layers/4/',)), 'no_decay.*matches no parameter'),
    (dict(clip_groups=('layers/4/',)), 'clip_groups.*matches no parameter'),
    (dict(rates=(('(', 0.5),)), 'no regular expression'),
    (dict(rates=('layers/', 0.5)), "rates has 'layers/': a rule is"),
    (dict(rates=(('layers/', '1'),)), 'the multiplier 0 or more'),
    (dict(clip_groups='^emb'), r"it is a tuple, write \('\^emb',\)"),
    (dict(clip_groups=('^emb',), clip_norm=0.0), 'clip_norm is 0'),
  ],
)
def test_a_table_that_cannot_be_meant_is_refused(changes, words):
  with pytest.raises(errors.UserError, match=words):
    adamw(**changes)
