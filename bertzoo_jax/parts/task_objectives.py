"""Objectives of fine-tuning."""

from typing import Annotated

from bertzoo_jax.parts import fields
from bertzoo_jax.parts import objectives

AUTO = ('auto',)
_numbers = fields.get_range(fields.each(fields.ABOVE_0)).holds
_WEIGHTS = fields.Range(
  'a number above 0 for each label, or auto', lambda x: x in (AUTO, *AUTO) or _numbers(x)
)
_HEADS = (
  "auto (as the weights' Hugging Face class) | tanh | gelu | transform (dense, activation and "
  'norm as in the vocabulary head) | linear.'
)
TOKEN_HEAD = Annotated[fields.one_of('auto', 'transform', 'linear'), _HEADS]
DROPOUT = Annotated[fields.SHARE_BELOW_1, 'of the vectors that the last layer reads.']


@fields.part()
class Sift:
  """SiFT, a section of every objective: outputs for perturbed embeddings should not differ from
  those for the embeddings themselves (He et al. 2020; numbers of the release).
  """

  weight: Annotated[
    fields.AT_LEAST_0,
    'weight of the difference in the loss; 0 for none. The release has 5, and 3 for its smallest '
    'network.',
  ] = 0.0
  rate: Annotated[fields.AT_LEAST_0, 'size of the one step by which a perturbation grows.'] = 1e-4
  init: Annotated[fields.ABOVE_0, 'initial standard deviation of a perturbation.'] = 1e-2
  loss: Annotated[
    fields.one_of('symmetric_kl', 'kl', 'mse'),
    'how outputs are compared: symmetric_kl | kl | mse. A number takes mse.',
  ] = 'symmetric_kl'


SIFT = Annotated[Sift, 'fields of `sift` that differ from its defaults; None for no SiFT.']


@fields.part()
class RowObjective:
  """Fields of every objective that reads one vector per row."""

  head: Annotated[fields.one_of('auto', 'tanh', 'gelu', 'transform', 'linear'), _HEADS] = 'auto'
  dropout: DROPOUT = 0.1
  input_dropout: Annotated[
    fields.SHARE_BELOW_1, "of the row's vector before the dense layer of the head."
  ] = 0.0
  sift: SIFT = Sift()


@fields.part('classification')
class Classification(RowObjective):
  """One of several classes per row."""

  class_weights: Annotated[
    tuple,
    _WEIGHTS,
    'of the classes in the loss, in the order of the labels; auto (rows of train / (classes × '
    "rows of the class)); () for none. torch's CrossEntropyLoss has the same.",
  ] = ()
  label_smoothing: Annotated[
    fields.SHARE_BELOW_1, 'the share of the target that is spread over all classes.'
  ] = 0.0


@fields.part('regression')
class Regression(RowObjective):
  """One number per row, learned by the squared error."""

  sift: SIFT = Sift(loss='mse')


@fields.part('multilabel')
class Multilabel(RowObjective):
  """Each label true or false per row."""

  threshold: Annotated[
    fields.SHARE_BETWEEN,
    'the probability above which a label is predicted. It may be changed on a finished run.',
  ] = 0.5


@fields.part('choice')
class Choice(RowObjective):
  """One of several options, each of which gets a score."""


@fields.part('tagging')
class Tagging:
  """One tag per word, at its first token."""

  head: TOKEN_HEAD = 'auto'
  dropout: DROPOUT = 0.1
  sift: SIFT = Sift()


@fields.part('span')
class Span:
  """The answer to a question as a span of its passage: start and end by one head."""

  head: TOKEN_HEAD = 'auto'
  sift: SIFT = Sift()


@fields.part('span_conditional')
class SpanConditional:
  """As span, with the end scored given the start, and a score for no answer."""

  head: fields.one_of(
    tanh='XLNet, ALBERT: tanh, and a norm for the end', gelu='ELECTRA: no norm'
  ) = 'tanh'
  hidden_size: Annotated[
    fields.UNITS_OR_0, "width of the hidden layers; 0 for the encoder's. ELECTRA has 512."
  ] = 0
  answerable_weight: Annotated[
    fields.AT_LEAST_0, 'weight of the loss of the score for no answer; 0: no such score.'
  ] = 0.5
  dropout: Annotated[fields.SHARE_BELOW_1, 'before the last layer of this score.'] = 0.1
  sift: SIFT = Sift()


POOLING = Annotated[
  fields.one_of('auto', 'mean', 'first'),
  'mean (of all tokens, special ones included) | first (the vector that classifies a row) | auto '
  '(as the directory of the weights says, else mean).',
]


@fields.part('cosine_regression')
class CosineRegression(objectives.TextVectors):
  """A score per pair of texts, learned by the squared error of their cosine."""

  pooling: POOLING = 'auto'
  highest: Annotated[
    fields.AT_LEAST_0, "score that stands for the cosine 1; 0 for train's highest."
  ] = 0.0


@fields.part('cosent')
class Cosent(objectives.TextVectors):
  """A score per pair of texts: cosines are to have the order of the scores (CoSENT)."""

  pooling: POOLING = 'auto'
  scale: Annotated[fields.ABOVE_0, 'of the differences of cosines.'] = 20.0


@fields.part('in_batch_negatives')
class InBatchNegatives(objectives.InBatch):
  """A text and its positive: it is to find this one among all texts of the batch."""

  pooling: POOLING = 'auto'
