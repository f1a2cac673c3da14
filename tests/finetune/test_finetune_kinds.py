import json
import os
import pathlib

import numpy as np
import pytest

from bertzoo_jax import export
from tests import killed
from tests import tuned

DATA = os.environ.get('BERTZOO_DATA')


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  folder = tuned.world(tmp_path_factory.mktemp('world'), 'bert', 'xlnet', train=128, test=9)
  long = ['the'] * 40 + ['traveller', '\u200b', 'stood']
  (folder / 'test.txt').write_text('the\ntime\nmachine\n\n' + '\n'.join(long))
  return folder


def finetuned(world, folder, argument, files='', family='bert', **changes):
  """(line of the table, workdir): a run that also predicts the test file of its task."""
  config = tuned.config(argument, files, **changes)
  predict = str(world / f'test{files}.{tuned.ENDINGS[config.name]}')
  (line,) = tuned.finetune(world, folder / 'f', config, family, predict=predict)
  return line, folder / 'f'


@pytest.fixture(scope='module')
def chosen(world, tmp_path_factory):
  return finetuned(world, tmp_path_factory.mktemp('choices'), 'choice', steps=100)


def test_entities_are_learned_and_every_word_is_predicted(world, tmp_path):
  line, workdir = finetuned(world, tmp_path, 'tag', steps=100)
  assert line.metric == 'entity_f1' and line.median > 0.9 > tuned.majority(workdir)
  predicted = tuned.said(workdir / 'tag/test.jsonl')
  assert predicted[0]['tags'] == ['O', 'B-T', 'I-T']
  assert predicted[1]['tags'] == ['O'] * 40 + ['B-PER', 'O', 'O']
  assert tuned.said(workdir / 'tag/test.txt.predictions.jsonl') == predicted
  text = (workdir / 'submission/test.conll').read_text()
  assert text.startswith('the\tO\ntime\tB-T\nmachine\tI-T\n\nthe\tO\n')


def test_the_right_option_is_learned_whatever_its_place(chosen, world):
  line, workdir = chosen
  assert line.metric == 'accuracy' and line.median > 0.85 > 0.6 > tuned.majority(workdir)
  predicted = tuned.said(workdir / 'choice/test.jsonl')
  read, right = tuned.said(world / 'test.jsonl'), 0
  for line, one in zip(predicted, read, strict=True):
    assert line['option'] == one['options']['ABCD'.index(line['label'])]
    assert len(line['probabilities']) == len(one['options'])
    right += line['option'] == one['label']
  assert right >= 7
  again = tuned.said(workdir / 'choice/test.jsonl.predictions.jsonl')
  assert [x['label'] for x in again] == [line['label'] for line in predicted]


def test_an_exported_chooser_says_the_same_of_every_option(chosen, world, tmp_path):
  _, workdir = chosen
  pytest.importorskip('torch', reason='transformers needs torch')
  transformers = pytest.importorskip('transformers', reason='the comparison needs transformers')
  rows = export.export(str(workdir / 'choice/run'), str(tmp_path / 'hf'))
  assert rows and all(r.holds for r in rows)
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf')
  card = (tmp_path / 'hf/README.md').read_text()
  assert 'AutoModelForMultipleChoice' in card and "truncation='only_first'" in card
  model = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / 'hf')
  form = dict(padding=True, truncation='only_first', max_length=16, return_tensors='pt')
  lines = tuned.said(workdir / 'choice/test.jsonl')
  for line, one in zip(lines, tuned.said(world / 'test.jsonl')):
    asked = [one['question'].replace('_', option) for option in one['options']]
    rows = tokenizer([one['text']] * len(asked), asked, **form)
    scores = model(**{name: x[None] for name, x in rows.items()}).logits[0]
    assert scores.softmax(-1).tolist() == pytest.approx(line['probabilities'], abs=1e-4)


def test_a_run_learns_to_find_answers_in_windows_and_is_exported(world, tmp_path, capsys):
  line, workdir = finetuned(world, tmp_path, 'qa', steps=60)
  assert line.metric == 'f1' and line.median > 0.9
  said = capsys.readouterr().out
  assert 'questions with answers in a passage' in said and 'at most' in said
  right = {
    qa['id']: qa['answers'][0]['text']
    for article in json.loads((world / 'test.json').read_text())['data']
    for qa in article['paragraphs'][0]['qas']
  }
  submission = workdir / 'submission'
  assert json.loads((submission / 'qa_test.json').read_text()) == right
  files = {path.name for path in submission.iterdir()}
  assert files == {f'{x}{y}' for x in ('qa', 'qa_test') for y in ('.json', '.n_best.json')}
  lines = tuned.said(workdir / 'qa/test.json.predictions.jsonl')
  assert {x['example']: x['answer'] for x in lines} == right
  pytest.importorskip('torch', reason='the comparison needs torch')
  pytest.importorskip('transformers', reason='the comparison needs transformers')
  rows = export.export(str(workdir / 'qa/run'), tmp_path / 'out')
  assert {'start', 'end'} <= {r.what.split()[0] for r in rows if r.holds}
  check_card(tmp_path / 'out', world, right)


def check_card(directory, world, right, files='', words=24):
  """The code of the card finds the same answers to the first questions, of passages that fit a row.

  files: as in `tuned.config`. words: of a passage, at most.
  """
  assert 'pipeline_tag: question-answering' in (directory / 'README.md').read_text()
  found, data = {}, json.loads((world / f'test{files}.json').read_text())['data']
  paragraphs = [article['paragraphs'][0] for article in data]
  for paragraph in [p for p in paragraphs if len(p['context'].split()) <= words][:3]:
    qa = paragraph['qas'][0]
    found[qa['id']] = tuned.answer_of_card(directory, qa['question'], paragraph['context'])
  assert found and found == {name: right[name] for name in found}


@pytest.mark.parametrize('objective', ['span', 'span_conditional'])
def test_questions_without_an_answer_are_learned_and_the_best_threshold_is_told(
  world, tmp_path, objective
):
  changes = dict(metrics=('best_f1', 'f1', 'best_threshold'), submission={'dev': 'dev.json'})
  config = tuned.config(f'qa,objective={objective}', '2', steps=80, **changes)
  (line,) = tuned.finetune(world, tmp_path / 'f', config)
  assert line.median > 0.85 > 0.6 > tuned.majority(tmp_path / 'f') > 0.2
  assert line.others['dev f1'] <= line.median and 'dev best_threshold' in line.others
  odds = json.loads((tmp_path / 'f/submission/dev.null_odds.json').read_text())
  answers = json.loads((tmp_path / 'f/submission/dev.json').read_text())
  assert len(odds) == len(answers) == 40 and all((odds[i] > 0) == (not answers[i]) for i in odds)
  check_another_threshold(world, tmp_path / 'f', config, odds, answers)


def check_another_threshold(world, workdir, config, odds, answers):
  """The finished run answers some more questions with a higher threshold, and is not trained."""
  higher = float(np.median([odds[i] for i in odds if not answers[i]]))
  changed = config.copy_and_resolve_references().unlock()
  changed.features.no_answer_threshold = higher
  before = (workdir / 'qa/run/attempts.jsonl').read_text()
  old = json.loads((workdir / 'table.json').read_text())[0]
  for _ in range(2):  # the second time it is the recorded one
    (line,) = tuned.finetune(world, workdir, changed.lock(), predict=str(world / 'test2.json'))
    again = json.loads((workdir / 'submission/dev.json').read_text())
    assert all((odds[i] > higher) == (not again[i]) for i in odds) and again != answers
    assert line.others['dev f1'] != old['others']['dev f1']
    assert line.median == old['median']  # best_f1 has a threshold of its own
  assert (workdir / 'qa/run/attempts.jsonl').read_text() == before
  said = tuned.said(workdir / 'qa/test2.json.predictions.jsonl')
  assert all((x['no_answer_odds'] > higher) == (not x['answer']) for x in said)
  if config.objective.name == 'span':  # BERT's class has no beam
    export.export(str(workdir / 'qa/run'), workdir / 'out')
    check_card(workdir / 'out', world, {x['example']: x['answer'] for x in said}, '2', words=12)


@pytest.mark.slow
@pytest.mark.parametrize('objective', ['span', 'span_conditional'])
def test_xlnet_reads_the_passage_first_and_its_heads_are_exported(world, tmp_path, objective):
  pytest.importorskip('transformers', reason='the comparison needs transformers')
  changes = dict(steps=120, submission={'test': 'answers.json'})
  line, workdir = finetuned(world, tmp_path, f'qa,objective={objective}', family='xlnet', **changes)
  assert line.median > 0.8
  rows = export.export(str(workdir / 'qa/run'), tmp_path / 'out')
  assert all(r.holds for r in rows)
  if objective == 'span':
    answers = json.loads((workdir / 'submission/answers.json').read_text())
    check_card(tmp_path / 'out', world, answers)


@pytest.mark.slow
@pytest.mark.parametrize(
  'argument, files',
  [('tag', ''), ('choice', ''), ('qa', '2'), ('qa,objective=span_conditional', '2')],
)
def test_a_run_that_is_killed_twice_ends_with_the_same_bytes(world, tmp_path, argument, files):
  made, task = f'tuned.config({argument!r}, {files!r})', argument.partition(',')[0]
  kills = (f'{task}/run', 3), (f'{task}/run', 8)
  killed.finetune(tmp_path / 'whole', made, world, world / 'bert', ())
  killed.finetune(tmp_path / 'killed', made, world, world / 'bert', kills)
  killed.same_bytes(tmp_path / 'whole/f', tmp_path / 'killed/f', task)


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason='BERTZOO_DATA does not name the folder of real data')
def test_all_of_glue_on_disk_by_one_command_killed_twice_has_the_same_table(world, tmp_path):
  """A grid and seeds. Only dev and train are there: other tasks are left out, and it is said."""
  tasks = ('cola', 'mrpc', 'sst2', 'wnli')
  kills = ('cola/learning_rate=0.003+seed=1', 7), ('sst2/learning_rate=0.001+seed=1', 12)
  fields = f"""
    steps=20 batch_size=8 length=32 seeds=0,1 grid=(('schedule.learning_rate',(1e-3,3e-3)),)
    run.dtype=float32 run.kernels=xla run.log_every=1 run.tensorboard=False
    run.compile_cache={tmp_path / 'compiled'}
  """
  flags = [f'--config.{field}' for field in fields.split()]
  flags += ['--config=configs/tasks/glue.py:all', f'--init={world / "bert"}']
  flags += [f'--task_dir={pathlib.Path(DATA) / "glue"}']
  for name, own in (('whole', ()), ('killed', kills)):
    killed.begun_again(flags, tmp_path / name, own, 1800)  # seconds, for a machine that is busy
  table = json.loads((tmp_path / 'whole' / 'table.json').read_text())
  assert [line['task'] for line in table] == [task for task in tasks for _ in range(2)]
  assert all(line['seeds'] == 2 for line in table)
  assert len(list((tmp_path / 'whole').glob('*/*/result.json'))) == 16
  for task in tasks:
    killed.same_bytes(tmp_path / 'whole', tmp_path / 'killed', task)
