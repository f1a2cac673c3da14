import json

import made
import numpy as np
import pytest

from bertzoo_jax.tasks import submission
from configs.tasks import arguments
from configs.tasks import glue
from configs.tasks import own
from configs.tasks import questions


def test_a_submission_has_the_index_and_the_label_as_train_spells_it(tmp_path):
  head = 'index\tsentence1\tsentence2'
  dev = f'{head}\tlabel\n0\ta\tb\tnot_entailment\n'
  test = f'{head}\n0\ta\tb\n1\t"c\td\n'
  made.write(tmp_path, train_tsv=dev + '1\tc\td\tentailment\n', dev_tsv=dev, test_tsv=test)
  task = made.task(glue.get_config('rte'), tmp_path, 9)
  path = tmp_path / 'RTE.tsv'
  submission.benchmark(path, task, task.splits['test'], {'row': np.array([[0, 1.0], [2, 1]])})
  assert path.read_text() == 'index\tprediction\n0\tnot_entailment\n1\tentailment\n'
  assert task.splits['test'].labels is None
  with pytest.raises(ValueError):
    submission.benchmark(path, task, task.splits['test'], {'row': np.zeros((3, 2))})


def test_every_file_of_a_glue_submission_has_a_split_and_questions_write_the_answers_of_dev():
  names = [n for t in glue.TASKS.values() for n in t['submission'].values()]
  files = 'AX CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST-2 STS-B WNLI'.split()
  assert sorted(names) == [f'{n}.tsv' for n in files]
  known = *((questions, name) for name in questions.TASKS), (own, 'qa'), (own, 'qa,source=table')
  for of, argument in known:
    assert 'dev' in of.get_config(argument).submission, argument


def test_cola_is_read_with_a_header_in_test_only_and_mnli_with_both_dev_splits_and_ax(tmp_path):
  cola, mnli, ax = (tmp_path / name for name in ('CoLA', 'MNLI', 'diagnostic'))
  for folder in (cola, mnli, ax):
    folder.mkdir()
  lines = 'gj04\t1\t\tOne.\ngj04\t0\t*\tTwo "one.\n'
  made.write(cola, train_tsv=lines, dev_tsv=lines, test_tsv='index\tsentence\n5\tThree.\n')
  task = made.task(glue.get_config('cola'), tmp_path, 9)
  assert task.splits['train'].source.column('a') == ['One.', 'Two "one.']
  assert task.splits['train'].labels.tolist() == [1, 0]
  test = task.splits['test']
  assert test.source.column('a') == ['Three.'] and test.examples == ['5']
  head = 'index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n'
  rows = '0\tx\ta\tb\tneutral\tneutral\n1\tx\tc\td\t-\t-\n2\tx\ta\tb\tx\tentailment\n'
  splits = ('train_tsv', 'dev_matched_tsv', 'dev_mismatched_tsv')
  made.write(mnli, **dict.fromkeys(splits, head + rows))
  made.write(ax, diagnostic_tsv='index\tsentence1\tsentence2\n0\ta\tb\n')
  config = glue.get_config('mnli')
  task = made.task(config, tmp_path, 9)
  assert list(task.splits) == ['train', 'dev', 'dev_mismatched', 'test_ax']
  assert task.labels == ('entailment', 'neutral') and len(task.splits['dev_mismatched']) == 2
  assert "dev: 1 examples with the label '-' left out." in task.report()
  # the folder of the task alone will do, too
  again = made.task(config, mnli, 9)
  assert again.splits['train'].ids.tolist() == task.splits['train'].ids.tolist()


YES = dict(label='yes', probabilities={'no': 0.047426, 'yes': 0.952574})
BOTH = dict(labels=['sad'], probabilities={'mad': 0.5, 'sad': 0.952574})


@pytest.mark.parametrize(
  'argument, texts, label, values, wanted',
  [
    ('classify', ['text'], 'label', ('no', 'yes'), YES),
    ('pairs', ['premise', 'claim'], 'label', ('no', 'yes'), YES),
    ('regress', ['text'], 'score', ('0.5', '2'), dict(score=0.0)),
    ('multilabel', ['text'], 'mad,sad', ('1,0', '0,1'), BOTH),
  ],
)
def test_predictions_are_json_lines_with_probabilities_for_every_shape_of_data(
  tmp_path, argument, texts, label, values, wanted
):
  rows = [[*texts, label], *(['a'] * len(texts) + [value] for value in values)]
  more = '\t'.join(texts) + '\n' + '\t'.join(['é x', 'y'][: len(texts)]) + '\n'
  made.write(tmp_path, train_csv='\n'.join(map(','.join, rows)), more_tsv=more)
  files, names = dict(train='train.csv', dev='train.csv'), dict(zip(('text_a', 'text_b'), texts))
  task = made.opened(tmp_path, argument, files, label=label, **names)
  split = task.read(tmp_path / 'more.tsv')
  assert split.labels is None and len(split) == 1
  assert split.no_labels(3).shape == ((3, 2) if argument == 'multilabel' else (3,))
  logits = np.array([[0.0, 3.0]])[:, : len(task.labels) or 1]
  submission.predictions(tmp_path / 'out.jsonl', task, split, {'row': logits})
  line = json.loads((tmp_path / 'out.jsonl').read_text())
  given = dict(zip(names, ['é x', 'y']))
  assert line == {'example': '0', **given, **wanted}


def test_the_argument_of_a_task_names_task_source_recipe_and_sections():
  assert glue.get_config('rte,source=tfds').source.dataset == 'glue/rte'
  assert glue.get_config('rte,optimizer=lamb').optimizer.name == 'lamb'
  wrong = {'rtee': "Did you mean 'rte'", 'rte,source=csv': 'table, tfds', 'ax': 'mnli'}
  wrong |= {'rte,recipee=x': "Did you mean 'recipe'", 'rte,source=tfds,source=table': 'set twice'}
  for argument, told in wrong.items():
    with pytest.raises(ValueError, match=told):
      glue.get_config(argument)
  with pytest.raises(ValueError, match='no task'):
    own.get_config('all')


def test_a_recipe_sets_fields_for_all_tasks_and_for_one(monkeypatch):
  def recipe(name, task, objective, length):
    fields = {'length': 99} if task == 'rte' else {'length': 64}
    return {'epochs': 10.0, 'objective': objective(dropout=0.3), **fields}

  module = type('Module', (), {'recipe': recipe})
  monkeypatch.setattr(arguments.importlib, 'import_module', lambda name: module)
  config = glue.get_config('rte,recipe=some')
  assert (config.epochs, config.length, config.name) == (10.0, 99, 'rte')
  suite = glue.get_config('all,recipe=some').suite
  assert suite.cola.length == 64 and suite.rte.length == 99
  assert suite.cola.objective.name == 'classification' and suite.stsb.objective.name == 'regression'
  assert suite.stsb.objective.dropout == 0.3
