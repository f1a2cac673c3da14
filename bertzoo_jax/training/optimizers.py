"""Optimizers, as optax transforms whose learning rate is a function of the train step they are
told.

The rate depends on the run's own step, handed to `tx.update(..., step=step)`, and not on a counter
in the optimizer
state: one truth, also across phases and left-out updates. Policies by parameter are tables of path
regexes.
"""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertzoo_jax.common import errors

# Parameters with the copies of a scanned stack in their first axis.
_STACKED = r'(^|/)layers/'


class AdamState(NamedTuple):
  """First and second moments, shaped like the parameters, and how many updates went into them."""

  count: jax.Array
  mu: dict
  nu: dict


def adamw(
  schedule,
  paths,
  *,
  b1: float,
  b2: float,
  eps: float,
  weight_decay: float,
  no_decay: tuple,
  clip_norm: float,
):
  """Adam with bias correction and decoupled weight decay, as fairseq has it.

  p ← p − lr·wd·p − lr·√(1−b2ᵗ)/(1−b1ᵗ) · m/(√v + eps). Here eps stands beside the uncorrected √v,
  as there; torch and optax add it after the correction, which differs by a share of eps/√v in the
  first updates. t counts the run's updates: for a parameter that joins in a later phase there is
  hardly a correction.

  Args:
    schedule: step → learning rate.
    paths: '/'-joined path of every parameter.
    b1, b2, eps: of the moments.
    weight_decay: share of the parameter taken away per unit of learning rate.
    no_decay: path regexes (searched, not anchored) of what does not decay.
    clip_norm: largest norm of the whole gradient; 0 for no clipping.

  Returns:
    An optax transform; `update(gradients, state, params, step=step)` gives what is added to the
    parameters.

  Raises:
    UserError: a regex that is none, or that matches no parameter; b1 or b2 not in [0, 1), eps not
      above 0, a negative decay or norm.
  """
  _check_ranges(b1, b2, eps, weight_decay, clip_norm)
  return _chain(
    schedule, paths, _adam(b1, b2, eps, corrected=True), weight_decay, no_decay, clip_norm
  )


def adamw_uncorrected(
  schedule,
  paths,
  *,
  b1: float,
  b2: float,
  eps: float,
  weight_decay: float,
  no_decay: tuple,
  clip_norm: float,
):
  """Adam without bias correction and with decoupled decay: p ← p − lr·(m/(√v + eps) + wd·p), as in
  Google's BERT.

  Arguments, result and errors as in `adamw`. A first update from zero moments is (1−b1)/√(1−b2)
  times the gradient's sign.
  """
  _check_ranges(b1, b2, eps, weight_decay, clip_norm)
  return _chain(
    schedule, paths, _adam(b1, b2, eps, corrected=False), weight_decay, no_decay, clip_norm
  )


def lamb(
  schedule,
  paths,
  *,
  b1: float,
  b2: float,
  eps: float,
  weight_decay: float,
  no_decay: tuple,
  no_adaptation: tuple,
  clip_norm: float,
):
  """LAMB as Google's code has it (You et al. 2020; ALBERT's release): u = m/(√v + eps) + wd·p; p ←
  p − lr·(‖p‖/‖u‖)·u.

  No bias correction. The ratio is 1 where either norm is 0, and for what `no_adaptation` names. The
  norms are those of one layer's parameter where several are stacked; of a parameter that layers
  share, there is one.

  Args:
    no_adaptation: path regexes of what has no ratio. The others, result and errors as in `adamw`.
  """
  _check_ranges(b1, b2, eps, weight_decay, clip_norm)
  _check_table('no_adaptation', no_adaptation, paths)
  return _chain(
    schedule,
    paths,
    _adam(b1, b2, eps, corrected=False),
    weight_decay,
    no_decay,
    clip_norm,
    _trust_ratio(no_adaptation),
  )


def matching(path: str, table) -> bool:
  """True if one of the regexes is found in the path."""
  return any(re.search(regex, path) for regex in table)


def path_of(key_path) -> str:
  """'encoder/layers/attention/query/kernel' for a jax key path."""
  return jax.tree_util.keystr(key_path, simple=True, separator='/')


def paths_of(tree) -> list[str]:
  """The '/'-joined path of every leaf, in jax's order."""
  return [path_of(p) for p, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _chain(schedule, paths, adam, weight_decay, no_decay, clip_norm, adaptation=None):
  _check_table('no_decay', no_decay, paths)
  decays = lambda params: jax.tree_util.tree_map_with_path(
    lambda p, _: not matching(path_of(p), no_decay), params
  )
  parts = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
  parts.append(adam)
  if weight_decay:
    parts.append(optax.add_decayed_weights(weight_decay, mask=decays))
  if adaptation is not None:
    parts.append(adaptation)
  parts.append(_scale_by_rate(schedule))
  return optax.chain(*parts)


def _adam(b1, b2, eps, corrected):

  def init(params):
    zeros = lambda: jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    return AdamState(jnp.zeros([], jnp.int32), zeros(), zeros())

  def update(gradients, state, params=None):
    del params
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, gradients)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, gradients)
    count = state.count + 1
    scale = (
      jnp.sqrt(_one_minus_power(b2, count)) / _one_minus_power(b1, count) if corrected else 1.0
    )
    updates = jax.tree.map(lambda m, v: scale * m / (jnp.sqrt(v) + eps), mu, nu)
    return updates, AdamState(count, mu, nu)

  return optax.GradientTransformation(init, update)


def _one_minus_power(b, t):
  """1 − bᵗ without cancellation."""
  return -jnp.expm1(t.astype(jnp.float32) * jnp.log(jnp.float32(b))) if b else jnp.float32(1.0)


def _trust_ratio(no_adaptation):

  def norm(path, x):
    axes = tuple(range(1 if re.search(_STACKED, path) else 0, x.ndim))
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))

  def scaled(key_path, u, p):
    path = path_of(key_path)
    if matching(path, no_adaptation):
      return u
    ours, theirs = norm(path, p), norm(path, u)
    return jnp.where((ours > 0) & (theirs > 0), ours / jnp.where(theirs > 0, theirs, 1.0), 1.0) * u

  return optax.GradientTransformation(
    lambda params: optax.EmptyState(),
    lambda updates, state, params=None: (
      jax.tree_util.tree_map_with_path(scaled, updates, params),
      state,
    ),
  )


def _scale_by_rate(schedule):

  def update(updates, state, params=None, *, step, **_):
    del params
    rate = schedule(step)
    return jax.tree.map(lambda u: -rate * u, updates), state

  return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _check_ranges(b1, b2, eps, weight_decay, clip_norm):
  rules = (
    ('b1', b1, 0 <= b1 < 1, 'at least 0 and below 1'),
    ('b2', b2, 0 <= b2 < 1, 'at least 0 and below 1'),
    ('eps', eps, eps > 0, 'more than 0'),
    ('weight_decay', weight_decay, weight_decay >= 0, 'at least 0'),
    ('clip_norm', clip_norm, clip_norm >= 0, '0 (no clipping) or more'),
  )
  for name, value, fits, need in rules:
    if not fits:  # also for NaN
      raise errors.UserError(f'optimizer.{name} is {value}: {need} is needed.')


def _check_table(name, table, paths):
  for regex in table:
    try:
      if not any(re.search(regex, p) for p in paths):
        raise errors.UserError(
          f'optimizer.{name} has {regex!r}, which matches no parameter: paths look like '
          f'{sorted(paths)[0]!r}.'
        )
    except re.error as e:
      raise errors.UserError(
        f'optimizer.{name} has {regex!r}, which is no regular expression: {e}.'
      ) from e


BY_NAME = {'adamw': adamw, 'adamw_uncorrected': adamw_uncorrected, 'lamb': lamb}
