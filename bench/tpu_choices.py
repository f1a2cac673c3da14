"""What a train step costs by each choice of machinery, by generation of TPU and length:
docs/tpu_choices.md.

    PYTHONPATH=. python bench/tpu_choices.py [--chips v5e,v4,v6e] [--lengths 512,128] [--out
    docs/tpu_choices.md]

The train step of configs/bert.py:base, masked language modelling alone, 16,384 tokens on one chip,
compiled at full depth for each choice. Nothing runs. Rows that --out already has are kept, so that
a table cut short goes on; delete a row to make it anew.
"""

import concurrent.futures
import itertools
import multiprocessing
import pathlib
import re
import sys

import compiled
import jax
from absl import app
from absl import flags

from bertzoo_jax.common import storage
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import estimate
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.preflight.tpu import kernel_costs

ROOT = pathlib.Path(__file__).parents[1]
TOKENS = 16_384
SCAN, BESIDE = 'run.unroll=1', 'run.unroll=0'
# What is set besides the config's own run(); the first is what the others are held against. What is
# computed again is compared at 512
# tokens alone: it goes by tokens in all.
CHOICES = ((SCAN,), (BESIDE,), (SCAN, 'run.kernels=xla'))
POLICIES = tuple(
  (layers, f'run.remat={policy}')
  for layers in (BESIDE, SCAN)
  for policy in ('sublayers', 'feed_forward', 'full')
)
COLUMNS = ('chip', 'tokens a row', 'set', 'ms (bounds)', 'cycles, ms', 'peak, GiB', 'HBM, GB')
_CHIPS = flags.DEFINE_string('chips', 'v5e,v4,v6e', 'Generations by comma.')
_LENGTHS = flags.DEFINE_string('lengths', '512,128', 'Tokens a row, by comma.')
_OUT = flags.DEFINE_string('out', str(ROOT / 'docs/tpu_choices.md'), 'The table.')


def row(chip: str, length: int, choice: tuple[str, ...]) -> str:
  """The line of one program."""
  slice_, layers = chips.of_topology(compiled.TOPOLOGIES[chip]), compiled.depth('bert', 'base')
  settings = [f'run.unroll={layers}' if s == BESIDE else s for s in choice]
  made = compiled.train_step(
    'bert',
    'base',
    slice_,
    (1, 1, 1),
    layers=layers,
    rows=TOKENS // length,
    length=length,
    settings=settings,
  )
  head = f'| {chip} | {length} | `{" ".join(choice)}` |'
  if not made.fits:
    return f'{head} – | – | {made.needed / chips.GIB:.2f}: more than there is | – |'
  reading = hlo.read(made.text, kernel_costs.of(slice_.chip.name))
  time = estimate.step_time(reading, slice_)
  cycles = sum(
    c.times
    * max(
      (c.cycles or 0) / slice_.chip.clock, c.hbm / slice_.chip.device_bandwidth * bool(c.kernel)
    )
    for c in reading.costs
  )
  return (
    f'{head} {1e3 * time.likely:.1f} ({1e3 * time.floor:.1f} – {1e3 * time.upper:.1f}) | '
    f'{1e3 * cycles:.1f} | '
    f'{made.memory.peak / chips.GIB:.2f} | {reading.hbm / 1e9:.1f} |'
  )


def main(_):
  out = pathlib.Path(_OUT.value)
  lines = {}
  for line in out.read_text().splitlines() if out.exists() else ():
    if match := re.match(r'\| (\w+) \| (\d+) \| `([^`]*)` \|', line):
      lines[match[1], int(match[2]), tuple(match[3].split())] = line
  _write(out, lines)
  for key in _keys(_CHIPS.value.split(','), map(int, _LENGTHS.value.split(','))):
    if key not in lines:
      print(*key, file=sys.stderr, flush=True)
      lines[key] = _apart(key)
      _write(out, lines)


def _keys(names, lengths):
  """(chip, length, choice) of each row, in the table's order."""
  return [
    (chip, length, choice)
    for chip, length in itertools.product(names, lengths)
    for choice in CHOICES + POLICIES * (length == 512)
  ]


def _apart(key):
  """`row`, in a process of its own: some programs end the compiler, and with it all that is
  there.
  """
  with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as pool:
    try:
      return pool.submit(row, *key).result()
    except concurrent.futures.process.BrokenProcessPool:
      chip, length, choice = key
      return f'| {chip} | {length} | `{" ".join(choice)}` | the compiler dies | – | – | – |'


def _write(out, lines):
  order = _keys(compiled.TOPOLOGIES, (512, 128))
  missing = [
    f'{chip} {length} {" ".join(choice)}'
    for chip, length, choice in order
    if (chip, length, choice) not in lines
  ]
  storage.write_text(
    out,
    '\n'.join(
      [
        '# What each choice of machinery costs, as the compiler sees it',
        '',
        f'Made by `PYTHONPATH=. python bench/tpu_choices.py` with jax {jax.__version__}. **Nothing '
        'here was measured on a chip.** The train step of',
        f'`configs/bert.py:base`, masked language modelling alone, dropout 0.1, {TOKENS:,} tokens '
        'on one chip, at full depth. ms is the likely',
        'time with its bounds (`bertzoo_jax/preflight/tpu/estimate.py`), cycles the sum of all '
        'estimates, which makes stacking, in a scan, up to three times',
        'too dear. `run.unroll=1` is the scan, which alone is what a config has; `run.unroll=0` '
        'all layers side by side.',
        'What is computed again is compared at 512 tokens alone.',
        '',
        f'| {" | ".join(COLUMNS)} |',
        '|---' * len(COLUMNS) + '|',
        *(lines[key] for key in order if key in lines),
        *(['', f'Not compiled yet: {"; ".join(missing)}.'] if missing else []),
      ]
    )
    + '\n',
  )


if __name__ == '__main__':
  app.run(main)
