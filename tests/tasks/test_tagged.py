import made
import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.tasks import batches
from bertzoo_jax.tasks import features
from bertzoo_jax.tasks import frames
from bertzoo_jax.tasks.kinds import kind as kinds
from bertzoo_jax.tasks.reading import tagged
from configs.tasks import tags as tag_configs
from tests.found import call_part

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
  first = ['vamos', 'nos', '10 000'], ['VERB', 'PRON', 'NUM']
  assert words_and_tags(source) == [first, (['#'], ['SYM'])]


def test_msra_s_characters_are_read_from_lines_and_from_a_table(tmp_path):
  wanted = [(['海', ' ', '钓'], ['B-LOC', 'O', 'O']), (['比'], ['O'])]
  mark = '\x02'
  table = f'text_a\tlabel\n海{mark} {mark}钓\tB-LOC{mark}O{mark}O\n比\tO\n'
  assert words_and_tags(read(tmp_path, table)) == wanted
  assert words_and_tags(read(tmp_path, table.replace('\n', '\r\n').removesuffix('\r\n'))) == wanted
  lines = '海 B-LOC\n  O\n钓 O\n\n比 O\n'
  assert words_and_tags(read(tmp_path, lines)) == wanted
  prefixed = read(tmp_path, 'en:Rome\tB-LOC\nen:.\tO\n', prefix='en:')
  assert prefixed.splits['train'].column('words') == [['Rome', '.']]
  # with tabs, a word may be a blank, or nothing at all
  tabs = '海\tB-LOC\n \tO\n钓\tO\n\n比\tO\n'
  assert words_and_tags(read(tmp_path, tabs)) == wanted
  assert words_and_tags(read(tmp_path, tabs.replace('\n \t', '\n\t')))[0][0] == ['海', '', '钓']


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


SPECIAL = made.Characters.special
TRAIN = 'ab B-X\nc I-X\n~ O\nd O\n\ne B-Y\n\nf O\ng O\n'
LAST = 'A:0 sep:0 cls:2'


def made_rows(sentences, length, overlap, single='cls:0 A:0 sep:0', numbers=None):
  examples = made.examples(*map(tagged.Sentence, sentences))
  frame = frames.Frame(single, made.SHAPE.pair, SPECIAL, 2, length)
  return call_part(features, 'words', examples, numbers, made.Characters(), frame, overlap=overlap)


def opened(folder, train=TRAIN, length=16, dev=None, test=None, **source):
  made.write(folder, train_txt=train, dev_txt=dev or train, test_txt=test or '')
  files = dict(train='train.txt', dev='dev.txt', test='test.txt' if test else '')
  return made.opened(folder, 'tag', files, length=length, **source)


@pytest.mark.parametrize('single', ['cls:0 A:0 sep:0', LAST])
@pytest.mark.parametrize('overlap', [0, 1, 3])
@pytest.mark.parametrize('length', [6, 7, 9, 30])
def test_every_word_is_in_a_row_whole_sentences_are_kept_and_words_have_most_context(
  length, overlap, single
):
  rng = np.random.default_rng(length)
  word = lambda: ''.join(rng.choice(list('abcdefg'), rng.integers(1, 4)))
  sentences = [[word() for _ in range(n)] for n in rng.integers(1, 14, 40)]
  rows = made_rows(sentences, length, overlap, single)
  begin, room, row = int(single != LAST), length - 2, 0
  assert (rows.uncut == np.diff(rows.offsets)).all()
  for s, (ids, of_word) in enumerate(made.Characters().encode_words(sentences)):
    last = max(0, len(ids) - room)  # where the last window begins, which ends with the sentence
    starts = [*range(0, last, room - overlap), last]
    assert rows.detail.windows[s] == len(starts)
    for n, a in enumerate(starts):
      window = rows.ids[rows.offsets[row + n] : rows.offsets[row + n + 1]]
      assert window[begin : len(window) - 2 + begin].tolist() == ids[a : a + room].tolist()
    places = rows.detail.first[rows.detail.sentences[s] : rows.detail.sentences[s + 1]]
    for word, place in enumerate(places):
      token = int(np.flatnonzero(of_word == word)[0])
      ends = [min(a + room, len(ids)) - 1 for a in starts]
      best = int(np.argmax([min(token - a, end - token) for a, end in zip(starts, ends)]))
      assert place == rows.offsets[row + best] + begin + token - starts[best]
    row += len(starts)
  assert row == len(rows.offsets) - 1


def test_labels_are_at_first_tokens_and_words_without_tokens_have_none():
  rows = made_rows([['ab', '~', 'c'], ['~']], 9, 0, numbers=np.array([3, 4, 5, 6], np.int32))
  assert rows.labels.tolist() == [-1, 3, -1, 5, -1, -1, -1]
  assert rows.detail.first.tolist() == [1, -1, 3, -1]
  assert rows.segments.tolist() == [0] * 7
  last = made_rows([['ab']], 9, 0, LAST)
  assert last.ids.tolist()[2:] == [3, 2] and last.segments.tolist() == [0, 0, 0, 2]


def test_a_task_of_tags_has_labels_of_its_scheme_and_weights_at_first_tokens(tmp_path):
  task = opened(tmp_path)
  assert task.labels == ('O', 'B-X', 'I-X', 'B-Y', 'I-Y')
  assert task.kind.name == 'tagging' and len(task.splits['train']) == 3
  train, rows = task.splits['train'], np.array([0, 1, 2])
  batch = batches.gathered(train, rows, length=8, padding='left', pad=0)
  assert batch['labels'][0].tolist() == [0, 0, 0, 1, 0, 2, 0, 0]
  assert batch['label_weights'][0].tolist() == [0, 0, 0, 1, 0, 1, 1, 0]
  report = task.report()
  assert '2 types of entities (iob2, 5 tags)' in report
  assert "1 words have no token, the first is '~' in train.txt, line 1" in report
  assert "always 'O'), accuracy: dev 50.0%" in report


def test_scores_take_every_word_and_predictions_are_written_as_columns(tmp_path):
  task = opened(tmp_path, test='ab\n~\n\ne\n')
  dev = task.splits['dev']
  perfect = np.eye(5, dtype=np.float32)[np.maximum(dev.labels, 0)]
  names = ('entity_f1', 'strict_f1', 'entity_recall', 'accuracy')
  assert kinds.score(names, task, dev, {'tag': perfect}) == dict.fromkeys(names, 1.0)
  usual = task.kind.constant(task, dev)
  found = kinds.score(names, task, dev, usual)
  assert found['accuracy'] == pytest.approx(4 / 7) and found['entity_f1'] == 0
  test = task.splits['test']
  said = np.zeros((len(test.ids), 5), np.float32)
  said[test.detail.first[0], 3] = 1
  first = pytest.approx(np.e / (np.e + 4), abs=1e-6)
  assert task.kind.answers(task, test, {'tag': said}) == [
    dict(example='0', words=['ab', '~'], tags=['B-Y', 'O'], probabilities=[first, None]),
    dict(example='1', words=['e'], tags=['O'], probabilities=[0.2]),
  ]
  assert task.kind.submission(task, test, {'tag': said}, 'x') == {'x': 'ab\tB-Y\n~\tO\n\ne\tO\n\n'}
  text = task.kind.submission(task, dev, {'tag': perfect}, 'x')['x']
  assert text.startswith('ab\tB-X\tB-X\nc\tI-X\tI-X\n~\tO\tO\n')


def test_tags_that_train_lacks_count_as_wrong_and_are_not_learned(tmp_path):
  task = opened(tmp_path, dev='a B-Z\nb O\n')
  dev = task.splits['dev']
  assert sorted(dev.labels.tolist()) == [-1, -1, -1, 0]
  assert any("1 words have a tag that train lacks ('B-Z')" in n for n in task.notes)
  found = kinds.score(('accuracy',), task, dev, task.kind.constant(task, dev))
  assert found['accuracy'] == 0.5


@pytest.mark.parametrize('name', ['conll2003', 'wikiann', 'ud_pos'])
def test_datasets_of_tensorflow_datasets_give_words_and_tags(name):
  tfds = pytest.importorskip('tensorflow_datasets')
  tf = pytest.importorskip('tensorflow')
  config = tag_configs.get_config(f'{name},source=tfds_tags')
  words_of = lambda i: [f'w{i}', 'Zürich'.encode(), '!']

  def records(builder, **kwargs):
    feature = builder.info.features[config.source.tags].feature
    tags = np.arange(27).reshape(9, 3) % feature.num_classes
    own = {'tokens': [words_of(i) for i in range(9)], config.source.tags: tags}
    return tf.data.Dataset.from_tensor_slices(own)

  with tfds.testing.mock_data(num_examples=9, as_dataset_fn=records):
    task = made.task(config, '', 128)
    with pytest.raises(errors.UserError, match="source.tags names the feature 'tag'"):
      config.source.tags = 'tag'
      made.task(config, '', 128)
  assert {n: len(s.source) for n, s in task.splits.items()} == dict(train=9, dev=9, test=9)
  assert ('B-PER' in task.labels) == (name != 'ud_pos')
  assert task.splits['dev'].source.column('words')[1] == ['w1', 'Zürich', '!']


SCHEMES = 'a O\nb E-X\n\nc O\nd B-X\n\n'


@pytest.mark.parametrize(
  'refused, problem',
  [
    (lambda folder: made_rows([['a']], 6, 4), 'overlap=4, and a row of config.length=6 .* 4 token'),
    (lambda folder: made_rows([['a']], 2, 0), 'leaves no room'),
    (lambda folder: opened(folder, 'a NOUN\nb VERB\n'), "'entity_f1', which is of entities"),
    (lambda folder: opened(folder, 'a NOUN\nb NOUN\n'), 'nothing to learn'),
    (lambda folder: opened(folder, SCHEMES, scheme='iob2'), "'E-X', which is not in the"),
  ],
)
def test_rows_without_room_and_tags_that_do_not_fit_are_refused(tmp_path, refused, problem):
  with pytest.raises(errors.UserError, match=problem):
    refused(tmp_path)
