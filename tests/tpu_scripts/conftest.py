import shutil

import pytest

from tests.tpu_scripts import cloud as clouds


@pytest.fixture(scope='session')
def checkout(tmp_path_factory):
  return clouds.checkout(tmp_path_factory.mktemp('checkout') / 'bertzoo_jax')


@pytest.fixture
def cloud(tmp_path, checkout):
  cloud = clouds.Cloud(tmp_path, checkout)
  yield cloud
  cloud.kill()


@pytest.fixture(scope='session')
def set_up(tmp_path_factory, checkout):
  """The folder of a cloud with a slice of two workers, set up."""
  cloud = clouds.Cloud(tmp_path_factory.mktemp('ready'), checkout)
  cloud.ok('create')
  cloud.ok('setup')
  return cloud.folder


@pytest.fixture
def ready(cloud, set_up):
  shutil.copytree(set_up / 'cloud', cloud.folder / 'cloud')
  return cloud
