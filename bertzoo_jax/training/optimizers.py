"""Optimizers, as optax transforms whose learning rate is a function of the train step.

The rate depends on the run's own step, passed as `tx.update(..., step=step)`, and not on a counter
in the optimizer state. It stays right across phases and skipped updates.

Policies per parameter are ordered tables of path regexes: weight decay, multipliers of the learning
rate, clip groups, trust ratios. They may depend on the layer (`policy`).
Fields: bertzoo_jax/parts/optimizers.py.
"""

import math
import re
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from bertzoo_jax.common import errors
from bertzoo_jax.common import trees
from bertzoo_jax.parts import optimizers as definitions

# Parameters with the copies of a scanned stack in their first axis.
_STACKED = r'(^|/)layers/'

_EMPTY = optax.EmptyState()


class AdamState(NamedTuple):
  """First and second moments, shaped like the parameters, and the number of updates in them."""

  count: jax.Array
  mu: dict
  nu: dict


def adamw(fields: definitions.Adamw, schedule, paths):
  """Adam with bias correction and decoupled weight decay, as fairseq has it.

  p ← p − lr·wd·p − lr·√(1−b2ᵗ)/(1−b1ᵗ) · m/(√v + eps). As in fairseq, eps is added to the
  uncorrected √v; torch and optax add it after the correction, a relative difference of eps/√v in
  the first updates. t counts the run's updates: a parameter that joins in a later phase is hardly
  corrected.

  schedule: step → learning rate. paths: {path: shape}, as `trees.paths_of` returns.
  Returns an optax transform whose `update` takes `step`. Raises UserError for an invalid regex, a
  regex that matches no parameter, and clip groups without clip_norm.
  """
  return _chain(schedule, paths, fields, _adam(fields, corrected=True))


def adamw_uncorrected(fields: definitions.AdamwUncorrected, schedule, paths):
  """Adam without bias correction and with decoupled decay: p ← p − lr·(m/(√v + eps) + wd·p), as in
  Google's BERT.

  Arguments, result and errors as in `adamw`. A first update from zero moments is (1−b1)/√(1−b2)
  times the gradient's sign.
  """
  return _chain(schedule, paths, fields, _adam(fields, corrected=False))


def lamb(fields: definitions.Lamb, schedule, paths):
  """LAMB as Google's code has it (You et al. 2020; ALBERT's release): u = m/(√v + eps) + wd·p; p ←
  p − lr·(‖p‖/‖u‖)·u.

  No bias correction. The ratio is 1 if either norm is 0, and for parameters that `no_adaptation`
  matches. In a scanned stack norms are per layer; a parameter that layers share has one norm.
  Arguments, result and errors as in `adamw`.
  """
  _check_table('no_adaptation', fields.no_adaptation, paths)
  ratio = _trust_ratio(policy([(regex, False) for regex in fields.no_adaptation], paths, True))
  return _chain(schedule, paths, fields, _adam(fields, corrected=False), adaptation=ratio)


def stable_adamw(fields: definitions.StableAdamw, schedule, paths):
  """StableAdamW (Wortsman et al. 2023, Algorithm 2): u = m̂/(√v̂ + eps) + wd·p; p ← p − lr·u/max(1,
  RMS) with RMS = √mean(g²/max(v̂, eps²)).

  Both moments are bias-corrected. The mean is over one parameter, per layer in a scanned stack.
  Arguments, result and errors as in `adamw`.
  """
  _check_table('no_decay', fields.no_decay, paths)
  return _chain(schedule, paths, fields, _stable_adam(fields, _decays(fields, paths)), decays=False)


def muon(fields: definitions.Muon, schedule, paths):
  """Muon for the matrices of the layers, AdamW for the rest (Jordan et al. 2024; with the scale of
  Liu et al. 2025, eq. 4): m ← μ·m + (1−μ)·g; u = rms·√max(in, out)·orthogonal((1−μ)·g + μ·m); p ← p
  − lr·(u + wd·p).

  `orthogonal` is Newton and Schulz's iteration with Jordan's three coefficients. The heads of a
  layer form one matrix. All other parameters are updated as in `adamw`, by the same learning rate.
  Arguments, result and errors as in `adamw`.

  Raises UserError: also an invalid rule of `matrices`, or one whose axes a parameter does not have.
  """
  axes = _matrix_axes(fields.matrices, paths)
  is_matrix = lambda params: _map_with_path(lambda path, _: axes[path] is not None, params)
  others = lambda params: _map_with_path(lambda path, _: axes[path] is None, params)
  both = optax.chain(
    optax.masked(_muon(fields, axes), is_matrix),
    optax.masked(_adam(fields, corrected=True), others),
  )
  return _chain(schedule, paths, fields, both)


def policy(table, paths, default) -> dict:
  """The value of each parameter in an ordered table; the first rule that matches wins.

  A rule matches a parameter if its regex is found in the path. A scanned stack has one path for
  the copies of all layers, in the first axis. There, a rule also matches a copy if its regex is
  found in the path with the layer's number put in: `encoder/layers/11/attention/query/kernel`.

  Layers are counted from 0. A stack has as many layers as its leaf with the most copies. A leaf
  with fewer copies is shared: copy c of C stands for layers c·n/C to (c+1)·n/C − 1, and has the
  number of the last of them. If all leaves of a stack are shared, the number of layers is unknown:
  their copies (groups of layers) are counted instead. If a layer is several blocks
  (`inner_group_num`), blocks are counted.

  Returns {path: value}; if copies differ, the value is an array [copies, 1, …] that broadcasts over
  the parameter. table: ordered (path regex, value). default: the value if no rule matches.
  """

  def value(path, numbered):
    return next(
      (v for regex, v in table if matching(path, [regex]) or matching(numbered, [regex])), default
    )

  def values(path, numbered, shape):
    per_copy = [value(path, name) for name in numbered]
    if all(v == per_copy[0] for v in per_copy):
      return per_copy[0]
    dtype = np.float32 if isinstance(default, float) else None
    return np.asarray(per_copy, dtype).reshape(-1, *[1] * (len(shape) - 1))

  names = _numbered(paths)
  return {path: values(path, names[path], shape) for path, shape in paths.items()}


def matching(path: str, table) -> bool:
  """True if one of the regexes is found in the path."""
  return any(re.search(regex, path) for regex in table)


def _numbered(paths) -> dict[str, list[str]]:
  """{path: paths of its copies, with the layer's number}; outside of stacks the path alone."""
  stacks = {path: path[: match.end()] for path in paths if (match := re.search(_STACKED, path))}
  layers = {}
  for path, stack in stacks.items():
    layers[stack] = max(layers.get(stack, 0), paths[path][0])

  def names(path):
    if path not in stacks:
      return [path]
    stack, copies = stacks[path], paths[path][0]
    last = [(c + 1) * layers[stack] // copies - 1 for c in range(copies)]
    return [f'{stack}{layer}/{path[len(stack) :]}' for layer in last]

  return {path: names(path) for path in paths}


def _chain(schedule, paths, fields, adam, adaptation=None, decays=True):
  """The optax chain: clipping, `adam`, weight decay (if `decays`), `adaptation`, learning rate."""
  clip_groups = fields.clip_groups
  _check_rates(fields.rates)
  _check_table('no_decay', fields.no_decay, paths)
  _check_table('rates', [regex for regex, _ in fields.rates], paths)
  _check_table('clip_groups', clip_groups, paths)
  if clip_groups and not fields.clip_norm:
    raise errors.UserError(
      'optimizer.clip_groups is set, and optimizer.clip_norm is 0, which clips nothing: set '
      'clip_norm, or leave clip_groups ().'
    )
  parts = []
  if fields.clip_norm:
    rest = len(clip_groups)
    groups = policy([(regex, k) for k, regex in enumerate(clip_groups)], paths, rest)
    parts.append(_clip(fields.clip_norm, groups))
  parts.append(adam)
  if decays and fields.weight_decay:
    parts.append(_decay(_decays(fields, paths)))
  if adaptation is not None:
    parts.append(adaptation)
  parts.append(_scale_by_rate(schedule, policy(fields.rates, paths, 1.0)))
  return optax.chain(*parts)


def _decays(fields, paths):
  """{path: weight decay of the parameter}, see `policy`."""
  return policy([(regex, 0.0) for regex in fields.no_decay], paths, float(fields.weight_decay))


def _equals(value, setting) -> bool:
  """Whether all copies of a parameter have this value. setting: a value of `policy`'s result."""
  return np.ndim(setting) == 0 and setting == value


def _map_with_path(f, *pytrees):
  """Maps f(path, leaf, …) over trees of leaves."""
  return jax.tree_util.tree_map_with_path(lambda p, *leaves: f(trees.path_of(p), *leaves), *pytrees)


def _stateless(f, state=_EMPTY):
  """An optax transform from f: (updates, params) → updates, whose state holds no array."""
  return optax.GradientTransformation(
    lambda params: state, lambda updates, state, params=None: (f(updates, params), state)
  )


def _clip(clip_norm, groups):
  """Clips each group by its own norm. groups: {path: number of its group}, see `policy`."""
  clip = optax.clip_by_global_norm(clip_norm)
  numbers = sorted({int(k) for group in groups.values() for k in np.ravel(group)})

  def clipped(updates, params):
    del params
    leaves, tree = jax.tree.flatten(updates)
    group_of = [groups[path] for path in trees.paths_of(updates)]
    for k in numbers:
      # Zeros stand for copies of other groups: they add nothing to the norm.
      members = {
        i: x if _equals(k, group) else jnp.where(group == k, x, 0.0)
        for i, (x, group) in enumerate(zip(leaves, group_of))
        if np.any(group == k)
      }
      for i, x in clip.update(members, _EMPTY)[0].items():
        leaves[i] = x if _equals(k, group_of[i]) else jnp.where(group_of[i] == k, x, leaves[i])
    return jax.tree.unflatten(tree, leaves)

  return _stateless(clipped)


def _decay(shares):
  """Adds weight decay to the updates. shares: {path: weight decay}, see `policy`."""
  add = lambda path, u, p: u if _equals(0.0, shares[path]) else u + shares[path] * p
  # Checkpoints record this state's type: all were written with the one of optax's masked decay.
  state = optax.MaskedState(_EMPTY)
  return _stateless(lambda updates, params: _map_with_path(add, updates, params), state)


def _adam(fields, corrected):
  b1, b2, eps, mu_dtype = fields.b1, fields.b2, fields.eps, fields.mu_dtype

  def init(params):
    zeros = lambda: jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    return _stored(AdamState(jnp.zeros([], jnp.int32), zeros(), zeros()), mu_dtype)

  def update(gradients, state, params=None):
    del params
    f32 = lambda m: m.astype(jnp.float32)
    mu = jax.tree.map(lambda m, g: b1 * f32(m) + (1 - b1) * g, state.mu, gradients)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, gradients)
    count = state.count + 1
    scale = (
      jnp.sqrt(_one_minus_power(b2, count)) / _one_minus_power(b1, count) if corrected else 1.0
    )
    updates = jax.tree.map(lambda m, v: scale * m / (jnp.sqrt(v) + eps), mu, nu)
    return updates, _stored(AdamState(count, mu, nu), mu_dtype)

  return optax.GradientTransformation(init, update)


def _stored(state, mu_dtype):
  """The AdamState with mu in its storage dtype; updates are computed in float32."""
  return state._replace(mu=jax.tree.map(lambda m: m.astype(mu_dtype), state.mu))


def _stable_adam(fields, decays):
  """Adam and decay, both divided by max(1, RMS). decays: see `_decays`."""
  b1, b2, eps, mu_dtype = fields.b1, fields.b2, fields.eps, fields.mu_dtype
  moments = types.SimpleNamespace(b1=b1, b2=b2, eps=0.0, mu_dtype='float32')
  adam = _adam(moments, corrected=False)

  def update(gradients, state, params):
    _, state = adam.update(gradients, state)
    first, second = (_one_minus_power(b, state.count) for b in (b1, b2))

    def one(path, g, m, v, p):
      v = v / second
      u = m / first / (jnp.sqrt(v) + eps) + decays[path] * p
      share = jnp.square(g) / jnp.maximum(v, eps**2)
      return u / jnp.maximum(1.0, jnp.sqrt(jnp.mean(share, axis=_sum_axes(path, g), keepdims=True)))

    return _map_with_path(one, gradients, state.mu, state.nu, params), _stored(state, mu_dtype)

  return optax.GradientTransformation(lambda params: _stored(adam.init(params), mu_dtype), update)


def _muon(fields, axes):
  """Muon's update direction for parameters whose axes are not None. axes: see `_matrix_axes`."""

  def orthogonal(path, x):
    # beta=0: the input has its momentum already
    one = optax.contrib.scale_by_muon(
      ns_steps=fields.iterations, beta=0.0, nesterov=False, weight_dimension_numbers=[axes[path]]
    )
    sizes = [math.prod(x.shape[axis] for axis in side) for side in axes[path]]
    return fields.rms * math.sqrt(max(sizes)) * one.update([x], one.init([x]))[0][0]

  def update(gradients, state, params=None):
    del params
    mix = lambda m, g: fields.momentum * m + (1 - fields.momentum) * g
    state = jax.tree.map(mix, state, gradients)
    return _map_with_path(orthogonal, jax.tree.map(mix, state, gradients)), state

  zeros = lambda params: jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
  return optax.GradientTransformation(zeros, update)


def _matrix_axes(matrices, paths) -> dict:
  """{path: axes of inputs and of outputs, as optax's MuonDimensionNumbers; None for AdamW}."""
  for rule in matrices:
    if not _is_matrix(rule):
      raise errors.UserError(
        f'optimizer.matrices has {rule!r}: a rule is (path regex, axes of the inputs, axes of the '
        'outputs), each axis once and counted from the last, as (-2,) and (-1,).'
      )
  _check_table('matrices', [regex for regex, *_ in matrices], paths)
  axes = {}
  for path, shape in paths.items():
    sides = next((sides for regex, *sides in matrices if matching(path, [regex])), None)
    rank = len(shape) - bool(re.search(_STACKED, path))
    if sides and max(-axis for side in sides for axis in side) > rank:
      raise errors.UserError(
        f'optimizer.matrices gives {path!r} the axes {sides}, and it has {rank}, not counting that '
        'of the layers: name other axes, or a regex that does not match it.'
      )
    axes[path] = sides and optax.contrib.MuonDimensionNumbers(*map(tuple, sides))
  return axes


def _is_matrix(rule) -> bool:
  """Whether a rule of `matrices` is (regex, axes, other axes)."""
  if not (isinstance(rule, tuple) and len(rule) == 3 and isinstance(rule[0], str)):
    return False
  if not all(isinstance(side, tuple) and side for side in rule[1:]):
    return False
  axes = [*rule[1], *rule[2]]
  return all(isinstance(axis, int) and axis < 0 for axis in axes) and len({*axes}) == len(axes)


def _sum_axes(path, x):
  """The axes of one layer's parameter: all but the axis of stacked layers."""
  return tuple(range(1 if re.search(_STACKED, path) else 0, x.ndim))


def _one_minus_power(b, t):
  """1 − bᵗ without cancellation."""
  return -jnp.expm1(t.astype(jnp.float32) * jnp.log(jnp.float32(b))) if b else jnp.float32(1.0)


def _trust_ratio(adapts):
  """Scales updates by ‖p‖/‖u‖. adapts: {path: False to leave it as it is}, see `policy`."""

  def norm(path, x):
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=_sum_axes(path, x), keepdims=True))

  def scaled(path, u, p):
    if _equals(False, adapts[path]):
      return u
    param_norm, update_norm = norm(path, p), norm(path, u)
    usable = (param_norm > 0) & (update_norm > 0)
    if not _equals(True, adapts[path]):
      usable &= adapts[path]
    return jnp.where(usable, param_norm / jnp.where(update_norm > 0, update_norm, 1.0), 1.0) * u

  return _stateless(lambda updates, params: _map_with_path(scaled, updates, params))


def _scale_by_rate(schedule, multipliers):
  """Multiplies updates by −rate. multipliers: {path: multiplier of the rate}, see `policy`."""

  def update(updates, state, params=None, *, step, **_):
    del params
    rate = schedule(step)
    rate_of = lambda path: rate if _equals(1.0, multipliers[path]) else rate * multipliers[path]
    return _map_with_path(lambda path, u: -rate_of(path) * u, updates), state

  return optax.GradientTransformationExtraArgs(lambda params: _EMPTY, update)


def _check_rates(rates):
  for rule in rates:
    if not (len(rule) == 2 and isinstance(rule[0], str) and isinstance(rule[1], (int, float))):
      raise errors.UserError(
        f'optimizer.rates has {rule!r}: a rule is (path regex, multiplier), the multiplier 0 or '
        'more.'
      )


def check_frozen(table, paths):
  """Raises UserError if a regex of config.frozen matches no parameter, or all are frozen."""
  _check_table('frozen', table, paths, 'config')
  learns = policy([(regex, False) for regex in table], paths, True)
  if not any(np.any(x) for x in learns.values()):
    raise errors.UserError(f'config.frozen={table!r} freezes all parameters: name fewer of them.')


def _check_table(name, table, paths, section='optimizer'):
  if isinstance(table, str):
    raise errors.UserError(f'{section}.{name} is {table!r}: it is a tuple, write ({table!r},).')
  names = {name for numbered in _numbered(paths).values() for name in numbered}
  for regex in table:
    try:
      if not any(re.search(regex, p) for p in [*paths, *names]):
        layers = sorted(names - set(paths))
        raise errors.UserError(
          f'{section}.{name} has {regex!r}, which matches no parameter: paths look like '
          f'{sorted(paths)[0]!r}'
          + (f', with the number of a layer like {layers[0]!r}.' if layers else '.')
        )
    except re.error as e:
      raise errors.UserError(
        f'{section}.{name} has {regex!r}, which is no regular expression: {e}.'
      ) from e


BY_NAME = {
  'adamw': adamw,
  'adamw_uncorrected': adamw_uncorrected,
  'lamb': lamb,
  'stable_adamw': stable_adamw,
  'muon': muon,
}
