import numpy as np
import pytest

from bertzoo_jax.corpus import splits
from tests import commands

READER = """
import os, sys, threading
import numpy as np
from bertzoo_jax.corpus import splits
path, cut, in_thread = sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'thread'
tokens = splits.load(path, np.dtype(np.uint16), 1 << 20, mapped=True)
other = splits.load(path + '.other.npy', np.dtype(np.uint16), 1 << 20, mapped=True)
os.unlink(path + '.other.npy')  # as it is while it is mapped
os.truncate(path, cut)

def read():
  for step in range(1 << 20):
    tokens.take([(step * 4099) % (1 << 20)], mode='clip')

if in_thread:
  threading.Thread(target=read).start()
else:
  read()
"""


@pytest.mark.parametrize(
  'cut, where', [(4096, 'main'), (1 << 20, 'thread'), (0, 'thread')], ids=str
)
def test_a_mapped_file_that_is_cut_ends_the_process_with_a_sentence_that_names_it(
  tmp_path, cut, where
):
  path = tmp_path / '00000.tokens.npy'
  for file in (path, f'{path}.other.npy'):
    np.save(file, np.zeros(1 << 20, np.uint16))
  done = commands.run('-c', READER, path, str(cut), where)
  assert done.returncode == 2, done
  assert done.stderr.startswith(f'error: {path} was cut while it was read: copy the corpus again')
  assert done.stderr.count('\n') == 1
  with pytest.raises(Exception, match='is cut or damaged|holds .* the manifest says'):
    splits.load(path, np.dtype(np.uint16), 1 << 20, mapped=True)  # as the same line finds it
