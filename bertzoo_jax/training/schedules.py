"""Learning rates: functions of the update s = 0, 1, …, of T updates, the first W of them warmup.

Published systems call five different schedules "warmup and linear decay"; four others are common
today. Fields: bertzoo_jax/parts/schedules.py.
"""

import jax.numpy as jnp

from bertzoo_jax.common import errors
from bertzoo_jax.parts import named
from bertzoo_jax.parts import schedules as definitions


def linear_from_start(fields: definitions.LinearFromStart, total_steps: int):
  """peak·s/W for s < W (the first update has rate 0), then peak·(1 − s/T) measured from step 0,
  with its jump at W (Google's BERT).

  All schedules return s → rate, float32, for integers and traced arrays, and raise UserError for a
  warmup that is not shorter than total_steps.
  """
  return _warmed_up(fields, total_steps, lambda s: _left(s, 0, total_steps))


def linear_jump(fields: definitions.LinearJump, total_steps: int):
  """As linear_from_start, but the first update has peak/W (older fairseq, as in SpanBERT)."""
  return _warmed_up(fields, total_steps, lambda s: _left(s, 0, total_steps), 1)


def linear_after_warmup(fields: definitions.LinearAfterWarmup, total_steps: int):
  """peak·s/W for s < W, then linear to 0 counted from the end of warmup (fairseq's
  polynomial_decay, power 1).

  The first update has peak/W, as in fairseq's scheduler, and so has the second, s = 1.
  """
  return _warmed_up(fields, total_steps, lambda s: _left(s, fields.warmup, total_steps), 1)


def linear_product(fields: definitions.LinearProduct, total_steps: int):
  """peak·(1 − s/T)·min(1, s/W) (Google's ELECTRA): no jump, and the peak is never reached."""
  ramp = _warmed_up(fields, total_steps, jnp.ones_like)
  return lambda s: ramp(s) * _left(_float(s), 0, total_steps)


def linear_to_floor(fields: definitions.LinearToFloor, total_steps: int):
  """After a warmup from 0, linear to end_share·peak at T, then flat (XLNet's, with 0.001)."""
  end, warmup = fields.end_share, fields.warmup
  falling = lambda s: end + (1.0 - end) * _left(s, warmup, total_steps)
  return _warmed_up(fields, total_steps, falling)


def constant(fields: definitions.Constant, total_steps: int):
  """peak·s/W for s < W (the first update has rate 0), then the peak."""
  return _warmed_up(fields, total_steps, jnp.ones_like)


def inverse_sqrt(fields: definitions.InverseSqrt, total_steps: int):
  """peak·s/W for s < W, then peak·√(W/s) (Vaswani et al. 2017, eq. 3; without a warmup, W is 1)."""
  first = max(fields.warmup, 1)
  return _warmed_up(fields, total_steps, lambda s: jnp.sqrt(first / jnp.maximum(s, first)))


def cosine(fields: definitions.Cosine, total_steps: int):
  """After W half a cosine to end_share·peak at T, then flat (Loshchilov and Hutter 2017, eq. 5)."""
  decay = total_steps - fields.warmup
  whole = definitions.WarmupStableDecay(**{**vars(fields), 'decay': decay, 'shape': 'cosine'})
  return warmup_stable_decay(whole, total_steps)


def warmup_stable_decay(fields: definitions.WarmupStableDecay, total_steps: int):
  """peak·s/W for s < W, the peak up to T − D, then down to end_share·peak at T, where it stays (Hu
  et al. 2024, section 4.2; the shape `sqrt` is of Hägele et al. 2024, eq. 1).

  Raises UserError: warmup and decay do not fit into total_steps, or an unknown shape.
  """
  warmup, decay, end = fields.warmup, fields.decay, fields.end_share
  if warmup < total_steps < warmup + decay:
    raise errors.UserError(
      f'schedule.decay is {decay} of {total_steps} steps, {warmup} of them warmup: lower one of '
      'them or train longer.'
    )
  left = errors.choose(fields.shape, _FALLS, 'config.schedule.shape')
  if not decay:
    return constant(fields, total_steps)

  def falling(s):
    x = jnp.clip((s - (total_steps - decay)) / decay, 0.0, 1.0)
    return end + (1.0 - end) * left(x)

  return _warmed_up(fields, total_steps, falling)


_FALLS = {
  'linear': lambda x: 1.0 - x,
  'cosine': lambda x: 0.5 * (1.0 + jnp.cos(jnp.pi * x)),
  'sqrt': lambda x: 1.0 - jnp.sqrt(x),
}


def for_phase(fields: dict, phase_first_step: int, phase_steps: int, total_steps: int):
  """The schedule of a phase, as a function of the global step.

  fields: the config's schedule section, with `name` and `across_phases` (continue | restart; a
  section without it continues). Raises UserError for an unknown name or `across_phases`, or a
  warmup that does not fit.
  """
  fields = {'across_phases': 'continue', **fields}
  across = fields['across_phases']
  if named.is_outside(fields['name']):
    del fields['across_phases']
  known = {'continue': total_steps, 'restart': phase_steps}
  steps = errors.choose(across, known, 'config.schedule.across_phases')
  rate = named.build(fields, BY_NAME, 'schedule', steps)
  return rate if across == 'continue' else lambda s: rate(s - phase_first_step)


def _warmed_up(fields, total_steps, share, least=0):
  """s → peak·max(s, least)/W for s < W, then peak·share(s)."""
  warmup = fields.warmup
  if warmup >= total_steps:
    raise errors.UserError(
      f'schedule.warmup is {warmup} of {total_steps} steps: it must be shorter than the run; lower '
      'it or train longer.'
    )

  def rate(s):
    s = _float(s)
    rising = jnp.maximum(s, least) / max(warmup, 1)
    return fields.learning_rate * jnp.where(s < warmup, rising, share(s))

  return rate


def _float(s):
  return jnp.asarray(s).astype(jnp.float32)


def _left(s, start, end):
  """The part that remains from start to end, 1 to 0. s is exact in float32 up to 16.7 M updates."""
  return jnp.clip((end - s) / (end - start), 0.0, 1.0)


BY_NAME = {
  'linear_from_start': linear_from_start,
  'linear_after_warmup': linear_after_warmup,
  'linear_jump': linear_jump,
  'linear_product': linear_product,
  'linear_to_floor': linear_to_floor,
  'constant': constant,
  'inverse_sqrt': inverse_sqrt,
  'cosine': cosine,
  'warmup_stable_decay': warmup_stable_decay,
}
