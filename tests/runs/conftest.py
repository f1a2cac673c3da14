"""Shared by the tests of real processes."""

import ml_collections
import processes
import pytest


@pytest.fixture(scope='session')
def world(tmp_path_factory):
  """Folder with a config, a corpus, and a cache of compiled programs that all processes share."""
  return processes.make_world(tmp_path_factory.mktemp('world'))


@pytest.fixture(scope='session')
def alone(world):
  """Workdir of the uninterrupted run in this process, on its eight devices."""
  from bertzoo_jax import pretrain

  namespace = {}
  exec((world / 'config.py').read_text(), namespace)
  config = namespace['get_config']()
  config.run.compile_cache = str(world / 'cache')
  pretrain.pretrain(
    ml_collections.ConfigDict(config).lock(),
    str(world / 'alone'),
    corpus=str(world / 'corpus'),
  )
  return world / 'alone'
