import pytest

from tests.preflight import asked
from tests.pretrain import runs


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return runs.make_world(tmp_path_factory.mktemp('text'), asked.CONFIG, 960) / 'corpus'
