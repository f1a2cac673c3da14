"""One update of all trained networks: (state, batch) → (state, metrics)."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.common import trees
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import per_device
from bertzoo_jax.training import sharding
from bertzoo_jax.training import spikes

# The PRNG, whatever jax's default is: keys of two words, and the same draws after a resume.
_KEYS = 'threefry2x32'


@struct.dataclass
class TrainState:
  """Everything that a run passes from step to step."""

  step: Any  # int32, updates begun so far, left-out ones included
  params: Any  # nested dict, float32
  opt_state: Any  # state of the optimizer
  carry: Any  # the objective's memory, leading axis the batch; () if it has none
  # int32 counts of left-out updates: `total`, `consecutive` (up to now), and `last`, the step of
  # the last one
  nonfinite: Any
  spikes: Any  # running statistics of loss and gradient norm, and the count of spikes (spikes.py)
  average: Any = ()  # exponential average of the parameters; () without `ema`


def init(objective, tx, seed: int, batch_size: int, ema: float = 0.0) -> TrainState:
  """The state before the first step; weights depend on the seed alone. ema: `make_train_step`."""
  params = objective.init(jax.random.key(seed))
  zero = lambda value=0: jnp.full([], value, jnp.int32)
  return TrainState(
    zero(),
    params,
    tx.init(params),
    objective.carry(batch_size),
    {'total': zero(), 'consecutive': zero(), 'last': zero(-1)},
    spikes.fresh(),
    params if ema else (),
  )


def make_train_step(
  objective,
  tx,
  schedule,
  *,
  seed: int,
  accumulation: int = 1,
  mesh=None,
  objective_at=None,
  ema: float = 0.0,
):
  """The pure train step; jit it with a donated state.

  The denominators are taken over the whole global batch first. Microbatch gradients are then added:
  one update, the same for any number of microbatches. Dropout and samples are drawn by keys of
  (seed, step, global row), so a step can be repeated, and neither microbatches nor mesh change the
  draws. An update whose loss or gradient norm is not finite is left out and counted.

  schedule: step → learning rate, for the metrics. accumulation: microbatches per step. mesh: None
  for one device. objective_at: traced step → the objective with its moving fields at that step;
  None if none moves. ema: decay of the average of the parameters per update, a ← ema·a + (1 −
  ema)·p; 0: no average. Returns step(state, batch) → (state, metrics); metrics are scalars: loss,
  every metric of the objective, lr, grad_norm, nonfinite and nonfinite_in_a_row (updates left out
  so far, and since the last good one), spikes (so far) and spike (whether this step is one).
  """
  root, place = jax.random.key(seed, impl=_KEYS), _placing(objective, mesh)

  def gradients_of(loss, params, batch, normalizers, carry, key):
    (loss, (carry, sums)), grads = jax.value_and_grad(loss, has_aux=True)(
      params, batch, normalizers, carry, key, True
    )
    return place(grads), loss, carry, sums

  def step(state, batch):
    normalizers = objective.normalizers(batch)
    key = jax.random.fold_in(root, state.step)
    batch = _with_row_keys(batch, key)
    now = objective_at(state.step) if objective_at else objective
    gradients = functools.partial(gradients_of, _loss(now, accumulation, mesh, place))
    if now.couple is None:
      gradients = _summed(gradients, place, accumulation, mesh)
    grads, loss, carry, sums = gradients(state.params, batch, normalizers, state.carry, key)
    grads = _except(grads, objective.frozen)  # moments of frozen parameters stay 0
    norm = optax.global_norm(grads)
    ok = jnp.isfinite(loss) & jnp.isfinite(norm)
    updates, opt_state = tx.update(grads, state.opt_state, state.params, step=state.step)
    updates = _except(updates, objective.frozen)  # no decay and no remaining momentum either
    keep = lambda new, old: jax.tree.map(lambda a, b: jnp.where(ok, a, b), new, old)
    nonfinite = {
      'total': state.nonfinite['total'] + ~ok,
      'consecutive': jnp.where(ok, 0, state.nonfinite['consecutive'] + 1),
      'last': jnp.where(ok, state.nonfinite['last'], state.step),
    }
    statistics, spike = spikes.update(state.spikes, loss, norm, ok)
    params = keep(optax.apply_updates(state.params, updates), state.params)
    averaged = (
      jax.tree.map(lambda a, p: ema * a + (1 - ema) * p, state.average, params) if ema else ()
    )
    new = TrainState(
      state.step + 1,
      params,
      keep(opt_state, state.opt_state),
      keep(carry, state.carry),
      nonfinite,
      statistics,
      keep(averaged, state.average),
    )
    return new, {
      'loss': loss,
      **objective.finalize_metrics(means(sums, normalizers)),
      'lr': schedule(state.step),
      'grad_norm': norm,
      # + 0 copies: the state itself is donated to the next step
      'nonfinite': nonfinite['total'] + 0,
      'nonfinite_in_a_row': nonfinite['consecutive'] + 0,
      'spikes': statistics['total'] + 0,
      'spike': spike,
    }

  return step


def make_eval_step(objective, *, accumulation: int = 1, mesh=None):
  """(params, batch, normalizers, carry, number) → ((loss, sums), carry), without dropout.

  Add (loss, sums) over the held-out batches. The carry goes from each batch to the next, as in
  training; the first gets `objective.carry(rows)`. A batch is computed in as many microbatches as
  in training, so that a batch that fits there fits here.

  normalizers: sums over all held-out batches.
  number: index of the batch. Samples depend only on it and on the row, so they are the same at
    every evaluation.
  """

  def step(params, batch, normalizers, carry, number):
    batch = _with_row_keys(batch, jax.random.fold_in(jax.random.key(0, impl=_KEYS), number))
    loss_of = _loss(objective, accumulation, mesh)

    def one(micro, carry):
      loss, (carry, sums) = loss_of(params, micro, normalizers, carry, None, False)
      return (loss, sums), carry

    if accumulation == 1 or objective.couple:
      return one(batch, carry)
    _, (parts, carry) = jax.lax.scan(
      lambda _, turn: (None, one(*turn)),
      None,
      (split(batch, accumulation, mesh), split(carry, accumulation, mesh)),
    )
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), parts), merge(carry, accumulation, mesh)

  return step


def not_finite(state) -> str | None:
  """The path of an array of a state with a non-finite number, or None. Waits for the devices."""
  parts = ('params', 'opt_state', 'carry', 'average')
  leaves = jax.tree_util.tree_leaves_with_path({name: getattr(state, name) for name in parts})
  finite = jax.device_get(_all_finite([x for _, x in leaves]))
  return next((trees.path_of(p) for (p, _), ok in zip(leaves, finite) if not ok), None)


@jax.jit
def _all_finite(leaves):
  return jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves])


def _loss(objective, accumulation, mesh, place=lambda grads: grads):
  """objective.loss, or `_coupled`, which takes the whole batch. When traced, it raises UserError
  for a result of another structure.
  """

  def loss(*args):
    whole = _coupled(objective, accumulation, mesh, place) if objective.couple else objective.loss
    match whole(*args):
      case (value, (carry, {**sums})) if jnp.shape(value) == () and all(
        isinstance(group, dict) for group in sums.values()
      ):
        return value, (carry, sums)
    raise errors.UserError(
      'The loss of the objective returns no (scalar, (carry, {total: {metric: sum}})): let it '
      'return the loss of the rows, the carry (as it came if unused), and the sums of its metrics.'
    )

  return loss


def means(sums: dict, normalizers: dict) -> dict:
  """{metric: sum / total}; 0 if the total is 0. Raises UserError for sums without their total."""
  if strange := sorted(sums.keys() - normalizers.keys()):
    raise errors.UserError(
      f'The objective has sums under {strange[0]!r}, and its normalizers are '
      f'{", ".join(sorted(normalizers))}: sums go under the name of the total that divides them.'
    )
  return {
    name: value / jnp.maximum(normalizers[total], 1.0)
    for total, group in sums.items()
    for name, value in group.items()
  }


def carry_over(old, new, inherits=()):
  """`new` with the leaves of `old` that have the same path and shape: the first state of a phase.
  inherits: of the phase's objective: which old parameter starts one whose path `old` lacks.
  """
  known = {trees.path_of(p): x for p, x in jax.tree_util.tree_leaves_with_path(old)}

  def pick(key_path, leaf):
    path = trees.path_of(key_path)
    root, _, rest = path.partition('/')
    if path not in known and root in ('params', 'average'):
      path = f'{root}/' + next(
        (re.sub(regex, to, rest) for regex, to in inherits if re.search(regex, rest)), rest
      )
    old_leaf = known.get(path)
    return old_leaf if old_leaf is not None and old_leaf.shape == leaf.shape else leaf

  return jax.tree_util.tree_map_with_path(pick, new)


def split(tree, parts: int, mesh=None):
  """[B, …] → [parts, B/parts, …]; each device keeps its rows: part m has the m-th share of each."""
  devices = 1 if mesh is None else sharding.rows_over(mesh)

  def one(x):
    x = x.reshape(devices, parts, x.shape[0] // (devices * parts), *x.shape[1:]).swapaxes(0, 1)
    x = x.reshape(parts, -1, *x.shape[3:])
    return (
      x
      if mesh is None
      else jax.lax.with_sharding_constraint(
        x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, sharding.ROWS))
      )
    )

  return jax.tree.map(one, tree)


def merge(tree, parts: int, mesh=None):
  """The inverse of `split`."""
  devices = 1 if mesh is None else sharding.rows_over(mesh)
  return jax.tree.map(
    lambda x: (
      x.reshape(parts, devices, x.shape[1] // devices, *x.shape[2:])
      .swapaxes(0, 1)
      .reshape(-1, *x.shape[2:])
    ),
    tree,
  )


def _with_row_keys(batch, key):
  """The batch with `row_keys` [B, 2] uint32: a key for the random draws of each global row."""
  return {**batch, 'row_keys': row_keys.batch_keys(key, len(next(iter(batch.values()))))}


def _except(tree, frozen):
  """Gradients or updates, 0 for frozen parameters."""
  if not frozen:
    return tree
  learns = optimizers.policy([(regex, False) for regex in frozen], trees.paths_of(tree), True)
  return jax.tree_util.tree_map_with_path(
    lambda p, x: jnp.where(learns[trees.path_of(p)], x, 0), tree
  )


def _placing(objective, mesh):
  """gradients → gradients sharded like their parameters: microbatch sums are never replicated."""

  def place(grads):
    if mesh is None or sharding.inside_shard_map():
      return grads
    where, _ = sharding.parameter_shardings(grads, mesh, objective.all_axes)
    return jax.lax.with_sharding_constraint(grads, where)

  return place


def _summed(gradients, place, accumulation, mesh):
  """`gradients` of a batch, accumulated over its microbatches."""

  def accumulate(common, rows):
    params, normalizers, key = common
    if accumulation == 1:
      grads, loss, carry, sums = gradients(params, rows[0], normalizers, rows[1], key)
      return (grads, loss, sums), carry
    over = None if sharding.inside_shard_map() else mesh

    def body(added, microbatch):
      grads, loss, carry, sums = gradients(params, microbatch[0], normalizers, microbatch[1], key)
      return jax.tree.map(jnp.add, added, grads), (loss, carry, sums)

    zeros = place(jax.tree.map(jnp.zeros_like, params))
    grads, (losses, carry, sums) = jax.lax.scan(body, zeros, split(rows, accumulation, over))
    loss, sums = jax.tree.map(lambda x: jnp.sum(x, axis=0), (losses, sums))
    return (grads, loss, sums), merge(carry, accumulation, over)

  def whole(params, batch, normalizers, carry, key):
    common, rows = (params, normalizers, key), (batch, carry)
    (grads, loss, sums), carry = per_device.summed_at_end(accumulate, mesh)(common, rows)
    return grads, loss, carry, sums

  return whole


def _coupled(objective, accumulation, mesh, place):
  """The loss of an objective that couples rows (objective.coupled), of a batch in microbatches.

  The gradient computes each microbatch again, with the same draws: in memory are the activations of
  one, and the vectors of all (Gao et al. 2021: GradCache).
  """
  pinned = jax.custom_vjp(lambda params: params)
  pinned.defvjp(lambda params: (params, None), lambda _, grads: (place(grads),))

  def loss(params, batch, normalizers, carry, key, train):
    def forward(common, rows):
      params, normalizers, key = common

      def one(batch, carry):
        vectors, (value, (carry, sums)) = objective.vectors(
          pinned(params), batch, normalizers, carry, key, train
        )
        return (value, sums), (vectors, carry)

      if accumulation == 1:
        return one(*rows)
      over = None if sharding.inside_shard_map() else mesh
      again = jax.checkpoint(one, prevent_cse=False)  # a scan prevents it
      microbatches = split(rows, accumulation, over)
      _, (sums, parts) = jax.lax.scan(lambda _, turn: (None, again(*turn)), None, microbatches)
      return jax.tree.map(lambda x: jnp.sum(x, axis=0), sums), merge(parts, accumulation, over)

    (value, sums), (vectors, carry) = per_device.summed_at_end(forward, mesh)(
      (params, normalizers, key), (batch, carry)
    )
    return objective.couple(vectors, (value, (carry, sums)), batch, normalizers)

  return loss
