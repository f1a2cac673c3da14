import re

import numpy as np
import pytest

import bertzoo_jax
from bertzoo_jax.finetune import work
from bertzoo_jax.tasks import judged
from bertzoo_jax.tasks import kinds
from tests import tuned
from tests.tasks import made


def test_the_page_has_the_numbers_of_scikit_learn(tmp_path):
  sklearn = pytest.importorskip('sklearn.metrics')
  draw = np.random.default_rng(0)
  gold, said = draw.choice(['a', 'b|c', 'd'], (2, 50))
  rows = [dict(gold=g, predicted=p) for g, p in zip(gold.tolist(), said.tolist())]
  task = type('Task', (), {'labels': ('a', 'b|c', 'd')})
  page = re.sub(' +', ' ', judged.page('dev', task, rows))
  values = sklearn.precision_recall_fscore_support(gold, said, labels=task.labels)
  for n, label in enumerate(('a', 'b&#124;c', 'd')):
    precision, recall, f1 = (f'{x[n]:.4f}' for x in values[:3])
    assert f'| {label} | {values[3][n]} |' in page
    assert f'| {precision} | {recall} | {f1} |' in page
  matrix = sklearn.confusion_matrix(gold, said, labels=task.labels)
  for line, counts in zip(page.splitlines()[-3:], matrix, strict=True):
    assert line.endswith(f'| {" | ".join(map(str, counts))} |')


def test_f1_is_of_the_label_that_is_said_and_a_metric_may_be_ones_own(tmp_path):
  dev = 'text,label\na,x\nb,y\n'
  made.write(tmp_path, train_csv=dev + 'c,z\nd,x\n', dev_csv=dev)
  files = dict(train='train.csv', dev='dev.csv')
  names = ('f1', 'recall', 'tests.finetune.test_judged:share_of_x')
  config = made.config('classify', files).copy_and_resolve_references().unlock()
  config.positive, config.metrics = 'x', names
  task = made.task(config, tmp_path)
  logits = np.array([[1, 0, 0], [1, 0, 0]], np.float32)
  found = kinds.kind.score(names, task, task.splits['dev'], {'row': logits})
  assert list(found.values()) == [pytest.approx(2 / 3), 1.0, 1.0]


def test_the_baseline_of_several_labels_stays_at_another_threshold(tmp_path):
  made.write(tmp_path, train_csv='text,x,y\na,1,0\nb,1,1\nc,1,0\n', dev_csv='text,x,y\nd,1,0\n')
  config = made.config('multilabel', dict(train='train.csv', dev='dev.csv'))
  config = config.copy_and_resolve_references().unlock()
  config.source.label, config.objective.threshold = 'x,y', 0.9
  assert work.majority(made.task(config, tmp_path), 'macro_f1') == 0.5


def share_of_x(labels, logits):
  return np.mean(logits.argmax(axis=-1) == 0)


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  return tuned.world(tmp_path_factory.mktemp('world'), 'bert')


def test_the_threshold_of_labels_may_be_changed_on_a_finished_run(world, tmp_path):
  lines = ['text,good,long']
  lines += [f'"{text}",{kind == "good":d},{len(text) > 30:d}' for kind, text in tuned.rows(60, 7)]
  (world / 'own.csv').write_text('\n'.join(lines) + '\n')
  changes = dict(source__files__train='own.csv', source__label='good,long', steps=2)
  of = lambda threshold: tuned.config('multilabel', **changes, objective__threshold=threshold)
  (before,) = tuned.finetune(world, tmp_path / 'f', of(0.5))
  tuned.finetune(world, tmp_path / 'f', of(0.999))
  first, *rows = (tmp_path / 'f/multilabel/dev.tsv').read_text().splitlines()
  assert all(row.split('\t')[3] == '' for row in rows) and rows
  texts = [row.split('\t')[1] for row in rows]
  model = bertzoo_jax.load(tmp_path / 'f')
  assert all(line['labels'] == [] for line in model.predict(texts))
  tuned.finetune(world, tmp_path / 'f', of(1e-6))
  assert bertzoo_jax.load(tmp_path / 'f').predict(texts[:1])[0]['labels'] == ['good', 'long']
  assert tuned.finetune(world, tmp_path / 'f', of(0.5)) == [before]
