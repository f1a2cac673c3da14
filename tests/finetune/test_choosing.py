"""The best checkpoint of a run by its dev score, patience, and the report of dev."""

import json
import re

import numpy as np
import pytest

import bertzoo_jax
from bertzoo_jax import pretrained
from bertzoo_jax.common import errors
from bertzoo_jax.finetune import work
from bertzoo_jax.hf import weights
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import step_folders
from bertzoo_jax.tasks import judged
from bertzoo_jax.tasks import kinds
from tests import killed
from tests import tuned
from tests.tasks import made

CHANGES = dict(choose='best', choose_every=2, steps=20, patience=3, run__eval_every=0)


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  return tuned.world(tmp_path_factory.mktemp('world'), 'bert', dev=17)


@pytest.fixture(scope='module')
def whole(world, tmp_path_factory):
  """The workdir of a run that nothing interrupts."""
  workdir = tmp_path_factory.mktemp('whole') / 'f'
  tuned.finetune(world, workdir, tuned.config(**CHANGES))
  return workdir


def dev_scores(run):
  rows = metrics.read(run)
  return {row['step']: row['dev_accuracy'] for row in rows if 'dev_accuracy' in row}


def test_the_first_best_dev_score_is_kept_and_patience_ends_the_run(whole):
  run = whole / 'classify' / 'run'
  scores, result = dev_scores(run), json.loads((run / 'result.json').read_text())
  best = min(step for step, score in scores.items() if score == max(scores.values()))
  assert result['step'] == best and result['score'] == scores[best]
  assert step_folders.steps(run) == [best]  # also what W and export take
  assert list(scores) == list(range(2, max(scores) + 1, 2))
  assert max(scores) == min(best + 6, 20) < 20


def test_a_run_that_is_killed_chooses_the_same_checkpoint(world, whole, tmp_path):
  stop = max(dev_scores(whole / 'classify' / 'run'))
  kills = (('classify/run', stop - 3), ('classify/run', stop))
  killed.finetune(tmp_path, f'tuned.config(**{CHANGES!r})', world, world / 'bert', kills)
  killed.same_bytes(whole, tmp_path / 'f', 'classify')
  for name in ('run/result.json', 'dev.tsv', 'dev.md'):
    ours, theirs = (folder / 'classify' / name for folder in (whole, tmp_path / 'f'))
    assert ours.read_bytes() == theirs.read_bytes(), name
  run = tmp_path / 'f/classify/run'
  assert dev_scores(run) == dev_scores(whole / 'classify/run')
  assert step_folders.steps(run) == step_folders.steps(whole / 'classify/run')


@pytest.mark.parametrize(
  'changes, said',
  [
    (dict(patience=2), r'set --config\.choose=best'),
    (dict(choose_every=2), r'set --config\.choose=best'),
    (dict(choose='best', run__eval_every=3), r'--config\.choose_every=3'),
    (dict(positive='odd'), "No positive is called 'odd'"),
  ],
)
def test_fields_that_do_not_go_together_are_one_sentence(world, tmp_path, changes, said):
  with pytest.raises(errors.UserError, match=said):
    tuned.finetune(world, tmp_path / 'f', tuned.config(**changes))


def test_dev_is_a_table_and_a_page_with_every_label(whole):
  first, *lines = (whole / 'classify/dev.tsv').read_text().splitlines()
  assert first.split('\t') == ['example', 'text_a', 'gold', 'predicted', 'probability']
  rows = [line.split('\t') for line in lines]
  right = sum(row[2] == row[3] for row in rows)
  assert len(rows) == 17 and all(0.5 <= float(row[4]) <= 1 for row in rows)
  result = json.loads((whole / 'classify/run/result.json').read_text())
  assert right / 17 == pytest.approx(result['score'])
  page = re.sub(' +', ' ', (whole / 'classify/dev.md').read_text())
  assert f'# dev: {right} of 17 right' in page
  gold = sum(row[2] == 'good' for row in rows)
  assert f'| good | {gold} |' in page and '| gold ↓ predicted → | bad | good |' in page


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
  for line, counts in zip(
    page.splitlines()[-3:], sklearn.confusion_matrix(gold, said, labels=task.labels)
  ):
    assert line.endswith(f'| {" | ".join(map(str, counts))} |')


def test_f1_is_of_the_label_that_is_said_and_a_metric_may_be_ones_own(tmp_path):
  made.write(
    tmp_path, train_csv='text,label\na,x\nb,y\nc,z\nd,x\n', dev_csv='text,label\na,x\nb,y\n'
  )
  files = dict(train='train.csv', dev='dev.csv')
  names = ('f1', 'recall', 'tests.finetune.test_choosing:share_of_x')
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


def test_weights_of_classes_are_balanced_by_train_and_frozen_layers_keep_their_bits(
  world, tmp_path, capsys
):
  """Frozen as docs/finetuning.md says it: rates of 0."""
  rates = (('encoder/(embeddings|layers/0/)', 0.0), ('', 1.0))
  changes = dict(objective__class_weights=('auto',), objective__label_smoothing=0.1)
  changes |= dict(steps=3, max_train=30, optimizer__rates=rates)
  tuned.finetune(world, tmp_path / 'f', tuned.config(**changes))
  config = json.loads((tmp_path / 'f/classify/run/config.json').read_text())
  balanced = config['objective']['class_weights']
  assert len(balanced) == 2 and sum(1 / (2 * w) for w in balanced) == pytest.approx(1)
  assert '30 of 96 are taken' in capsys.readouterr().out
  before = weights.flatten(pretrained.open(world / 'bert').params['encoder'])
  after = weights.flatten(pretrained.open(tmp_path / 'f/classify/run').params['encoder'])
  for path, x in after.items():
    y = before[path]
    if path.startswith('layers/'):
      assert np.array_equal(x[0], y[0]) and not np.array_equal(x[1], y[1]), path
    elif path.startswith('embeddings/'):
      assert np.array_equal(x, y), path
  for given, said in (((1.0,), 'has 1 numbers, and there are 2 labels'), ((0.0, 1.0), 'above 0')):
    with pytest.raises(errors.UserError, match=said):
      tuned.finetune(world, tmp_path / 'g', tuned.config(objective__class_weights=given))


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
