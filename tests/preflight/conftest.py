import pytest

from bertzoo_jax import prepare
from tests.preflight import asked


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  folder = tmp_path_factory.mktemp('text')
  words = (asked.ROOT / 'data/sample/time_machine.txt').read_text().split()[1000:]
  (folder / 'text.txt').write_text(
    '\n\n'.join(' '.join(words[i : i + 80]) for i in range(0, 960, 80))
  )
  where = [str(folder / 'text.txt')], str(folder / 'corpus')
  prepare.prepare(asked.config(), *where, workers=1, say=lambda line: None)
  return folder / 'corpus'
