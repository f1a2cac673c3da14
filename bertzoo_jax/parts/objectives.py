"""Objectives of pretraining."""

from typing import Annotated

from bertzoo_jax.parts import fields

PAIR_WEIGHT = Annotated[fields.AT_LEAST_0, 'weight of the loss on pair_labels; 0 for none.']
SHARE_OF_NETWORK = Annotated[fields.SHARE_ABOVE_0, "of the generator, as shares of the network's."]
WEIGHT = Annotated[fields.AT_LEAST_0, 'weights of the two losses.']


@fields.part('mlm')
class Mlm:
  """Masked language modelling: the mean negative log-likelihood of the masked tokens."""


@fields.part('mlm_pair')
class MlmPair:
  """Masked language modelling and classes of pairs: mlm + pair_weight · pair (BERT, A.2)."""

  pair_weight: PAIR_WEIGHT = 1.0


@fields.part()
class TextVectors:
  """Fields of every objective that learns vectors of texts; `encode` then makes these vectors."""

  pooling: fields.one_of(
    mean='of all tokens, special ones included', first='the vector that classifies a row'
  ) = 'mean'
  normalize: Annotated[
    bool, 'whether `encode` and an export give vectors of length 1. No loss depends on it.'
  ] = True
  widths: Annotated[
    fields.each(fields.UNITS),
    'numbers from the front of a vector that have a loss, too (Kusupati et al. 2022: Matryoshka).',
  ] = ()
  width_weights: Annotated[
    fields.each(fields.AT_LEAST_0), 'of these losses; () for 1 each. That of the whole vector is 1.'
  ] = ()


@fields.part()
class InBatch(TextVectors):
  """Fields of every objective whose negatives are the other texts of the batch."""

  temperature: Annotated[fields.ABOVE_0, 'cosines are divided by it.'] = 0.05
  backward: Annotated[
    fields.SHARE,
    'of the loss in which the second text searches the first. 0: only the first text searches '
    "(SimCSE, and sentence-transformers' MultipleNegativesRankingLoss).",
  ] = 0.5


@fields.part('contrastive')
class Contrastive(InBatch):
  """Vectors of texts: a row finds itself, with another draw of dropout, among the rows of the batch
  (Gao, Yao & Chen 2021: SimCSE), with or without masked language modelling beside it.
  """

  mlm_weight: Annotated[
    fields.AT_LEAST_0, 'weight of masked language modelling; 0: the network has no such head.'
  ] = 0.1


@fields.part('mlm_span_boundary')
class MlmSpanBoundary:
  """mlm + boundary_weight · boundary: masked language modelling, and each token of a span predicted
  from the tokens beside the span and its place in it (Joshi et al. 2020 §3.2, 3.4).
  """

  boundary_weight: Annotated[fields.AT_LEAST_0, 'weight of the second loss.'] = 1.0
  num_offsets: Annotated[
    fields.TOKENS,
    'tokens of a span, from its first, that are predicted; at most masking.max_pair_targets.',
  ] = 15
  offset_size: Annotated[
    fields.UNITS, 'width of the vectors of places (both values: code of the release).'
  ] = 200


@fields.part('left_to_right')
class LeftToRight:
  """A language model from left to right, over all tokens of a row: the baseline of Devlin et al.
  2018 §5.1. It reads the original tokens, so the masking has no effect.
  """


@fields.part('causal_lm')
class CausalLm:
  """As left_to_right, with the parameters of masked language modelling: a later phase or run with
  objective=mlm can continue from it.
  """


@fields.part('causal_masked')
class CausalMasked:
  """A share of the rows is read from left to right, the others are masked. In both, tokens are
  predicted by the output at the token before (Charpentier & Samuel 2024).
  """

  causal_share: Annotated[
    fields.SHARE, 'of the rows that are read from left to right, drawn per row, and of their loss.'
  ] = 0.0625


@fields.part('permutation_lm')
class PermutationLm:
  """Permutation language modelling: a prediction sees the memory and the tokens before it in a
  random order (Yang et al. 2019 §2.2, 2.3). In the paper a pair loss does not help.
  """

  pair_weight: PAIR_WEIGHT = 0.0


@fields.part('memory_mlm')
class MemoryMlm(PermutationLm):
  """Masked language modelling with a memory: the autoencoder of Yang et al. 2019, Table 6."""


@fields.part('corruption_detection')
class CorruptionDetection:
  """Detects the tokens that the masking replaced. masking.corruption=(0, 1, 0) with random_tokens
  'all' or 'unigrams' gives the uniform or the unigram generator.
  """

  loss_over: Annotated[fields.one_of('all', 'masked'), 'tokens that have a loss: all | masked.'] = (
    'all'
  )
  head: fields.one_of(
    token="it reads each token's vector: ELECTRA's",
    token_and_row="that and the vector of the row's first token: DeBERTaV3's",
  ) = 'token'


@fields.part('generator_mlm')
class GeneratorMlm:
  """The first of two stages: masked language modelling by a generator of the network's size."""


@fields.part()
class Sampling:
  """How tokens are drawn from a generator."""

  temperature: Annotated[fields.ABOVE_0, 'of sampling: the logits are divided by it.'] = 1.0
  disallow_correct: Annotated[bool, 'whether the true token is never sampled.'] = False


@fields.part('replaced_token_frozen')
class ReplacedTokenFrozen(CorruptionDetection, Sampling):
  """The second of two stages: a discriminator with the weights of the frozen generator."""

  discriminator_weight: WEIGHT = 50.0


@fields.part('replace_mlm')
class ReplaceMlm(Sampling):
  """Masked language modelling with a generator's tokens, not masks (Clark et al. 2020 §3.5)."""

  width: SHARE_OF_NETWORK = 0.25
  depth: SHARE_OF_NETWORK = 1.0
  shared: Annotated[
    fields.one_of('none', 'token', 'embeddings', 'all', 'added'),
    'parameters that generator and network share: none | token (word vectors) | embeddings (the '
    "release) | all | added (the network's word vectors are the generator's, without gradient, "
    'plus another table). He et al. 2021 §3.3 call them NES (none), ES (token), GDES (added).',
  ] = 'embeddings'
  generator_weight: WEIGHT = 1.0


@fields.part('all_tokens_mlm')
class AllTokensMlm(ReplaceMlm):
  """As replace_mlm, but predicts every token, with a copy mechanism (Clark et al. 2020 §3.5)."""


@fields.part('replaced_token')
class ReplacedToken(ReplaceMlm, ReplacedTokenFrozen):
  """A generator fills masks, a discriminator predicts which tokens are replaced; both learn in one
  update (Clark et al. 2020 §2).
  """


@fields.part('replaced_token_adversarial')
class ReplacedTokenAdversarial(ReplacedToken):
  """As replaced_token; the generator learns to fool the discriminator (REINFORCE; appendix F)."""
