import contextlib
import io
import json
import re
import shutil
import types

import jax
import ml_collections
import numpy as np
import pytest

from bertzoo_jax import export
from bertzoo_jax import pretrained
from bertzoo_jax.common import errors
from bertzoo_jax.evaluate import held_out
from bertzoo_jax.hf import weights
from bertzoo_jax.objectives import networks
from bertzoo_jax.pretrained import predicting
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import step_folders
from tests import killed
from tests import tuned

config, finetune = tuned.config, tuned.finetune
NAMES = ['learning_rate=1e-05+seed=0', 'learning_rate=0.02+seed=0']
KILLS = tuple((f'classify/{name}', n) for name, n in zip(NAMES, (5, 13)))


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  return tuned.world(tmp_path_factory.mktemp('world'), 'bert', dev=17)


# Frozen as docs/finetuning.md says it: rates of 0.
FROZEN = (('encoder/(embeddings|layers/0/)', 0.0), ('', 1.0))
GRID = dict(grid=(('schedule.learning_rate', (1e-5, 2e-2)),), seeds=(0,), steps=24)
GRID |= dict(choose='best', choose_every=4, patience=3, run__eval_every=0, max_train=90)
GRID |= dict(objective__class_weights=('auto',), objective__label_smoothing=0.1)
GRID |= dict(optimizer__rates=FROZEN)


@pytest.fixture(scope='module')
def uninterrupted(world, tmp_path_factory):
  """The workdir of a grid of two runs that predicts a file, and what was said."""
  workdir, said = tmp_path_factory.mktemp('grid') / 'f', io.StringIO()
  with contextlib.redirect_stdout(said):
    finetune(world, workdir, config(**GRID), predict=str(world / 'test.tsv'))
  return workdir, said.getvalue()


@pytest.fixture(scope='module')
def best(uninterrupted):
  return uninterrupted[0] / 'classify' / NAMES[1]


def result_of(run):
  return json.loads((run / 'result.json').read_text())


def dev_scores(run):
  rows = metrics.read(run)
  return {row['step']: row['dev_accuracy'] for row in rows if 'dev_accuracy' in row}


def test_a_grid_runs_every_point_and_keeps_the_best_checkpoint(uninterrupted):
  folder = uninterrupted[0] / 'classify'
  assert {p.name for p in folder.iterdir() if p.is_dir()} == {*NAMES}
  found = [result_of(folder / name)['score'] for name in NAMES]
  assert found[1] > 0.9 > found[0]
  assert [(folder / name / step_folders.FOLDER).exists() for name in NAMES] == [False, True]
  table = json.loads((uninterrupted[0] / 'table.json').read_text())
  assert [line['chosen'] for line in table] == [False, True]
  for line, score in zip(table, found):
    assert line['best'] == line['worst'] == line['median'] == score and line['seeds'] == 1


def test_the_first_best_dev_score_is_kept_and_patience_ends_the_run(best):
  scores, result = dev_scores(best), result_of(best)
  first = min(step for step, score in scores.items() if score == max(scores.values()))
  assert result['step'] == first and result['score'] == scores[first]
  assert step_folders.steps(best) == [first]  # also what W and export take
  assert list(scores) == list(range(4, max(scores) + 1, 4))
  assert max(scores) == min(first + 12, 24) < 24


def test_dev_is_a_table_and_a_page_with_every_label(uninterrupted, best):
  first, *lines = (uninterrupted[0] / 'classify/dev.tsv').read_text().splitlines()
  assert first.split('\t') == ['example', 'text_a', 'gold', 'predicted', 'probability']
  rows = [line.split('\t') for line in lines]
  right = sum(row[2] == row[3] for row in rows)
  assert len(rows) == 17 and all(0.5 <= float(row[4]) <= 1 for row in rows)
  assert right / 17 == pytest.approx(result_of(best)['score'])
  page = re.sub(' +', ' ', (uninterrupted[0] / 'classify/dev.md').read_text())
  assert f'# dev: {right} of 17 right' in page
  gold = sum(row[2] == 'good' for row in rows)
  assert f'| good | {gold} |' in page and '| gold ↓ predicted → | bad | good |' in page


def test_weights_of_classes_are_balanced_by_train_and_frozen_layers_keep_their_bits(
  world, uninterrupted, best
):
  balanced = json.loads((best / 'config.json').read_text())['objective']['class_weights']
  assert len(balanced) == 2 and sum(1 / (2 * w) for w in balanced) == pytest.approx(1)
  assert '90 of 96 are taken' in uninterrupted[1]
  opened = (pretrained.open(x).params['encoder'] for x in (world / 'bert', best))
  before, after = map(weights.flatten, opened)
  for path, x in after.items():
    y = before[path]
    if path.startswith('layers/'):
      assert np.array_equal(x[0], y[0]) and not np.array_equal(x[1], y[1]), path
    elif path.startswith('embeddings/'):
      assert np.array_equal(x, y), path


def test_a_run_learns_and_leaves_its_table_and_predictions(uninterrupted):
  workdir, said = uninterrupted
  assert 0.6 > tuned.majority(workdir)
  assert 'Majority baseline' in said and 'best of classify' in said
  predicted = tuned.said(workdir / 'classify/test.jsonl')
  assert len(predicted) == 6
  for line in predicted:
    assert abs(sum(line['probabilities'].values()) - 1) < 1e-5
    assert line['label'] == ('good' if 'traveller' in line['text_a'] else 'bad')
  again = tuned.said(workdir / 'classify/test.tsv.predictions.jsonl')
  key = lambda line: (line['text_a'], line['label'], line['probabilities'])
  assert [key(line) for line in again] == [key(line) for line in predicted]


@pytest.mark.parametrize('kills', [KILLS[1:], KILLS], ids=['once', 'twice'])
def test_a_grid_that_is_killed_ends_with_the_same_bytes(world, uninterrupted, tmp_path, kills):
  killed.finetune(tmp_path, f'tuned.config(**{GRID!r})', world, world / 'bert', kills)
  killed.same_bytes(uninterrupted[0], tmp_path / 'f', 'classify')
  last = f'classify/{NAMES[1]}'
  for name in (f'{last}/result.json', 'classify/dev.tsv', 'classify/dev.md'):
    assert (uninterrupted[0] / name).read_bytes() == (tmp_path / 'f' / name).read_bytes(), name
  ours, theirs = uninterrupted[0] / last, tmp_path / 'f' / last
  assert dev_scores(ours) == dev_scores(theirs)
  assert step_folders.steps(ours) == step_folders.steps(theirs)


@pytest.mark.slow
def test_scoring_compiles_once_per_shape_of_rows_and_not_per_run(world, tmp_path, monkeypatch):
  shapes, outputs = [], networks.outputs
  traced = lambda encoder, params, batch: shapes.append(batch['input_ids'].shape)
  monkeypatch.setattr(networks, 'outputs', lambda *a: traced(*a) or outputs(*a))
  predicting._read.clear_cache()
  rates = (('schedule.learning_rate', (1e-3, 2e-3)),)
  finetune(world, tmp_path / 'f', config(grid=rates, seeds=(0, 1), steps=1))
  assert 0 < len(shapes) == len(set(shapes)) <= 2  # dev, and test with shorter rows


@pytest.mark.slow
def test_a_grid_over_the_weight_of_sift_has_runs_with_it_and_without(world, tmp_path):
  grid = (('objective.sift.weight', (0, 5)),)
  finetune(world, tmp_path / 'f', config(grid=grid, steps=4, run__eval_every=2))
  off, on = map(metrics.read, sorted((tmp_path / 'f' / 'classify').glob('weight=*')))
  for a, b in zip(off, on, strict=True):
    assert 'sift_divergence' not in a and b['sift_divergence'] > 0
    assert abs(a['loss'] / a['class_loss'] - 1) < 1e-5 and a['grad_norm'] != b['grad_norm']
    assert abs(b['loss'] / (b['class_loss'] + 5 * b['sift_divergence']) - 1) < 1e-5
  assert 'held_out_class_loss' in on[1] and 'held_out_sift_divergence' not in on[1]


def test_a_task_may_begin_with_the_best_run_of_another(world, tmp_path, capsys):
  first = config(name='first', steps=40, seeds=(0, 1), grid=(('batch_size', (16,)),))
  second = config(name='second', init='first', steps=2, schedule__learning_rate=1e-9)
  suite = ml_collections.ConfigDict({'suite': {'second': second, 'first': first}}).lock()
  with pytest.raises(errors.UserError, match='a folder for each task, first, second'):
    finetune(world, tmp_path / 'f', suite)  # train.tsv of the world may be of either
  assert not (tmp_path / 'f' / 'first').exists()
  for name in ('first', 'second'):
    shutil.copytree(world, tmp_path / 'tasks' / name, ignore=shutil.ignore_patterns('bert'))
  init = str(world / 'bert')
  found = finetune(tmp_path / 'tasks', tmp_path / 'f', suite, init=init)
  assert [line.task for line in found] == ['first', 'second']
  # It begins where the first one ended, head included.
  assert found[1].median == found[0].best > 0.7
  assert f'second · begins with {tmp_path / "f" / "first"}' in capsys.readouterr().out


def test_all_checkpoints_of_a_run_are_fine_tuned_and_their_scores_drawn(world, tmp_path, capsys):
  kept = config(steps=4, run__keep_every=2, run__keep=9)
  finetune(world, tmp_path / 'w', kept)
  finetune(world, tmp_path / 'f', config(steps=1), init=f'{tmp_path}/w/classify/run@all')
  steps = json.loads((tmp_path / 'f/classify/steps.json').read_text())
  assert [step for step, _ in steps] == [2, 4]
  assert '*' in capsys.readouterr().out


@pytest.mark.parametrize(
  'changes, kw, words',
  [
    (dict(grid=(('schedule.learning_rat', (1.0,)),)), {}, "Did you mean 'schedule.learning_rate'"),
    (dict(grid=(('schedule.lr', (1.0,)),)), {}, "Did you mean 'schedule.learning_rate'"),
    (dict(grid=(('seed', (1,)), ('seed', (2,)))), {}, "has 'seed' twice"),
    (dict(grid=('schedule.learning_rate=1e-3',)), {}, 'a field and a tuple of values'),
    (dict(seeds=('a',)), {}, 'whole numbers'),
    (dict(patience=2), {}, r'set --config\.choose=best'),
    (dict(choose_every=2), {}, r'set --config\.choose=best'),
    (dict(choose='best', run__eval_every=3), {}, r'--config\.choose_every=3'),
    (dict(positive='odd'), {}, "No positive is called 'odd'"),
    (dict(objective__class_weights=(1.0,)), {}, 'has 1 numbers, and there are 2 labels'),
    (dict(objective__class_weights=(0.0, 1.0)), {}, 'above 0'),
    (dict(objective__dropout=1.5), {}, 'objective.dropout is 1.5'),
    (dict(encoder={'dropuot': 0.1}), {}, "Did you mean 'dropout'"),
    (dict(metrics=('acuracy',)), {}, "No metrics are called 'acuracy'.*'accuracy'"),
    (dict(objective__head='thanh'), {}, "'tanh'"),
    (dict(objective__sift__weight=-1.0), {}, 'objective.sift.weight is -1'),
    (dict(grid=(('objective.sift.weight', (0.0, -5.0)),)), {}, 'objective.sift.weight is -5'),
    (dict(objective__sift__loss='kll'), {}, "'kl'"),
    ({}, dict(predict='nowhere.tsv'), 'is no file'),
    ({}, dict(init='nowhere'), 'nowhere'),
    ({}, dict(init='nowhere@all'), 'nowhere has no checkpoint'),
    ({}, dict(init=''), "--init '' names no weights"),
    ({}, dict(init='@5'), "--init '@5' names no weights"),
    (dict(layer_decay=1.5), {}, 'layer_decay'),
    (dict(layer_decay=0.5, optimizer__rates=((r'encoder', 0.1),)), {}, 'both set'),
  ],
)
def test_a_mistake_is_told_before_anything_is_written(world, tmp_path, changes, kw, words):
  with pytest.raises(errors.UserError, match=words) as e:
    finetune(world, tmp_path / 'f', config(**changes), **kw)
  assert '\n' not in str(e.value)
  assert not list((tmp_path / 'f').rglob('config.json'))


def test_a_workdir_of_another_thing_a_wrong_file_and_several_hosts_are_refused(
  world, tmp_path, monkeypatch
):
  (tmp_path / 'other.csv').write_text('sentence\none\n')
  for file in ('run/config.json', 'corpus/manifest.json'):
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text('{}')
  refused = [
    ('f', dict(predict=str(tmp_path / 'other.csv')), "Rename its column to 'text'"),
    ('run', {}, 'give a folder of its own'),
    ('corpus', {}, 'give a folder of its own'),
    (world / 'bert', {}, 'holds a run'),
    ('f', {}, 'runs on one host'),
  ]
  before = {*tmp_path.rglob('*')}
  for workdir, kw, words in refused:
    if 'host' in words:
      monkeypatch.setattr(jax, 'process_count', lambda: 2)
    with pytest.raises(errors.UserError, match=words):
      finetune(world, tmp_path / workdir, config(steps=1), **kw)
    assert {*tmp_path.rglob('*')} <= before | {tmp_path / 'f'}, words


def test_another_start_or_recipe_in_the_same_workdir_is_refused(
  world, uninterrupted, tmp_path, capsys
):
  shutil.copytree(uninterrupted[0], tmp_path / 'f')
  with pytest.raises(errors.UserError, match='batch_size.*or another --workdir[.]$'):
    finetune(world, tmp_path / 'f', config(**GRID, batch_size=4))
  assert 'begins with' not in capsys.readouterr().out  # it says no more than the refusal
  start = f'{tmp_path}/f/classify/{NAMES[1]}'
  with pytest.raises(errors.UserError, match='init: .* → '):
    finetune(world, tmp_path / 'f', config(**GRID), init=start)
  shutil.copytree(world, tmp_path / 'world')
  with (tmp_path / 'world' / 'dev.tsv').open('a') as f:
    f.write('good\tthe traveller\n')
  with pytest.raises(errors.UserError, match='a file of the task or its tokenizer has changed'):
    finetune(tmp_path / 'world', tmp_path / 'f', config(**GRID), init=str(world / 'bert'))
  with pytest.raises(errors.UserError, match=re.escape(f'give one of them, {start}')):
    export.export(str(tmp_path / 'f'), str(tmp_path / 'hf'))


def test_a_fine_tuned_run_is_no_run_to_score_on_text(world, tmp_path, monkeypatch):
  fine_tuned = types.SimpleNamespace(workdir='F', config=config())
  monkeypatch.setattr(held_out.pretrained, 'open_run', lambda _: fine_tuned)
  with pytest.raises(errors.UserError, match='fills no masks: give a run of pretraining'):
    held_out.opened('F', 'C')
