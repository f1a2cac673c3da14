import processes
import pytest

from bertzoo_jax.cli import config_file


@pytest.fixture(scope='session')
def world(tmp_path_factory):
  return processes.make_world(tmp_path_factory.mktemp('world'))


@pytest.fixture(scope='session')
def alone(world):
  """Workdir of the uninterrupted run in this process, on its eight devices."""
  from bertzoo_jax import pretrain

  config = config_file.load(f'{world}/config.py')
  with config.unlocked():
    config.run.compile_cache = str(world / 'cache')
  pretrain.pretrain(config, str(world / 'alone'), corpus=str(world / 'corpus'))
  return world / 'alone'
