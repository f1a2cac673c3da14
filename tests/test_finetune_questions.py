"""finetune on questions from the outside: what a run leaves, resuming, exports."""

import json
import os
import random
import signal

import jax
import ml_collections
import numpy as np
import pytest

from bertzoo_jax import export
from bertzoo_jax.finetune import __main__ as command
from bertzoo_jax.runs import metrics
from configs import parts
from configs.tasks import own
from tests import killed
from tests.pretrained import test_loading as made

WORDS = ('the', 'time', 'machine', 'stood', 'there', 'I', 'looked', 'at')


def articles(count, seed, unanswerable=0.0):
  """JSON of SQuAD's shape: the answer to every question is the word of the passage that is a
  traveller or a garden.
  """
  draw, out = random.Random(seed), []
  for number in range(count):
    words = [draw.choice(WORDS) for _ in range(draw.randint(8, 24))]
    answer = draw.choice(('traveller', 'garden'))
    none = draw.random() < unanswerable
    if not none:
      words.insert(draw.randrange(len(words)), answer)
    context = ' '.join(words)
    answers = [] if none else [{'text': answer, 'answer_start': context.index(answer)}]
    qa = dict(id=f'{seed}-{number}', question='who stood there', answers=answers)
    out.append({'paragraphs': [{'context': context, 'qas': [{**qa, 'is_impossible': none}]}]})
  return json.dumps({'version': '2.0', 'data': out})


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  """A folder with pretrained runs and files of questions."""
  folder = tmp_path_factory.mktemp('world')
  for family in ('bert', 'xlnet'):
    (folder / family).mkdir()
    made.make_run(folder / family, family)
  for name, count in (('train', 96), ('dev', 40), ('test', 6)):
    (folder / f'{name}.json').write_text(articles(count, len(name)))
    (folder / f'{name}2.json').write_text(articles(count, len(name) + 9, unanswerable=0.4))
  return folder


def config(objective='span', kind='', **changes):
  """A fine-tuning of own.py:qa. kind: '2' for files with questions without an answer. changes:
  'a__b' is the field a.b.
  """
  out = own.get_config(f'qa,objective={objective}')
  files = {split: f'{split}{kind}.json' for split in ('train', 'dev', 'test')}
  out.source.files = ml_collections.ConfigDict(files)
  out.length, out.batch_size, out.steps = 24, 16, 60
  out.features.doc_stride = 6
  out.schedule.learning_rate = 3e-3
  out.run = parts.run(
    dtype='float32', log_every=20, tensorboard=False, compile_cache='', kernels='xla'
  )
  for key, value in changes.items():
    *sections, field = key.split('__')
    at = out
    for section in sections:
      at = at[section]
    at[field] = value
  return ml_collections.ConfigDict(out).lock()


def finetune(world, workdir, made_config, family='bert', **kw):
  kw = {'init': str(world / family), 'devices': jax.devices()[:1], **kw}
  return command.finetune(made_config, str(workdir), task_dir=str(world), **kw)


def test_a_run_learns_to_find_answers_in_windows_and_is_exported(world, tmp_path, capsys):
  made_config = config()
  found = finetune(world, tmp_path / 'f', made_config, predict=str(world / 'test.json'))
  assert found[0].metric == 'f1' and found[0].median > 0.9
  said = capsys.readouterr().out
  assert 'questions with answers in a passage' in said and 'at most' in said
  right = {
    qa['id']: qa['answers'][0]['text']
    for article in json.loads((world / 'test.json').read_text())['data']
    for qa in article['paragraphs'][0]['qas']
  }
  answers = json.loads((tmp_path / 'f/submission/qa_test.json').read_text())
  assert answers == right
  files = {path.name for path in (tmp_path / 'f/submission').iterdir()}
  assert files == {f'{x}{y}' for x in ('qa', 'qa_test') for y in ('.json', '.n_best.json')}
  lines = (tmp_path / 'f/qa/test.json.predictions.jsonl').read_text().splitlines()
  assert {x['example']: x['answer'] for x in map(json.loads, lines)} == right
  pytest.importorskip('torch', reason='the comparison needs torch')
  pytest.importorskip('transformers', reason='the comparison needs transformers')
  rows = export.export(str(tmp_path / 'f/qa/run'), tmp_path / 'out')
  assert {'start', 'end'} <= {r.what.split()[0] for r in rows if r.holds}
  check_card(tmp_path / 'out', world, right)


def check_card(directory, world, right, kind='', words=24):
  """The code of the card finds the same answers to the first questions, of passages that fit a row.

  kind: of the files, as in `config`. words: of a passage, at most.
  """
  card = (directory / 'README.md').read_text()
  assert 'pipeline_tag: question-answering' in card
  code = card.split('```python\n')[1].split('```')[0].replace('THIS_DIRECTORY', str(directory))
  assert "question, passage = 'Who …?', 'A passage.'" in code
  found, data = {}, json.loads((world / f'test{kind}.json').read_text())['data']
  paragraphs = [article['paragraphs'][0] for article in data]
  for paragraph in [p for p in paragraphs if len(p['context'].split()) <= words][:3]:
    said = []
    asked = f'question, passage = {paragraph["qas"][0]["question"]!r}, {paragraph["context"]!r}'
    exec(code.replace("question, passage = 'Who …?', 'A passage.'", asked), {'print': said.append})
    (found[paragraph['qas'][0]['id']],) = said
  assert found and found == {name: right[name] for name in found}


@pytest.mark.parametrize(
  'objective', [pytest.param('span', marks=pytest.mark.slow), 'span_conditional']
)
def test_questions_without_an_answer_are_learned_and_the_best_threshold_is_told(
  world, tmp_path, objective
):
  scores = ('best_f1', 'f1', 'best_threshold')
  submission = {'dev': 'dev.json'}
  made_config = config(objective, '2', metrics=scores, submission=submission, steps=80)
  found = finetune(world, tmp_path / 'f', made_config)
  table = json.loads((tmp_path / 'f/table.json').read_text())[0]
  assert found[0].median > 0.85 > 0.6 > table['majority'] > 0.2
  assert found[0].others['dev f1'] <= found[0].median and 'dev best_threshold' in found[0].others
  odds = json.loads((tmp_path / 'f/submission/dev.null_odds.json').read_text())
  answers = json.loads((tmp_path / 'f/submission/dev.json').read_text())
  assert len(odds) == len(answers) == 40 and all((odds[i] > 0) == (not answers[i]) for i in odds)
  check_another_threshold(world, tmp_path / 'f', made_config, odds, answers)


def check_another_threshold(world, workdir, made_config, odds, answers):
  """The finished run answers some more questions with a higher threshold, and is not trained."""
  higher = float(np.median([odds[i] for i in odds if not answers[i]]))
  changed = made_config.copy_and_resolve_references().unlock()
  changed.features.no_answer_threshold = higher
  before = (workdir / 'qa/run/attempts.jsonl').read_text()
  old = json.loads((workdir / 'table.json').read_text())[0]
  for _ in range(2):  # the second time it is the recorded one
    found = finetune(world, workdir, changed.lock(), predict=str(world / 'test2.json'))
    again = json.loads((workdir / 'submission/dev.json').read_text())
    assert all((odds[i] > higher) == (not again[i]) for i in odds) and again != answers
    assert found[0].others['dev f1'] != old['others']['dev f1']
    assert found[0].median == old['median']  # best_f1 has a threshold of its own
  assert (workdir / 'qa/run/attempts.jsonl').read_text() == before
  said = (workdir / 'qa/test2.json.predictions.jsonl').read_text().splitlines()
  said = [json.loads(line) for line in said]
  assert all((x['no_answer_odds'] > higher) == (not x['answer']) for x in said)
  if made_config.objective.name == 'span':  # BERT's class has no beam
    export.export(str(workdir / 'qa/run'), workdir / 'out')
    check_card(workdir / 'out', world, {x['example']: x['answer'] for x in said}, '2', words=12)


@pytest.mark.slow
@pytest.mark.parametrize('objective', ['span', 'span_conditional'])
def test_xlnet_reads_the_passage_first_and_its_heads_are_exported(world, tmp_path, objective):
  pytest.importorskip('transformers', reason='the comparison needs transformers')
  made_config = config(objective, steps=120, submission={'test': 'answers.json'})
  found = finetune(world, tmp_path / 'f', made_config, family='xlnet')
  assert found[0].median > 0.8
  rows = export.export(str(tmp_path / 'f/qa/run'), tmp_path / 'out')
  assert all(r.holds for r in rows)
  if objective == 'span':
    answers = json.loads((tmp_path / 'f/submission/answers.json').read_text())
    check_card(tmp_path / 'out', world, answers)


def test_a_run_that_was_stopped_ends_with_the_same_predictions(world, tmp_path, monkeypatch):
  made_config = config(steps=12, run__log_every=1)
  finetune(world, tmp_path / 'whole', made_config)
  write, rows = metrics.Record.write, []

  def stop(self, row):
    rows.append(row)
    if len(rows) == 5:
      os.kill(os.getpid(), signal.SIGTERM)
    return write(self, row)

  monkeypatch.setattr(metrics.Record, 'write', stop)
  assert finetune(world, tmp_path / 'f', made_config) is None
  assert not (tmp_path / 'f/table.md').exists() and 5 <= len(rows) < 12
  finetune(world, tmp_path / 'f', made_config)
  whole, parts_ = (np.load(tmp_path / name / 'qa/run/predictions.npz') for name in ('whole', 'f'))
  assert sorted(whole.files) == ['dev/end', 'dev/start', 'test/end', 'test/start']
  for name in whole.files:
    np.testing.assert_array_equal(whole[name], parts_[name])


@pytest.mark.slow
@pytest.mark.parametrize('objective', ['span', 'span_conditional'])
def test_a_run_that_is_killed_twice_ends_with_the_same_bytes(world, tmp_path, objective):
  made = f'test_finetune_questions.config({objective!r}, "2", steps=12, run__log_every=1)'
  kills = ('qa/run', 3), ('qa/run', 8)
  killed.finetune(tmp_path / 'whole', made, world, world / 'bert', ())
  killed.finetune(tmp_path / 'killed', made, world, world / 'bert', kills)
  killed.same_bytes(tmp_path / 'whole/f', tmp_path / 'killed/f', 'qa')
