import gzip
import json

import pytest

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.tasks import kinds
from bertzoo_jax.tasks import labels
from bertzoo_jax.tasks.answering import questions
from configs.tasks import own
from tests.tasks import made

CONTEXT = 'The cat sat. \U0001f600 The cat slept on the mat.'


def passage(*qas, context=CONTEXT):
  """qas: (id, [(answer, start)]), or (id, None) without answers; further fields of the question."""
  made_qas = []
  for name, answers, *fields in qas:
    qa = {'id': name, 'question': f'Who {name}?', **dict(*fields)}
    if answers is not None:
      qa['answers'] = [{'text': text, 'answer_start': start} for text, start in answers]
    made_qas.append(qa)
  return {'paragraphs': [{'context': context, 'qas': made_qas}]}


def squad(*qas):
  return json.dumps({'data': [passage(*qas)]})


def numbered(source):
  return labels.numbered(source, kinds.BY_NAME['span'])


def one(**fields):
  return json.dumps([{'context': CONTEXT, 'qas': [{'id': 'x', 'question': 'Who?', **fields}]}])


def read(folder, leave_out=(), **contents):
  names = {}
  for split, content in contents.items():
    name = f'{split}.json'
    packed = isinstance(content, bytes)
    (folder / name).write_bytes(content if packed else ('\ufeff' + content).encode())
    names[split] = name
  return made.source(folder, parts.squad(files=names, leave_out=leave_out, dev_share=0.5))


def test_the_nearest_place_of_an_answer_is_taken():
  found = lambda text, *starts: [questions.locate(CONTEXT, text, start) for start in starts]
  assert found('The cat', 0, 15) == [(0, True), (15, True)]
  assert found('The cat', 14, 2, 999, -1) == [(15, False), (0, False), (15, False), (0, False)]
  assert found('mat', 0) == [(CONTEXT.index('mat'), False)]
  assert found('dog', 3) == found('', 3) == [(-1, False)]


def test_wrong_places_are_mended_and_counted_and_lost_answers_are_not_learned(tmp_path):
  train = squad(('a', [('mat', 30)]), ('b', [('dog', 2)]), ('c', [('dog', 0), ('cat', 4)]))
  source = read(tmp_path, train=train, dev=squad(('d', [('dog', 2)])))
  examples = source.splits['train']
  mat = CONTEXT.index('mat')
  assert examples.column('span') == [(mat, mat + 3), (-1, -1), (4, 7)]
  assert any('1 questions have a wrong answer_start' in note for note in source.notes)
  _, splits, notes = numbered(source)
  assert splits['train'][0].ids == ['a', 'c'] and splits['dev'][0].ids == ['d']
  assert splits['dev'][0].labels == [('dog',)]
  assert notes == ['train: 1 questions left out, whose answers are not in the passage.']


def test_questions_without_an_answer_have_none_whatever_is_plausible(tmp_path):
  none = dict(is_impossible=True)
  plausible = none | dict(plausible_answers=[{'text': 'mat', 'answer_start': 33}])
  data = squad(('a', [('cat', 4)]), ('b', [], plausible), ('c', [('mat', 0)], none))
  examples = read(tmp_path, train=data).splits['train']
  assert examples.labels == [('cat',), (), ()] and examples.column('span')[1:] == [(-1, -1)] * 2


def test_questions_of_yes_and_no_and_none_are_left_out_where_asked_and_told(tmp_path):
  some = ('a', [('YES', -1)]), ('b', [('cat', 4)], {'is_impossible': 'false'}), ('c', [('no', -1)])
  data = squad(*some, ('d', [], {'is_impossible': 'true'}))
  source = read(tmp_path, train=data, leave_out=('unanswerable', 'yes_no'))
  assert source.splits['train'].ids == ['b']
  said = '\n'.join(source.notes)
  assert '2 questions with the answer yes or no left out' in said
  assert '1 questions without an answer left out' in said


def test_the_layout_of_cmrc_s_release_needs_no_places(tmp_path):
  text = '\u5929\u5730\u7384\u9ec4\uff0c\u5b87\u5b99\u6d2a\u8352'
  qa = {'query_id': 'T1', 'query_text': '\uff1f', 'answers': ['\u5b87\u5b99', '\u6d2a\u8352']}
  data = json.dumps([{'context_id': 'T', 'context_text': text, 'qas': [qa]}])
  examples = read(tmp_path, train=data).splits['train']
  assert examples.ids == ['T1'] and examples.column('span') == [(5, 7)]
  assert examples.labels == [('\u5b87\u5b99', '\u6d2a\u8352')]


@pytest.mark.parametrize('packed', [True, False])
def test_mrqa_s_lines_are_read_packed_or_not(tmp_path, packed):
  places = {'text': 'cat', 'char_spans': [[4, 6], [19, 21]], 'token_spans': [[1, 1]]}
  qa = {'qid': 'q', 'question': 'Who?', 'answers': ['The cat', 'Cat'], 'detected_answers': [places]}
  lines = [{'header': {'dataset': 'X'}}, {'context': CONTEXT, 'qas': [qa]}]
  data = ''.join(json.dumps(line) + '\n' for line in lines).encode()
  name = 'train.jsonl.gz' if packed else 'train.jsonl'
  (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
  source = made.source(tmp_path, parts.squad(files={'train': name}))
  examples = source.splits['train']
  assert examples.column('span') == [(4, 7)] and examples.labels == [('The cat', 'Cat')]
  assert not source.notes


def test_a_dev_share_has_all_questions_of_its_passages(tmp_path):
  both = lambda n: [(f'{n}{x}', [('cat', 4)]) for x in 'ab']
  data = {'data': [passage(*both(n), context=f'The cat {n}') for n in range(40)]}
  _, splits, notes = numbered(read(tmp_path, train=json.dumps(data)))
  train, dev = splits['train'][0], splits['dev'][0]
  assert not set(train.keys) & set(dev.keys) and len(dev) % 2 == 0 < len(dev)
  assert 'by a hash of their passages' in notes[0]
  with pytest.raises(errors.UserError, match='2 examples with 1 different texts'):
    numbered(read(tmp_path, train=squad(*both(0))))


def test_a_table_has_a_question_per_row_and_places_if_it_likes(tmp_path):
  (tmp_path / 'train.tsv').write_text(
    f'id\tcontext\tquestion\tanswer\tanswer_start\nx\t{CONTEXT}\tWho?\tThe cat\t15\n'
    f'y\t{CONTEXT}\tWho?\tThe cat\t\nz\t{CONTEXT}\tWho?\t\t\n'
  )
  config = own.get_config('qa,source=table')
  config.source.files.train = 'train.tsv'
  source = made.source(tmp_path, config.source)
  examples = source.splits['train']
  assert examples.column('span') == [(15, 22), (0, 7), (-1, -1)] and examples.ids == ['x', 'y', 'z']
  assert examples.labels == [('The cat',), ('The cat',), ()]
  config.source.answer = 'reply'
  with pytest.raises(errors.UserError, match="names the column 'reply'.*--config.source.answer"):
    made.source(tmp_path, config.source)


DAMAGED = bytearray(gzip.compress(b'x' * 1000))
DAMAGED[15] ^= 255
NONE = squad(('x', []), ('y', []))


@pytest.mark.parametrize(
  'content, words',
  [
    ('{"data": [', 'holds no JSON'),
    ('{"questions": []}', 'has not the form of SQuAD'),
    ('{"data": []}', 'has no questions'),
    (squad(('a', [('cat', 'four')])), 'number of the character'),
    (squad(('a', [('cat', 4)]), ('b', None)), 'question 2 has no answers: write'),
    (squad(('a', [('dog', 4)])), 'None of the 1 train questions has its answer'),
    ('[' * 100_000, 'holds no JSON'),
    (one(answers=3), 'has not the form of SQuAD'),
    (one(answers={'text': ['cat'], 'answer_start': [4, 5]}), 'has not the form of SQuAD'),
    (one(detected_answers=[{'char_spans': [[2]]}]), 'has not the form of SQuAD'),
    (bytes(DAMAGED), 'not a complete gzip file'),
    (dict(train=NONE, leave_out=('unanswerable',)), 'no questions but those of config.source.le'),
    (dict(train=NONE, leave_out=('maybe',)), 'unanswerable and yes_no'),
  ],
)
def test_a_file_that_does_not_fit_is_told_in_a_sentence(tmp_path, content, words):
  given = content if isinstance(content, dict) else dict(train=content)
  with pytest.raises(errors.UserError, match=words):
    numbered(read(tmp_path, **given, dev=squad(('d', [('cat', 4)]))))


def test_a_file_to_predict_needs_no_answers(tmp_path):
  source = read(tmp_path, train=squad(('a', [('cat', 4)])))
  (tmp_path / 'new.json').write_text(squad(('n', None)))
  found = source.read(str(tmp_path / 'new.json'))
  assert found.labels is None and found.ids == ['n'] and found.column('span') == [(-1, -1)]


@pytest.mark.parametrize(
  'fields, answers',
  [
    (dict(answers='cat'), ('cat',)),
    (dict(answers={'text': 'cat', 'answer_start': 4}), ('cat',)),
    (dict(answers={'text': ['cat', 'mat'], 'answer_start': [4, 0]}), ('cat', 'mat')),
    (dict(answers={'text': [], 'answer_start': []}), ()),
    (dict(answers=[{'text': ' ', 'answer_start': -1}]), ()),
    (dict(answers=[{'text': None}]), ()),
    (dict(is_impossible=True), ()),
    (dict(answers=None, is_impossible='true'), ()),
  ],
)
def test_an_answer_may_be_a_text_or_lists_and_an_empty_one_is_none(tmp_path, fields, answers):
  train = read(tmp_path, train=one(**fields)).splits['train']
  assert train.labels == [answers]
  assert train.column('span') == [(4, 7) if answers else questions.NOWHERE]


def test_rows_of_one_question_as_datasets_write_them_are_read(tmp_path):
  row = {'id': 'x', 'title': 'T', 'context': CONTEXT, 'question': 'Who?'}
  lines = [
    {**row, 'answers': {'text': ['cat', 'The cat'], 'answer_start': [19, 15]}},
    {**row, 'answers': {'text': [], 'answer_start': []}},
  ]
  (tmp_path / 'train.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  train = made.source(tmp_path, parts.squad(files={'train': 'train.jsonl'})).splits['train']
  assert train.labels == [('cat', 'The cat'), ()]
  assert train.column('span') == [(19, 22), questions.NOWHERE]


def test_questions_without_an_answer_need_a_score_for_none_and_an_objective_of_places(tmp_path):
  def opened(weight, none, objective='span_conditional'):
    given = [('x', [('cat', 4)]), ('y', [] if none else [('mat', 0)])]
    (tmp_path / 'q.json').write_text(squad(*given))
    config = own.get_config(f'qa,objective={objective}')
    config.source.files.train = config.source.files.dev = 'q.json'
    if weight is not None:
      config.objective.answerable_weight = weight
    return made.task(config, tmp_path, 64)

  assert len(opened(0.5, True).splits['train']) == len(opened(0.0, False).splits['train']) == 2
  with pytest.raises(errors.UserError, match='answerable_weight=0 has no score'):
    opened(0.0, True)
  with pytest.raises(errors.UserError, match='reads questions'):
    opened(None, False, 'classification')
