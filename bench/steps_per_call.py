"""Milliseconds per step of a small network with 1, 2, 4, 8 and 16 steps per call:

    PYTHONPATH=. python bench/steps_per_call.py [--json=FILE] [--lock=FILE]
    PYTHONPATH=. python bench/steps_per_call.py --device=cpu

The network of the BLiMP run (bench/gpu_queue.py) with 6 layers of 384, and 128 rows of 128 tokens
drawn at random; with --device=cpu the tiny one. Each call does what the training loop does: it
checks the ids, stacks the batches, puts them on the device and starts the program, at most two
calls ahead. Turns of so many steps alternate. `host` is the part of a step in which the host works
and does not wait.
"""

import argparse
import collections
import fcntl
import itertools
import json
import pathlib
import time

import gpu_queue
import jax
import numpy as np
import step

from bertzoo_jax.cli import config_file
from bertzoo_jax.cli import settings
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import machinery
from bertzoo_jax.experiment import resolve
from bertzoo_jax.preflight import readiness
from bertzoo_jax.training import data
from bertzoo_jax.training import loop
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding

TOGETHER = (1, 2, 4, 8, 16)


def made(a):
  """The PhaseRun, on the first device."""
  tiny = a.device == 'cpu'
  name = gpu_queue.CONFIG.format('tiny' if tiny else 'strict_small')
  config = config_file.load(str(pathlib.Path(__file__).parents[1] / 'configs' / name))
  config = config.copy_and_resolve_references()
  values = dict(steps=100_000, every=5000, words='')
  fields = [field.format(**values) for field in gpu_queue.FIELDS]
  fields += gpu_queue.TINY if tiny else ['encoder.num_layers=6']
  settings.apply(config, dict(field.split('=', 1) for field in fields))
  run, mesh = resolve.run(config), sharding.mesh((1, 1, 1), jax.devices()[:1])
  text = readiness.text(readiness.Findings(), run, None, 1).data
  run = machinery.resolved(run, text.vocab_size, mesh)
  return build.phase_run(run, run.phases[0], text, mesh), text.vocab_size


def batches(features, vocab_size):
  """Yields batches of full rows for ever."""
  draw = np.random.default_rng(0)
  ids = {'input_ids', 'masked_targets'}
  ends = {'masked_positions': features['input_ids'][0][1], **dict.fromkeys(ids, vocab_size)}
  while True:
    yield {
      name: draw.integers(0, ends[name], shape).astype(dtype)
      if name in ends
      else np.full(shape, name != 'causal', dtype)
      for name, (shape, dtype) in features.items()
    }


def main():
  p = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  p.add_argument('--device', choices=('cpu', 'gpu'), default='gpu')
  p.add_argument('--turns', type=int, default=5)
  p.add_argument('--steps', type=int, default=64, help='per turn; a multiple of 16')
  p.add_argument('--lock', help='a file that one comparison at a time holds')
  p.add_argument('--json', help='a file to write the figures to')
  a = p.parse_args()
  phase_run, vocab_size = made(a)
  device = jax.devices()[0]
  known = list(itertools.islice(batches(phase_run.data.features, vocab_size), TOGETHER[-1]))
  state, seconds = phase_runs.fresh(phase_run), collections.defaultdict(list)
  for together in TOGETHER:
    phase_run.compiled(together)
  with open(a.lock or '/dev/null', 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    for turn, together in itertools.product(range(a.turns + 1), TOGETHER):
      began, waited, running = time.perf_counter(), 0.0, collections.deque()
      for _ in range(a.steps // together):
        some = known[:together]
        for batch in some:
          data.check_ids(batch, vocab_size, 'a batch')
        state, values = phase_run.compiled(together)(state, loop.on_devices(some, phase_run))
        running.append(values['loss'])
        begins = time.perf_counter()
        while len(running) > 2:
          running.popleft().block_until_ready()
        waited += time.perf_counter() - begins
      worked = time.perf_counter() - began - waited
      jax.block_until_ready(state)
      if turn:  # the first one warms up
        seconds[f'{together}'].append((time.perf_counter() - began) / a.steps)
        seconds[f'{together} host'].append(worked / a.steps)
  held = (device.memory_stats() or {}).get('peak_bytes_in_use', 0) / 1e6
  figures = {s: step.milliseconds(x, phase_run.tokens, held) for s, x in seconds.items()}
  for side, x in figures.items():
    print(f'{side:>8}: {x}', flush=True)
  if a.json:
    pathlib.Path(a.json).write_text(json.dumps(figures) + '\n')


if __name__ == '__main__':
  main()
