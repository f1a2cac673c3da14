"""Our train step beside transformers' Flax step, both compiled for one TPU chip.

    PYTHONPATH=. python bench/tpu_step.py --flax=FLAX_ENVIRONMENT/bin/python [--chips v5e,v4]
    [--models bert-base,bert-large] [--rows 32]

The same network, rows, tokens and dropout, masked language modelling alone (ELECTRA: both networks
in one update), products in bfloat16. Nothing runs: figures are the compiler's. Their step has its
vocabulary head on all positions (`flax_all`), and on as many as ours (`flax_same`). It has its
layers unrolled and compiles for long, so it is compiled with --flax_layers layers and carried on in
a straight line to the full depth; ours is compiled in full with --full, else likewise, with
`run.unroll` = all layers.

    cycles    summed estimated cycles, kernels by their schedules or bytes, whichever is longer
              (bertzoo_jax/preflight/tpu)
    optimal   the compiler's optimal_seconds, repaired (repaired_optimal_seconds), and the same
              kernels. The compiler charges a kernel what it says of itself, which would count it
              twice: here kernels say nothing
"""

import functools
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import types

import compiled
from absl import app
from absl import flags
from jax.experimental import pallas

from bertzoo_jax.common import storage
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import estimate
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.preflight.tpu import program

ROOT = pathlib.Path(__file__).parents[1]
MODELS = {
  'bert-base': ('bert', 'base'),
  'bert-large': ('bert', 'large'),
  'albert-base': ('albert', 'base'),
  'electra-small': ('electra', 'small'),
}

_FLAX = flags.DEFINE_string(
  'flax',
  '',
  'Python of an environment with transformers < 5 (bench/flax_step.py); without it ours alone.',
)
_CHIPS = flags.DEFINE_string('chips', 'v5e', 'Generations by comma.')
_MODELS = flags.DEFINE_string('models', 'bert-base', 'By comma.')
_ROWS = flags.DEFINE_integer('rows', 32, 'Rows a chip.')
_LENGTH = flags.DEFINE_integer('length', 512, 'Tokens a row.')
_LAYERS = flags.DEFINE_string('layers', '1,3', 'Two depths of ours to carry on from.')
_FLAX_LAYERS = flags.DEFINE_string('flax_layers', '1,2', 'Two depths of theirs.')
_FULL = flags.DEFINE_bool('full', False, 'Compile ours at full depth.')
_PRNG = flags.DEFINE_string(
  'flax_prng', 'threefry2x32', "Dropout keys of theirs: threefry2x32 is jax's default."
)
_OVERRIDES = flags.DEFINE_multi_string('set', [], 'run.remat=full and the like, of ours.')
_OUT = flags.DEFINE_string('out', '', 'JSON lines are added to it.')


def ours(chip: str, model: str, layers: int) -> dict:
  """Figures of our step with so many layers."""
  slice_ = chips.by_topology(compiled.TOPOLOGIES[chip])
  made = compiled.train_step(
    *MODELS[model],
    slice_,
    (1, 1, 1),
    layers=layers,
    rows=_ROWS.value,
    length=_LENGTH.value,
    settings=_OVERRIDES.value,
  )
  if not made.fits:
    return dict(needed=made.needed)
  return _figures(
    made.text, repaired_optimal_seconds(made.analysis), made.memory.peak, made.seconds, slice_
  )


def theirs(chip: str, model: str, layers: int, predictions: int = 0) -> dict:
  """Figures of the Flax step. predictions: a row, 0 for all positions."""
  with tempfile.NamedTemporaryFile(suffix='.txt') as text:
    command = [
      _FLAX.value,
      str(ROOT / 'bench/flax_step.py'),
      f'--topology={compiled.TOPOLOGIES[chip]}',
      f'--model={model}',
      f'--layers={layers}',
      f'--rows={_ROWS.value}',
      f'--length={_LENGTH.value}',
      f'--prng={_PRNG.value}',
      f'--predictions={predictions}',
      f'--text={text.name}',
    ]
    printed = subprocess.run(
      command + ['--megacore'] * (chip == 'v4'), check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    found = json.loads(printed.splitlines()[-1])
    slice_ = chips.by_topology(compiled.TOPOLOGIES[chip])
    memory = program.memory_of(types.SimpleNamespace(**found['memory']))
    return _figures(
      pathlib.Path(text.name).read_text(),
      repaired_optimal_seconds(found),
      memory.peak,
      found['seconds'],
      slice_,
    )


def repaired_optimal_seconds(cost_analysis: dict) -> float | None:
  """The compiler's `optimal_seconds` with its fault undone: some operations count as −1 s each, so
  that the sum is the true one less a whole number. An inference, right for programs under a second
  without loops (whose bodies it counts once); None where it gives no time.
  """
  value = cost_analysis.get('optimal_seconds')
  return None if value is None else value - math.floor(value)


def _figures(text, optimal, peak, seconds, slice_):
  chip = slice_.chip
  reading = hlo.read(text, estimate.kernel_cycles(chip.name))
  kernels = sum(
    c.times * max(c.hbm / chip.device_bandwidth, (c.cycles or 0) / chip.clock)
    for c in reading.costs
    if c.kernel
  )
  schedules = sum(c.times * (c.cycles or 0) for c in reading.costs if c.kernel)
  return dict(
    cycles_ms=1e3 * ((reading.cycles - schedules) / chip.clock + kernels),
    optimal_ms=1e3 * (optimal + kernels),
    kernels_ms=1e3 * kernels,
    schedules_ms=1e3 * schedules / chip.clock,
    peak_gib=peak / chips.GIB,
    hbm_gb=reading.hbm / 1e9,
    compile_seconds=seconds,
  )


def at_depth(side, chip, model, depths, full) -> dict:
  """Figures at full depth, from those of two."""
  name = getattr(side, 'func', side).__name__
  low, high = ((n, side(chip, model, n)) for n in depths)
  print(
    json.dumps(dict(side=name, chip=chip, model=model, layers=dict((low, high)))),
    file=sys.stderr,
    flush=True,
  )
  return {k: x for k, x in compiled.at_depth(low, high, full).items() if k != 'compile_seconds'}


def main(_):
  pallas.CostEstimate = lambda **_: None
  for chip in _CHIPS.value.split(','):
    for model in _MODELS.value.split(','):
      full = compiled.depth(*MODELS[model])
      depths = lambda flag: tuple(map(int, flag.value.split(',')))
      row = dict(
        chip=chip,
        model=model,
        rows=_ROWS.value,
        length=_LENGTH.value,
        set=_OVERRIDES.value,
        flax_prng=_PRNG.value,
      )
      row['ours'] = (
        ours(chip, model, full)
        if _FULL.value
        else at_depth(ours, chip, model, depths(_LAYERS), full)
      )
      if _FLAX.value:
        for name, predictions in {'all': 0, 'same': compiled.PREDICTIONS[_LENGTH.value]}.items():
          side = functools.partial(theirs, predictions=predictions)
          flax = at_depth(side, chip, model, depths(_FLAX_LAYERS), full)
          row[f'flax_{name}'] = flax
          row[f'ratios_{name}'] = {
            k: row['ours'][k] / flax[k]
            for k in ('cycles_ms', 'optimal_ms', 'peak_gib', 'hbm_gb')
            if k in row['ours']
          }
      line = json.dumps(row)
      print(line, flush=True)
      if _OUT.value:
        storage.write_text(
          _OUT.value,
          (pathlib.Path(_OUT.value).read_text() if pathlib.Path(_OUT.value).exists() else '')
          + line
          + '\n',
        )


if __name__ == '__main__':
  app.run(main)
