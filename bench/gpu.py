"""Steps of four networks at two lengths on a GPU beside a compiled torch:

    python bench/gpu.py [--device=gpu] [--lengths=512,1024] [--model=MODEL] [MORE OF bench/step.py]

BERT-base, ELECTRA-small, DeBERTaV3-base and ModernBERT-base in bfloat16, 16,384 tokens per step,
without dropout of attention (cuDNN has none), each by bench/step.py. torch attends with the flash
kernels of the package flash_attn where it is installed, else with scaled_dot_product_attention,
which takes torch's flash kernel only where no row is padded. On a GPU torch is compiled; with
--device=cpu it is not, and the script can be tried without a GPU.
"""

import argparse
import importlib.util
import pathlib
import subprocess
import sys

NETWORKS = {'bert': 'base', 'electra': 'small', 'deberta_v3': 'base', 'modernbert': 'base'}
TOKENS = 16_384


def main():
  p = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  p.add_argument('--device', choices=('cpu', 'gpu'), default='gpu')
  p.add_argument('--lengths', default='512,1024', help='tokens per row, by comma')
  p.add_argument('--model', help='in place of each network, as tiny')
  p.add_argument('--tokens', type=int, default=TOKENS, help='per step')
  a, more = p.parse_known_args()
  flash = a.device == 'gpu' and importlib.util.find_spec('flash_attn')
  failed = 0
  for system, model in NETWORKS.items():
    for length in map(int, a.lengths.split(',')):
      line = [
        sys.executable,
        str(pathlib.Path(__file__).with_name('step.py')),
        f'--system={system}',
        f'--model={a.model or model}',
        f'--device={a.device}',
        f'--length={length}',
        f'--batch={max(1, a.tokens // length)}',
        '--dtype=bfloat16',
        '--attention_dropout=0',
        f'--attention={"flash_attention_2" if flash else "sdpa"}',
        *(['--compile'] if a.device == 'gpu' else []),
        *more,
      ]
      failed += subprocess.run(line).returncode != 0
  sys.exit(f'{failed} comparisons failed' if failed else 0)


if __name__ == '__main__':
  main()
