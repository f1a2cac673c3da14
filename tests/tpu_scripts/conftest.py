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


@pytest.fixture
def ready(cloud):
  """A cloud with a slice of two workers, set up."""
  cloud.ok('create')
  cloud.ok('setup')
  cloud.forget()
  return cloud
