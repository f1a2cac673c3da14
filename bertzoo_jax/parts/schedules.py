"""Schedules of the learning rate: s updates of T, W of them warmup.

A field that a part does not explain means what it does in the nearest part above that explains it.
"""

from bertzoo_jax.parts import fields


@fields.section
def linear_from_start(
  *,
  learning_rate: fields.AT_LEAST_0 = 1e-4,
  warmup: fields.STEPS = 10_000,
  across_phases: fields.one_of('continue', 'restart') = 'continue',
):
  """Warmup peak·s/W, then the line peak·(1 − s/T) measured from step 0, with its jump at W
  (Google's BERT).

  learning_rate: the peak.
  warmup: W, updates; 0 for none.
  across_phases: continue (one schedule over the run) | restart (each phase runs its own warmup and
    decay).
  """


@fields.section(like=linear_from_start, learning_rate=6e-4, warmup=24_000)
def linear_after_warmup():
  """Warmup to the peak, then linear to 0 counted from the end of warmup (fairseq)."""


@fields.section(like=linear_from_start)
def linear_jump():
  """As linear_from_start, but the very first update already has peak/W (older fairseq)."""


@fields.section(like=linear_from_start, learning_rate=5e-4)
def linear_product():
  """The product of the line peak·(1 − s/T) from step 0 and min(1, s/W) (Google's ELECTRA)."""


@fields.section
def linear_to_floor(
  *,
  learning_rate: fields.AT_LEAST_0 = 4e-4,
  warmup: fields.STEPS = 40_000,
  end_share: fields.SHARE = 1e-3,
  across_phases: fields.one_of('continue', 'restart') = 'continue',
):
  """Warmup peak·s/W, then linear from the peak at W to end_share·peak at the end (code of XLNet).

  end_share: rate of the last update as a share of the peak.
  """


__all__ = [
  'linear_from_start',
  'linear_after_warmup',
  'linear_jump',
  'linear_product',
  'linear_to_floor',
]
