import pytest

from tests.prepare import made


@pytest.fixture(scope='session')
def text(tmp_path_factory):
  return made.write_text(tmp_path_factory.mktemp('text') / 'text.txt')


@pytest.fixture(scope='session')
def clean(text, tmp_path_factory):
  """A corpus made without disturbance by one worker, and its output."""
  out = tmp_path_factory.mktemp('clean') / 'corpus'
  run = made.drive(text, out, workers=1)
  printed = run.communicate()[0]
  assert run.returncode == 0, printed
  return out, printed
