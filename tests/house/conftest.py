import pathlib
import shutil
import sys

import pytest
import small_corpora

SECRET = b'BEGIN SECRET KEY\n'


@pytest.fixture(scope='session')
def good(tmp_path_factory):
  """A run, its export and a corpus, as their owners made them."""
  from tests.pretrained import test_loading as made

  folder = tmp_path_factory.mktemp('good')
  (folder / 'run').mkdir()
  made.make_run(folder / 'run', 'bert')
  made.written(folder / 'run', folder / 'hf')
  small_corpora.write(folder / 'corpus')
  return folder


def _states(folder):
  return {p: (p.lstat().st_mtime_ns, p.is_dir() or p.read_bytes()) for p in folder.rglob('*')}


@pytest.fixture
def place(good, tmp_path, monkeypatch):
  """A copy of these and a data set, the current folder, where modules are found. Each folder holds
  `evil.py`, which leaves a trace. Beside them are files that nobody else may see or change.
  """
  shutil.copytree(good, tmp_path / 'place')
  (tmp_path / 'place/set').mkdir()
  (tmp_path / 'place/set/x.txt').write_text('A text.')
  trace = tmp_path / 'trace'
  for name in ('run', 'hf', 'corpus'):
    touch = f'import pathlib\npathlib.Path({str(trace)!r}).touch()\ndef part(*_, **__): pass\n'
    (tmp_path / 'place' / name / 'evil.py').write_text(touch)
  small_corpora.write(tmp_path / 'outside/corpus')
  for i in range(3):
    (tmp_path / f'outside/{i}.txt').write_bytes(SECRET)
  before = _states(tmp_path / 'outside')
  monkeypatch.chdir(tmp_path / 'place')
  monkeypatch.syspath_prepend(tmp_path / 'place')
  yield pathlib.Path()
  for name in [n for n in sys.modules if n.split('.')[0] in ('run', 'hf', 'corpus')]:
    del sys.modules[name]
  assert not trace.exists(), 'code of the folder ran'
  assert _states(tmp_path / 'outside') == before
  copies = [p for p in pathlib.Path().rglob('*') if p.is_file() and not p.is_symlink()]
  assert not [p for p in copies if SECRET in p.read_bytes()]
