"""What the kernels of bertzoo_jax/kernels cost on a TPU: docs/tpu_kernels.md, which
bench/tpu_kernels.py makes.

The compiler gives no estimate for a Pallas kernel inside a program. Compiled alone, its final
schedule is counted: a bundle of instructions is a cycle, times the programs of the grid.
"""

import pathlib

TABLE = pathlib.Path(__file__).parents[2] / 'docs/tpu_kernels.md'


def of(chip: str, path=TABLE) -> dict[str, float]:
  """{'kernel [L,D]': cycles for each row of the batch} on a chip ('v5e'), as `hlo.read` takes it;
  {} without a table.
  """
  if not path.exists():
    return {}
  rows = (
    [cell.strip(' `') for cell in line.strip().strip('|').split('|')]
    for line in path.read_text().splitlines()
    if line.startswith('| v')
  )
  return {
    f'{kernel} {shape}': float(cycles.replace(',', ''))
    for found, kernel, shape, cycles, *_ in rows
    if found == chip
  }
