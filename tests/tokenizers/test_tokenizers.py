import glob
import importlib
import json
import os
import shutil
import time

import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from tests import commands

NASTY = ['Hello world!', 'a\u00a0b', 'zero\u200bwidth', '½ cup, ¾', 'ﬁne ﬂow']
NASTY += ['Ｆｕｌｌ　ｗｉｄｔｈ １２', 'e\u0301 a\u0302\u0300 n\u0303']
NASTY += ['İstanbul ISPARTA ıslak i\u0307', '\u0130\u0131', '自然語言處理 is 日本語テスト 처리']
NASTY += ['𠀀 rare', '😀👩‍👩‍👧 🇩🇪 emoji', 'line\nbreak\ttab\r\nend']
NASTY += ['a [MASK] b [mask], <mask> x<mask>y </s> <s> [SEP][UNK]', '', ' ', '  two  blanks ']
NASTY += ['ß ẞ ŒUVRE Ǆ', 'bell\x07 soft\u00adhyphen \ufeff \ufffd \u2028']
NASTY += ['x' * 100 + ' ' + 'y' * 101, "don't we'll I'm 'S 'LL", 'naïve Ångström façade']
NASTY += ['3.14, 1,000 & 50% -- “quotes” …', 'U.S.A. e-mail@x.org #tag', 'ك العربية हिन्दी ไทย']
NASTY += ['##ing [unused1] madeupword0000', '{"json": [1, 2]}', 'ＡＢＣ［ＭＡＳＫ］', '®™²³ Ⅷ']
NASTY += ['\u1e9b\u0323']
DATA = os.environ.get('BERTZOO_DATA')
needs_data = pytest.mark.skipif(not DATA, reason='BERTZOO_DATA names no published vocabularies')


def sample(pattern='[ft]*.txt', most=300_000):
  root = os.path.join(os.path.dirname(__file__), '..', '..', 'data', 'sample')
  texts = []
  for file in sorted(glob.glob(os.path.join(root, pattern))):
    with open(file, encoding='utf-8') as f:
      texts += f.read(most).splitlines()
  return texts + [text for text in NASTY for _ in range(3)]


def train(section, texts=None, *size):
  return tokenizers.train(section.to_dict(), sample if texts is None else lambda: texts, *size)


@pytest.fixture(scope='module')
def uncased():
  return train(parts.wordpiece(vocab_size=2000, coverage=1.0))


@pytest.fixture(scope='module')
def byte_bpe():
  return train(parts.byte_bpe(vocab_size=1500))


def as_bert(tokenizer, **options):
  transformers = pytest.importorskip('transformers')
  section = tokenizer.section
  return transformers.BertTokenizer(
    vocab={p: i for i, p in enumerate(tokenizer.pieces)},
    do_lower_case=section['lowercase'],
    strip_accents=section['strip_accents'],
    tokenize_chinese_chars=section['split_chinese'],
    **options,
  )


def as_roberta(tokenizer):
  transformers = pytest.importorskip('transformers')
  return transformers.RobertaTokenizer(
    vocab={p: i for i, p in enumerate(tokenizer.pieces)},
    merges=tokenizer.vocabulary.merges,
    add_prefix_space=tokenizer.section['add_prefix_space'],
    mask_token=transformers.AddedToken('<mask>', lstrip=True, normalized=False, special=True),
  )


def same_ids(ours, theirs):
  for text, ids in zip(NASTY, ours.encode_as_transformers(NASTY)):
    assert ids.tolist() == theirs(text, add_special_tokens=False)['input_ids'], repr(text)


@pytest.mark.parametrize('off', ['', 'lowercase strip_accents', 'strip_accents', 'split_chinese'])
def test_a_trained_wordpiece_gives_the_ids_of_transformers(off):
  fields = dict.fromkeys(off.split(), False)
  section = parts.wordpiece(vocab_size=1500, coverage=1.0, **fields)
  ours = train(section, sample(most=60_000))
  same_ids(ours, as_bert(ours))


@pytest.mark.parametrize('add_prefix_space', [False, True])
def test_a_trained_byte_bpe_gives_the_ids_of_transformers(add_prefix_space):
  section = parts.byte_bpe(vocab_size=1000, add_prefix_space=add_prefix_space)
  ours = train(section, sample(most=60_000))
  same_ids(ours, as_roberta(ours))


@needs_data
def test_published_bert_vocabularies_give_the_ids_of_transformers():
  published = ('uncased', 30522, False), ('cased', 28996, True), ('zh', 21128, False)
  for folder, size, cased in published:
    section = parts.wordpiece(vocab_size=size, lowercase=not cased, strip_accents=not cased)
    ours = tokenizers.load(f'{DATA}/vocab/bert_{folder}', section.to_dict())
    same_ids(ours, as_bert(ours))


@needs_data
def test_roberta_is_read_in_the_form_of_fairseq():
  files = f'{DATA}/vocab/gpt2,{DATA}/vocab/roberta/dict.txt'
  ours = tokenizers.load(files, parts.byte_bpe().to_dict())
  assert ours.encode(['Hello world!'])[0].tolist() == [31414, 232, 328]
  assert ours.special == dict(pad=1, unk=3, cls=0, sep=2, mask=50264)
  assert ours.parsing_engine().encode('Hello world!').ids == [0, 31414, 232, 328, 2]
  same_ids(ours, as_roberta(ours))


@needs_data
def test_a_cased_vocabulary_under_lower_casing_and_gpt2_without_a_mask_are_refused():
  for folder, section, words in (
    ('bert_cased', parts.wordpiece(vocab_size=28996), 'cased.*lowercase=False'),
    ('bert_uncased', parts.wordpiece(lowercase=False), 'uncased.*lowercase=True'),
    ('gpt2', parts.byte_bpe(vocab_size=50257), "add RoBERTa's dict.txt"),
  ):
    with pytest.raises(errors.UserError, match=words):
      tokenizers.load(f'{DATA}/vocab/{folder}', section.to_dict())


@pytest.mark.parametrize('kind', ['uncased', 'byte_bpe'])
def test_corpus_text_never_becomes_a_special_token(kind, request):
  ours = request.getfixturevalue(kind)
  spelt = [ours.pieces[i] for i in ours.special.values()]
  special = set(ours.special.values()) - {ours.special['unk']}
  for ids in ours.encode([*spelt, ''.join(spelt), *(f'a{s}b {s}' for s in spelt)]):
    assert len(ids) and not special & set(ids.tolist())
  assert special & set(ours.encode_as_transformers([' '.join(spelt)])[0].tolist()) == special


def test_byte_bpe_gives_back_every_text_and_word_starts_tell_where_words_begin(byte_bpe, uncased):
  assert [byte_bpe.decode(ids) for ids in byte_bpe.encode(NASTY)] == NASTY
  empty, word = uncased.encode(['', 'the'])
  assert empty.dtype == word.dtype == np.int32 and empty.shape == (0,) and len(word)
  for ours, text in ((uncased, 'unquestionably the'), (byte_bpe, ' questionably the')):
    ids = ours.encode([text])[0]
    assert ours.word_starts[ids].sum() == 2
    assert all(ours.word_starts[i] for i in ours.special.values())
    if ours is uncased:
      continues = [ours.pieces[i].startswith('##') for i in ids]
      assert ours.word_starts[ids].tolist() == [not x for x in continues]


def test_each_separator_of_a_pair_is_in_the_segment_that_it_ends(uncased):
  row = uncased.parsing_engine().encode('the', 'the')
  assert row.tokens == '[CLS] the [SEP] the [SEP]'.split() and row.type_ids == [0, 0, 0, 1, 1]


TRAIN = """
import sys
from bertzoo_jax import parts, tokenizers
from tests.tokenizers import test_tokenizers as t
for section in t.KINDS:
  print(tokenizers.train(section.to_dict(), lambda: t.sample(most=30_000)).hash)
"""
KINDS = [
  parts.wordpiece(vocab_size=900, coverage=1.0),
  parts.byte_bpe(vocab_size=900),
  parts.sentencepiece(vocab_size=900),
  parts.sentencepiece(vocab_size=900, model='bpe'),
]


def test_training_gives_the_same_tokenizer_in_every_process():
  environments = [commands.environment(TOKENIZERS_PARALLELISM=p) for p in ('true', 'false')]
  runs = {commands.run('-c', TRAIN, env=env, check=True).stdout for env in environments}
  here = [tokenizers.train(x.to_dict(), lambda: sample(most=30_000)).hash for x in KINDS]
  assert runs == {'\n'.join([*here, ''])}


@pytest.mark.parametrize('kind', ['uncased', 'byte_bpe'])
def test_save_and_load_give_the_same_tokenizer_here_and_in_transformers(kind, request, tmp_path):
  transformers = pytest.importorskip('transformers')
  ours = request.getfixturevalue(kind)
  ours.save(tmp_path)
  again = tokenizers.load(tmp_path)
  assert (again.hash, again.section, again.special) == (ours.hash, ours.section, ours.special)
  assert [a.tolist() for a in again.encode(NASTY)] == [a.tolist() for a in ours.encode(NASTY)]
  file = dict(tokenizer_file=str(tmp_path / 'tokenizer.json'))
  same_ids(ours, transformers.PreTrainedTokenizerFast(**file))
  # published files, as files or as a folder
  bare = ['vocab.txt'] if kind == 'uncased' else ['vocab.json', 'merges.txt']
  for names in (bare, ['tokenizer.json']):
    folder = tmp_path / str(len(names)) / names[0]
    folder.mkdir(parents=True)
    files = [shutil.copy(tmp_path / name, folder) for name in names]
    for address in (','.join(map(str, files)), folder, tmp_path):
      assert tokenizers.load(address, ours.section).hash == ours.hash


def test_vocabularies_may_have_other_line_ends_and_automatic_sizes_have_bounds(uncased, tmp_path):
  (tmp_path / 'vocab.txt').write_bytes('\r\n'.join(uncased.pieces).encode())
  assert tokenizers.load(tmp_path, uncased.section).pieces == uncased.pieces
  sizes = [tokenizers.size_for(n) for n in (0, 10**5, 10**7, 10**8, 10**9, 10**12)]
  assert sizes == [1024, 1024, 6336, 19_968, 32_768, 32_768]


def test_a_small_text_says_which_size_it_yields_and_that_size_can_then_be_trained():
  words = r'yields \d+ pieces, the config has 30522: set --config.tokenizer.vocab_size=\d+'
  with pytest.raises(errors.UserError, match=words) as e:
    train(parts.wordpiece(), ['a small text'] * 2)
  size = int(str(e.value).split('vocab_size=')[1].rstrip('.'))
  assert train(parts.wordpiece(vocab_size=size), ['a small text'] * 2).vocab_size == size
  with pytest.raises(errors.UserError, match=r'yields 2\d\d pieces'):
    train(parts.byte_bpe(), ['a small text'] * 2)
  words = 'has 128 different .* 50 pieces has room for the 45 most frequent of them, 35.16 % of '
  words += (
    'the text, which is too little: .*coverage=0.9999 needs --config.tokenizer.vocab_size=133'
  )
  with pytest.raises(errors.UserError, match=words):
    train(parts.wordpiece(vocab_size=50), [''.join(map(chr, range(0x4E00, 0x4E80)))])


def test_of_more_characters_than_pieces_the_rarest_become_unknown_and_their_share_is_told():
  often, seldom = [chr(0x4E00 + i) for i in range(40)], [chr(0x5E00 + i) for i in range(60)]
  words = r'has 102 different characters.*room for the \d+ most frequent of them, 98.\d\d % of the '
  words += r'text; the others become \[UNK\] \(.*coverage=0.9999 needs .*tokenizer.vocab_size=109\)'
  with pytest.warns(UserWarning, match=words):
    texts = [''.join(often) * 100, ''.join(seldom), 'ab ab']
    ours = train(parts.wordpiece(vocab_size=50), texts)
  assert set(often) < set(ours.pieces) and ours.vocab_size == 50
  unknown = [ours.encode([c])[0].tolist() == [ours.special['unk']] for c in seldom]
  assert 50 < sum(unknown) < 60


@pytest.mark.parametrize('system', ['bert_wwm', 'ernie', 'macbert'])
def test_a_tiny_chinese_config_takes_ordinary_chinese(system):
  """Characters as often as in 5 MB of an encyclopedia: the 500 most frequent are 79 % of it, …"""
  section = importlib.import_module(f'configs.{system}').get_config('tiny').tokenizer
  most, share = (0, 500, 1000, 2000, 2500, 3000, 4000, 6496), (0, 79, 90, 97, 98.3, 99, 99.7, 100)
  draw = np.interp(100 * np.random.default_rng(0).random(300_000), share, most).astype(int)
  text = ''.join(map(chr, 0x4E00 + draw))
  words = r'has \d,\d{3} different characters.*2,645 most frequent of them, 98'
  with pytest.warns(UserWarning, match=words):
    ours = train(section, [text])
  ids = ours.encode([text[:10_000]])[0]
  assert ours.vocab_size == 2650 and 0 < (ids == ours.special['unk']).mean() < 0.03


@pytest.mark.parametrize('part', [parts.wordpiece, parts.byte_bpe, parts.sentencepiece])
def test_an_automatic_size_is_that_of_the_text_or_of_the_vocabulary_given(part, tmp_path):
  section = part(vocab_size='auto').to_dict()
  ours = tokenizers.train(section, sample, text_bytes=700_000)
  assert ours.vocab_size == ours.section['vocab_size'] == tokenizers.size_for(700_000) == 1664
  ours.save(tmp_path)
  assert tokenizers.load(tmp_path, section).hash == ours.hash
  for file in tmp_path.iterdir():  # as published files
    if file.name in ('bertzoo.json', 'tokenizer.json'):
      file.unlink()
  assert tokenizers.load(tmp_path, section).section['vocab_size'] == 1664


_MANY = ' '.join(map(chr, range(0x4E00, 0x4E00 + 1500)))
# 1,024 pieces have room for 95 to 97 % of the characters
_TAIL = ' '.join([chr(0x4E00 + i) for i in range(1500) for _ in range(10 if i < 900 else 1)])
_HANGUL = ' '.join([chr(0xAC00 + i) for i in range(800) for _ in range(20 if i < 450 else 1)])

SMALL = 'a small text'
SIZES = [
  (parts.wordpiece, {}, SMALL, range(10, 50)),
  (parts.sentencepiece, {}, SMALL, range(10, 50)),
  (parts.sentencepiece, dict(model='bpe'), SMALL, range(10, 50)),
  # characters beyond the size that the text's bytes give
  (parts.wordpiece, {}, _MANY, range(1500, 1500 + 1100)),
  (parts.sentencepiece, {}, _MANY, range(1500, 1500 + 1100)),
  (parts.wordpiece, {}, _TAIL, range(1505, 1506)),
  (parts.wordpiece, dict(split_chinese=False), _TAIL, range(3005, 3006)),
  (parts.wordpiece, dict(strip_accents=False), _HANGUL, range(1605, 1605 + 1100)),
]


@pytest.mark.parametrize('part, fields, text, size', SIZES)
def test_an_automatic_size_of_a_small_text_is_what_the_text_yields(part, fields, text, size):
  ours = train(part(vocab_size='auto', **fields), [text] * 2, 2 * len(text))
  assert ours.vocab_size == ours.section['vocab_size'] in size
  assert ours.special['unk'] not in ours.encode([text])[0]


def test_a_corpus_or_a_workdir_stands_for_its_tokenizer_and_a_name_with_commas_for_itself(tmp_path):
  section = parts.wordpiece(vocab_size='auto').to_dict()
  ours = tokenizers.train(section, lambda: ['a small text'] * 2)
  for folder in ('corpus', 'x,y/corpus', 'v,w/u, t'):
    ours.save(tmp_path / folder / 'tokenizer')
    (tmp_path / folder / 'manifest.json').touch()
    for address in (tmp_path / folder, f'{tmp_path}/{folder}/tokenizer', f'hf:{tmp_path}/{folder}'):
      assert tokenizers.load(address, section).hash == ours.hash
  vocabulary = f'{tmp_path}/x,y/corpus/tokenizer/vocab.txt'
  assert tokenizers.load(vocabulary, section).pieces == ours.pieces
  with pytest.raises(errors.UserError, match='tokenizer: .*/no does not exist'):
    tokenizers.load(f'{tmp_path}/no,{tmp_path}/corpus', section)


def test_an_input_that_is_no_text_is_refused_by_its_number(tmp_path):
  ours = train(parts.wordpiece(vocab_size='auto'), [SMALL] * 2)
  ours.save(tmp_path)
  (tmp_path / 'bertzoo.json').unlink()
  published = tokenizers.open_folder(tmp_path)
  both = [e for t in (ours, published) for e in (t.encode_as_transformers, t.encode_with_offsets)]
  for given, words in (
    ('a', r"A list of texts is wanted, not 'a': write \[text\]"),
    (None, 'A list of texts is wanted, not None'),
    (['a', None], 'Of 2 texts number 1 is None'),
    ([b'a', 'a'], "number 0 is b'a'"),
    ([float('nan')], 'number 0 is nan'),
  ):
    for encode in (ours.encode, *both):
      with pytest.raises(errors.UserError, match=words):
        encode(given)


def test_rare_characters_become_unknown_and_normalization_comes_first():
  ours = train(parts.wordpiece(vocab_size=13, coverage=0.99), ['abcab ' * 100, '字'])
  assert '字' not in ours.pieces and ours.encode(['字'])[0].tolist() == [ours.special['unk']]
  ours = train(parts.wordpiece(vocab_size=23, normalization='nfkc'), ['fine fine full full'] * 3)
  a, b = ours.encode(['ﬁne', 'fine'])
  assert a.tolist() == b.tolist()


@pytest.mark.parametrize(
  'section', [parts.wordpiece(vocab_size=800, coverage=1.0), parts.byte_bpe(vocab_size=800)]
)
def test_an_unbroken_string_costs_training_no_square_of_its_length_and_changes_no_piece(section):
  plain = train(section, sample(most=30_000))
  started = time.monotonic()
  long = train(section, [*sample(most=30_000), 'abcdefghij' * 20_000])
  assert time.monotonic() - started < 5
  assert [p for p in long.pieces if p not in plain.pieces] == []
  kind = json.loads(long.parsing_engine().to_str())['pre_tokenizer']['type']
  assert kind in ('BertPreTokenizer', 'ByteLevel')


def test_a_cased_tokenizer_trained_on_text_without_capitals_can_be_loaded(tmp_path):
  section = parts.wordpiece(vocab_size=13, lowercase=False, strip_accents=False).to_dict()
  ours = tokenizers.train(section, lambda: ['abcab ' * 100])
  ours.save(tmp_path)
  assert tokenizers.load(tmp_path).hash == tokenizers.load(tmp_path, section).hash == ours.hash
  (tmp_path / 'bertzoo.json').unlink()
  with pytest.raises(errors.UserError, match='uncased'):  # published, it would be a mistake
    tokenizers.load(tmp_path, section)


GONE = None
SAVED = {'bertzoo.json': GONE}  # published files then
NO_MASK = SAVED | {'tokenizer.json': GONE, 'vocab.txt': lambda t: t.replace('[MASK]\n', '')}
BYTES = parts.byte_bpe().to_dict()
JSON = [  # bertzoo.json
  ('{"section": {"na', 'not JSON, or cut short'),
  ('[]', 'no JSON object'),
  ('{"section": {}}', 'is not what prepare wrote'),
  ('{"section": {"name": "wordpiece"}}', 'fields are missing'),
]
EDITED = [
  (SAVED, parts.wordpiece().to_dict(), 'has 2000 pieces, the config has 30522: set --config'),
  (NO_MASK, dict(vocab_size=1999), r'lacks the special tokens \[MASK\]'),
  ({}, dict(lowercase=False), 'lowercase True there, False in the config'),
  ({'vocab.txt': lambda t: t.replace('the\n', 'teh\n', 1)}, None, 'changed or damaged'),
  *(({'bertzoo.json': lambda _, x=x: x}, None, words) for x, words in JSON),
  (SAVED, BYTES, 'holds tokenizer.json, vocab.txt: a byte_bpe tokenizer is read from vocab.json'),
]


def test_files_that_do_not_fit_are_one_sentence(uncased, tmp_path):
  for number, (edits, fields, words) in enumerate(EDITED):
    folder = tmp_path / str(number)
    uncased.save(folder)
    for name, edit in edits.items():
      file = folder / name
      file.unlink() if edit is GONE else file.write_text(edit(file.read_text()))
    section = fields and {**({} if 'name' in fields else uncased.section), **fields}
    with pytest.raises(errors.UserError, match=words) as e:
      tokenizers.load(folder, section)
    assert '\n' not in str(e.value)
  with pytest.raises(errors.UserError, match='does not exist'):
    tokenizers.load(tmp_path / 'nothing', uncased.section)


TWO = '{"a": 0, "b": 1}'
OTHERS = [
  ({'tokenizer.json': '[]'}, 'holds no JSON object'),
  ({'tokenizer.json': '{"model": []}'}, 'is read from'),
  ({'tokenizer.json': '{"model": {"vocab": %s, "merges": [3]}}' % TWO}, '3 is not a merge'),
  ({'vocab.json': '[1, 2]', 'merges.txt': ''}, 'holds no JSON object'),
  ({'vocab.json': '{"a": 0, "b": null}', 'merges.txt': ''}, 'without a gap'),
  ({'vocab.json': '{"a": 0, "b": 1, "ab": 2}', 'merges.txt': 'a b\na b ab'}, "'a b ab' is not"),
  ({'vocab.json': TWO, 'merges.txt': 'a b\n'}, "'a b' is not a merge"),
  ({'vocab.json': '{"a": 0}', 'merges.txt': '', 'dict.txt': '7 1\n'}, 'speaks of id 7'),
]


def test_files_that_hold_something_else_are_one_sentence(tmp_path):
  for number, (files, message) in enumerate(OTHERS):
    folder = tmp_path / str(number)
    folder.mkdir()
    for name, text in files.items():
      (folder / name).write_text(text)
    with pytest.raises(errors.UserError, match=message):
      tokenizers.load(folder, BYTES)
