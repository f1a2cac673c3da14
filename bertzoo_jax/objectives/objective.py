"""Objectives: pure functions, as in optax. One train step serves all of them."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util

from bertzoo_jax.common import errors
from bertzoo_jax.model import head_modules as modules
from bertzoo_jax.model import layers
from bertzoo_jax.objectives import heads as head_table

# How a network learned to predict tokens: see Network.learned.
MASKED, LEFT_TO_RIGHT = 'masked', 'left to right'


def one_way(params, learned) -> bool:
  """Whether a network learned from left to right only. params, learned: of the network."""
  return 'next_head' in params or MASKED not in learned


class Network(NamedTuple):
  """One trained network: its encoder, its heads, and the paths of its parameters."""

  name: str  # '' for the only network of an objective
  encoder: Any  # linen module, as model.protocol.Encoder
  # parameters of the objective → arrays of the network, {'encoder': …, 'mlm_head': …}. An array may
  # be computed, as a sum of tables is.
  extract: Callable
  # path of an array of the network → path of its parameter in the objective
  param_path: Callable = lambda path: path
  # heads that heads.TABLE lacks, or that read other vectors than the ones there
  heads: tuple[head_table.Head, ...] = ()
  # ({path: loaded array}, {path: parameter of the objective}) → {path of a parameter: array}: the
  # inverse of `extract`, if it computes arrays. None: each array is the parameter at its place.
  insert: Callable | None = None
  # how its vocabulary head learned: MASKED (from tokens on both sides), LEFT_TO_RIGHT, or both.
  # With LEFT_TO_RIGHT, the output at a token predicts the token after it, also in masked rows.
  learned: tuple[str, ...] = (MASKED,)

  @property
  def predicts_next(self) -> bool:
    """Whether the output at a token predicts the token after it."""
    return LEFT_TO_RIGHT in self.learned

  def places(self, params) -> dict[str, str]:
    """{path of an array of the network: path of the parameter}. params: arrays or shapes."""
    shapes = traverse_util.flatten_dict(jax.eval_shape(self.extract, params), sep='/')
    return {path: self.param_path(path) for path in shapes}

  def heads_of(self, params) -> dict[str, head_table.Head]:
    """{name: Head} of the network's known heads. params: arrays or shapes of the network."""
    return head_table.find(params) | {head.name: head for head in self.heads if head.name in params}


class Objective(NamedTuple):
  """An objective.

  A loss is a sum over the data, divided by a total of the data. So a batch may be split anywhere:
  normalizers are computed once for the global batch, and the gradients of its parts are added.
  """

  init: Callable  # key → params, float32
  # batch → {name: float32 scalar}, the denominators, from data only. They are taken over the global
  # batch; divide by `at_least_one` of them.
  normalizers: Callable
  # (params, batch, normalizers, carry, key, train) → (Σ weight·sum/total, (carry, sums)). `batch`
  # may be a part of the batch of `normalizers`. sums = {name of a total: {metric: float32
  # numerator, of any shape}}; metric = Σ sums / total. key: dropout key for `networks.encode`, the
  # same in all microbatches; None if train is False. The step adds a key per row, `row_keys`, to
  # the batch: dropout depends on both, samples only on `row_keys`.
  loss: Callable
  reads: tuple[str, ...]  # names of the batch features that the loss needs
  networks: tuple[Network, ...] = ()  # the trained networks; export and evaluation read them
  # batch size → pytree that goes from step to step; () for none
  carry: Callable = lambda batch_size: ()
  # {metric: mean} → {metric: scalar}: computes metrics that are not plain means
  finalize_metrics: Callable = lambda means: means
  frozen: tuple[str, ...] = ()  # regexes of paths of parameters that are not updated
  # ordered (regex, replacement): a parameter that a phase adds starts as a copy of the one at the
  # substituted path of the first match, if the phase before has it
  inherits: tuple[tuple[str, str], ...] = ()
  # mesh axes of parameters that belong to no network, as model.blocks.AXES
  axes: tuple[tuple[str, dict], ...] = ()
  may_read: tuple[str, ...] = ()  # names of features that it reads if the format writes them
  # vectors, couple: of an objective whose loss of a row depends on other rows; see `coupled`.
  vectors: Callable | None = None
  couple: Callable | None = None

  @property
  def all_axes(self) -> tuple[tuple[str, dict], ...]:
    """The rules by which a mesh splits parameters: the tables of the objective, of heads, of its
    encoders and of vectors, in this order.
    """
    tables = [self.axes, modules.AXES, *(n.encoder.axes for n in self.networks), layers.AXES]
    return tuple(rule for table in tables for rule in table)


def whole(encoder, *heads: head_table.Head) -> tuple[Network, ...]:
  """A single network that has all parameters of an objective. heads: see Network.heads."""
  return (Network('', encoder, lambda params: params, heads=heads),)


def coupled(rows: Objective, vectors: Callable, couple: Callable) -> Objective:
  """An objective whose loss of a row depends on other rows of the batch (a contrastive loss).

  The train step takes the vectors of all microbatches on all devices, then the gradient of `couple`
  by them, and then computes each microbatch again (Gao et al. 2021: GradCache).

  Args:
    rows: its other fields; `loss` is replaced, and may be None.
    vectors: (params, batch, normalizers, carry, key, train), the arguments of `loss`, → (vectors,
      (value, (carry, sums))). vectors: a tree of arrays, whose first axis is that of the batch, or
      a multiple, in its order. The rest is the result of `loss` for what needs no other row: (0.0,
      (carry, {})) if nothing does.
    couple: (vectors, batch, normalizers) → (value, sums), of the whole global batch. It weighs rows
      as queries and as candidates: padding fills the last held-out batch.

  The loss is the sum of both values.
  """

  def checked_vectors(params, batch, *rest):
    match vectors(params, batch, *rest):
      case tree, (value, (carry, {**sums})) if jnp.shape(value) == () and all(
        jnp.ndim(x) and len(x) % len(batch['row_keys']) == 0 for x in jax.tree.leaves(tree)
      ):
        return tree, (jnp.float32(value), (carry, sums))
    raise errors.UserError(
      'The vectors of the objective are no (vectors [rows, …], (scalar, (carry, {total: {metric: '
      'sum}}))): let `vectors` return the vectors of its rows, and the result of a `loss`, as '
      '(0.0, (carry, {})).'
    )

  def checked_couple(tree, of_rows, batch, normalizers):
    value, (carry, sums) = of_rows
    match couple(tree, batch, normalizers):
      case added, {**more} if jnp.shape(added) == ():
        sums = {total: {**sums.get(total, {}), **more.get(total, {})} for total in {**sums, **more}}
        return value + added, (carry, sums)
    raise errors.UserError(
      'The couple of the objective returns no (scalar, {total: {metric: sum}}): let it return the '
      'loss of the rows of the whole batch, and the sums of its metrics.'
    )

  def loss(params, batch, normalizers, carry, key, train):
    tree, of_rows = checked_vectors(params, batch, normalizers, carry, key, train)
    return checked_couple(tree, of_rows, batch, normalizers)

  return rows._replace(loss=loss, vectors=checked_vectors, couple=checked_couple)


def at_least_one(total):
  """A total as denominator: the loss of a batch without predictions is 0, not NaN."""
  return jnp.maximum(total, 1.0)
