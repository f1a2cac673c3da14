"""Optimizers."""

from typing import Annotated

from bertzoo_jax.parts import fields

B2 = Annotated[fields.SHARE_BELOW_1, 'decay of the second moment.']
WEIGHT_DECAY = Annotated[
  fields.AT_LEAST_0, 'share of a parameter that is taken away per unit of learning rate.'
]
NO_DECAY = Annotated[tuple, 'path regexes of parameters that do not decay.']
CLIP_NORM = Annotated[fields.AT_LEAST_0, 'largest gradient norm, 0 for no clipping.']
OF_ADAMW = Annotated[fields.SHARE_BELOW_1, 'of AdamW.']
NORMS_AND_BIASES = (r'norm/', r'bias$')


@fields.part('adamw')
class Adamw:
  """Adam with bias correction and decoupled decay, as fairseq has it (Liu et al. 2019, Table 9).

  A regex may name a layer: encoder/layers/11/.
  """

  b1: Annotated[fields.SHARE_BELOW_1, 'decay of the first moment per update.'] = 0.9
  b2: B2 = 0.98
  eps: Annotated[fields.ABOVE_0, 'added to the root of the second moment.'] = 1e-6
  weight_decay: WEIGHT_DECAY = 0.01
  no_decay: NO_DECAY = ()
  clip_norm: CLIP_NORM = 0.0
  rates: Annotated[
    fields.each(fields.AT_LEAST_0, deep=True),
    'ordered (path regex, multiplier of the learning rate), first match wins.',
  ] = ()
  clip_groups: Annotated[
    tuple,
    'ordered path regexes. Parameters with the same first match are clipped by their common norm, '
    'and so is the rest; () clips all together.',
  ] = ()
  mu_dtype: Annotated[
    fields.one_of('float32', 'bfloat16'),
    "of Adam's first moment between updates: float32 | bfloat16 (2 bytes less per parameter; "
    'updates are computed in float32).',
  ] = 'float32'


@fields.part('adamw_uncorrected')
class AdamwUncorrected(Adamw):
  """Adam without bias correction, with decoupled decay, as in Google's BERT (released code)."""

  b2: B2 = 0.999
  no_decay: NO_DECAY = NORMS_AND_BIASES
  clip_norm: CLIP_NORM = 1.0


@fields.part('lamb')
class Lamb(AdamwUncorrected):
  """LAMB without bias correction, as in Google's code (You et al. 2020; ALBERT's release)."""

  no_adaptation: Annotated[tuple, 'path regexes of parameters without a trust ratio.'] = (
    NORMS_AND_BIASES
  )


@fields.part('stable_adamw')
class StableAdamw(Adamw):
  """AdamW with smaller steps where gradients are large (Wortsman et al. 2023, Algorithm 2)."""

  weight_decay: WEIGHT_DECAY = 1e-5
  no_decay: NO_DECAY = NORMS_AND_BIASES


@fields.part('muon')
class Muon(Adamw):
  """Muon for the matrices of layers, else AdamW (Jordan et al. 2024; Liu et al. 2025)."""

  momentum: Annotated[fields.SHARE_BELOW_1, 'μ, of the gradients of matrices.'] = 0.95
  iterations: Annotated[fields.COUNT, 'of Newton and Schulz.'] = 5
  rms: Annotated[
    fields.ABOVE_0,
    'size of an update of a matrix; with 0.2, as in AdamW, both take the same learning rate.',
  ] = 0.2
  matrices: Annotated[
    fields.each(fields.whole(-8, -1), deep=True),
    'ordered (path regex, axes of the inputs, axes of the outputs), first match wins. Axes are '
    "counted from the last. Parameters that match none are AdamW's.",
  ] = (
    (r'layers/.*(query|key|value|position)/kernel$', (-3,), (-2, -1)),
    (r'layers/.*attention/output/kernel$', (-3, -2), (-1,)),
    (r'layers/.*kernel$', (-2,), (-1,)),
  )
  b1: OF_ADAMW = 0.9
  b2: OF_ADAMW = 0.98
  eps: Annotated[fields.ABOVE_0, 'of AdamW.'] = 1e-6
  no_decay: NO_DECAY = NORMS_AND_BIASES
