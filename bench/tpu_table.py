"""Every config and size but `tiny` on the smallest usual slice that holds it, by the TPU compiler's
own figures: docs/tpu_table.md.

    PYTHONPATH=. python bench/tpu_table.py [--only bert:base --only electra] [--types v5e-8,v4-8]
    [--out docs/tpu_table.md]

Nothing runs: the train step of each phase is compiled (bertzoo_jax/preflight.py), minutes for each
row. Rows that --out already has are kept, so that a table cut short goes on; delete a row to make
it anew.
"""

import importlib
import pathlib
import re
import sys

import jax
import ml_collections
from absl import app
from absl import flags

from bertzoo_jax.common import storage
from bertzoo_jax.preflight import verdict
from bertzoo_jax.preflight.tpu import chips

ROOT = pathlib.Path(__file__).parents[1]
TYPES = 'v5e-4,v4-8,v5e-8,v6e-8,v5e-16,v4-32,v5e-32,v5e-64,v4-128,v5e-256,v4-512'
COLUMNS = (
  'config',
  'slice',
  'phase',
  'rows × tokens',
  'peak GiB',
  'ms/step (bounds)',
  'tokens/s per chip',
)
# Of the header. Change it when these rows are made anew.
OLDER = (
  'Rows of ALBERT, BERT, ELECTRA and RoBERTa are from before a faster backward kernel: their steps '
  'are a few per cent shorter now. Those of ernie:base were made with jax 0.12.0.1.'
)
_ONLY = flags.DEFINE_multi_string('only', [], 'FILE or FILE:SIZE of configs/; all without it.')
_TYPES = flags.DEFINE_string(
  'types', TYPES, 'Accelerator types by comma, the first that holds a config is taken.'
)
_OUT = flags.DEFINE_string('out', str(ROOT / 'docs/tpu_table.md'), 'The table.')


def rows(name: str, size: str, types: list[str]):
  """Lines of the table for one config and size, one a phase; one line if no type holds it."""
  config = ml_collections.ConfigDict(
    importlib.import_module(f'configs.{name}').get_config(size)
  ).lock()
  for kind in types:
    print(f'{name}:{size} on {kind}', file=sys.stderr, flush=True)
    found = verdict.preflight(verdict.Request(config, tpu=kind, largest=False))
    jax.clear_caches()
    if wrong := [f.sentence for f in found.findings if f.code in ('P08', 'P10')]:
      raise SystemExit(f'{name}:{size}: {wrong[0]}')
    if found.fits:
      return [_row(name, size, found, phase) for phase in found.phases]
  return [f'| {name}:{size} | none of {types[0]} to {types[-1]} holds it |  |  |  |  |  |']


def _row(name, size, found, phase):
  head = (
    f'| {name}:{size} | {found.slice_.accelerator_type} | {phase.index} | {phase.rows:,} × '
    f'{phase.length} | '
    f'{phase.program.peak * found.slice_.chip.devices / chips.GIB:.2f} |'
  )
  if not phase.time:
    return f'{head} – | – |'
  time = phase.time
  speed = phase.rows * phase.length / time.likely / found.slice_.chips
  return (
    f'{head} {1e3 * time.likely:,.1f} ({1e3 * time.floor:,.1f} – {1e3 * time.upper:,.1f}) | '
    f'{speed:,.0f} |'
  )


def _sizes(only=()):
  for path in sorted((ROOT / 'configs').glob('*.py')):
    module = importlib.import_module(f'configs.{path.stem}')
    for size in getattr(module, 'SIZES', ()):
      named = not only or path.stem in only or f'{path.stem}:{size}' in only
      if named and not size.startswith('tiny'):
        yield path.stem, size


def main(_):
  jax.config.update('jax_platforms', 'cpu')  # no chip is needed
  out = pathlib.Path(_OUT.value)
  lines = {}
  for line in out.read_text().splitlines() if out.exists() else ():
    if match := re.match(r'\| (\w+:\w+) \|', line):
      lines.setdefault(match[1], []).append(line)
  for name, size in _sizes(_ONLY.value):
    if f'{name}:{size}' not in lines:
      lines[f'{name}:{size}'] = rows(name, size, _TYPES.value.split(','))
    missing = [f'{name}:{size}' for name, size in _sizes() if f'{name}:{size}' not in lines]
    storage.write_text(
      out,
      '\n'.join(
        [
          '# Every config on TPUs, as the compiler sees it',
          '',
          f'Made by `PYTHONPATH=. python bench/tpu_table.py` with jax {jax.__version__}. **Nothing '
          'here was measured on a chip.** Memory is',
          "the TPU compiler's own peak per chip; times are its estimates with bounds "
          '([preflight.md](preflight.md)). Each config has its own batch,',
          'on the first slice that holds it. Some large configs were tried on the larger slices '
          'only.',
          OLDER,
          '',
          f'| {" | ".join(COLUMNS)} |',
          '|---' * len(COLUMNS) + '|',
          *(line for key in sorted(lines) for line in lines[key]),
          *(['', f'Not compiled yet: {", ".join(missing)}.'] if missing else []),
        ]
      )
      + '\n',
    )


if __name__ == '__main__':
  app.run(main)
