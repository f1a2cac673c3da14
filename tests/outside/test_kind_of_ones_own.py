"""CONTRIBUTING's steps for a kind of prediction, taken literally outside the package."""

import os
import pathlib
import shlex
import subprocess
import sys

import pytest

from tests import tuned

ROOT = pathlib.Path(__file__).parents[2]
STEPS = (ROOT / 'CONTRIBUTING.md').read_text().split('## Add a kind of prediction')[1]
STEPS = STEPS.split('\n## ')[0]


def _blocks(language):
  return [block.split('```')[0] for block in STEPS.split(f'```{language}\n')[1:]]


@pytest.mark.slow
def test_the_steps_for_a_kind_of_prediction_are_followed_literally(tmp_path):
  for name in ('tests', 'configs', 'pyproject.toml', 'data', 'bertzoo_jax'):
    (tmp_path / name).symlink_to(ROOT / name)
  (tmp_path / 'run').mkdir()
  tuned.made.make_run(tmp_path / 'run', 'bert')
  (tmp_path / 'ratings.csv').write_text(tuned.numbers(64, 1))
  (tmp_path / 'new.csv').write_text('text\nthe traveller\nthe garden\n')
  (config,) = _blocks('python')
  (tmp_path / 'my_ratings.py').write_text(config)
  environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(tmp_path)}
  for line in filter(None, '\n'.join(_blocks('bash')).splitlines()):
    command = line.replace('python ', f'{sys.executable} ', 1) if line[:7] == 'python ' else line
    command = command.replace('bertzoo ', f'{sys.executable} -m bertzoo_jax ', 1)
    words = [*shlex.split(command), *['--config.length=16'] * (' finetune ' in line)]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f'{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}'
    assert 'Traceback' not in done.stderr, line
  head, *rows = (tmp_path / 'rated.tsv').read_text().splitlines()
  assert head.endswith('scores valence\tscores arousal') and len(rows) == 2
  assert (tmp_path / 'rated-hf/model.safetensors').exists()
