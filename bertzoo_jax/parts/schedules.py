"""Schedules of the learning rate: s updates of T, W of them warmup."""

from typing import Annotated

from bertzoo_jax.parts import fields

LEARNING_RATE = Annotated[fields.AT_LEAST_0, 'the peak.']
WARMUP = Annotated[fields.STEPS, 'W, updates; 0 for none.']
END_SHARE = Annotated[fields.SHARE, 'rate of the last update as a share of the peak.']


@fields.part('linear_from_start')
class LinearFromStart:
  """Warmup peak·s/W, then peak·(1 − s/T) from step 0, with its jump at W (Google's BERT)."""

  learning_rate: LEARNING_RATE = 1e-4
  warmup: WARMUP = 10_000
  across_phases: Annotated[
    fields.one_of('continue', 'restart'),
    'continue (one schedule over the run) | restart (each phase runs its own warmup and decay).',
  ] = 'continue'


@fields.part('linear_after_warmup')
class LinearAfterWarmup(LinearFromStart):
  """Warmup to the peak, then linear to 0 counted from the end of warmup (fairseq)."""

  learning_rate: LEARNING_RATE = 6e-4
  warmup: WARMUP = 24_000


@fields.part('linear_jump')
class LinearJump(LinearFromStart):
  """As linear_from_start, but the very first update already has peak/W (older fairseq)."""


@fields.part('linear_product')
class LinearProduct(LinearFromStart):
  """The product of the line peak·(1 − s/T) from step 0 and min(1, s/W) (Google's ELECTRA)."""

  learning_rate: LEARNING_RATE = 5e-4


@fields.part('linear_to_floor')
class LinearToFloor(LinearFromStart):
  """Warmup peak·s/W, then linear from the peak at W to end_share·peak (code of XLNet)."""

  learning_rate: LEARNING_RATE = 4e-4
  warmup: WARMUP = 40_000
  end_share: END_SHARE = 1e-3


@fields.part('constant')
class Constant(LinearFromStart):
  """Warmup peak·s/W, then the peak."""

  learning_rate: LEARNING_RATE = 1e-3
  warmup: WARMUP = 2_000


@fields.part('inverse_sqrt')
class InverseSqrt(Constant):
  """Warmup peak·s/W, then peak·√(W/s) (Vaswani et al. 2017, eq. 3)."""


@fields.part('cosine')
class Cosine(Constant):
  """Warmup peak·s/W, then half a cosine from the peak at W to end_share·peak at the end (Loshchilov
  and Hutter 2017, eq. 5, without restarts).
  """

  end_share: END_SHARE = 0.0


@fields.part('warmup_stable_decay')
class WarmupStableDecay(Constant):
  """Warmup peak·s/W, the peak, and in the last updates down to end_share·peak (Hu et al. 2024,
  section 4.2). A decay can begin at any checkpoint of the stable part.
  """

  learning_rate: LEARNING_RATE = 8e-4
  decay: Annotated[
    fields.STEPS, 'D, the updates at the end in which the rate falls; 0 for none.'
  ] = 10_000
  shape: Annotated[
    fields.one_of('linear', 'cosine', 'sqrt'),
    'with x from 0 to 1 over the decay, the share that remains is 1 − x (linear), (1 + cos πx)/2 '
    '(cosine) or 1 − √x (sqrt: Hägele et al. 2024).',
  ] = 'sqrt'
  end_share: END_SHARE = 0.0
