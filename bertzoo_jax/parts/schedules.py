"""Schedules of the learning rate: s updates of T, W of them warmup.

A field without an explanation means the same as in the nearest part above that explains it.
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


@fields.section
def constant(
  *,
  learning_rate: fields.AT_LEAST_0 = 1e-3,
  warmup: fields.STEPS = 2_000,
  across_phases: fields.one_of('continue', 'restart') = 'continue',
):
  """Warmup peak·s/W, then the peak."""


@fields.section(like=constant)
def inverse_sqrt():
  """Warmup peak·s/W, then peak·√(W/s) (Vaswani et al. 2017, eq. 3)."""


@fields.section
def cosine(
  *,
  learning_rate: fields.AT_LEAST_0 = 1e-3,
  warmup: fields.STEPS = 2_000,
  end_share: fields.SHARE = 0.0,
  across_phases: fields.one_of('continue', 'restart') = 'continue',
):
  """Warmup peak·s/W, then half a cosine from the peak at W to end_share·peak at the end (Loshchilov
  and Hutter 2017, eq. 5, without restarts).
  """


@fields.section
def warmup_stable_decay(
  *,
  learning_rate: fields.AT_LEAST_0 = 8e-4,
  warmup: fields.STEPS = 2_000,
  decay: fields.STEPS = 10_000,
  shape: fields.one_of('linear', 'cosine', 'sqrt') = 'sqrt',
  end_share: fields.SHARE = 0.0,
  across_phases: fields.one_of('continue', 'restart') = 'continue',
):
  """Warmup peak·s/W, the peak, and in the last updates down to end_share·peak (Hu et al. 2024,
  section 4.2). A decay can begin at any checkpoint of the stable part.

  decay: D, the updates at the end in which the rate falls; 0 for none.
  shape: with x from 0 to 1 over the decay, the share that remains is 1 − x (linear),
    (1 + cos πx)/2 (cosine) or 1 − √x (sqrt: Hägele et al. 2024).
  """


__all__ = fields.sections(vars())
