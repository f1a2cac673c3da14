"""finetune begins with a run, or with its export, of every family: the same rows, weights and
predictions, and a fine-tuned run that transformers reads.
"""

import json
import types

import numpy as np
import pytest

from bertzoo_jax import export
from bertzoo_jax import pretrained
from bertzoo_jax.hf import weights
from bertzoo_jax.runs import checkpoint
from configs import roberta
from tests import tuned
from tests.pretrained import test_loading as made

QUICK = ('xlnet',)
# Its causal attention is no part of the encoder: it is fine-tuned with both sides in view.
FAMILIES = [family for family in made.FAMILIES if family != 'left to right']


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """A folder with the files of a task whose second text may be missing."""
  folder = tmp_path_factory.mktemp('files')
  for name, count in (('train', 24), ('dev', 10), ('test', 6)):
    lines = [f'{label}\t{text}\t{text[:9]}' for label, text in tuned.rows(count, len(name))]
    (folder / f'{name}.tsv').write_text('\n'.join(['label\ttext\tother', *lines]) + '\n')
  return folder


def finetune(files, workdir, init, **changes):
  changes = {'source__text_b': 'other', 'length': 32, 'batch_size': 8, **changes}
  tuned.finetune(files, workdir, tuned.config(**changes), init=init)
  return workdir / 'classify' / 'run'


@pytest.mark.parametrize(
  'family', [f if f in QUICK else pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES]
)
def test_a_run_and_its_export_are_fine_tuned_alike_and_exported(files, tmp_path, family, capsys):
  (tmp_path / 'run').mkdir()
  made.make_run(tmp_path / 'run', family)
  directory = made.written(tmp_path / 'run', tmp_path / 'hf')
  known, read = (pretrained.open(x).section for x in (str(tmp_path / 'run'), f'hf:{directory}'))
  assert known['initializer'] == read['initializer']  # of the new weights, those of the head
  # at the rate 0 weights stay as they were loaded
  still = dict(steps=1, schedule__learning_rate=0.0, encoder={})
  a = finetune(files, tmp_path / 'a', str(tmp_path / 'run'), **still)
  b = finetune(files, tmp_path / 'b', f'hf:{directory}', **still)
  before = weights.flatten({'encoder': pretrained.open(str(tmp_path / 'run')).params['encoder']})
  here, there = (weights.flatten(checkpoint.load_params(str(run))[0]) for run in (a, b))
  assert here.keys() == there.keys() and {path.split('/')[0] for path in here} == {
    'encoder',
    'row_head',
  }
  for path, x in here.items():
    if path.startswith('encoder/'):  # what only `predictions` reads is not part of a classifier
      np.testing.assert_array_equal(x, before[path], err_msg=path)
    np.testing.assert_array_equal(x, there[path], err_msg=path)
  with np.load(a / 'predictions.npz') as x, np.load(b / 'predictions.npz') as y:
    for split in ('dev', 'test'):
      assert np.ptp(x[split], axis=0).min() > 0
      np.testing.assert_allclose(x[split], y[split], atol=1e-6)
  learned = finetune(files, tmp_path / 'c', str(tmp_path / 'run'), steps=2)
  capsys.readouterr()
  rows = export.export(str(learned), tmp_path / 'out')
  assert rows is None or all(row.holds for row in rows)
  assert 'ForSequenceClassification' in capsys.readouterr().out
  said = json.loads((tmp_path / 'out' / 'config.json').read_text())
  assert said['id2label'] == {'0': 'bad', '1': 'good'}


def test_a_run_with_another_encoder_gets_the_head_and_the_class_of_that_encoder(
  files, tmp_path, monkeypatch
):
  swapped = lambda size: roberta.get_config(f'{size},objective=mlm,encoder=disentangled')
  sizes = made.FAMILIES['deberta_v3'][1]
  monkeypatch.setitem(made.FAMILIES, 'swapped', (types.SimpleNamespace(get_config=swapped), sizes))
  (tmp_path / 'run').mkdir()
  made.make_run(tmp_path / 'run', 'swapped')
  learned = finetune(files, tmp_path / 'a', str(tmp_path / 'run'), steps=1, encoder={})
  config = json.loads((learned / 'config.json').read_text())
  assert config['hf'] == 'DebertaV2ForSequenceClassification'
  assert config['objective']['head'] == 'gelu'
  # rows of pairs are framed alike in training and in predicting
  before, after = (pretrained.open(str(x)).shape for x in (tmp_path / 'run', learned))
  assert before == after
