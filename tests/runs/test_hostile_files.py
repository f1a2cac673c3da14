import json
import pathlib
import pickle

import jax
import numpy as np
import pytest
import small_corpora
import toys

from bertzoo_jax import hf
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import step_folders
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.words.similar import vector_files
from tests.refused import refused


class Evil:
  """Touches a file when it is unpickled."""

  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return pathlib.Path.touch, (self._path,)


@pytest.fixture(params=['pickle', 'npy'])
def evil(tmp_path, request):
  """The bytes of a pickle, or of a .npy file with a pickled object. Ends the test with an error if
  one was unpickled.
  """
  trace = tmp_path / 'trace'
  pickle.loads(pickle.dumps(Evil(trace)))
  trace.unlink()  # the payload works
  if request.param == 'pickle':
    yield pickle.dumps(Evil(trace))
  else:
    np.save(tmp_path / 'object.npy', np.array([Evil(trace)], object), allow_pickle=True)
    yield (tmp_path / 'object.npy').read_bytes()
  assert not trace.exists()


@pytest.mark.parametrize('file', ['unigrams.npy', 'pieces.npy', 'train/00000.tokens.npy'])
def test_in_an_array_of_a_corpus_whose_manifest_fits_it(tmp_path, evil, file):
  manifest = small_corpora.write(tmp_path)
  (tmp_path / file).write_bytes(evil)
  digest, folder = storage.sha256(tmp_path / file), pathlib.Path(file)
  if folder.parent.name:
    manifest['splits']['train']['shards'][0]['sha256'][folder.name] = digest
  else:
    manifest[f'{folder.stem}_sha256'] = digest
  small_corpora.seal(tmp_path, manifest)
  corpus.verify(tmp_path)
  refused('', lambda: corpus.open(tmp_path).splits['train'].gather(np.arange(9)))


def test_in_a_file_of_word_vectors(tmp_path, evil):
  (tmp_path / 'vectors.bin').write_bytes(evil)
  refused('', lambda: list(vector_files.read(tmp_path / 'vectors.bin')))


@pytest.mark.parametrize('file', ['pytorch_model.bin', 'model.safetensors', 'config.json'])
def test_in_a_hugging_face_directory(tmp_path, evil, file):
  described = {'model_type': 'bert', 'architectures': ['BertForPreTraining']}
  (tmp_path / 'config.json').write_text(json.dumps(described))
  (tmp_path / file).write_bytes(evil)
  refused('', hf.load, tmp_path)


@pytest.mark.parametrize('what', ['the arrays', 'their description'])
def test_in_a_checkpoint_whose_checksums_fit_it(tmp_path, evil, what):
  saver = checkpoint.Checkpoints(tmp_path, keep=1, keep_every=0)
  state = phase_runs.fresh(toys.phase_run())
  saver.save(state.replace(step=jax.numpy.int32(1)))
  saver.wait()
  folder = tmp_path / 'checkpoints/1'
  manifest = storage.read_json(folder / step_folders.MANIFEST)
  for name in manifest['files']:
    if name.startswith('params/') and ('/d/' in name) == (what == 'the arrays'):
      (folder / name).write_bytes(evil)
      manifest['files'][name] = storage.sha256(folder / name)
  storage.write_json(folder / step_folders.MANIFEST, manifest)
  assert step_folders.verify(folder) is None
  refused('', checkpoint.load_params, str(tmp_path))
  refused('', saver.restore, 1, toys.phase_run().target[0])
  saver.close()
