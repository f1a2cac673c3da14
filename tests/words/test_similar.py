import os

import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus
from bertzoo_jax.words import similar
from bertzoo_jax.words import word_marks
from bertzoo_jax.words.similar import providers
from bertzoo_jax.words.similar import words as words_lib
from tests import commands

LETTERS = '。.甲乙丙丁戊己庚辛壬癸人类生全士物手员abc'


class Characters:
  """A tokenizer of single characters; blanks are none, unknown ones are [UNK]; Latin letters
  continue a word.
  """

  special = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
  word_starts = np.array([True] * 5 + [c not in 'bc' for c in LETTERS])

  def encode(self, texts):
    number = lambda c: LETTERS.find(c) + 5 if c in LETTERS else 1
    return [np.array([number(c) for c in t if c != ' '], np.int32) for t in texts]


TOKENIZER = Characters()


def ids(word):
  return TOKENIZER.encode([word])[0].tolist()


def row(word):
  return ids(word) + [-1] * (8 - len(word))


def text(words_KM):
  return [''.join(LETTERS[i - 5] for i in r if i >= 0) for r in np.asarray(words_KM)]


def written(folder, sentences):
  """A corpus of one shard; a sentence is its words, parted by blanks."""
  (folder / 'train').mkdir(parents=True, exist_ok=True)
  tokens = [i for s in sentences for i in ids(s.replace(' ', ''))]
  marks = [j > 0 for s in sentences for w in s.split(' ') for j in range(len(w))]
  starts = np.cumsum([0] + [len(s.replace(' ', '')) for s in sentences])
  units = np.array(marks, np.uint8) * word_marks.CONTINUES_WORD
  shard = np.array(tokens), starts, np.array([0, len(sentences)]), 5 + len(LETTERS)
  corpus.write_shard(folder / 'train', '00000', *shard, units=units)
  return folder


def table_of(groups, frequent):
  """A table in which the words of a group are similar to each other."""
  words = [w for group in groups for w in group]
  rows = np.array([row(w) for w in words], np.int32)
  others = lambda w, group: [words.index(v) for v in group if v != w and len(v) == len(w)]
  alike = np.array([(others(w, group) + [-1] * 10)[:10] for group in groups for w in group])
  often = np.array([row(w) for w in frequent], np.int32).reshape(-1, 8)
  return similar._table(words_lib.Counted(often, np.ones(len(often)), 1, None), rows, alike)


def test_a_thesaurus_gives_synonyms_of_as_many_pieces_in_the_order_of_the_file(tmp_path):
  lines = (
    'Aa01A02= 人类 生人 全人类\r\nAa01A03= 人 士 人物 生人\nAa01B01# 甲乙 丙丁\nAa01C01@ 戊己\n'
  )
  (tmp_path / 't.txt').write_text(lines + '\n', encoding='utf-8')
  words, alike = providers.thesaurus(None, TOKENIZER, tmp_path / 't.txt')
  names = text(words)
  synonyms = [(n, ' '.join(names[i] for i in a if i >= 0)) for n, a in zip(names, alike)]
  wanted = '人类 生人|生人 人类 人物|全人类 |人 士|士 人|人物 生人'
  assert {*synonyms} == {tuple(x.split(' ', 1)) for x in wanted.split('|')}


@pytest.mark.parametrize('binary', [False, True])
def test_given_vectors_are_read_as_text_and_binary_and_sorted_by_cosine(tmp_path, binary):
  models = pytest.importorskip('gensim', reason='gensim is not installed').models
  given = models.KeyedVectors(2)
  names = ['甲乙', '丙丁', '戊己', '人', '庚辛', '壬癸', '未 知']
  places = [[1, 0], [1, 0.5], [1, 0.1], [1, 0], [-1, 0], [5, 0.2], [1, 0]]
  given.add_vectors(names, np.array(places, np.float32))
  given.save_word2vec_format(str(tmp_path / 'v'), binary=binary)
  known = np.array([row(w) for w in ('甲乙', '丙丁', '戊己', '人', '壬癸')], np.int32)
  counted = words_lib.Counted(known, None, 1, None)
  words, alike = providers.vectors(counted, TOKENIZER, tmp_path / 'v')
  names = text(words)
  assert [names[i] for i in alike[names.index('甲乙')] if i >= 0] == ['壬癸', '戊己', '丙丁']
  assert '庚辛' not in names and (alike[names.index('人')] == -1).all()


def test_trained_vectors_put_words_of_like_neighbours_first_and_are_the_same_bytes_everywhere(
  tmp_path,
):
  pytest.importorskip('gensim', reason='gensim is not installed')
  random = np.random.RandomState(0)
  frames = '丙丁 甲乙 戊己', '丙丁 人类 戊己', '壬癸 庚辛 生物', '壬癸 全士 生物'
  written(tmp_path, [' '.join([frames[i]] * 3) for i in random.randint(0, 4, 3000)])
  table = similar.build(parts.corpus(similar='trained'), tmp_path, TOKENIZER)
  names = text(table.words)
  order = [names[i] for i in table.similar[names.index('甲乙')] if i >= 0]
  assert len(order) == 7
  assert order.index('人类') < order.index('全士')
  assert order.index('人类') < order.index('庚辛')
  digests = similar.save(tmp_path / 'similar', table)
  code = (
    'import sys; sys.path.insert(0, sys.argv[2]); import pathlib, test_similar as t; p = '
    'pathlib.Path(sys.argv[1]); print(t.similar.save(p / "again", '
    't.similar.build(t.parts.corpus(similar="trained"), p, t.TOKENIZER)))'
  )
  out = commands.run(
    *('-c', code, str(tmp_path), os.path.dirname(__file__)),
    env=commands.environment(PYTHONHASHSEED='7'),
    check=True,
  )
  assert out.stdout.strip() == str(digests)


def test_words_are_counted_over_blocks_and_shards_as_at_once(tmp_path, monkeypatch):
  sentences = ['甲乙 丙', 'abc 甲乙', '丁', '甲乙 未', '甲乙丙丁戊己庚辛壬 癸'] * 7
  stream = words_lib.Stream(written(tmp_path, sentences), TOKENIZER.word_starts, [1])
  whole = words_lib.count(stream)
  # no unknown piece, none of nine
  counts = dict(zip(text(whole.words), whole.counts))
  assert counts == {'甲乙': 21, **dict.fromkeys(('丙', 'abc', '丁', '癸'), 7)}
  assert whole.sentences == len(sentences) and text(whole.words)[0] == '甲乙'
  monkeypatch.setattr(words_lib, '_BLOCK', 5)
  for a, b in zip(words_lib.count(stream)[:3], whole[:3]):
    np.testing.assert_array_equal(a, b)
  monkeypatch.setattr(words_lib, '_TOKENS', 40)
  assert 0 < words_lib.count(stream).sentences < len(sentences)
  # without marks words begin where their pieces say
  (tmp_path / 'plain/train').mkdir(parents=True)
  shard = np.array(ids('abcbc甲bc')), np.array([0, 3, 8]), np.array([0, 2]), 5 + len(LETTERS)
  corpus.write_shard(tmp_path / 'plain/train', '00000', *shard)
  counted = words_lib.count(words_lib.Stream(tmp_path / 'plain', TOKENIZER.word_starts, [1]))
  assert sorted(text(counted.words)) == ['abc', 'bc', '甲bc']


def test_a_word_is_found_by_its_pieces_and_gets_one_of_its_similar_words_uniformly():
  table = table_of([['甲乙', '丙丁', '戊己', '庚'], ['人', '士'], ['甲乙丙', '丁戊己']], ['全'])
  names = ['甲乙', '庚', '人', '丁戊己', '壬癸', '甲乙丙丁']
  words = np.array([row(n) for n in names], np.int32)
  words[0, 2:] = 7  # what lies behind a word does not matter
  sizes = np.array([len(n) for n in names], np.int32)
  random = np.random.RandomState(0).randint(0, 2**32, (6, 4000), np.uint32)
  pick = lambda w, s, r: similar.lookup(table, w, s, r)
  args = np.repeat(words, 4000, axis=0), np.repeat(sizes, 4000), random.reshape(-1)
  got, found = pick(*args)
  got, found = np.array(text(got)).reshape(6, 4000), found.reshape(6, 4000)
  for some in (found.all(axis=1), found.any(axis=1)):
    assert some.tolist() == [True, False, True, True, False, False]
  assert set(got[0]) == {'丙丁', '戊己'} and abs((got[0] == '丙丁').mean() - 0.5) < 0.04
  assert set(got[2]) == {'士'} and set(got[3]) == {'甲乙丙'} and set(got[4]) == {''}
  long = '甲乙丙丁戊己庚辛'
  table = table_of([[long, long[::-1]]], ['全'])
  sizes = np.array([8, 9, 0])  # too long, or empty
  words = np.array([row(long)] * 3, np.int32)
  _, known = similar.lookup(table, words, sizes, np.zeros(3, np.uint32))
  assert known.tolist() == [True, False, False]


def test_a_random_word_is_a_frequent_one_of_the_same_length():
  table = table_of([['甲乙', '丙丁']], ['人类', '生物', '全', '手', '员', '生全人'])
  sizes = np.repeat(np.array([1, 2, 3, 4, 9, 0], np.int32), 3000)
  random = np.random.RandomState(1).randint(0, 2**32, len(sizes), np.uint32)
  words, found = similar.random_words(table, sizes, random)
  got, found = np.array(text(words)).reshape(6, 3000), found.reshape(6, 3000)
  assert [set(g) for g in got[:3]] == [{'全', '手', '员'}, {'人类', '生物'}, {'生全人'}]
  assert set(got[3:].ravel()) == {''}
  assert abs((got[1] == '人类').mean() - 0.5) < 0.04
  assert found[:3].all() and not found[3:].any()
  assert table.report() == dict(words=8, with_similar=2, frequent=[3, 2, 1, 0, 0, 0, 0, 0])


def test_a_table_comes_back_from_disk_and_a_damaged_one_is_refused(tmp_path):
  table = table_of([['甲乙', '丙丁']], ['人'])
  digests = similar.save(tmp_path, table)
  again = similar.load(tmp_path)
  assert all((a == b).all() and a.dtype == b.dtype for a, b in zip(table, again))
  assert set(digests) == {f.name for f in tmp_path.iterdir()}
  assert all(len(d) == 64 for d in digests.values())
  assert (again.hashes[1:] > again.hashes[:-1]).all()
  np.save(tmp_path / 'similar.npy', table.similar[:1])
  with pytest.raises(errors.UserError, match='do not fit'):
    similar.load(tmp_path)
  (tmp_path / 'words.npy').unlink()
  with pytest.raises(errors.UserError, match='words.npy is missing'):
    similar.load(tmp_path)


REFUSED = [
  ('thesaurus', None, '--similar=FILE'),
  ('vectors', None, '--similar=FILE'),
  ('trained', 'x', 'is not read'),
  ('none', 'x', 'is not read'),
  ('thesaurus', 'missing.txt', 'cannot be read'),
  ('vectors', 'missing.bin', 'missing.bin'),
  ('thesaurus', 'bad.txt', 'Line 2 .* begins with'),
  ('thesaurus', 'other.txt', 'none has a similar one'),
  ('trained', None, 'too little text'),
]


def test_providers_and_files_that_do_not_fit_are_said(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'bad.txt').write_text('Aa= 甲 乙\n甲 乙\n', encoding='utf-8')
  (tmp_path / 'other.txt').write_text('Aa= 未 知\n', encoding='utf-8')
  written(tmp_path, ['甲 乙'])
  for name, file, sentence in REFUSED:
    with pytest.raises(errors.UserError, match=sentence):
      similar.build(parts.corpus(similar=name), tmp_path, TOKENIZER, file)
  assert similar.build(parts.corpus(), tmp_path, TOKENIZER) is None


VECTORS = [b'hello world\nfoo bar\n', b'', b'2 3\n\xff\xff', '2 2\n甲 1 2\n'.encode()]
VECTORS += ['甲 1 2\n乙 1\n'.encode(), b'1 9\n' + b'x' * 9000, b'1 2\nab ' + b'\0' * 4]


def test_text_vectors_without_a_first_line_are_read_and_a_file_that_holds_none_is_refused(tmp_path):
  (tmp_path / 'v').write_text('甲 1 0\n乙 1 .5\n丙 -1 0\n', encoding='utf-8')
  counted = words_lib.Counted(np.array([row(w) for w in '甲乙丙'], np.int32), None, 1, None)
  words, alike = providers.vectors(counted, TOKENIZER, tmp_path / 'v')
  assert [text(words)[i] for i in alike[0] if i >= 0] == ['乙', '丙']
  written(tmp_path, ['甲 乙'])
  for data in VECTORS:
    (tmp_path / 'v').write_bytes(data)
    with pytest.raises(errors.UserError, match='not a file of word vectors'):
      similar.build(parts.corpus(similar='vectors'), tmp_path, TOKENIZER, tmp_path / 'v')
