"""Classes that find the answer to a question in a passage: rows of their heads. numpy only.

A head is `span_head` among the parameters: one linear layer (model.heads.SpanHead), or the head
that scores the end given the start (model.heads.ConditionalSpanHead).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.hf.architecture import KERNEL
from bertzoo_jax.hf.architecture import Architecture
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architecture import Transform

HEAD = 'span_head'
BEAM = 20  # as objectives.networks has it
PIPELINE = 'question-answering'
SAID = 'The head scores each token as the first and as the last one of the answer.'

ROWS = (
  Row(f'{HEAD}/classifier/kernel', 'qa_outputs.weight', KERNEL),
  Row(f'{HEAD}/classifier/bias', 'qa_outputs.bias'),
)

# Two kernels [D, H] whose products are added, and one over both vectors, [H, 2·D].
BESIDE = Transform(
  lambda x, s: np.concatenate(x, axis=0).T,
  lambda y, s: tuple(np.split(y.T, 2, axis=0)),
)


def _layer(ours, theirs) -> tuple[Row, ...]:
  at = f'{HEAD}/{ours}'
  return Row(f'{at}/kernel', f'{theirs}.weight', KERNEL), Row(f'{at}/bias', f'{theirs}.bias')


def _over_two(first, second, theirs, bias) -> tuple[Row, ...]:
  """Rows of a layer over the vectors of `first` and `second`; `bias` names the one that has it."""
  kernels = tuple(f'{HEAD}/{name}/kernel' for name in (first, second))
  return (
    Row(kernels, f'{theirs}.weight', BESIDE),
    Row(f'{HEAD}/{bias}/bias', f'{theirs}.bias'),
  )


# Of XLNet's class; the form 'tanh' with hidden layers as wide as the encoder's.
CONDITIONAL_ROWS = (
  *_layer('start', 'start_logits.dense'),
  *_over_two('end_token', 'end_start', 'end_logits.dense_0', 'end_token'),
  Row(f'{HEAD}/end_norm/scale', 'end_logits.LayerNorm.weight'),
  Row(f'{HEAD}/end_norm/bias', 'end_logits.LayerNorm.bias'),
  *_layer('end', 'end_logits.dense_1'),
  *_over_two('answer_start', 'answer_row', 'answer_class.dense_0', 'answer_start'),
  Row(f'{HEAD}/answer/kernel', 'answer_class.dense_1.weight', KERNEL),
)


def finds(a: Architecture) -> bool:
  """Whether a class finds answers."""
  return any(path.startswith(f'{HEAD}/') for row in a.rows for path in _paths(row))


def check(a: Architecture, params: Mapping[str, Any]) -> None:
  """Raises UserError if the head for answers among the parameters (by path) has no place in a
  class, with the objective that fits.
  """
  own = {path for path in params if path.startswith(f'{HEAD}/')}
  places = {path for row in a.rows for path in _paths(row) if path.startswith(f'{HEAD}/')}
  if f'{HEAD}/start/kernel' not in own:
    return
  width, hidden = params[f'{HEAD}/end_token/kernel'].shape
  if own != places or width != hidden:
    raise errors.UserError(
      f'{a.name} has no place for this head of objective=span_conditional. Only one class of '
      "transformers has one: XLNet's, with head=tanh, hidden_size=0 and answerable_weight above 0. "
      'Fine-tune with objective=span to export.'
    )


def _paths(row: Row) -> tuple[str, ...]:
  return row.ours if isinstance(row.ours, tuple) else (row.ours,)
