"""One attempt of a run in its workdir, from its first step to its last checkpoint."""

import contextlib
import json
import os
import platform
import zlib
from collections.abc import Callable
from typing import NamedTuple

import jax

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import progress
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import machinery
from bertzoo_jax.experiment import reports
from bertzoo_jax.experiment import start as starts
from bertzoo_jax.runs import distributed
from bertzoo_jax.runs import failures
from bertzoo_jax.runs import lock
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import watchdog
from bertzoo_jax.runs import workdir as workdirs
from bertzoo_jax.training import loop


class Held(NamedTuple):
  """A workdir that this process holds."""

  workdir: object  # its path, without links
  check: Callable[[], None]  # raises if another process has taken it (lock.hold)


def start_devices(config):
  """Sets the precision of products and opens the cache of compiled programs."""
  # otherwise accelerators multiply float32 in fewer bits
  if config.run.dtype == 'float32':
    jax.config.update('jax_default_matmul_precision', 'highest')
  # the variable overrides the field: a machine may have one cache for all runs
  if config.run.compile_cache and 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
    folder = os.path.expanduser(config.run.compile_cache)
    # A folder per CPU: several machines may share a home folder, and not run the same programs.
    name = jax.default_backend()
    if name == 'cpu':  # of each instruction set
      name = f'cpu-{platform.machine()}-{zlib.crc32(machinery.cpu().encode()):08x}'
    jax.config.update('jax_compilation_cache_dir', os.path.join(folder, name))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)


@contextlib.contextmanager
def holding(workdir, config):
  """Yields the workdir as Held, which no other job may use inside the `with`. A lost host, or a
  device without memory, ends it in one sentence. Raises as workdirs.writable and lock.hold.
  """
  workdirs.check_unlike(workdir, workdirs.A_CORPUS)
  with (
    workdirs.writable(workdir) as workdir,
    distributed.last_words(),
    distributed.watched(),
    lock.hold(workdir) if first_process() else contextlib.nullcontext(lambda: None) as check,
    enough_memory(config),
  ):
    yield Held(workdir, check)


def train(built: build.Built, start: starts.Start, state, held: Held, notice, lines, show=True):
  """Trains the remaining phases, up to the end of the run or a signal.

  built: see build.phases. start, state, lines: the start of the attempt, its state, and lines on
  it: see start.state. held: the workdir. notice: a listening Preemption. show: whether to print
  progress.

  Returns {'step', 'end', 'interrupted', 'held_out': metrics, 'flops': of the whole run}.
  Errors: see `pretrain`.
  """
  run, data, config = built.run, built.data, built.run.config
  record, trackers = _records(config, held.workdir, start.step, _described(built, start))
  show = show and first_process()
  bar = progress.Progress(run.end_step, start.step, show=show, entropy=data.entropy)
  bar.say('\n'.join([*reports.overview(built, start, state), *lines, *reports.export_notes(built)]))
  training = loop.Loop(
    workdir=held.workdir,
    total_steps=run.end_step,
    vocab_size=data.vocab_size,
    machinery=config.run,
    checkpoints=start.checkpoints,
    record=record,
    trackers=trackers,
    progress=bar,
    preemption=notice,
    entropy=data.entropy,
    held_out_sizes=data.held_out_sizes,
    watchdog=watchdog.Watchdog(config.run.hang_minutes),
    check_held=held.check,
    keep_at=frozenset(start.keep_at),
  )
  with contextlib.ExitStack() as stack:
    stack.enter_context(training.watchdog)
    # closed in the reverse order, also when the run fails
    for part in (start.checkpoints, record, trackers, bar):
      stack.callback(part.close)
    stack.enter_context(distributed.watched())  # exits before the closes, which wait for all hosts
    stack.enter_context(enough_memory(config))
    result = training.train(state, built.phase_runs)
  held_out = result['held_out'] or _last_held_out(held.workdir)
  flops = sum(build.flops(run, data, built.mesh))
  return {**result, 'held_out': held_out, 'end': run.end_step, 'flops': flops}


def _described(built, start) -> int:
  """Writes the description of the run into the workdir; returns the number of this attempt, 0 in
  processes that do not write.
  """
  config, data = built.run.config, built.data
  plain = json.loads(configuration.to_json(config))
  start.checkpoints.run = {'config': plain, 'corpus': data.corpus}
  if not first_process():
    return 0
  workdirs.describe(start.workdir, config, data.corpus, data.save_tokenizer)
  return workdirs.add_attempt(
    start.workdir,
    corpus_hash=data.corpus['hash'],
    start_step=start.step,
    devices=reports.devices(),
    init=start.first.init,
    taken={} if start.step else start.first._asdict(),
    resume_moments=start.branch is not None,
  )


def enough_memory(config):
  """As failures.enough_memory, for a run."""
  by_phase = any('run.accumulation' in overrides for _, overrides in config.phases)
  return failures.enough_memory(config.run, by_phase)


def _last_held_out(workdir) -> dict:
  """The newest row of metrics with an evaluation; {} without one."""
  rows = reversed(metrics.read(workdir))
  return next((row for row in rows if row.get('held_out_loss') is not None), {})


def _records(config, workdir, start, attempt):
  """(metrics, trackers) of this attempt; only the first process writes."""
  if not first_process():
    return metrics.Nothing(), metrics.Nothing()
  trackers = metrics.Trackers(
    workdir,
    start,
    configuration.flatten(config),
    tensorboard=config.run.tensorboard,
    wandb=config.run.wandb,
  )
  return metrics.Record(workdir, start, attempt), trackers


def first_process() -> bool:
  """Whether this process is the one that writes."""
  return jax.process_index() == 0
