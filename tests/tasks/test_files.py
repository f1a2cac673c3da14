import json
import os
import pathlib

import made
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bertzoo_jax import tasks
from bertzoo_jax.common import errors
from bertzoo_jax.tasks.kinds import kind
from configs.tasks import chinese
from configs.tasks import choices
from configs.tasks import glue
from configs.tasks import questions

DATA = os.environ.get('BERTZOO_DATA')
ROWS = [('good film', 'yes'), ('bad film', 'no'), ('fine', 'yes'), ('dull', 'no')]
TSV = 'text\tlabel\n' + ''.join(f'{a}\t{b}\n' for a, b in ROWS)
COLA = 'gj04\t1\t\tOne more text\ngj04\t0\t*\tAnother text\n'
REVIEWS, STARS = 'review,stars\ngood,5\n', dict(text_a='review', label='stars')


def read(folder, name='train.tsv', dev='', argument='classify', **source):
  return made.source(folder, made.config(argument, dict(train=name, dev=dev), **source).source)


def pairs(examples):
  return [(a, label) for a, (label,) in zip(examples.column('a'), examples.labels)]


@pytest.mark.parametrize(
  'name, content',
  [
    *(
      (f'train.{end}', '\ufeff' + TSV.replace('\t', mark).replace('\n', line_end))
      for end, mark in (('tsv', '\t'), ('csv', ','))
      for line_end in ('\n', '\r\n', '\r')
    ),
    # what ends a line is no part of its last field, a text
    *(
      ('train.tsv', end.join('\t'.join(row[::-1]) for row in (('text', 'label'), *ROWS)) + end)
      for end in ('\n', '\r\n', '\r\r\n', '\r')
    ),
    ('train.tsv', TSV),
    ('train.tsv', TSV.rstrip('\n')),
    ('train.tsv', TSV + '\n\n'),
    ('train.tsv', TSV.replace('text\t', ' text \t')),
    ('train.txt', TSV),
    ('train.jsonl', ''.join(json.dumps(dict(text=a, label=b)) + '\n' for a, b in ROWS)),
    ('train.json', json.dumps([dict(text=a, label=b) for a, b in ROWS], indent=1)),
    ('train.json', '\n'.join(json.dumps(dict(text=a, label=b)) for a, b in ROWS)),
  ],
)
def test_the_same_rows_are_read_from_every_format_line_end_and_with_a_byte_order_mark(
  tmp_path, name, content
):
  (tmp_path / name).write_bytes(content.encode())
  source = read(tmp_path, name)
  assert pairs(source.splits['train']) == ROWS
  assert source.splits['train'].ids == ['0', '1', '2', '3']
  assert not source.notes


def test_parquet_is_read_with_the_types_that_its_columns_have(tmp_path):
  texts = pyarrow.array([a for a, _ in ROWS]).dictionary_encode()
  table = pyarrow.table(dict(text=texts, label=pyarrow.array([3, 1, 3, 1], pyarrow.int8())))
  parquet.write_table(table, tmp_path / 'train.parquet')
  source = read(tmp_path, 'train.parquet')
  assert pairs(source.splits['train']) == [(a, '3' if b == 'yes' else '1') for a, b in ROWS]


def test_quotes_of_a_csv_enclose_fields(tmp_path):
  rows = 'text,label\n"one, ""two""\nthree",a\nfour\u2028five\x0bsix,b\n"",c\n'
  made.write(tmp_path, train_csv=rows)
  source = read(tmp_path, 'train.csv')
  assert source.splits['train'].column('a') == ['one, "two"\nthree', 'four\u2028five\x0bsix', '']
  assert [p.rpartition(' ')[2] for p in source.splits['train'].places] == ['2', '4', '5']


def test_rows_with_too_few_or_many_fields_or_a_nul_are_counted_with_their_line(tmp_path):
  rows = 'text\tlabel\na\tx\nlost\nb\ty\nc\tx\td\nalso\n\0d\ty\ne\tx\nf\ty\n'
  made.write(tmp_path, train_tsv=rows)
  source = read(tmp_path)
  assert source.splits['train'].column('a') == ['a', 'b', 'e', 'f']
  assert source.splits['train'].ids == ['0', '2', '6', '7']  # numbers in the file
  assert source.notes == (
    'train: 2 lines of train.tsv with fewer fields than 2 left out, the first is line 3.',
    'train: 1 line of train.tsv with more fields than 2 left out, the first is line 5.',
    'train: 1 line of train.tsv with a NUL left out, the first is line 7.',
  )
  made.write(tmp_path, train_jsonl='{"text": "a", "label": 1}\n{"text": \n{"text": "b"}\n')
  assert read(tmp_path, 'train.jsonl').notes == (
    'train: 1 line of train.jsonl without a JSON object left out, the first is line 2.',
    "train: 1 line of train.jsonl without the key 'label' left out, the first is line 3.",
  )


@pytest.mark.parametrize(
  'name, content, fields, problem',
  [
    ('train.csv', REVIEWS, dict(STARS, text_a='reviews'), "'stars'.*mean 'review'"),
    ('train.csv', REVIEWS, dict(STARS, label='star'), "label .*'star'.*mean 'stars'"),
    ('train.csv', REVIEWS, dict(STARS, example='nr'), "example .*'nr'"),
    ('train.csv', REVIEWS, dict(text_a=''), 'text_a is empty'),
    ('train.tsv', COLA, dict(text_a='sentence'), 'header=False'),
    ('train.tsv', 'fine\tgood\nso\tbad\n', {}, 'no line of names, set .*source.header=False'),
    ('train.csv', 'a text,good\nso,bad\n', dict(label='good'), "'text', .*source.header=False"),
    ('train.csv', 'text,x\nfine,good\n', {}, "the column 'label', .*source.header=False"),
    ('train.tsv', 'text\ttext\tlabel\na\tb\tc\n', {}, "2 columns 'text'"),
    ('train.tsv', 'a\tx\n', dict(name='nowhere.tsv'), 'train file .*nowhere.tsv.*task_dir'),
    ('train.tsv', TSV, dict(dev='dev.tsv'), "The dev file .*files.dev=''"),
    ('train.tsv', TSV, dict(name=''), 'files.train is empty'),
    ('train.xlsx', 'x', {}, 'by the end of its name'),
    ('train.csv', 'text,label\nfine,a\n"open,a\nb,b\n', {}, 'line 3: a quoted.*quotes=none'),
    ('train.tsv', 'text,x\ta\n1,2\n3,4\n', dict(text_a='text,x', label='a'), '2 of 2 rows.*line 2'),
    ('train.jsonl', '{"text": 1}\n\n{"text": \nx\n', {}, 'most of its 3 lines .* line 3'),
    ('train.jsonl', '{"text": {"a": 1}, "label": 1}', {}, "line 1, key 'text' holds a dict"),
  ],
)
def test_a_mistake_in_a_file_is_told_with_its_place_and_the_remedy(
  tmp_path, name, content, fields, problem
):
  (tmp_path / name).write_text(content)
  with pytest.raises(errors.UserError, match=problem):
    read(tmp_path, **{'name': name, **fields})


def test_columns_have_numbers_or_given_names_where_the_file_has_none(tmp_path):
  made.write(tmp_path, train_tsv=COLA, dev_tsv='label\tsentence\n1\tA dev text\n')
  source = read(tmp_path, text_a='3', label='1', header=False)
  assert pairs(source.splits['train']) == [('One more text', '1'), ('Another text', '0')]
  names = ('source', 'label', 'star', 'sentence')
  source = read(tmp_path, dev='dev.tsv', text_a='sentence', columns=names)
  assert pairs(source.splits['train'])[0] == ('One more text', '1')
  assert pairs(source.splits['dev']) == [('A dev text', '1')]


def test_of_several_tasks_each_has_a_folder_and_a_file_that_two_name_is_nobody_s(tmp_path):
  one, other = (made.config(files=dict(train='train.tsv')) for _ in range(2))
  one.name, other.name = 'one', 'other'
  made.write(tmp_path, train_tsv=TSV)
  folder, why = tasks.located(one, str(tmp_path), [one, other])
  assert not folder and 'may be of one or of other' in why and str(tmp_path / 'one') in why
  assert tasks.located(one, str(tmp_path), [one]) == (str(tmp_path), '')
  (tmp_path / 'one').mkdir()
  made.write(tmp_path / 'one', train_tsv=TSV)
  assert tasks.located(one, str(tmp_path), [one, other]) == (str(tmp_path / 'one'), '')


def test_a_file_that_is_not_there_is_named_and_optional_ones_are_noted(tmp_path):
  config = made.config(files=dict(train='train.tsv'))
  assert 'train.tsv does not exist' in tasks.located(config, str(tmp_path))[1]
  made.write(tmp_path, train_tsv=TSV)
  assert tasks.located(config, str(tmp_path)) == (str(tmp_path), '')
  notes = read(tmp_path, dev='x/dev.tsv|dev.tsv?').notes
  assert notes == (f'dev: none of its files is in {tmp_path}.',)
  assert pairs(read(tmp_path, name='x/train.tsv|train.tsv').splits['train']) == ROWS
  assert pairs(read('', name=str(tmp_path / 'train.tsv')).splits['train']) == ROWS
  (tmp_path / 'a|b.tsv').write_text(TSV)
  assert pairs(read(tmp_path, name='a|b.tsv').splits['train']) == ROWS


def test_values_of_json_become_text_and_dots_go_one_level_down(tmp_path):
  values = ((['two', 'words'], 1), ('\ud800x', 2.5), (None, True))
  rows = [dict(words=words, meta=dict(label=label)) for words, label in values]
  made.write(tmp_path, train_jsonl='\n'.join(map(json.dumps, rows)))
  source = read(tmp_path, 'train.jsonl', text_a='words', label='meta.label')
  assert pairs(source.splits['train']) == [('two words', '1'), ('?x', '2.5'), ('', 'true')]


def test_only_rows_that_where_asks_for_are_read_and_test_labels_may_be_absent(tmp_path):
  lines = 'language\ttext\tlabel\nzh\tone\ta\nen\ttwo\tb\nzh\tthree\tb\n'
  made.write(tmp_path, train_tsv=TSV, dev_tsv=lines, test_tsv='index\ttext\n7\tx\n9\ty\n')
  files = dict(train='train.tsv', dev='dev.tsv', test='test.tsv')
  config = made.config(files=files, where=(('language', 'zh'),), example='index')
  source = made.source(tmp_path, config.source)
  assert pairs(source.splits['dev']) == [('one', 'a'), ('three', 'b')]
  lost = 'dev: 1 line of dev.tsv that config.source.where does not ask for left out, the first is'
  assert source.notes == (f'{lost} line 3.',)
  assert source.splits['dev'].places[1] == 'dev.tsv, line 4'
  assert source.splits['test'].labels is None and source.splits['test'].ids == ['7', '9']


@pytest.mark.parametrize('first', ['text', 'label'])  # LCQMC's are texts
def test_a_test_file_without_a_header_may_lack_the_label(tmp_path, first):
  train, columns = ['one\ttwo\t1', 'three\tfour\t0'], ('text', 'text_b', 'label')
  if first == 'label':
    train, columns = ['1\tone\ttwo', '0\tthree\tfour'], ('label', 'text', 'text_b')
  made.write(tmp_path, train_tsv='\n'.join(train), test_tsv='five\tsix\n')
  form = dict(columns=columns, text_b='text_b', text_a='text')
  config = made.config('pairs', dict(train='train.tsv', test='test.tsv'), **form)
  source = made.source(tmp_path, config.source)
  assert pairs(source.splits['train']) == [('one', '1'), ('three', '0')]
  assert [value[:3] for value in source.splits['test'].values] == [('five', 'six', None)]
  with pytest.raises(errors.UserError, match='rows with fewer fields than 3'):
    read(tmp_path, 'test.tsv', **form)


def test_a_dataset_of_tensorflow_datasets_gives_the_labels_as_its_files_spell_them():
  tfds = pytest.importorskip('tensorflow_datasets')
  config = glue.get_config('mrpc,source=tfds')
  with tfds.testing.mock_data(num_examples=7):
    task = made.task(config, '', 64)
  assert {name: len(s) for name, s in task.splits.items()} == dict(train=7, dev=7, test=7)
  assert task.labels == ('0', '1') and task.splits['train'].labels.max() < 2
  assert None not in task.splits['dev'].source.column('b')


QA = {
  'cmrc2018': dict(train='qa_zh/cmrc2018_dev.json', dev='qa_zh/cmrc2018_trial.json'),
  'squad': dict(train='qa_en/policyqa_dev.json', dev='qa_en/xquad.en.json'),
}


@pytest.mark.skipif(not DATA, reason='BERTZOO_DATA does not name the folder of real data')
@pytest.mark.parametrize(
  'file, name, folder, sizes, mended',
  [
    (glue, 'cola', 'glue', (8551, 1043), 0),
    (glue, 'cola', 'glue/CoLA', (8551, 1043), 0),
    (glue, 'sst2', 'glue', (67349, 872), 0),
    (glue, 'mrpc', 'glue', (3667, 408), 0),  # one row of 3,668 is missing in this copy
    (glue, 'wnli', 'glue', (635, 71), 0),
    (chinese, 'chnsenticorp', 'zh_tasks/chnsenticorp', (9600, 1200, 1200), 0),
    (choices, 'mctest', 'mc_en', (1200, 200), 0),
    (questions, 'cmrc2018', '', (3219, 1002), 8),
    (questions, 'squad', '', (3809, 1190), 0),
  ],
)
def test_public_files_have_their_published_sizes(file, name, folder, sizes, mended):
  config = file.get_config(name)
  if file is questions:
    config.source.files = {split: QA[name].get(split, '') for split in config.source.files}
  task = made.task(config, pathlib.Path(DATA) / folder, 512)
  assert tuple(len(split.source) for split in task.splits.values()) == sizes
  assert not [note for note in task.notes if 'left out' in note or 'asterisks' in note]
  wrong = [note.split()[1] for note in task.notes if 'wrong answer_start' in note]
  assert sum(map(int, wrong)) == mended
  if file in (glue, chinese):
    assert task.labels == ('0', '1')
    assert all(np.bincount(s.labels).min() > len(s) / 4 for s in task.splits.values())


def test_metrics_of_ranks_need_the_column_of_the_question(tmp_path):
  lines = ['qid\ttext_a\ttext_b\tlabel'] + [f'{i // 2}\tq\ta {i}\t{i % 2}' for i in range(8)]
  made.write(tmp_path, train_tsv='\n'.join(lines), dev_tsv='\n'.join(lines))
  config = chinese.get_config('dbqa')
  config.source.files = {'train': 'train.tsv', 'dev': 'dev.tsv'}
  opened = lambda: made.task(config, tmp_path, 32)
  task = opened()
  dev = task.splits['dev']
  assert 'metrics mrr' in task.report()
  best = {'row': np.stack([1 - dev.labels, dev.labels], axis=1).astype(np.float32)}
  assert kind.score(('mrr', 'map'), task, dev, best) == {'mrr': 1.0, 'map': 1.0}
  usual = kind.score(('mrr', 'map'), task, dev, task.kind.constant(task, dev))
  assert usual == {'mrr': 0.5, 'map': 0.5}
  config.source.example = ''
  with pytest.raises(
    errors.UserError, match="'mrr', which compares .* --config.source.example=NAME"
  ):
    opened().report()
