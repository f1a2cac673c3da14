"""Steps of four networks at two lengths on a GPU beside a compiled torch:

    python bench/gpu.py [--device=gpu] [--lengths=512,1024] [--model=MODEL] [MORE OF bench/step.py]

BERT-base, ELECTRA-small, DeBERTaV3-base and ModernBERT-base in bfloat16, 16,384 tokens per step,
without dropout of attention (cuDNN has none), each by bench/step.py. torch attends with the flash
kernels of the package flash_attn where it is installed, else with scaled_dot_product_attention,
which takes torch's flash kernel only where no row is padded. On a GPU torch is compiled; with
--device=cpu it is not, and the script can be tried without a GPU.

Compilers take longer than the steps. Where a GPU is there for minutes alone, compile all
comparisons at once, and time them from what the compilers have kept. One at a time takes its turns,
while others start:

    export JAX_COMPILATION_CACHE_DIR=/tmp/jax TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
    python bench/gpu.py --turns=0 --jobs=4
    python bench/gpu.py --steps=10 --jobs=2

Compilers that choose kernels by timing them choose worse beside others: take few jobs. A comparison
that fails shows the end of its errors, and the others go on; --limit=SECONDS ends one that hangs.
"""

import argparse
import importlib.util
import multiprocessing.pool
import os
import pathlib
import subprocess
import sys
import tempfile

NETWORKS = {'bert': 'base', 'electra': 'small', 'deberta_v3': 'base', 'modernbert': 'base'}
TOKENS = 16_384


def main():
  p = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  p.add_argument('--device', choices=('cpu', 'gpu'), default='gpu')
  p.add_argument('--systems', default=','.join(NETWORKS), help='by comma')
  p.add_argument('--lengths', default='512,1024', help='tokens per row, by comma')
  p.add_argument('--model', help='in place of each network, as tiny')
  p.add_argument('--tokens', type=int, default=TOKENS, help='per step')
  p.add_argument('--jobs', type=int, default=1, help='comparisons that start at a time')
  a, more = p.parse_known_args()
  if a.jobs < 1 or set(a.systems.split(',')) - NETWORKS.keys():
    p.error(f'--jobs is at least 1, and --systems of {", ".join(NETWORKS)}.')
  flash = a.device == 'gpu' and importlib.util.find_spec('flash_attn')
  # Each torch starts as many compilers as there are processors.
  threads = max(1, os.cpu_count() // a.jobs)
  os.environ.setdefault('TORCHINDUCTOR_COMPILE_THREADS', str(threads))

  def compare(row):
    """Prints a comparison as soon as it is done. Returns whether it failed."""
    length, system = row
    line = [
      sys.executable,
      str(pathlib.Path(__file__).with_name('step.py')),
      f'--system={system}',
      f'--model={a.model or NETWORKS[system]}',
      f'--device={a.device}',
      f'--length={length}',
      f'--batch={max(1, a.tokens // length)}',
      '--dtype=bfloat16',
      '--attention_dropout=0',
      f'--attention={"flash_attention_2" if flash else "sdpa"}',
      f'--lock={lock.name}',
      *(['--compile'] if a.device == 'gpu' else []),
      *more,
    ]
    done = subprocess.run(line, capture_output=True, text=True)
    last = done.stderr.splitlines()[-20:] if done.returncode else []
    print(f'{system}, {length} tokens:', done.stdout, *last, sep='\n', flush=True)
    return done.returncode != 0

  rows = [(length, s) for length in map(int, a.lengths.split(',')) for s in a.systems.split(',')]
  with multiprocessing.pool.ThreadPool(a.jobs) as pool, tempfile.NamedTemporaryFile() as lock:
    failed = sum(pool.imap(compare, rows))
  sys.exit(f'{failed} comparisons failed' if failed else 0)


if __name__ == '__main__':
  main()
