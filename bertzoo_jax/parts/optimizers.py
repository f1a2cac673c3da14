"""Optimizers.

A field without an explanation means the same as in the nearest part above that explains it.
"""

from bertzoo_jax.parts import fields


@fields.section
def adamw(
  *,
  b1: fields.SHARE_BELOW_1 = 0.9,
  b2: fields.SHARE_BELOW_1 = 0.98,
  eps: fields.ABOVE_0 = 1e-6,
  weight_decay: fields.AT_LEAST_0 = 0.01,
  no_decay: tuple = (),
  clip_norm: fields.AT_LEAST_0 = 0.0,
  rates: fields.each(fields.AT_LEAST_0, deep=True) = (),
  clip_groups: tuple = (),
  mu_dtype: fields.one_of('float32', 'bfloat16') = 'float32',
):
  """Adam with bias correction and decoupled decay, as fairseq has it (Liu et al. 2019, Table 9).

  A regex may name a layer: encoder/layers/11/.

  b1: decay of the first moment per update.
  b2: decay of the second moment.
  eps: added to the root of the second moment.
  weight_decay: share of a parameter that is taken away per unit of learning rate.
  no_decay: path regexes of parameters that do not decay.
  clip_norm: largest gradient norm, 0 for no clipping.
  rates: ordered (path regex, multiplier of the learning rate), first match wins.
  clip_groups: ordered path regexes. Parameters that match the same one first are clipped together
    by their own norm, and so is the rest; () clips all together.
  mu_dtype: of Adam's first moment between updates: float32 | bfloat16 (2 bytes less per parameter;
    updates are computed in float32).
  """


@fields.section(like=adamw, b2=0.999, no_decay=(r'norm/', r'bias$'), clip_norm=1.0)
def adamw_uncorrected():
  """Adam without bias correction and with decoupled decay, as in Google's BERT (code of the
  release).
  """


@fields.section
def lamb(
  *,
  b1: fields.SHARE_BELOW_1 = 0.9,
  b2: fields.SHARE_BELOW_1 = 0.999,
  eps: fields.ABOVE_0 = 1e-6,
  weight_decay: fields.AT_LEAST_0 = 0.01,
  no_decay: tuple = (r'norm/', r'bias$'),
  no_adaptation: tuple = (r'norm/', r'bias$'),
  clip_norm: fields.AT_LEAST_0 = 1.0,
  rates: fields.each(fields.AT_LEAST_0, deep=True) = (),
  clip_groups: tuple = (),
  mu_dtype: fields.one_of('float32', 'bfloat16') = 'float32',
):
  """LAMB without bias correction, as in Google's code (You et al. 2020; ALBERT's release).

  no_adaptation: path regexes of parameters without a trust ratio.
  """


@fields.section(like=adamw, weight_decay=1e-5, no_decay=(r'norm/', r'bias$'))
def stable_adamw():
  """AdamW whose step is made smaller where a gradient is large for its second moment (Wortsman et
  al. 2023, Algorithm 2; ModernBERT).
  """


@fields.section
def muon(
  *,
  momentum: fields.SHARE_BELOW_1 = 0.95,
  iterations: fields.COUNT = 5,
  rms: fields.ABOVE_0 = 0.2,
  matrices: fields.each(fields.whole(-8, -1), deep=True) = (
    (r'layers/.*(query|key|value|position)/kernel$', (-3,), (-2, -1)),
    (r'layers/.*attention/output/kernel$', (-3, -2), (-1,)),
    (r'layers/.*kernel$', (-2,), (-1,)),
  ),
  b1: fields.SHARE_BELOW_1 = 0.9,
  b2: fields.SHARE_BELOW_1 = 0.98,
  eps: fields.ABOVE_0 = 1e-6,
  weight_decay: fields.AT_LEAST_0 = 0.01,
  no_decay: tuple = (r'norm/', r'bias$'),
  clip_norm: fields.AT_LEAST_0 = 0.0,
  rates: fields.each(fields.AT_LEAST_0, deep=True) = (),
  clip_groups: tuple = (),
  mu_dtype: fields.one_of('float32', 'bfloat16') = 'float32',
):
  """Muon for the matrices of the layers, AdamW for the rest (Jordan et al. 2024; Liu et al. 2025).

  momentum: μ, of the gradients of matrices.
  iterations: of Newton and Schulz.
  rms: size of an update of a matrix; with 0.2, as in AdamW, both take the same learning rate.
  matrices: ordered (path regex, axes of the inputs, axes of the outputs), first match wins. Axes
    are counted from the last. Parameters that match none are AdamW's.
  b1, b2, eps: of AdamW.
  """


__all__ = fields.sections(vars())
