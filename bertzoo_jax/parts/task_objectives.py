"""Objectives of fine-tuning.

A field without an explanation means the same as in the nearest part above that explains it.
"""

from typing import Annotated

from bertzoo_jax.parts import fields

AUTO = ('auto',)
_HEAD = fields.one_of('auto', 'tanh', 'gelu', 'transform', 'linear')
_TOKEN_HEAD = fields.one_of('auto', 'transform', 'linear')
_numbers = fields.of(fields.each(fields.ABOVE_0)).holds
_WEIGHTS = fields.Range(
  'a number above 0 for each label, or auto', lambda x: x in (AUTO, *AUTO) or _numbers(x)
)


@fields.section(named=False)
def sift(
  *,
  weight: fields.AT_LEAST_0 = 0.0,
  rate: fields.AT_LEAST_0 = 1e-4,
  init: fields.ABOVE_0 = 1e-2,
  loss: fields.one_of('symmetric_kl', 'kl', 'mse') = 'symmetric_kl',
):
  """SiFT, a section of every objective: outputs for perturbed embeddings should not differ from
  those for the embeddings themselves (He et al. 2020; numbers of the release).

  weight: weight of the difference in the loss; 0 for none. The release has 5, and 3 for its
    smallest network.
  rate: size of the one step by which a perturbation grows.
  init: its first standard deviation.
  loss: how outputs are compared: symmetric_kl | kl | mse. A number takes mse.
  """


def _sift(given, **usual):
  """The section with these fields, of the others the usual ones."""
  return _SIFT(**{**usual, **(given or {})})


_SIFT = sift  # constructors have an argument of this name


@fields.section
def classification(
  *,
  head: _HEAD = 'auto',
  dropout: fields.SHARE_BELOW_1 = 0.1,
  input_dropout: fields.SHARE_BELOW_1 = 0.0,
  class_weights: Annotated[tuple, _WEIGHTS] = (),
  label_smoothing: fields.SHARE_BELOW_1 = 0.0,
  sift: dict = None,
):
  """One of several classes per row.

  head: auto (as the weights' Hugging Face class) | tanh | gelu | transform (dense, activation
    and norm as in the vocabulary head) | linear.
  dropout: of the vectors that the last layer reads.
  input_dropout: of the row's vector before the dense layer of the head.
  class_weights: of the classes in the loss, in the order of the labels; auto (rows of train /
    (classes × rows of the class)); () for none. torch's CrossEntropyLoss has the same.
  label_smoothing: the share of the target that is spread over all classes.
  sift: fields of `sift` that are not its usual ones; None for no SiFT.
  """
  return dict(sift=_sift(sift))


@fields.section
def regression(
  *,
  head: _HEAD = 'auto',
  dropout: fields.SHARE_BELOW_1 = 0.1,
  input_dropout: fields.SHARE_BELOW_1 = 0.0,
  sift: dict = None,
):
  """One number per row, learned by the squared error."""
  return dict(sift=_sift(sift, loss='mse'))


@fields.section
def multilabel(
  *,
  head: _HEAD = 'auto',
  dropout: fields.SHARE_BELOW_1 = 0.1,
  input_dropout: fields.SHARE_BELOW_1 = 0.0,
  threshold: fields.SHARE_BETWEEN = 0.5,
  sift: dict = None,
):
  """Each label true or false per row.

  threshold: the probability above which a label is predicted. It may be changed on a finished run.
  """
  return dict(sift=_sift(sift))


@fields.section
def choice(
  *,
  head: _HEAD = 'auto',
  dropout: fields.SHARE_BELOW_1 = 0.1,
  input_dropout: fields.SHARE_BELOW_1 = 0.0,
  sift: dict = None,
):
  """One of several options, each of which gets a score."""
  return dict(sift=_sift(sift))


@fields.section
def tagging(*, head: _TOKEN_HEAD = 'auto', dropout: fields.SHARE_BELOW_1 = 0.1, sift: dict = None):
  """One tag per word, at its first token."""
  return dict(sift=_sift(sift))


@fields.section
def span(*, head: _TOKEN_HEAD = 'auto', sift: dict = None):
  """The answer to a question as a span of its passage: start and end by one head."""
  return dict(sift=_sift(sift))


@fields.section
def span_conditional(
  *,
  head: fields.one_of('tanh', 'gelu') = 'tanh',
  hidden_size: fields.UNITS_OR_0 = 0,
  answerable_weight: fields.AT_LEAST_0 = 0.5,
  dropout: fields.SHARE_BELOW_1 = 0.1,
  sift: dict = None,
):
  """The same, with the end scored given the start, and a score that there is no answer.

  head: tanh (XLNet, ALBERT: tanh, and a norm for the end) | gelu (ELECTRA: no norm).
  hidden_size: width of the hidden layers; 0 for the encoder's. ELECTRA has 512.
  answerable_weight: of the loss of that score; 0 for no such score.
  dropout: before the last layer of that score.
  """
  return dict(sift=_sift(sift))


__all__ = fields.sections(vars())
