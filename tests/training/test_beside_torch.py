"""The comparison of steps on a GPU, tried without one."""

import pathlib
import re
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / 'bench' / 'gpu.py'


@pytest.mark.slow
def test_the_comparison_on_a_gpu_runs_to_its_end_on_a_cpu_with_rows_longer_than_512_tokens():
  small = '--device=cpu --model=tiny --lengths=520 --tokens=1040 --turns=1 --steps=1 --threads=1'
  done = subprocess.run([sys.executable, SCRIPT, *small.split()], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  heads = re.findall(r'^(\w+)-tiny, 2 × 520, \d+ predictions, .*, cpu,', done.stdout, re.M)
  assert heads == ['BERT', 'ELECTRA', 'DEBERTA_V3', 'MODERNBERT']
  losses = [float(x) for x in re.findall(r'loss ([\d.]+)  memory', done.stdout)]
  assert len(losses) == 8 and len(re.findall('ratio: median', done.stdout)) == 4
  # the same network and rows, other weights: losses of untrained networks
  assert all(abs(ours / theirs - 1) < 0.1 for ours, theirs in zip(losses[::2], losses[1::2]))
