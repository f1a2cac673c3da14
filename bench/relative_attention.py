"""Attention with relative terms: the fused kernels beside plain XLA, compiled for a TPU chip.

    PYTHONPATH=. python bench/relative_attention.py [--chip v5e] [--length 512] [--rows 32]
        [--variant c2p_p2c]

Forward and backward pass of 12 heads of 64 in bfloat16, without dropout. Variants are those of
bench/tpu_kernels.py. Nothing runs. XLA: the compiler's estimates (`estimate.step_time`). Kernels:
final bundles × programs of the grid, and the rest of their program (padded and reversed tables) by
the same estimates.
"""

import functools

import tpu_kernels
from absl import app
from absl import flags

_CHIP = flags.DEFINE_enum('chip', 'v5e', list(tpu_kernels.TOPOLOGIES), 'Generation.')
_LENGTH = flags.DEFINE_integer('length', 512, 'Tokens per row.')
_ROWS = flags.DEFINE_integer('rows', 32, 'Rows of the batch.')
_VARIANT = flags.DEFINE_enum('variant', 'c2p_p2c', list(tpu_kernels.VARIANTS), 'Of attention.')
HEADS, WIDTH = 12, 64


def main(_):
  folder = tpu_kernels.dump_schedules()
  import jax

  from bertzoo_jax.kernels import attention
  from bertzoo_jax.model import attention as plain
  from bertzoo_jax.preflight.tpu import chips
  from bertzoo_jax.preflight.tpu import estimate
  from bertzoo_jax.preflight.tpu import hlo
  from bertzoo_jax.preflight.tpu import program

  chip, length, rows = _CHIP.value, _LENGTH.value, _ROWS.value
  topology, cores = tpu_kernels.TOPOLOGIES[chip]
  slice_ = chips.by_topology(topology)
  place = jax.sharding.SingleDeviceSharding(program.devices(slice_)[0])
  variant = tpu_kernels.VARIANTS[_VARIANT.value]
  of = functools.partial(
    tpu_kernels.attention_of, chip, place, HEADS, WIDTH, length, variant, rows=rows
  )
  (fused, shapes), (xla, _) = of(), of(attend=plain.attend)

  def milliseconds(f, kernels=None):
    made = program.compiled(jax.jit(f), *shapes)
    if not made.fits:
      raise SystemExit(f'It needs {made.peak / 2**30:.1f} GiB: take fewer --rows.')
    return 1e3 * estimate.step_time(hlo.read(made.text, kernels), slice_).likely

  keys, queries = tpu_kernels.sizes(length, variant)
  steps = attention.steps(HEADS, WIDTH, queries, keys, relative=bool(variant.terms))
  cycles = {
    name: rows * count * steps['_backward' in name] / cores
    for name, count in tpu_kernels.bundles(folder, tpu_kernels.lowered(fused, shapes)).items()
  }
  of_kernels = 1e3 * sum(cycles.values()) / slice_.chip.clock
  of_fused, of_xla = milliseconds(fused, cycles), milliseconds(xla)
  print(
    f'{chip}, {_VARIANT.value}, {rows} rows × {length}: plain XLA {of_xla:.2f} ms, kernels '
    f'{of_kernels:.2f} ms, with padding and reversing of tables {of_fused:.2f} ms'
  )
  print(f'kernels / XLA {of_kernels / of_xla:.3f}, whole / XLA {of_fused / of_xla:.3f}')


if __name__ == '__main__':
  app.run(main)
