"""Files of tagged sentences: layouts, traps, schemes."""

import made
import pytest

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.tasks.reading import tagged

CONLL = '-DOCSTART- -X- -X- O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP I-PER\n'
CONLLU = dict(name='train.conllu', word=1, tag=3)


def read(folder, train, name='train.txt', **fields):
  made.write(folder, **{name.replace('.', '_'): train})
  return made.source(folder, parts.conll(**{'files': {'train': name}, **fields}))


def words_and_tags(source, split='train'):
  own = source.splits[split]
  return [(words, tags) for words, tags, _ in own.values]


WANTED = [(['EU', 'rejects'], ['I-ORG', 'O']), (['Peter'], ['I-PER'])]


@pytest.mark.parametrize(
  'text',
  [
    *(CONLL, CONLL.rstrip('\n'), '\ufeff' + CONLL),
    *(CONLL.replace('\n', end) for end in ('\r\n', '\r')),
    *(CONLL.replace(' ', blank) for blank in ('\t', '   ')),
    CONLL.replace('\n\n', '\n \t\n\n'),
    CONLL + '\n\n\n',
    CONLL.removeprefix('-DOCSTART- -X- -X- O\n\n'),
  ],
)
def test_a_conll_file_is_read_whatever_its_line_ends_marks_and_blanks(tmp_path, text):
  source = read(tmp_path, text)
  assert words_and_tags(source) == WANTED
  assert source.splits['train'].ids == ['0', '1']


def test_columns_are_numbers_from_either_side(tmp_path):
  source = read(tmp_path, CONLL, word=-4, tag=1)
  assert words_and_tags(source) == [(['EU', 'rejects'], ['NNP', 'VBZ']), (['Peter'], ['NNP'])]
  assert source.splits['train'].values[0].scheme == 'none'


def test_universal_dependencies_leave_out_comments_ranges_and_empty_nodes(tmp_path):
  line = lambda i, word, tag: '\t'.join([i, word, '_', tag, *['_'] * 6]) + '\n'
  rows = '1-2 vámonos _, 1 vamos VERB, 2 nos PRON, 2.1 ghost NOUN, 3 10\xa0000 NUM'
  text = '# sent_id = 1\n# text = vámonos #1\n'
  text += ''.join(line(*row.split(' ')) for row in rows.split(', '))
  text += '\n# second\n' + line('1', '#', 'SYM')
  source = read(tmp_path, text.replace('\xa0', ' '), **CONLLU)
  assert words_and_tags(source) == [
    (['vamos', 'nos', '10 000'], ['VERB', 'PRON', 'NUM']),
    (['#'], ['SYM']),
  ]


def test_msra_s_characters_are_read_from_lines_and_from_a_table(tmp_path):
  wanted = [(['海', ' ', '钓'], ['B-LOC', 'O', 'O']), (['比'], ['O'])]
  mark = '\x02'
  table = f'text_a\tlabel\n海{mark} {mark}钓\tB-LOC{mark}O{mark}O\n比\tO\n'
  assert words_and_tags(read(tmp_path, table)) == wanted
  assert words_and_tags(read(tmp_path, table.replace('\n', '\r\n').removesuffix('\r\n'))) == wanted
  lines = '海 B-LOC\n  O\n钓 O\n\n比 O\n'
  assert words_and_tags(read(tmp_path, lines)) == wanted
  # with tabs, a word may be a blank, or nothing at all
  tabs = '海\tB-LOC\n \tO\n钓\tO\n\n比\tO\n'
  assert words_and_tags(read(tmp_path, tabs)) == wanted
  assert words_and_tags(read(tmp_path, tabs.replace('\n \t', '\n\t')))[0][0] == ['海', '', '钓']


def test_a_prefix_of_all_words_is_left_out(tmp_path):
  source = read(tmp_path, 'en:Rome\tB-LOC\nen:.\tO\n', prefix='en:')
  assert source.splits['train'].column('words') == [['Rome', '.']]


@pytest.mark.parametrize(
  'content, fields, problem',
  [
    (CONLL, dict(tag=4), 'source.tag=4, and .*train.txt, line 3 has 4 columns'),
    (CONLL, dict(word=-5), 'source.word=-5'),
    ('1\tword\n', CONLLU, 'line 1 has 2 columns'),
    ('b O\nc X O\n\n' * 2 + 'a O\n', {}, '2 of 3 sentences'),
    ('a\tO\nb\t\n', dict(separator='\t'), "'b' has no tag"),
    ('\n\n', {}, 'has no sentence'),
    (CONLL, dict(tag=1, convert='iob2'), 'have no scheme'),
    ('EU\nrejects\n\n', {}, 'are the same column'),
    ('a,O\nb,B-X\n\n', dict(separator=''), 'separator is empty'),
  ],
)
def test_files_without_columns_of_words_and_tags_are_refused(tmp_path, content, fields, problem):
  with pytest.raises(errors.UserError, match=problem):
    read(tmp_path, content, **fields)


def test_the_scheme_is_told_and_impossible_tags_are_counted_with_their_first_place(tmp_path):
  source = read(tmp_path, 'a B-X\nb I-X\nc O\nd I-X\n\ne I-Y\n\n' + 'f B-X\n\n' * 9)
  assert any('scheme iob2 (found' in n for n in source.notes)
  (said,) = [n for n in source.notes if 'impossible' in n]
  assert "2 tags are impossible in the scheme iob2, the first is 'I-X' of word 4 ('d')" in said
  assert 'train.txt, line 1' in said
  source = read(tmp_path, 'a B-X\nb I-X\n', scheme='iob1')
  assert any('1 tags are impossible in the scheme iob1' in n for n in source.notes)
  source = read(tmp_path, 'a B-X\nb M-X\nc E-X\nd O\n\n')
  assert any('the prefix M-: no scheme has it' in note for note in source.notes)
  source = read(tmp_path, 'a -LRB-\nb NN\nc E-X\nd O\n\n')
  assert not any('no scheme has it' in note for note in source.notes)


def test_tags_are_converted(tmp_path):
  source = read(tmp_path, CONLL, convert='bioes')
  assert source.splits['train'].labels == [['S-ORG', 'O'], ['S-PER']]
  assert source.splits['train'].values[0].scheme == 'bioes'


def test_a_test_file_of_words_alone_has_no_tags(tmp_path):
  made.write(tmp_path, test_txt='EU\nrejects\n\nPeter\n')
  source = read(tmp_path, CONLL, files={'train': 'train.txt', 'test': 'test.txt'})
  assert source.splits['test'].labels is None
  assert source.splits['test'].column('words') == [['EU', 'rejects'], ['Peter']]
  assert source.read(tmp_path / 'train.txt').labels is None


def test_a_written_file_is_read_again(tmp_path):
  words, tags = [['a b', 'c'], ['d']], [['B-X', 'I-X'], ['O']]
  text = tagged.written(words, tags)
  assert words_and_tags(read(tmp_path, text)) == list(zip(words, tags))
  three = tagged.written(words, tags, tags)
  assert three.splitlines()[0] == 'a b\tB-X\tB-X'
  assert tagged.written([['a\tb\nc']], [['O']]) == 'a b c\tO\n\n'


def test_examples_are_taken_by_number_and_equal_ones_have_equal_keys(tmp_path):
  own = read(tmp_path, 'a O\nb O\n\na O\nb X\n\nab O\n').splits['train']
  assert own.keys[0] == own.keys[1] != own.keys[2]
  some = own.take([2, 0])
  assert some.column('words') == [['ab'], ['a', 'b']] and some.ids == ['2', '0']
  assert sum(map(len, some.labels)) == 3
