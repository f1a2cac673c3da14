"""SuperGLUE's files and BabyLM's: the rows of small ones, what is refused, and the scores."""

import json
import types

import made
import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax.tasks import frames
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.examples import Record
from bertzoo_jax.tasks.kinds import kind
from bertzoo_jax.tasks.option_files import Choice
from configs.tasks import babylm
from configs.tasks import superglue
from tests.found import call_part
from tests.refused import refused

WSC = dict(span1_text='Anna', span1_index=0, span2_text='she', span2_index=3)
WIC = dict(word='bank', start1=2, end1=6, start2=0, end2=5)
ANSWERS = [dict(text='in May', label=0, idx=7), dict(text='in June', label=1, idx=8)]
ASKED = dict(question='When?', answers=ANSWERS, idx=3)
ENTITIES = [dict(start=0, end=3), dict(start=8, end=10), dict(start=0, end=3)]
QUERY = dict(query='@placeholder won.', idx=5, answers=[dict(text='Rome', start=0, end=3)])
OBJECTS = {  # a line of each task, its texts, its label
  'boolq': (dict(question='is it', passage='It is.', label=True), ('is it', 'It is.'), 'true'),
  'cb': (dict(premise='A', hypothesis='B', label='neutral'), ('A', 'B'), 'neutral'),
  'rte': (dict(premise='A', hypothesis='B', label='entailment'), ('A', 'B'), 'entailment'),
  'wic': (
    dict(sentence1='A bank.', sentence2='Banks, all.', label=False, **WIC),
    ('A " bank ".', '" Banks ", all.'),
    'false',
  ),
  'wsc': (
    dict(text='Anna sang until she, Anna, slept.', target=WSC, label=True),
    ('* Anna * sang until # she #, Anna, slept.', None),
    'true',
  ),
  'multirc': (
    dict(passage=dict(text='It rained.', questions=[ASKED])),
    ('Question: When? Answer: in May', 'It rained.'),
    '0',
  ),
  'copa': (
    dict(premise='It fell.', choice1='Wind.', choice2='Sun.', question='cause', label=1, idx=0),
    ('It fell.', 'What was the cause of this?', ['Wind.', 'Sun.']),
    1,
  ),
  'record': (
    dict(passage=dict(text='Rome or Pisa', entities=ENTITIES), qas=[QUERY]),
    ('Rome or Pisa', '@placeholder won.', ['Rome', 'Pis']),
    0,
  ),
}
OF_BABYLM = {
  'boolq': (dict(question='is it', passage='It is.'), ('is it', 'It is.')),
  'multirc': (
    dict(question='When?', answer='in May', paragraph='It {rained}.'),
    ('Question: When? Answer: in May', 'It {rained}.'),
  ),
  'wsc': (
    dict(text='Anna sang.', span1_text='Anna', span2_text='she'),
    ('Does "she" refer to "Anna" in this passage?', 'Anna sang.'),
  ),
  'mnli': (dict(premise='A', hypothesis='B'), ('A', 'B')),
}


def read(config, folder, *objects):
  """The examples of a task whose files have these objects."""
  section = config.source.copy_and_resolve_references()
  section.files = {'train': 'train.jsonl', 'dev': 'train.jsonl'}
  made.write(folder, train_jsonl='\n'.join(map(json.dumps, objects)))
  return made.source(folder, section).splits['dev']


@pytest.mark.parametrize('task', superglue.TASKS)
def test_the_rows_of_superglue_s_own_files(tmp_path, task):
  line, texts, label = OBJECTS[task]
  examples = read(superglue.get_config(task), tmp_path, line, line)
  first = examples.values[0]
  assert tuple(first)[: len(texts)] == texts
  assert first.label == (label if isinstance(label, int) else (label,))
  config = superglue.get_config(task)
  assert isinstance(label, int) or any(label in name.split('|') for name in config.source.labels)
  if task == 'multirc':  # both answers of a question bear its number
    assert examples.ids == ['3'] * 4 and examples.places[1] == 'train.jsonl, line 1, row 2'


@pytest.mark.parametrize('task', OF_BABYLM)
def test_the_texts_of_babylm_s_files_are_those_of_its_pipeline(tmp_path, task):
  line, texts = OF_BABYLM[task]
  config = babylm.get_config(task)
  examples = read(config, tmp_path, line | {'label': 1})
  assert tuple(examples.values[0])[:2] == texts and examples.labels == [('1',)]
  assert (config.batch_size, config.epochs) == {
    'boolq': (16, 10),
    'multirc': (16, 10),
    'wsc': (32, 30),
    'mnli': (32, 10),
  }[task]
  assert config.choose == 'best' and not len(config.encoder) and config.seed == 42


@pytest.mark.parametrize(
  'task, changes',
  [
    ('wic', dict(end1=9)),
    ('wic', dict(start2='x')),
    ('wsc', dict(target=WSC | dict(span2_index=40))),
    ('wsc', dict(target=WSC | dict(span2_text='they'))),
    ('copa', dict(question='why')),
    ('multirc', dict(passage='It rained.')),
    ('multirc', dict(passage=dict(text='', questions=[dict(ASKED, answers=3)]))),
    ('record', dict(passage=dict(text='Rome', entities=ENTITIES))),
    ('record', dict(qas=[3])),
  ],
)
def test_an_object_of_another_form_is_refused_with_its_line(tmp_path, task, changes):
  line, config = OBJECTS[task][0], superglue.get_config(task)
  words = rf'train\.jsonl, line 2 has not the layout {task} .*mend it \(\w+Error'
  refused(words, read, config, tmp_path, line, line | changes)


def test_marks_of_wsc_stand_where_the_words_stand_even_in_one_another(tmp_path):
  inner = dict(span1_text='men who they', span1_index=1, span2_text='they', span2_index=3)
  line, config = dict(OBJECTS['wsc'][0], target=inner), superglue.get_config('wsc')
  made = read(config, tmp_path, *(dict(line, text=f'{x} men who they see') for x in ('The', 'İİ')))
  both = [value[0] for value in made.values]
  assert both == [f'{x} * men who # they # * see' for x in ('The', 'İİ')]


def test_entities_of_record_fill_the_gap_and_train_keeps_one_right_one(tmp_path):
  query = QUERY | {'answers': [dict(text='Pisa', start=8, end=11), *QUERY['answers']]}
  entities = [*ENTITIES[:1], dict(start=8, end=11), dict(start=5, end=6)]
  line = dict(passage=dict(text='Rome or Pisa', entities=entities), qas=[query])
  config = superglue.get_config('record')
  dev = read(config, tmp_path, line)
  section = config.source.copy_and_resolve_references()
  section.files = {'train': 'train.jsonl', 'dev': 'train.jsonl'}
  train = made.source(tmp_path, section).splits['train'].values[0]
  assert train.options == ['Pisa', 'or'] and train.label == 0
  assert dev.values[0].options == ['Rome', 'Pisa', 'or'] and dev.labels == [1]
  frame = frames.Frame(made.SHAPE.single, made.SHAPE.pair, made.Characters.special, 2, 40)
  fields = {k: v for k, v in config.features.items() if k != 'name'}
  from bertzoo_jax.tasks import features

  rows = call_part(
    features, 'choice_rows', dev, np.array(dev.labels), made.Characters(), frame, **fields
  )
  text = ''.join(chr(i - 10) for i in rows.ids[: rows.offsets[1]] if i >= 10)
  assert text == 'RomeorPisaRomewon.' and rows.group == 3


def scored(config, split, outputs):
  from bertzoo_jax.tasks import kinds

  row = kinds.BY_NAME[config.objective.name]
  names = tuple(config.source.get('labels', ()))
  task = types.SimpleNamespace(kind=row, labels=names, positive='', logit_threshold=0.0)
  return kind.score(config.metrics, task, split, outputs)


@pytest.mark.parametrize('seed', range(4))
def test_multirc_counts_answers_and_whole_questions(seed):
  rng = np.random.default_rng(seed)
  labels, logits = rng.integers(0, 2, 60), rng.normal(size=(60, 2))
  groups = [str(g) for g in rng.integers(0, 25, 60)]
  positive = logits[:, 1] > logits[:, 0]
  split = types.SimpleNamespace(labels=labels, examples=groups)
  both = (positive & (labels == 1)).sum()
  right = {g: [] for g in groups}
  for g, a, b in zip(groups, positive, labels):
    right[g].append(a == b)
  found = scored(superglue.get_config('multirc'), split, {'row': logits})
  assert found['f1'] == pytest.approx(2 * both / (positive.sum() + labels.sum()))
  assert found['exact_match'] == pytest.approx(sum(map(all, right.values())) / len(right))
  assert 0 < found['exact_match'] < 1


def test_record_takes_the_right_answer_that_is_most_like_the_best_option():
  options = ['New York', 'the City of York', 'Ann', 'York City']
  answers = ('York City', 'Ann')
  values = [
    Choice('t', 'q', options, 3, '', answers, 4),
    Choice('t', 'q', options[:3], 2, '', (), 4),
  ]
  records = [Record('p', 'i', value) for value in values]
  split = types.SimpleNamespace(
    labels=np.array([3, 2]), source=Examples(records), examples=['a', 'b']
  )
  logits = lambda *best: {'choice': np.eye(4)[list(best)] + [[0] * 4, [0, 0, 0, 9]]}
  config = superglue.get_config('record')
  # the second question has three options: a score of the fourth is none
  assert scored(config, split, logits(2, 2)) == {'f1': 1.0, 'exact_match': 1.0}
  found = scored(config, split, logits(1, 0))
  assert found['exact_match'] == 0 and found['f1'] == pytest.approx((2 * 2 / (3 + 2) + 0) / 2)


def test_braces_join_columns_of_any_table(tmp_path):
  made.write(tmp_path, train_csv='a,b,label\nx,y,0\nu,{a},1\n')
  section = parts.table(files={'train': 'train.csv', 'dev': 'train.csv'}, text_a='<{b}> {a} of {b}')
  source = made.source(tmp_path, section)
  assert source.splits['dev'].column('a') == ['<y> x of y', '<{a}> u of {a}']
  section.text_a = '{a} {c}'
  refused("text_a names the column 'c', .*'a', 'b', 'label'", made.source, tmp_path, section)


def test_no_misc_leaves_entities_of_that_type_out_of_both_sides():
  from bertzoo_jax.tasks import metrics

  true = [['B-PER', 'O', 'B-MISC', 'B-ORG']]
  predicted = [['B-PER', 'B-Misc', 'O', 'O']]
  assert metrics.TAGS['entity_f1'](true, predicted, 'iob2') == pytest.approx(2 / 5)
  assert metrics.TAGS['entity_f1_no_misc'](true, predicted, 'iob2') == pytest.approx(2 / 3)
