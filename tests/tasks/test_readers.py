import gzip
import json
import re
import warnings

import made
import pyarrow
import pytest
from pyarrow import parquet

from bertzoo_jax.common import errors

POINTER = 'version https://git-lfs.github.com/spec/v1\noid sha256:ab12\nsize 146946961\n'
ANNEX = '../../.git/annex/objects/W8/SHA256E-s99--ab12.tsv/SHA256E-s99--ab12.tsv\n'
PAGE = '<!DOCTYPE html>\n<html><head><title>T</title></head><body>text\tlabel</body></html>\n'
SERVER = '<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>\n'


def lines(*rows):
  return '\n'.join(rows) + '\n'


def of_json(*values, key='label'):
  rows = ({'text': f't {i}', 'label': 'x', key: v} for i, v in enumerate(values))
  return lines(*map(json.dumps, rows))


def of_parquet(about=None, **columns):
  out, table = pyarrow.BufferOutputStream(), pyarrow.table(columns)
  parquet.write_table(table.replace_schema_metadata(about), out)
  return out.getvalue().to_pybytes()


def of_datasets(names, *labels):
  """A parquet file with names of classes, as the package `datasets` writes them."""
  label = {'names': names, '_type': 'ClassLabel'}
  features = {'label': label, 'ner_tags': {'feature': label, '_type': 'Sequence'}}
  about = {'huggingface': json.dumps({'info': {'features': features}})}
  words = [f't {i}' for i in range(len(labels))]
  tags = dict(tokens=[[w] for w in words], ner_tags=[[i] for i in labels])
  return of_parquet(about, text=words, label=labels, **tags)


def opened(folder, name, content, argument='classify', **source):
  (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
  return made.opened(folder, argument, dict(train=name, dev=name), **source)


NAN = float('nan')
WORDS, TAGS = ['Anna', 'left'], ['B-PER', 'O']
HEAD, A, B = 'text\tlabel', 'one\tx', 'two\ty'
CLASSES = [
  # what is missing: null, NaN
  ('train.jsonl', of_json('x', NAN, 'y'), 'line 2 has no label'),
  ('train.jsonl', of_json('x', 'y', None), 'line 3 has no label'),
  ('train.parquet', of_parquet(text=['a', 'b'], label=['x', None]), 'row 2 has no label'),
  ('train.csv', 'text,label\na,0.0\nb,\nc,1.0\n', 'line 3 has no label'),
  ('train.csv', 'text,label\na,x\nb,nan\nc,y\n', "line 3 has no label, but 'nan'.*leave_out"),
  # a list is no class
  ('train.jsonl', of_json(['joy'], ['joy', 'anger']), 'line 1, .*a list, no label.*:multilabel'),
  ('train.jsonl', of_json('joy', {'a': 1}), 'line 2, .*holds a dict'),
  ('train.csv', "text,label\na,x\nb,\"['x', 'y']\"\n", 'line 3 has .*a list'),
  ('train.tsv', lines(HEAD, A, 'two\t[1 0 1]'), 'line 3 has .*a list'),
  # one label in two spellings
  ('train.jsonl', of_json(1, 2, 1.0), "line 3 has the label '1.0', and other rows have '1'"),
  ('train.jsonl', of_json(True, False, 'True'), 'spell both alike'),
  ('train.tsv', lines(HEAD, 'a\tJoy', 'b\tjoy', 'c\tx'), "the label 'joy', .*have 'Joy'"),
  ('train.tsv', lines(HEAD, 'a\tcaf\u00e9', 'b\tcafe\u0301', 'c\tx'), 'spell both alike'),
  ('train.tsv', lines(HEAD, 'a\t\ufeffjoy', 'b\tjoy', 'c\tx'), r"the label '\\ufeffjoy'"),
  # a number that stands for no label
  ('train.csv', 'text,label\na,0\nb,1\nc,-1\nd,2\n', "line 4 has .*'-1'.*leave_out=\"\\('-1',"),
  ('train.jsonl', of_json(0, 1, 2, -100), "line 4 has no label, but '-100'"),
  ('train.parquet', of_datasets(['no', 'yes'], 0, -1, 1), "row 2 has no label, but '-1'"),
  # quotes that pandas and Excel write in files with tabs
  ('train.tsv', lines(HEAD, A, '"He said ""b"""\ty'), 'line 3: quotes enclose.*quotes=double'),
  ('train.tsv', lines(HEAD, A, '"two\nthree"\ty', A), 'line 3: quotes enclose'),
  ('train.tsv', lines('"text"\t"label"', '"one"\t"x"', '"two"\t"y"'), 'line 1: quotes enclose'),
  # single quotes
  ('train.csv', "text,label\n'one, two',x\nb,y\n", 'line 2: .*quotes=single, or double if'),
  ('train.tsv', lines(HEAD, "'one'\tx", "'two'\ty"), 'line 2: .*quotes=single, or none if'),
  # other marks between fields
  ('train.csv', 'text;label\na;0\nb;1\n', "has ';' between .*separator=';'"),
  ('train.csv', 'text\tlabel\na\t0\nb, c\t1\n', 'separator=.*t'),
  ('train.tsv', 'text,label\na,0\nb,1\n', "separator=','"),
  ('train.csv', 'sep=,\ntext,label\na,0\nb,1\n', "Excel's line sep=,"),
  # encodings
  ('train.tsv', 'text\tlabel\nétait\tx\n'.encode('latin1'), 'line 2, is not UTF-8.*LATIN1'),
  ('train.tsv', f'{HEAD}\n很好的电影\tx\n'.encode('gb18030'), 'line 2, is not UTF-8.*GB18030'),
  ('train.tsv', lines(HEAD, A, B).encode('utf-16'), 'UTF-16: convert'),
  # files that are not what they seem
  ('train.tsv', gzip.compress(b'0' * 99, mtime=0), 'gzip'),
  ('train.tsv', b'PK\x03\x04' + b'0' * 99, 'zip'),
  ('train.tsv', b'', 'no examples'),
  ('train.jsonl', b'', 'no examples'),
  ('train.tsv', b'text\tlabel\n', 'no examples'),
  *((f'train.{end}', POINTER, 'LFS pointer.*git lfs pull') for end in ('tsv', 'csv', 'jsonl')),
  ('train.tsv', ANNEX, 'git-annex pointer'),
  ('train.csv', PAGE, 'web page'),
  ('train.json', '\ufeff\n<!-- x -->\n<html lang="en">', 'web page'),
  ('train.tsv', SERVER, "a server's refusal"),
  ('train.parquet', 'text,label\na,x\n', 'is not what its name says'),
  ('train.parquet', of_parquet(text=['a'] * 99, label=['x'] * 99)[:-20], 'not a complete parquet'),
]


def test_none_is_a_label_among_words_and_spellings_of_one_are_joined_as_the_remedy_says(tmp_path):
  content = 'text,label\na,none\nb,1\nc,many\nd,Many\n'
  with pytest.raises(errors.UserError, match=r"\(…, 'Many\|many', …\)"):
    opened(tmp_path, 'train.csv', content)
  given = ('none', '1', 'Many|many')
  assert opened(tmp_path, 'train.csv', content, labels=given).labels == ('none', '1', 'Many')


@pytest.mark.parametrize(
  'name, content, texts',
  [
    ('train.jsonl', of_json('a', NAN, None, key='text'), ['a', '', '']),
    ('train.parquet', of_parquet(text=[1.5, NAN], label=['x', 'x']), ['1.5', '']),
    ('train.csv', 'text,label\nNA,x\nnan,x\nnull,x\n', ['NA', 'nan', 'null']),
    # quotes that are a part of the texts, as in GLUE
    ('train.tsv', lines(HEAD, '"so" he said\tx', 'the "end\tx'), ['"so" he said', 'the "end']),
    ('train.tsv', lines(HEAD, '"good"\tx', 'fine, or not\tx'), ['"good"', 'fine, or not']),
    ('train.tsv', lines(HEAD, '"good\tx', 'film"\tx'), ['"good', 'film"']),
    ('train.tsv', lines(HEAD, '""a"" b\tx', '"\tx'), ['""a"" b', '"']),
    ('train.csv', 'text,label\na; b,x\nc,x\n', ['a; b', 'c']),
    ('train.csv', "text,label\n'tis so,x\n'twas,x\n", ["'tis so", "'twas"]),
    ('train.csv', "text,label\n'good',x\nit's,x\n", ["'good'", "it's"]),
    ('train.tsv', lines(HEAD, "'So', he said\tx", "the 'end'\tx"), ["'So', he said", "the 'end'"]),
  ],
)
def test_texts_stay_as_they_are_written(tmp_path, name, content, texts):
  train = opened(tmp_path, name, content, labels=('x', 'y')).splits['train']
  assert train.source.column('a') == texts


def test_quotes_are_read_where_the_config_says_so_and_ids_do_not_shift(tmp_path):
  content = lines(HEAD, '"He ""said"""\tx', '"two\nthree"\ty', 'four\tx')
  train = opened(tmp_path, 'train.tsv', content, quotes='double').splits['train']
  assert train.source.column('a') == ['He "said"', 'two\nthree', 'four']
  assert train.examples == ['0', '1', '2']
  content = "text,label\n'He, it''s \"me\"',x\ntwo,'y'\n"
  train = opened(tmp_path, 'train.csv', content, quotes='single').splits['train']
  assert train.source.column('a') == ['He, it\'s "me"', 'two'] and train.source.labels[1] == ('y',)


@pytest.mark.parametrize(
  'content, words',
  [
    ('10\u2009000 CD O\na N B-X\n\n', ['10\u2009000', 'a']),
    ('\u3000 O\na B-X\n\n', ['\u3000', 'a']),
    ('a\x85b O\na B-X\n\n', ['a\x85b', 'a']),
    ('a\u2028b\tO\na\tB-X\n', ['a\u2028b', 'a']),
    ('a  O\nb \tB-X  \nc O\n', ['a', 'b', 'c']),
    ('a O\nb B-X\n\u200b\nc O\n', ['a', 'b']),  # a line without anything visible is empty
    ('\ufeffa O\nb B-X\n\n', ['a', 'b']),
    ('a O\nb B-X\n\n\ufeffc O\n', ['a', 'b']),
  ],
)
def test_columns_of_tags_are_parted_by_blanks_and_tabs_alone(tmp_path, content, words):
  train = opened(tmp_path, 'train.txt', content, 'tag').splits['train']
  assert train.source.column('words')[0] == words
  assert not [word for own in train.source.column('words') for word in own if '\ufeff' in word]


def test_a_type_may_end_as_a_prefix_does(tmp_path):
  for tag in ('B-Hepatitis-B', 'B-I', 'B-part_s'):
    task = opened(tmp_path, 'train.txt', f'a O\nAnna {tag}\n', 'tag')
    assert task.labels == ('O', tag, f'I{tag[1:]}')


def test_classes_have_the_names_that_a_parquet_file_gives_them(tmp_path):
  file = tmp_path, 'train.parquet'
  of = lambda argument, names, *labels: opened(*file, of_datasets(names, *labels), argument)
  assert of('classify', ['no', 'yes'], 0, 1, 1).labels == ('no', 'yes')
  assert of('classify', ['same', 'neutral', 'against'], 2, 0).labels == ('against', 'same')
  assert of('tag', ['O', 'B-PER'], 0, 1).labels == ('O', 'B-PER', 'I-PER')


def test_numbers_below_0_are_opinions_where_they_may_be(tmp_path):
  for labels in ((-1, 1), (-1, 0, 1), (-2, -1, 0, 1, 2), ('-1', '0', '1', 'x')):
    given = dict(labels=labels) if 'x' in labels else {}
    task = opened(tmp_path, 'train.jsonl', of_json(*labels), **given)
    assert task.labels == tuple(map(str, labels))


@pytest.mark.parametrize(
  'rows, fields',
  [
    ([dict(id='0', tokens=WORDS, ner_tags=TAGS)], {}),
    ([dict(words=WORDS, labels=TAGS)], {}),
    ([dict(tokens=WORDS, ner_tags=[1, 0])], dict(labels=('O', 'B-PER'))),
    ([dict(tokens=WORDS, tags=TAGS), 'no object', dict(tokens=['a'], tags=['O'])], {}),
  ],
)
@pytest.mark.parametrize('name', ['train.jsonl', 'train.json', 'train.parquet'])
def test_tags_are_read_from_rows_of_lists(tmp_path, name, rows, fields):
  content = lines(*map(json.dumps, rows))
  if name == 'train.parquet':
    rows = [row for row in rows if isinstance(row, dict)]
    content = of_parquet(**{key: [row[key] for row in rows] for key in rows[0]})
  task = opened(tmp_path, name, content, 'tag', **fields)
  train = task.splits['train'].source
  assert train.values[0] == (WORDS, TAGS, 'iob2')
  assert task.read(tmp_path / name).source.labels is None
  assert len(rows) == 1 or 'parquet' in name or '1 line of train.json' in '\n'.join(task.notes)


QUESTIONS = [
  ('train.jsonl.gz', POINTER, 'LFS pointer'),
  ('train.jsonl.gz', gzip.compress(PAGE.encode(), mtime=0), 'web page'),
  ('train.jsonl.gz', '{"context": "a", "qas": []}\n', 'is not what its name says'),
  ('train.json', gzip.compress(POINTER.encode(), mtime=0), 'LFS pointer'),
]
# Tags of the words of a sentence; the first or second is spelled in another way than O, B- and I-.
SPELLED = 'o b-per i-per, O b-PER, 0 B-PER, O B_PER I_PER, o B-PER, O B:PER I:PER, O PER-B PER-I'
SPELLED += ', O per_s, O PER/B PER/I, O B/PER I/PER'
TAGGED = [
  *(
    ('train.txt', lines(*(f'w {tag}' for tag in tags.split())), 'has another spelling than O, B-')
    for tags in SPELLED.split(', ')
  ),
  ('train.txt', 'a o\nb b-per\n', "The tag 'b-per' has another"),
  *(
    ('train.jsonl', json.dumps(row), problem)
    for row, problem in (
      (dict(tokens=WORDS, ner_tags=[1, 0]), 'has the tag 1, .*0 names: give .*source.labels'),
      (dict(tokens=WORDS, ner_tags=[-100, -1]), "word 'Anna' has the tag -100.*write one, as O"),
      (dict(tokens=WORDS, ner_tags=['O', '-1']), "the word 'left' has the tag -1"),
      (dict(tokens=WORDS, ner_tags=['O']), '2 words and 1 tags'),
      (dict(tokens='Anna left', ner_tags=TAGS), 'holds no list'),
      (dict(tokens=WORDS, ner_tags=TAGS, pos_tags=TAGS), r'several names \(ner_tags, pos_tags\)'),
      (dict(text=WORDS, ner_tags=TAGS), "has 'text', 'ner_tags': .*tokens, words"),
      (dict(tokens=WORDS, ner_tags=['O', None]), "the word 'left' has no tag"),
      (dict(tokens=WORDS, ner_tags=['O', ['O']]), 'a list, no label'),
      (dict(), 'has no sentence'),
    )
  ),
]
REFUSED = [('classify', *row) for row in CLASSES]
REFUSED += [('qa', *row) for row in QUESTIONS] + [('tag', *row) for row in TAGGED]


@pytest.mark.parametrize('argument, name, content, problem', REFUSED)
def test_a_file_that_would_be_read_wrongly_is_refused_with_the_remedy(
  tmp_path, argument, name, content, problem
):
  with pytest.raises(errors.UserError, match=problem):
    opened(tmp_path, name, content, argument)


GAP, GAPS = 'without a text left out', 'text,n\na,1\n,\nb,2\n\n,\n,\n,\n'
MSRA = 'a\x02b\tO\x02O\na\x02b\tO\nc\tO\n'
LOST = [  # kind of task, a file to predict, its content, rows, what is said of the others
  ('classify', 'new.csv', 'text,label\na,x\nb, c,x\nd,x\n', '02', 'line of new.csv with more .* 3'),
  ('classify', 'new.jsonl', '{"text": "a"}\n{"x": 1}\n{\n{"text": "b"}\n', '03', "key 'text'.* 2"),
  ('classify', 'new.csv', 'text\na\n""\nb\n"  "\nc\n', '01234', ''),
  ('classify', 'new.csv', 'text\na\n\nb\n\n\n', '02', f'1 line of new.csv {GAP}.* 3'),
  ('classify', 'new.tsv', 'text\na\n  \n\nb\n', '03', f'2 lines of new.tsv {GAP}.* 3'),
  ('classify', 'new.csv', GAPS, '02', f'4 lines of new.csv {GAP}.* 3'),
  ('classify', 'new.tsv', 'text\tl\na\tx\nb\tx\t\nc\tx\n', '02', 'more fields than 2 left .* 3'),
  ('chosen', 'new.tsv', 'text\tl\na\tx\nb\ty\nc\tx\n', '012', ''),
  ('tag', 'new.txt', 'a O\n\nb O\nc O x\n\nd O\n', '02', '1 sentence .* of 2 and of 3 .*line 4'),
  ('tag', 'new.txt', MSRA, '02', '1 sentence of new.txt with another number of tags.* line 2'),
  ('qa', 'new.jsonl', '{"question": "q", "context": "c", "answers": []}\n' * 2, '01', ''),
]


@pytest.mark.parametrize('argument, name, content, ids, note', LOST)
def test_each_row_of_a_file_to_predict_has_its_number_or_is_named(
  tmp_path, argument, name, content, ids, note
):
  (tmp_path / name).write_text(content)
  fields = dict(chosen=dict(where=(('l', 'x'),)), qa=dict(leave_out=('unanswerable',)))
  section = made.config(argument.replace('chosen', 'classify'), **fields.get(argument, {})).source
  section = {**section, 'files': None}
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    examples = made.source(tmp_path, section).read(str(tmp_path / name))
  assert examples.ids == list(ids)
  notes = [str(one.message) for one in caught]
  assert re.search(note, ' '.join(notes)) and bool(note) == bool(notes)
