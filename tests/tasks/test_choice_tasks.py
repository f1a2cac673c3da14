import json
import re

import made
import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.tasks import batches
from bertzoo_jax.tasks import features
from bertzoo_jax.tasks import frames
from bertzoo_jax.tasks import kinds as kinds_lib
from bertzoo_jax.tasks import labels
from bertzoo_jax.tasks import option_files
from bertzoo_jax.tasks.kinds import kind as kinds
from tests.found import call_part

SPECIAL = made.Characters.special
FROM_0, RACE, DREAM = dict(label_form='from_0'), dict(layout='race'), dict(layout='dream')
CSV = 'text,question,p,q,r,label\nt,u,,b,c,2\nt,u,a,b,,0\n'


def read(folder, train, name='train.json', **fields):
  made.write(folder, **{name.replace('.', '_'): train})
  return made.source(folder, parts.choices(**{'files': {'train': name}, **fields}))


def race(**changes):
  asked = dict(questions=['Who _ ?', 'Why?'], options=[['a', 'b'], ['c', 'd']], answers=['B', 'A'])
  return json.dumps({'article': 'A man.', 'id': 'high2.txt', **asked, **changes})


def test_race_is_read_from_folders_in_the_order_of_its_numbers(tmp_path):
  for level in ('high', 'middle'):
    (tmp_path / 'train' / level).mkdir(parents=True)
    for number in (10, 2):
      name = f'{level}{number}.txt'
      text = '\ufeff' + race(id=name, article=name).replace(', ', ',\r\n')
      (tmp_path / 'train' / level / name).write_bytes(text.encode())
  (tmp_path / 'train' / 'high' / 'notes.md').write_text('no JSON')
  source = read(tmp_path, '', 'other.txt', files={'train': 'train', 'dev': 'train/high'})
  train = source.splits['train']
  assert train.column('text')[::2] == ['high2.txt', 'high10.txt', 'middle2.txt', 'middle10.txt']
  assert train.ids[:3] == ['high2-0', 'high2-1', 'high10-0']
  assert train.labels == [1, 0] * 4 and train.column('options')[0] == ['a', 'b']
  assert len(source.splits['dev']) == 4


def dream(**changes):
  question = dict(question='Q?', choice=['x', 'A', 'z'], answer='A')
  return json.dumps([[['M: Hi.', 'W: Bye.'], [{**question, **changes}], '4-1']])


def test_dream_s_answers_are_the_texts_of_options(tmp_path):
  (train,) = read(tmp_path, dream()).splits.values()
  assert train.values[0][0] == 'M: Hi.\nW: Bye.' and train.labels == [1] and train.ids == ['4-1-0']


MCTEST = """
***************************************************
Story:            mc.0
Author:           7

One day.

They left.

1: one: Who?
 A) he
*B) she
 C) they
 D) it

2: multiple: Where: home?
*A) here
 B) there
 C) nowhere
 D) 5) five
"""
TSV = '\t'.join(
  ['mc.0', 'Author: 7', 'One day.\\newline\\newlineThey left.']
  + ['one: Who?', 'he', 'she', 'they', 'it']
  + ['multiple: Where: home?', 'here', 'there', 'nowhere', '5) five'] * 3
)


@pytest.mark.parametrize('ends', ['\n', '\r\n'])
def test_mctest_is_read_as_text_and_as_a_table(tmp_path, ends):
  source = read(tmp_path, MCTEST.replace('\n', ends), 'train.txt')
  train = source.splits['train']
  text, options = 'One day.\nThey left.', ['here', 'there', 'nowhere', '5) five']
  assert train.values[0][:3] == (text, 'Who?', ['he', 'she', 'they', 'it'])
  assert train.values[1][:3] == (text, 'Where: home?', options)
  assert train.labels == [1, 0] and train.ids == ['mc.0-0', 'mc.0-1']
  made.write(tmp_path, train_ans=f'B\tC{ends}')
  source = read(tmp_path, MCTEST.replace('\n', ends), 'train.txt')
  assert source.splits['train'].labels == [1, 2]
  assert any('1 asterisks are not at the option of train.ans' in n for n in source.notes)
  made.write(tmp_path, train_ans=f'B\tA\tB\tC{ends}')
  source = read(tmp_path, TSV.replace('\n', ends), 'train.tsv', layout='mctest')
  assert source.splits['train'].labels == [1, 0, 1, 2]
  assert source.splits['train'].column('question')[:2] == train.column('question')


def labelled(folder, labels):
  """A table of questions with the options w, x, y and z, and with these labels."""
  rows = ''.join(f't\tu\tw\tx\ty\tz\t{label}\n' for label in labels)
  head = 'text\tquestion\tp\tq\tr\ts\tlabel\n'
  return read(folder, head + rows, 'train.tsv', options='p,q,r,s')


def test_labels_of_a_table_are_letters_numbers_or_texts(tmp_path):
  forms = dict(letter='ACdB', from_0='0231', from_1='1342', text='wyzx')
  for form, given in forms.items():
    source = labelled(tmp_path, given)
    assert source.splits['train'].labels == [0, 2, 3, 1], form
    assert any(f'read as {form} ' in n for n in source.notes), form


@pytest.mark.parametrize(
  'labels, place, likely',
  [('ABED', 3, 'letter'), ('0213401', 5, 'from_0'), ('wzWx', 3, 'text'), ('ADA?', 4, 'letter')],
)
def test_a_bad_label_is_told_with_its_own_row(tmp_path, labels, place, likely):
  label = re.escape(labels[place - 1])
  words = f"line {place + 1} has the label '{label}', .* read as {likely}: correct it"
  with pytest.raises(errors.UserError, match=words):
    labelled(tmp_path, labels)


def line(label, options='xyz', text='t'):
  return json.dumps(dict(text=text, question='q', options=list(options), label=label)) + '\n'


@pytest.mark.parametrize(
  'name, content, fields, problem',
  [
    ('train.jsonl', line(1) + line(2), {}, 'from_0 or from_1: set --config.source.label_form'),
    ('train.jsonl', line('w'), {}, 'no option of their questions'),
    ('train.jsonl', line(3), FROM_0, "label '3', which is not one of its 3 options"),
    ('train.jsonl', line(0, ['x', ' ']), FROM_0, 'has 1 options'),
    ('train.jsonl', line(''), {}, 'line 1 has no label'),
    ('train.jsonl', line(['x']), {}, 'line 1, .*a list, no label'),
    ('train.csv', CSV, dict(options='p'), "'p' has no list of options"),
    ('train.csv', CSV, dict(options='p,w'), "source.options names the column 'w'"),
    ('train.csv', CSV, dict(options='p,q', question='questoin'), "source.question .*'questoin'"),
    ('one.txt', json.dumps(dict(article='', questions=[])), {}, "has no 'options'"),
    ('one.txt', race(answers=['A']), {}, '2 questions, 2 lists of options and 1 answers'),
    ('train.json', dream(answer='y'), {}, "has the label 'y', which is not one of its 3 options"),
    ('train.json', '"article questions options"', RACE, 'holds no JSON object'),
    ('train.json', race(questions=None), RACE, "no 'questions', a list"),
    ('train.json', race(options=['ab', 'ef']), RACE, "1 has the options 'ab'"),
    ('train.json', race(options=[3, 4]), RACE, 'question 1 has the options 3'),
    ('train.json', '{"a": 1}', DREAM, 'dialogue 1 has not the shape'),
    ('train.json', '[[["Hi."], [{"question": "Who?"}], "1"]]', {}, 'dialogue 1 has not the shape'),
    ('train.json', dream(choice='ab'), {}, "the options 'ab'"),
    ('train.json', '[' * 100_000, DREAM, 'holds no JSON'),
    # answers beside the file: letters of options, one per question
    ('train.txt', MCTEST, dict(answers='AB C'), "has the answer 'AB'"),
    ('train.txt', MCTEST, dict(answers='@ C'), "has the answer '@'"),
    ('train.txt', MCTEST, dict(answers='E C'), "has the answer 'E'"),
    ('train.txt', MCTEST, dict(answers='A'), '1 answers, and its story has 2'),
    ('train.tsv', TSV, dict(answers='B A\nA A', layout='mctest'), '2 lines, and .* 1 stories'),
  ],
)
def test_a_mistake_in_a_file_is_told_in_a_sentence(tmp_path, name, content, fields, problem):
  fields = dict(fields)
  if answers := fields.pop('answers', ''):
    made.write(tmp_path, train_ans=answers)
  with pytest.raises(errors.UserError, match=problem):
    labels.numbered(read(tmp_path, content, name, **fields), kinds_lib.BY_NAME['choice'])


def test_options_are_columns_or_a_list_and_numbers_count_from_1_where_the_config_says_so(tmp_path):
  source = read(tmp_path, line(1) + line(2), 'train.jsonl', label_form='from_1')
  assert source.splits['train'].labels == [0, 1]
  # empty ones are left out
  train = read(tmp_path, CSV, 'train.csv', options='p,q,r').splits['train']
  assert train.column('options') == [['b', 'c'], ['a', 'b']] and train.labels == [1, 0]
  assert train.values[0].most == 3


def made_rows(given, length=30, single=made.SHAPE.single, pair=made.SHAPE.pair, **fields):
  """given: [(text, question, options)]."""
  examples = made.examples(*(option_files.Choice(*one) for one in given))
  frame = frames.Frame(single, pair, SPECIAL, 2, length)
  return call_part(features, 'choice_rows', examples, None, made.Characters(), frame, **fields)


def shown(rows):
  """Rows as texts: ^ and $ are the special tokens."""
  text = {2: '^', 3: '$'}
  ids = [text[i] if i in text else chr(i - 10) for i in rows.ids]
  return [''.join(ids[a:b]) for a, b in zip(rows.offsets, rows.offsets[1:])]


def test_a_row_has_the_text_and_the_question_with_its_option():
  rows = made_rows([('text', 'is_it', ['a', 'b']), ('t', 'why', ['c', 'd', 'e'])])
  assert shown(rows) == ['^text$isait$', '^text$isbit$', '^$$', '^t$whyc$', '^t$whyd$', '^t$whye$']
  assert rows.group == 3
  assert rows.features['option_weights'].tolist() == [[1, 1, 0], [1, 1, 1]]
  assert rows.segments[:12].tolist() == [0] * 6 + [1] * 6
  first = made_rows([('text', 'is_it', ['a', 'b'])], order='options_first', blank='')
  assert shown(first) == ['^is_ita$text$', '^is_itb$text$']
  assert shown(made_rows([('', 'why', ['c', 'd'])])) == ['^why$c$', '^why$d$']
  last = made_rows([('t', 'q', ['c', 'd'])], pair='A:0 sep:0 B:1 sep:1 cls:2')
  assert shown(last) == ['t$qc$^', 't$qd$^'] and last.segments[:6].tolist() == [0, 0, 1, 1, 1, 2]


def test_the_question_keeps_its_end_and_the_text_its_beginning():
  given = [('abcdefghij', 'klmnop', ['q', 'rs'])]
  assert shown(made_rows(given, 13, option_tokens=4)) == ['^abcdef$nopq$', '^abcdef$oprs$']
  assert shown(made_rows(given, 13, option_tokens=4, option_cut='end'))[1] == '^abcdef$klmn$'
  # of a short row it has no more than half
  assert shown(made_rows(given, 9)) == ['^abc$opq$', '^abc$prs$']
  assert made_rows(given, 9).uncut.tolist() == [20, 21]
  with pytest.raises(errors.UserError, match='no room for two texts'):
    made_rows(given, 4)
  with pytest.raises(errors.UserError, match='3 options, and config.features.options=2: set .*=3'):
    made_rows([('t', 'q', ['a', 'b', 'c'])], options=2)
  assert made_rows([('t', 'q', ['a', 'b', 'c'])], options=5).group == 5


def opened(folder, count=12):
  lines = [line('ABC'[i % 3], 'abc', f'text {i // 3}') for i in range(count)]
  made.write(folder, train_jsonl=''.join(lines), test_jsonl=lines[0].replace('"A"', '""'))
  files = dict(train='train.jsonl', test='test.jsonl')
  return made.opened(folder, 'choice', files, length=24)


def test_questions_about_one_text_stay_together_and_batches_have_three_axes(tmp_path):
  task = opened(tmp_path)
  train, dev = task.splits['train'], task.splits['dev']
  assert not set(train.source.column('text')) & set(dev.source.column('text'))
  how = dict(batch_size=4, seed=0, length_buckets=(16, 24), padding='right', pad=0)
  batch = batches.train_batch(train, 0, **how)
  assert batch['input_ids'].shape == (4, 3, 16) and batch['labels'].shape == (4,)
  assert batch['option_weights'].shape == (4, 3)
  report = task.report()
  assert 'one of 3 options' in report and 'Majority baseline (always option ' in report


def test_predictions_name_the_option_and_its_letter(tmp_path):
  task = opened(tmp_path)
  test, dev = task.splits['test'], task.splits['dev']
  (line,) = task.kind.answers(task, test, {'choice': np.array([[0.0, 2.0, 1.0]])})
  assert line['label'] == 'B' and line['option'] == 'b' and line['example'] == '0'
  assert sum(line['probabilities']) == pytest.approx(1, abs=1e-5)
  perfect = {'choice': np.eye(3)[dev.labels]}
  assert kinds.score(('accuracy',), task, dev, perfect) == {'accuracy': 1.0}
  assert task.read(str(tmp_path / 'train.jsonl')).labels is None
