"""Any kind of task keeps what bertzoo_jax/tasks/kinds/kind.py promises of it."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from bertzoo_jax import export
from bertzoo_jax import predict
from bertzoo_jax.common import errors
from bertzoo_jax.common import trust
from bertzoo_jax.finetune import work
from bertzoo_jax.runs import metrics
from bertzoo_jax.tasks import judged
from bertzoo_jax.tasks import kinds
from bertzoo_jax.tasks.kinds import kind as kind_lib
from tests import tuned
from tests.outside import ratings
from tests.tasks import made


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  return tuned.world(tmp_path_factory.mktemp('world'), 'bert')


@pytest.fixture(scope='module')
def task(task_of, world):
  """(config, task): files of the world, or those that a config given by hand names."""
  name, config = task_of
  folder, config = (world, tuned.of_kind(name)) if config is None else ('.', config)
  trust.allow_config(config)
  return config, made.task(config, folder, config.length)


def test_every_example_has_a_prediction_beside_the_right_answer_in_the_same_words(task):
  _, task = task
  dev = task.splits['dev']
  outputs = task.kind.constant(task, dev)
  if outputs is None:
    pytest.skip('the kind has no constant prediction')
  assert set(outputs) == set(task.kind.outputs)
  lines = task.kind.answers(task, dev, outputs)
  assert [line['example'] for line in lines] == dev.examples
  assert json.loads(json.dumps(lines)) == lines
  for line, gold in zip(lines, task.kind.gold(task, dev), strict=True):
    assert type(line[task.kind.predicted]) is type(gold)
  assert len(judged.rows(task, dev, outputs)) >= len(dev.examples)
  assert all(task.kind.submission(task, dev, outputs, 'file').values())
  found = kind_lib.score(task.metrics, task, dev, outputs)
  assert all(map(np.isfinite, found.values())), found
  if task.kind.probability is not None:
    assert all(0 <= (task.kind.probability(line) or 0) <= 1 for line in lines)


def test_every_metric_has_a_direction_a_split_without_labels_is_refused_and_an_example_asked_for(
  task,
):
  _, task = task
  assert task.sign in (1, -1) and task.report()
  for name in task.kind.metrics:
    assert kind_lib.sign(task.kind, name) in (1, -1, 0)
  sentence = task.kind.inputs.unlabelled('dev', task.splits['dev'].source)
  assert sentence.rstrip('.') and '\n' not in sentence
  inputs, value = task.kind.inputs, task.splits['train'].source.values[0]
  row = {
    'examples': (value[0], value[1]) if value[1] else value[0],
    'tagged': value[0],
    'questions': value[:2],
    'choices': value[:3],
  }[inputs.value.form]
  assert inputs.read(row) is not None and inputs.read(3) is None


def test_a_run_keeps_the_checkpoint_of_the_lowest_score_and_every_number_has_its_name(
  world, tmp_path
):
  config = tuned.of_kind('ratings').copy_and_resolve_references().unlock()
  config.steps, config.choose, config.choose_every = 30, 'best', 6
  config.run.eval_every = 0
  trust.allow_config(config)
  workdir = tmp_path / 'f'
  tuned.finetune(world, workdir, config.lock())
  folder = workdir / 'regress/run'
  scores = {r['step']: r['dev_rmse'] for r in metrics.read(folder) if 'dev_rmse' in r}
  result = json.loads((folder / 'result.json').read_text())
  assert len(scores) == 5 and len(set(scores.values())) > 1
  assert result['step'] == min(scores, key=scores.get)
  assert result['score'] == pytest.approx(min(scores.values()), rel=1e-5)
  assert work.best([{'score': 0.2}, {'score': 0.1}, {'score': None}], -1) == 1
  columns = (workdir / 'regress/dev.tsv').read_text().splitlines()[0].split('\t')
  named = [f'{x} {n}' for x in ('gold', 'predicted') for n in ('valence', 'arousal')]
  assert columns[-4:] == named and not (workdir / 'regress/dev.md').exists()
  predict.predict(str(workdir), str(world / 'test.csv'), str(tmp_path / 'p.tsv'))
  head, first = (tmp_path / 'p.tsv').read_text().splitlines()[:2]
  assert head.split('\t')[-2:] == ['scores valence', 'scores arousal'] and len(first) > 20
  assert all(row.holds for row in export.export(str(folder), tmp_path / 'hf'))
  written = json.loads((tmp_path / 'hf/config.json').read_text())
  assert written['problem_type'] == 'regression'
  assert written['id2label'] == {'0': 'valence', '1': 'arousal'}
  with pytest.raises(errors.UserError, match='give the workdir of the run'):
    predict.predict(f'hf:{tmp_path}/hf', str(world / 'test.csv'), str(tmp_path / 'q.tsv'))


broken = functools.partial(dataclasses.replace, ratings.ratings.kind)


@pytest.mark.parametrize(
  'kind, words',
  [
    (broken(predicted='score'), "answers of the kind 'ratings' fails on train .KeyError: score"),
    (broken(metrics={'rmse': lambda labels: 0.0}), 'a metric of the kind'),
    (broken(gold=lambda task, split: split.labels[:, 2]), 'gold of the kind .* .IndexError'),
    (None, 'does not say its kind of task: write ratings.kind ='),
    ('rating', "No kind of tests.outside.ratings:ratings is called 'rating'"),
  ],
)
def test_a_mistake_in_a_kind_is_one_sentence_before_training(world, monkeypatch, kind, words):
  config = tuned.of_kind('ratings')
  trust.allow_config(config)
  monkeypatch.setattr(ratings.ratings, 'kind', kind)
  with pytest.raises(errors.UserError, match=words):
    made.task(config, world, 16)


def test_the_kind_of_an_objective_of_ones_own_is_what_it_says(monkeypatch):
  trust.allow_config('tests.outside.ratings:ratings')
  assert kinds.get('tests.outside.ratings:ratings').name == 'ratings'
  monkeypatch.setattr(ratings.ratings, 'kind', 'tagging')
  assert kinds.get('tests.outside.ratings:ratings') is kinds.BY_NAME['tagging']
