"""Objectives of pretraining.

A field without an explanation means the same as in the nearest part above that explains it.
"""

from bertzoo_jax.parts import fields


@fields.section
def mlm():
  """Masked language modelling: the mean negative log-likelihood of the masked tokens."""


@fields.section
def mlm_pair(*, pair_weight: fields.AT_LEAST_0 = 1.0):
  """Masked language modelling plus a two-way classification of the pair: mlm + pair_weight · pair
  (Devlin et al. 2018 A.2).

  pair_weight: weight of the loss on pair_labels; 0 for none.
  """


@fields.section
def mlm_span_boundary(
  *,
  boundary_weight: fields.AT_LEAST_0 = 1.0,
  num_offsets: fields.TOKENS = 15,
  offset_size: fields.UNITS = 200,
):
  """mlm + boundary_weight · boundary: masked language modelling, and each token of a span predicted
  from the tokens beside the span and its place in it (Joshi et al. 2020 §3.2, 3.4).

  boundary_weight: of the second loss.
  num_offsets: number of first tokens of a span that are predicted so, at most
    masking.max_pair_targets.
  offset_size: width of the vectors of places (both values: code of the release).
  """


@fields.section
def left_to_right():
  """A language model from left to right, over all tokens of a row: the baseline of Devlin et al.
  2018 §5.1. Masked tokens are put back first, so the choice of masking has no effect.
  """


@fields.section
def causal_lm():
  """As left_to_right, with the parameters of masked language modelling: a later phase or run with
  objective=mlm continues with all of them.
  """


@fields.section
def causal_masked(*, causal_share: fields.SHARE = 0.0625):
  """A share of the rows is read from left to right, the others are masked. In both, tokens are
  predicted by the output at the token before (Charpentier & Samuel 2024).

  causal_share: of the rows that are read from left to right, drawn per row, and of their loss.
  """


@fields.section
def permutation_lm(*, pair_weight: fields.AT_LEAST_0 = 0.0):
  """Permutation language modelling: a prediction sees the memory and the tokens before it in a
  random order (Yang et al. 2019 §2.2, 2.3). In the paper a pair loss does not help.
  """


@fields.section(like=permutation_lm)
def memory_mlm():
  """Masked language modelling with a memory: the denoising autoencoder that Yang et al. 2019
  compare with (Table 6).

  """


@fields.section
def replaced_token(
  *,
  width: fields.SHARE_ABOVE_0 = 0.25,
  depth: fields.SHARE_ABOVE_0 = 1.0,
  shared: fields.one_of('none', 'token', 'embeddings', 'all', 'added') = 'embeddings',
  temperature: fields.ABOVE_0 = 1.0,
  disallow_correct: bool = False,
  loss_over: fields.one_of('all', 'masked') = 'all',
  head: fields.one_of('token', 'token_and_row') = 'token',
  generator_weight: fields.AT_LEAST_0 = 1.0,
  discriminator_weight: fields.AT_LEAST_0 = 50.0,
):
  """A generator fills masks, a discriminator tells which tokens are replaced, both in one update
  (Clark et al. 2020 §2).

  width, depth: of the generator, as shares of the network's.
  shared: parameters that it shares with the network: none | token (word vectors) | embeddings (the
    release) | all | added (the network's word vectors are the generator's, without gradient, plus
    a table of its own). He et al. 2021 §3.3 call them NES (none), ES (token), GDES (added).
  temperature: of sampling: the logits are divided by it.
  disallow_correct: whether the true token is never sampled.
  loss_over: tokens that have a loss: all | masked.
  head: token (it reads each token's vector: ELECTRA's) | token_and_row (that and the vector of the
    row's first token: DeBERTaV3's).
  generator_weight, discriminator_weight: of the two losses.
  """


@fields.section(like=replaced_token)
def replaced_token_adversarial():
  """As replaced_token, but the generator learns to fool the discriminator (REINFORCE; Clark et al.
  2020, appendix F).
  """


@fields.section
def generator_mlm():
  """The first of two stages: masked language modelling by a generator of the network's size."""


@fields.section
def replaced_token_frozen(
  *,
  temperature: fields.ABOVE_0 = 1.0,
  disallow_correct: bool = False,
  loss_over: fields.one_of('all', 'masked') = 'all',
  head: fields.one_of('token', 'token_and_row') = 'token',
  discriminator_weight: fields.AT_LEAST_0 = 50.0,
):
  """The second of two stages: a discriminator that starts with the generator's weights; the
  generator stays as it is.
  """


@fields.section
def corruption_detection(
  *,
  loss_over: fields.one_of('all', 'masked') = 'all',
  head: fields.one_of('token', 'token_and_row') = 'token',
):
  """Detects the tokens that the masking put in. masking.corruption=(0, 1, 0) with random_tokens
  'all' or 'unigrams' gives the uniform or the unigram generator.
  """


@fields.section
def replace_mlm(
  *,
  width: fields.SHARE_ABOVE_0 = 0.25,
  depth: fields.SHARE_ABOVE_0 = 1.0,
  shared: fields.one_of('none', 'token', 'embeddings', 'all', 'added') = 'embeddings',
  temperature: fields.ABOVE_0 = 1.0,
  disallow_correct: bool = False,
  generator_weight: fields.AT_LEAST_0 = 1.0,
):
  """Masked language modelling with a generator's tokens in place of masks (Clark et al. 2020
  §3.5).
  """


@fields.section(like=replace_mlm)
def all_tokens_mlm():
  """As replace_mlm, predicting every token, with a copy mechanism (Clark et al. 2020 §3.5)."""


__all__ = fields.sections(vars())
