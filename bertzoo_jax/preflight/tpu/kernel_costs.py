"""The cost of bertzoo_jax/kernels on a TPU: kernel_cycles.csv, which `make kernels`
makes (bench/tpu_kernels.py; docs/tpu_kernels.md explains it).

The compiler gives no estimate for a Pallas kernel inside a program. Compiled alone, its final
schedule is counted: a bundle of instructions is a cycle, times the programs of the grid.
"""

import csv
import pathlib

TABLE = pathlib.Path(__file__).with_name('kernel_cycles.csv')
COLUMNS = ('chip', 'kernel', 'tokens', 'width', 'cycles', 'bundles', 'libtpu')


def of(chip: str) -> dict[str, float]:
  """{'kernel [L,D]': cycles per row of the batch} on a chip ('v5e'), as `hlo.read` takes it."""
  with open(TABLE, encoding='utf-8') as f:
    return {
      f'{row["kernel"]} [{row["tokens"]},{row["width"]}]': float(row['cycles'])
      for row in csv.DictReader(f)
      if row['chip'] == chip
    }
