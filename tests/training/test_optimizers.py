"""Adams beside updates written out with numpy in float64; StableAdamW and Muon beside torch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from bertzoo_jax.common import errors
from bertzoo_jax.common import trees
from bertzoo_jax.training import optimizers
from tests import found
from tests.found import call_part
from tests.trajectories import papers

ADAMS = ('adamw', 'adamw_uncorrected', 'lamb')
RATES = (0.0, 0.01, 0.02, 0.015, 0.01)
# A stack of four layers; `tied` has one copy for layers 0 and 1, and one for layers 2 and 3.
LAYERED = {
  'embeddings/table': (5, 3),
  'head/kernel': (3,),
  'layers/dense/bias': (4, 3),
  'layers/dense/kernel': (4, 3, 3),
  'layers/tied/kernel': (2, 3, 3),
}


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
  fields = {**({'no_adaptation': ()} if name == 'lamb' else {}), **fields}
  return call_part(optimizers, name, schedule, paths, **found.fields('optimizer', name, **fields))


def after(tx, params, grads):
  """The parameters after the updates by these gradients, of which each is a step's."""
  f32 = lambda tree: {k: jnp.asarray(x, jnp.float32) for k, x in tree.items()}
  params = f32(params)
  state = tx.init(params)
  update = jax.jit(lambda g, state, params, step: tx.update(g, state, params, step=step))
  for step, g in enumerate(grads):
    updates, state = update(f32(g), state, params, step)
    params = jax.tree.map(jnp.add, params, updates)
  return params


def by_copy(tree):
  """{(path, number of a copy or None): array} of arrays by path."""
  return {
    (path, i): x
    for path, leaf in tree.items()
    for i, x in (enumerate(leaf) if path.startswith('layers/') else [(None, leaf)])
  }


KEYS = [*by_copy({path: np.zeros(shape) for path, shape in LAYERED.items()})]
DENSE = 'layers/dense/bias', 'layers/dense/kernel'
UPPER = [(path, i) for path in DENSE for i in (2, 3)]
TABLE = ('embeddings/table', None)
# name: (fields of the optimizer; patterns of parameters without decay, and of those without a
# ratio; then what they mean: these parameters, multipliers, and groups that are clipped together).
# A tied copy has the values of its last layer: 1 and 3.
TABLES = {
  'no tables': (dict(clip_norm=0.5), (), (), set(), set(), {}, ()),
  'no clipping': (dict(clip_norm=0.0), (r'^head', r'bias$'), (), {'head', 'bias'}, set(), {}, ()),
  'by layer': (
    dict(
      rates=((r'layers/0/', 0.25), (r'layers/', 0.5), (r'^emb', 0.125)),
      clip_groups=(r'^emb', r'layers/[23]/dense'),
      clip_norm=0.5,
    ),
    (r'bias$', r'layers/1/'),
    (r'bias$', r'layers/3/'),
    {'bias', ('layers/dense/kernel', 1), ('layers/tied/kernel', 0)},
    {'bias', ('layers/dense/kernel', 3), ('layers/tied/kernel', 1)},
    {
      **{k: 0.5 for k in KEYS if 'layers/' in k[0]},
      **{(path, 0): 0.25 for path in DENSE},
      TABLE: 0.125,
    },
    ([TABLE], UPPER, [k for k in KEYS if k not in (TABLE, *UPPER)]),
  ),
}


@pytest.mark.parametrize('name', ADAMS)
@pytest.mark.parametrize('tables', TABLES)
def test_updates_equal_the_formula_step_by_step(name, tables):
  own, no_decay, no_adaptation, undecayed, unadapted, multipliers, groups = TABLES[tables]
  draw = np.random.default_rng(3)
  drawn = lambda size: {k: size() * draw.normal(size=s) for k, s in LAYERED.items()}
  params = drawn(lambda: 1.0)
  grads = [drawn(lambda: 10.0 ** draw.integers(-4, 2)) for _ in RATES]
  fields = dict(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.1, clip_norm=own['clip_norm'])
  more = dict(no_adaptation=no_adaptation) if name == 'lamb' else {}
  rate = lambda step: jnp.asarray(RATES)[step]
  tx = built(name, rate, LAYERED, **{**fields, **own}, no_decay=no_decay, **more)
  ours = after(tx, params, grads)
  without = lambda few: {k for k in KEYS if not {k, *k[0].split('/')} & few}
  expected = reference(
    by_copy(params),
    [by_copy(g) for g in grads],
    corrected=name == 'adamw',
    decays=without(undecayed),
    adapted=without(unadapted) if name == 'lamb' else (),
    multipliers=multipliers,
    groups=groups,
    **fields,
  )
  for k, x in by_copy(ours).items():
    np.testing.assert_allclose(x, expected[k], rtol=5e-5, atol=5e-6, err_msg=str(k))


def test_a_parameter_or_an_update_of_zeros_has_the_ratio_1():
  params = {'a': {'kernel': jnp.zeros((2, 2))}, 'b': {'kernel': jnp.ones((2, 2))}}
  fields = dict(weight_decay=0.0, no_decay=(), clip_norm=0.0)
  tx = built('lamb', lambda s: 0.5, trees.paths_of(params), **fields)
  grads = {'a': {'kernel': jnp.ones((2, 2))}, 'b': {'kernel': jnp.zeros((2, 2))}}
  updates, _ = tx.update(grads, tx.init(params), params, step=0)
  np.testing.assert_allclose(updates['a']['kernel'], -0.5 * 0.1 / np.sqrt(0.001), rtol=1e-4)
  assert not np.asarray(updates['b']['kernel']).any()


def test_a_rule_that_names_a_layer_gives_each_copy_its_own_value():
  table = ((r'dense/bias$', 1.0), (r'layers/1/', 2.0), (r'layers/3/', 3.0), (r'^emb', 4.0))
  values = optimizers.policy(table, LAYERED, 0.0)
  expected = {
    'embeddings/table': 4.0,
    'head/kernel': 0.0,
    'layers/dense/bias': 1.0,  # the plain path matches first
    'layers/dense/kernel': np.reshape([0.0, 2.0, 0.0, 3.0], (4, 1, 1)),
    'layers/tied/kernel': np.reshape([2.0, 3.0], (2, 1, 1)),  # as the last layer of each copy
  }
  assert values.keys() == expected.keys()
  for path, value in expected.items():
    assert np.shape(values[path]) == np.shape(value)
    np.testing.assert_array_equal(values[path], value, err_msg=path)


def test_layers_are_counted_in_each_stack_and_copies_where_all_are_shared():
  shapes = {'layers/a': (1, 3), 'layers/b': (1, 3), 'other/layers/a': (6, 3)}
  shapes['other/layers/b'] = (2, 3)
  table = ((r'layers/0/', 1), (r'layers/2/', 2), (r'layers/5/', 3))
  values = {path: np.ravel(x).tolist() for path, x in optimizers.policy(table, shapes, 0).items()}
  assert values['layers/a'] == values['layers/b'] == [1]
  assert (values['other/layers/a'], values['other/layers/b']) == ([1, 0, 2, 0, 0, 3], [2, 3])


@pytest.mark.parametrize('name', ADAMS)
def test_a_state_has_the_kinds_that_checkpoints_hold(name):
  params = {k: jnp.ones(s) for k, s in LAYERED.items()}
  state = built(name, lambda s: 0.3, LAYERED, no_decay=(r'bias$',), clip_norm=0.3).init(params)
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
  own = {'matrices': ()} if name == 'muon' else {}
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


WHERE = 'and it has 1, not counting that of the layers: name other axes'


@pytest.mark.parametrize(
  'changes, words',
  [
    (dict(rates=(('nrom/', 0.5),)), "rates has 'nrom/', which matches no parameter"),
    (dict(rates=(('layers/4/', 0.5),)), "like 'layers/0/dense/bias'"),
    (dict(no_decay=('layers/4/',)), 'no_decay.*matches no parameter'),
    (dict(no_adaptation=('nrom/',)), "no_adaptation has 'nrom/'"),
    (dict(clip_groups=('layers/4/',)), 'clip_groups.*matches no parameter'),
    (dict(rates=(('(', 0.5),)), 'no regular expression'),
    (dict(rates=('layers/', 0.5)), "rates has 'layers/': a rule is"),
    (dict(rates=(('layers/', '1'),)), 'the multiplier 0 or more'),
    (dict(clip_groups='^emb'), r"it is a tuple, write \('\^emb',\)"),
    (dict(clip_groups=('^emb',), clip_norm=0.0), 'clip_norm is 0'),
    (
      dict(matrices=(('layers/', (-2,)),)),
      'a rule is .path regex, axes of the inputs',
    ),
    (dict(matrices=(('layers/', (1,), (-1,)),)), 'counted from the last'),
    (dict(matrices=(('nrom/', (-2,), (-1,)),)), "matrices has 'nrom/', which matches no parameter"),
    (dict(matrices=(('layers/', -2, -1),)), 'a rule is'),
    (dict(matrices=(('layers/', (-2, -2), (-1,)),)), 'each axis once'),
    (dict(matrices=(('layers/', (-2,), (-2,)),)), 'each axis once'),
    (dict(matrices=(('bias$', (-2,), (-1,)),)), WHERE),
  ],
)
def test_a_table_that_cannot_be_meant_is_refused(changes, words):
  fields = {'clip_norm': 1.0, 'no_decay': ('bias$',), **changes}
  with pytest.raises(errors.UserError, match=words):
    built('muon' if 'matrices' in changes else 'lamb', lambda s: 1.0, LAYERED, **fields)


# --- beside torch ---


STEPS, PEAK, WEIGHT_DECAY = 20, 0.02, 0.1
D, H, K, F, LAYERS = 8, 2, 4, 12, 3
SHAPES = {
  'embeddings/word/embedding': (11, D),
  'layers/attention/query/kernel': (LAYERS, D, H, K),
  'layers/attention/output/kernel': (LAYERS, H, K, D),
  'layers/feed_forward/in/kernel': (LAYERS, D, F),
  'layers/feed_forward/in/bias': (LAYERS, F),
  'layers/attention_norm/scale': (LAYERS, D),
}
# Of one layer, as Hugging Face has it: inputs × outputs.
MATRICES = {
  'layers/attention/query/kernel': (D, H * K),
  'layers/attention/output/kernel': (H * K, D),
  'layers/feed_forward/in/kernel': (D, F),
}
NO_DECAY = (r'norm/', r'bias$')


def draws():
  draw = np.random.default_rng(5)
  params = {k: draw.normal(size=s).astype(np.float32) for k, s in SHAPES.items()}
  # far apart, so that StableAdamW's bound is met in some steps and not in others
  size = lambda: 10.0 ** draw.uniform(-3, 1)
  grads = [
    {k: (size() * draw.normal(size=s)).astype(np.float32) for k, s in SHAPES.items()}
    for _ in range(STEPS)
  ]
  return params, grads


def rate(step):
  return PEAK * (step + 1) / STEPS


def by_layer(tree):
  """{(path, layer or None): array}, matrices as inputs × outputs."""
  out = {}
  for path, x in tree.items():
    for layer, one in enumerate(x) if path.startswith('layers/') else [(None, x)]:
      out[path, layer] = np.asarray(one).reshape(MATRICES.get(path, one.shape))
  return out


def decays(key):
  return 0.0 if optimizers.matching(key[0], NO_DECAY) else WEIGHT_DECAY


def stable_adamw(params, grads):
  for key, p in params.items():
    state, how = {}, dict(rate=rate, b2=0.98, decay=decays(key))
    for step, g in enumerate(grads):
      papers.stable_adamw(p, key[0], g[key], state, step, **how)
  return params


def newton_schulz(grad, coefficients, steps, eps):
  """The iteration of torch.optim.Muon, in float32."""
  a, b, c = coefficients
  x = grad.T if grad.size(0) > grad.size(1) else grad
  x = x / x.norm().clamp(min=eps)
  for _ in range(steps):
    gram = x @ x.T
    x = a * x + (b * gram + c * gram @ gram) @ x
  return x.T if grad.size(0) > grad.size(1) else x


def muon(params, grads, monkeypatch):
  """torch's Muon for matrices; for the rest AdamW with fairseq's place of eps."""
  monkeypatch.setattr(torch.optim._muon, '_zeropower_via_newtonschulz', newton_schulz)
  for key, p in params.items():
    if key[0] in MATRICES:
      p = torch.nn.Parameter(p)
      optimizer = torch.optim.Muon(
        [p], weight_decay=decays(key), momentum=0.95, adjust_lr_fn='match_rms_adamw'
      )
      for step, g in enumerate(grads):
        optimizer.param_groups[0]['lr'] = rate(step)
        p.grad = g[key]
        optimizer.step()
      params[key] = p.detach()
      continue
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for t, g in enumerate(grads, start=1):
      m, v = 0.9 * m + 0.1 * g[key], 0.98 * v + 0.02 * g[key] ** 2
      size = (1 - 0.98**t) ** 0.5 / (1 - 0.9**t)
      p -= rate(t - 1) * (size * m / (v.sqrt() + 1e-6) + decays(key) * p)
  return params


@pytest.mark.parametrize('name', ['stable_adamw', 'muon'])
def test_twenty_updates_equal_torch_layer_by_layer(name, monkeypatch):
  params, grads = draws()
  tensors = lambda tree: {k: torch.tensor(x) for k, x in by_layer(tree).items()}
  arguments = tensors(params), [tensors(g) for g in grads]
  expected = stable_adamw(*arguments) if name == 'stable_adamw' else muon(*arguments, monkeypatch)
  tx = built(name, rate, SHAPES, weight_decay=WEIGHT_DECAY, no_decay=NO_DECAY, clip_norm=0.0)
  for key, x in by_layer(after(tx, params, grads)).items():
    np.testing.assert_allclose(x, expected[key], rtol=1e-5, atol=1e-5, err_msg=str(key))
