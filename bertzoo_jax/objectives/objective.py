"""Objectives: pure functions, as in optax. One train step serves all of them."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util

from bertzoo_jax.model import heads as modules
from bertzoo_jax.model import layers
from bertzoo_jax.objectives import heads as head_table

# How a network learned to predict tokens: see Network.learned.
MASKED, LEFT_TO_RIGHT = 'masked', 'left to right'


def one_way(own, learned) -> bool:
  """Whether a network learned from left to right only. own: its arrays. learned: see Network."""
  return 'next_head' in own or MASKED not in learned


class Network(NamedTuple):
  """One trained network: its encoder, its heads, and where its parameters are among all.

  Attributes:
    name: '' if there is one network, else its own name.
    encoder: linen module, as model.protocol.Encoder.
    of: parameters of the objective → arrays of the network, {'encoder': …, 'mlm_head': …}. An array
      may be computed, as a sum of tables is.
    place: path of an array of the network → path of the parameter that is its own.
    heads: those that heads.TABLE lacks, or that read other vectors than there.
    into: (arrays that were loaded, by path; all parameters, by path) → {path of a parameter:
      array}: the inverse of `of` where an array is computed. None: an array is the parameter at its
      place.
    learned: how its vocabulary head learned: MASKED (by tokens on both sides), LEFT_TO_RIGHT, or
      both. With the latter the output at a token predicts the token after it, also in masked rows.
  """

  name: str
  encoder: Any
  of: Callable
  place: Callable = lambda path: path
  heads: tuple[head_table.Head, ...] = ()
  into: Callable | None = None
  learned: tuple[str, ...] = (MASKED,)

  @property
  def ahead(self) -> bool:
    """Whether the output at a token predicts the token after it."""
    return LEFT_TO_RIGHT in self.learned

  def places(self, params) -> dict[str, str]:
    """{path of an array of the network: path of the parameter}. params: arrays or shapes."""
    shapes = _flat(jax.eval_shape(self.of, params))
    return {path: self.place(path) for path in shapes}

  def heads_of(self, own) -> dict[str, head_table.Head]:
    """The network's known heads by name. own: its arrays or shapes."""
    return head_table.of(own) | {head.name: head for head in self.heads if head.name in own}


class Objective(NamedTuple):
  """An objective.

  A loss is a sum over the data divided by a total of the data, so a batch may be split anywhere:
  normalizers are taken once over the whole global batch, and the gradients of its parts are added,
  never averaged again.

  Attributes:
    init: key → params, float32.
    normalizers: batch → {name: float32 scalar}, the denominators, from data only. Take them over
      the global batch and guard with `at_least_one` where dividing.
    loss: (params, batch, normalizers, carry, key, train) → (Σ weight·sum/total, (carry, sums)).
      `batch` may be a part of the batch of `normalizers`. sums = {name of a total: {metric: float32
      numerator, of any shape}}; metric = Σ sums / total.
      key: of dropout, for `networks.encode`, the same in all microbatches; None if train is False.
      Rows have keys of their own in `row_keys` of the batch, which the step adds: dropout depends
      on both, samples on those alone.
    reads: names of the batch features it needs.
    may_read: names of features that it reads if the format writes them.
    couples_rows: whether the loss of a row depends on other rows of the batch, as a contrast does.
      Such a batch is never split: microbatches and devices that share its rows are refused.
    networks: the networks it trains; export and evaluation read them.
    carry: batch size → pytree handed from step to step; () where there is none.
    finalize_metrics: {metric: mean} → {metric: scalar}: computes metrics that are no plain means.
    frozen: regexes of the paths of parameters that it does not update.
    inherits: ordered (regex, replacement): a parameter that a phase adds starts as the one whose
      path the first matching regex makes of its own, if the phase before has it.
    axes: axes that a mesh may split, of parameters that belong to no network, as model.blocks.AXES.
  """

  init: Callable
  normalizers: Callable
  loss: Callable
  reads: tuple[str, ...]
  networks: tuple[Network, ...] = ()
  carry: Callable = lambda batch_size: ()
  finalize_metrics: Callable = lambda means: means
  frozen: tuple[str, ...] = ()
  inherits: tuple[tuple[str, str], ...] = ()
  axes: tuple[tuple[str, dict], ...] = ()
  may_read: tuple[str, ...] = ()
  couples_rows: bool = False

  @property
  def all_axes(self) -> tuple[tuple[str, dict], ...]:
    """Axes of each parameter that a mesh may split: the tables of the objective, of heads, of its
    encoders and of vectors, in this order.
    """
    tables = [self.axes, modules.AXES, *(n.encoder.axes for n in self.networks), layers.AXES]
    return tuple(rule for table in tables for rule in table)


def whole(encoder, *own: head_table.Head) -> tuple[Network, ...]:
  """The one network that has all parameters of an objective. own: see Network.heads."""
  return (Network('', encoder, lambda params: params, heads=own),)


def at_least_one(total):
  """A total as denominator: a batch with nothing to count has loss 0, not NaN."""
  return jnp.maximum(total, 1.0)


def _flat(tree):
  return traverse_util.flatten_dict(tree, sep='/')
