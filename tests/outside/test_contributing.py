import os
import pathlib
import re
import subprocess
import sys

import pytest

from bertzoo_jax.runs import metrics
from tests import tuned

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / 'CONTRIBUTING.md').read_text()


def blocks(section, language):
  """The code in this language of a section of the page."""
  text = PAGE.split(f'## {section}\n')[1].split('\n## ')[0]
  return [block.split('```')[0] for block in text.split(f'```{language}\n')[1:]]


@pytest.fixture
def follow(tmp_path):
  """(commands of a section, options added to some) -> their outputs, in a folder beside a clone."""
  for name in ('tests', 'configs', 'pyproject.toml', 'data', 'bertzoo_jax'):
    (tmp_path / name).symlink_to(ROOT / name)
  environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(tmp_path)}

  def follow(section, added):
    for line in filter(None, '\n'.join(blocks(section, 'bash')).splitlines()):
      command = re.sub('^python ', f'{sys.executable} ', line)
      command = re.sub('^bertzoo ', f'{sys.executable} -m bertzoo_jax ', command)
      command += next((f' {option}' for name, option in added.items() if name in line), '')
      how = dict(cwd=tmp_path, env=environment, capture_output=True, text=True)
      done = subprocess.run(command, shell=True, **how)
      assert done.returncode == 0, f'{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}'
      assert 'Traceback' not in done.stderr, line

  return follow


@pytest.mark.slow
def test_the_steps_for_parts_of_every_axis_are_followed_literally(follow, tmp_path):
  section = 'Add a system in five steps'
  (config,) = blocks(section, 'python')
  (tmp_path / 'my_config.py').write_text(config)
  follow(section, {' pretrain ': '--config.run.log_every=100'})
  losses = [row['loss'] for row in metrics.read(tmp_path / 'mine') if 'loss' in row]
  assert len(losses) >= 5 and losses[-1] < losses[0] - 0.5, losses
  names = (tmp_path / 'mine/config.json').read_text()
  assert names.count('my_package.') == 7
  assert (tmp_path / 'mine-hf/model.safetensors').exists()


@pytest.mark.slow
def test_the_steps_for_a_kind_of_prediction_are_followed_literally(follow, tmp_path):
  section = 'Add a kind of prediction'
  (tmp_path / 'run').mkdir()
  tuned.made.make_run(tmp_path / 'run', 'bert')
  (tmp_path / 'ratings.csv').write_text(tuned.numbers(64, 1))
  (tmp_path / 'new.csv').write_text('text\nthe traveller\nthe garden\n')
  (config,) = blocks(section, 'python')
  (tmp_path / 'my_ratings.py').write_text(config)
  follow(section, {' finetune ': '--config.length=16'})
  head, *rows = (tmp_path / 'rated.tsv').read_text().splitlines()
  assert head.endswith('scores valence\tscores arousal') and len(rows) == 2
  assert (tmp_path / 'rated-hf/model.safetensors').exists()
