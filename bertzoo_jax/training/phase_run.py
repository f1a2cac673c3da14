"""A phase made ready to run: its state on the mesh, its compiled step, its evaluation."""

import collections
import dataclasses
import functools
import math
import os
from typing import Any

import jax
import jax.numpy as jnp

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import trees
from bertzoo_jax.training import cost
from bertzoo_jax.training import sharding
from bertzoo_jax.training import spikes
from bertzoo_jax.training import step as steps

# KiB of fast memory that a fused operation may take, by device kind, where the chip has more than
# the compiler's default: larger tiles of the matrix products (docs/TPU.md).
_FAST_MEMORY = {'TPU v5 lite': 32768, 'TPU v5e': 32768, 'TPU v5': 32768, 'TPU v5p': 32768}
_FAST_MEMORY_FLAG = 'xla_tpu_scoped_vmem_limit_kib'
# From this size on (MiB), XLA splits a product with gathered weights into one small product per
# chip. Those are too narrow to be fast, so this raises the limit out of reach.
_WINDOWS_FLAG = 'xla_jf_spmd_threshold_for_windowed_einsum_mib'
_NEVER = 1_000_000
# On a GPU XLA prefers fused matrix products of Triton where cuBLAS is faster: 35 and 28 ms for a
# step of BERT-base on an H200 (bench/README.md).
_TRITON_FLAG = 'xla_gpu_enable_triton_gemm'


@dataclasses.dataclass(frozen=True, eq=False)
class PhaseRun:
  """A phase with everything that its steps need."""

  phase: configuration.Phase
  objective: Any  # its Objective
  # tx, schedule: its optimizer, and step → learning rate
  tx: Any
  schedule: Any
  data: Any  # its PhaseData
  mesh: Any  # mesh of the run
  # traced step → the objective with its moving fields at that step; None if none moves
  objective_at: Any = None
  plain: Any = None  # the objective that `cost.step_flops` traces
  frees: bool = False  # whether parameters learn that the phase before it froze (config.frozen)
  # {(steps per call, tokens per row): compiled train step}, of `compiled`
  programs: dict = dataclasses.field(default_factory=dict, init=False, repr=False)

  @property
  def end_step(self) -> int:
    """The phase runs the steps of the run before this one."""
    return self.phase.end_step

  @property
  def rows(self) -> int:
    """Rows of the global batch; units, if each has several options."""
    return self.data.features['input_ids'][0][0]

  @functools.cached_property
  def flops(self) -> float:
    """FLOPs of a step, see cost.step_flops."""
    return cost.step_flops(self.plain, self.target[0].params, self.data.batch)

  @property
  def tokens(self) -> int:
    """Tokens of the global batch, with padding."""
    return math.prod(self.data.features['input_ids'][0])

  @property
  def length(self) -> int:
    """Tokens per row."""
    return self.data.features['input_ids'][0][-1]

  @functools.cached_property
  def target(self):
    """(TrainState of shape structs with shardings, notes about parameters that could not be
    split).
    """
    shapes = jax.eval_shape(lambda: _initial(self))
    placed, notes = sharding.parameter_shardings(shapes.params, self.mesh, self.objective.all_axes)
    where = sharding.state_shardings(shapes, placed, self.mesh)
    return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, where
    ), notes

  def inputs(self, together: int = 1, batch=None):
    """(state, batch) of `train_step`, shape structs with shardings.

    batch: a batch with rows of another length, as fine-tuning has them.
    """
    before = (together,) * (together > 1)
    place = sharding.batch_sharding(self.mesh, len(before))
    shape = lambda name, full: (full[0], *batch[name].shape[1:]) if batch else full
    arrays = {
      name: jax.ShapeDtypeStruct((*before, *shape(name, full)), dtype, sharding=place)
      for name, (full, dtype) in self.data.features.items()
    }
    return self.target[0], arrays

  def compiled(self, together: int = 1, batch=None):
    """`train_step`, compiled at the first request for rows of this length. batch: see `inputs`."""
    key = together, batch['input_ids'].shape[-1] if batch else self.length
    if key not in self.programs:
      self.programs[key] = train_step(self, together).lower(*self.inputs(together, batch)).compile()
    return self.programs[key]


def fresh(phase_run: PhaseRun) -> steps.TrainState:
  """The state before the first step, created with its shardings."""
  return jax.jit(lambda: _initial(phase_run), out_shardings=_where(phase_run))()


def transition(state: steps.TrainState, phase_run: PhaseRun) -> steps.TrainState:
  """The state at the start of a later phase_run. Moments are kept. Parameters that the phase adds
  are initialised by its objective, or copied from others (Objective.inherits). If it frees
  parameters, all moments begin anew. The old state is donated: two states may not fit into memory.
  """
  return make_transition(phase_run)(state)


def make_transition(phase_run: PhaseRun):
  """The jitted function behind `transition`."""

  def entered(old):
    fresh = _initial(phase_run)
    new = steps.carry_over(old, fresh, phase_run.objective.inherits)
    moments = fresh.opt_state if phase_run.frees else new.opt_state
    return new.replace(spikes=spikes.entered(old.spikes), opt_state=moments)

  return jax.jit(
    entered, out_shardings=_where(phase_run), donate_argnums=0, compiler_options=_options(phase_run)
  )


def train_step(phase_run: PhaseRun, together: int = 1):
  """The jitted (state, batch) → (state, metrics); the state is donated.

  together: steps per call. If there are several, the arrays of batch and metrics have one entry per
  step, in a leading axis.
  """
  step = steps.make_train_step(
    phase_run.objective,
    phase_run.tx,
    phase_run.schedule,
    seed=phase_run.phase.config.seed,
    objective_at=phase_run.objective_at,
    ema=phase_run.phase.config.ema,
    **_parts(phase_run),
  )
  # else the compiler may join a metric with the place where it is stored, and round otherwise
  apart = lambda state, batch: jax.lax.optimization_barrier(step(state, batch))
  where, several = _where(phase_run), together > 1
  return jax.jit(
    (lambda state, batches: jax.lax.scan(apart, state, batches)) if several else step,
    in_shardings=(where, sharding.batch_sharding(phase_run.mesh, several)),
    out_shardings=(where, None),
    donate_argnums=0,
    compiler_options=_options(phase_run),
  )


def compiler_options(device_kind: str, split_weights: bool) -> dict[str, str]:
  """Options of the compiler for the programs of a phase. LIBTPU_INIT_ARGS and XLA_FLAGS override
  them. split_weights: whether weights are split over fsdp.
  """
  wanted = {
    _FAST_MEMORY_FLAG: _FAST_MEMORY.get(device_kind),
    _WINDOWS_FLAG: _NEVER if split_weights and device_kind.startswith('TPU') else None,
    _TRITON_FLAG: 'False' if device_kind.startswith('NVIDIA') else None,
  }
  flags = ' '.join(os.environ.get(name, '') for name in ('LIBTPU_INIT_ARGS', 'XLA_FLAGS'))
  return {k: str(v) for k, v in wanted.items() if v and k not in flags}


def evaluation(phase_run: PhaseRun):
  """params → {'loss', every metric of the objective} over the held-out batches; {} if there are
  none. With several corpora also 'METRIC/NAME' per corpus, but no loss per corpus.

  The denominators are added over all batches first, once, so the result is that of one large batch.
  Batches are made again at each evaluation: together they may be many times the size of the state.
  An objective's memory is reset at the start of an evaluation, and passed from batch to batch.
  """
  objective, rows = phase_run.objective, sharding.batch_sharding(phase_run.mesh)
  normalizers_of = jax.jit(objective.normalizers)
  start = jax.jit(lambda: objective.carry(phase_run.rows), out_shardings=rows)
  eval_step = jax.jit(
    steps.make_eval_step(objective, **_parts(phase_run)),
    out_shardings=(None, rows),
    donate_argnums=3,
    compiler_options=_options(phase_run),
  )
  place = lambda batch: sharding.to_devices(batch, phase_run.mesh, phase_run.rows)
  add = lambda a, b: jax.tree.map(jnp.add, a, b)

  @functools.cache
  def normalizers():
    """{corpus: {total: value}}; under None the totals of all corpora."""
    totals = collections.defaultdict(collections.Counter)
    for corpus, batch in phase_run.data.evaluation_batches():
      counts = {k: float(v) for k, v in normalizers_of(place(batch)).items()}
      for name in {None, corpus}:
        totals[name].update(counts)
    return {name: dict(counts) for name, counts in totals.items()}

  def evaluate(params):
    if not normalizers():
      return {}
    totals, carry = {}, start()
    # the next batch is made while the devices compute, and one batch at a time is under way
    for number, (corpus, batch) in enumerate(phase_run.data.evaluation_batches()):
      jax.block_until_ready(totals)
      result, carry = eval_step(params, place(batch), normalizers()[None], carry, number)
      totals[corpus] = add(totals[corpus], result) if corpus in totals else result
    loss, sums = functools.reduce(add, totals.values())
    mean = lambda sums, name: objective.finalize_metrics(steps.means(sums, normalizers()[name]))
    values = {'loss': loss, **mean(sums, None)}
    for name, (_, sums) in totals.items():
      values |= {f'{k}/{name}': v for k, v in mean(sums, name).items()} if name else {}
    return {k: float(v) for k, v in values.items()}

  return evaluate


def bits_per_byte(nats_per_token: float, tokens_per_byte: float) -> float:
  """The loss in bits per byte of text, comparable between tokenizers."""
  return nats_per_token * tokens_per_byte / math.log(2)


def param_shapes(state) -> dict:
  """{path: shape} of the parameters of a state."""
  return {trees.path_of(p): x.shape for p, x in jax.tree_util.tree_leaves_with_path(state.params)}


def _initial(phase_run):
  config = phase_run.phase.config
  return steps.init(phase_run.objective, phase_run.tx, config.seed, phase_run.rows, config.ema)


def _parts(phase_run):
  return dict(
    accumulation=phase_run.phase.config.run.accumulation,
    mesh=phase_run.mesh if phase_run.mesh.size > 1 else None,
  )


def _options(phase_run):
  return compiler_options(
    phase_run.mesh.devices.flat[0].device_kind, phase_run.mesh.shape['fsdp'] > 1
  )


def _where(phase_run):
  return jax.tree.map(lambda x: x.sharding, phase_run.target[0])
