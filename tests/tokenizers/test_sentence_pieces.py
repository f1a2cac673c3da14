import functools
import io
import unicodedata

import hypothesis
import hypothesis.strategies as st
import pytest
import sentencepiece as library

from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.tokenizers import kinds
from bertzoo_jax.tokenizers import sentence_pieces
from bertzoo_jax.tokenizers import spiece_file
from tests.tokenizers import test_tokenizers as plain

MORE = ['half ｶﾞ ﾊﾟ', '\u1100\u1161\u11a8 jamo', 'Tất cả mọi người', '▁ a▁b ▁', '\ufefb\u064e']
MORE += [unicodedata.normalize('NFD', 'Tất cả mọi người'), '～ 〜 ~', 'ΟΔΟΣ ΣΑΣ', "``so'' he said"]
MORE += ['1,000,000 and 12, 3,4', '. . . ... "..."', '\u3000\u2003\u202f wide']
MORE += ['lines \n between \n']
CASED = dict(lowercase=False, strip_accents=False)
UNLIKE = ['\u1e9b\u0323']  # marks that NFKC sorts: see the test of the gap
TEXTS = [t for t in plain.NASTY + MORE if t not in UNLIKE]
made = functools.partial(parts.sentencepiece, vocab_size=1200)
RAW = dict(collapse_blanks=False, digit_commas='keep', **CASED)
SECTIONS = {
  'unigram': made(),
  'bpe': made(model='bpe', **CASED),
  'angled': made(specials='angled', straight_quotes=True, lowercase=False, word_starts='ascii'),
  'mask_last': made(specials='mask_last', symbols='', word_starts='unicode', **RAW),
  'identity': made(normalization='identity', **RAW),
  'folded': made(normalization='nmt_nfkc_cf', collapse_blanks=False, **CASED),
}
SIZE = 'has 1200 pieces, the config has 30000: set --config.tokenizer.vocab_size=1200'


@functools.cache
def trained(name):
  return plain.train(SECTIONS[name], [t for t in plain.sample(most=80_000) if t not in UNLIKE])


@pytest.fixture(params=SECTIONS)
def ours(request):
  return trained(request.param)


def cleaned(text, section):
  """The released code's normalisation of ALBERT and XLNet, in plain Python."""
  if section['collapse_blanks']:
    text = ' '.join(text.split())
  if section['straight_quotes']:
    text = text.replace('``', '"').replace("''", '"')
  if section['strip_accents']:
    text = ''.join(c for c in unicodedata.normalize('NFKD', text) if not unicodedata.combining(c))
  return text.lower() if section['lowercase'] else text


def released(model, text, split_commas):
  """The library's ids, and pieces that end in a digit and a comma split once more, as that code
  does it.
  """
  ids = []
  for piece in model.encode(text, out_type=str):
    if split_commas and len(piece) > 1 and piece[-1] == ',' and piece[-2].isdigit():
      head = model.encode(piece[:-1].replace('▁', ''), out_type=str)
      if piece[0] != '▁' and head[0][0] == '▁':
        head = head[1:] if len(head[0]) == 1 else [head[0][1:], *head[1:]]
      ids += [model.piece_to_id(p) for p in [*head, ',']]
    else:
      ids.append(model.piece_to_id(piece))
  return ids


def differing(tokenizer, texts, spelling=(), ties=False):
  """Texts (but those that spell a special piece) whose ids are not the released code's.

  ties: the same pieces in another order, which have the same score, count as equal.
  """
  section, kept = tokenizer.section, sorted if ties else list
  model = library.SentencePieceProcessor(model_proto=tokenizer.vocabulary.model)
  texts = [t for t in texts if not any(p in unicodedata.normalize('NFKC', t) for p in spelling)]
  split = section['digit_commas'] == 'split'
  theirs = [released(model, cleaned(t, section), split) for t in texts]
  pairs = zip(texts, tokenizer.encode(texts), theirs)
  return [t for t, a, b in pairs if kept(a.tolist()) != kept(b)]


def test_ids_of_real_and_of_nasty_text_are_those_of_the_library(ours):
  real = [t for t in plain.sample('*.txt', 60_000) if t not in plain.NASTY]
  assert len(real) > 3000 and differing(ours, real, ours.pieces[:9]) == []
  # Without a table of its own a model takes a literal U+2581 in one way, its library in another.
  nasty = [t for t in TEXTS if ours.section['normalization'] != 'identity' or '▁' not in t]
  assert differing(ours, nasty, ours.pieces[:9], ties=True) == []


def test_every_character_has_the_ids_of_the_library():
  ours = trained('mask_last')
  kind = unicodedata.category
  letters = [c for c in map(chr, range(0x20, 0x30000)) if kind(c) not in ('Cs', 'Cn', 'Co')]
  assert [t for t in differing(ours, [f'a{c}b' for c in letters]) if t != 'a\u0344b'] == []
  # Also where all of them are unknown. Of U+0344 the parts are composed with the letter before it,
  # or not.
  model = library.SentencePieceProcessor(model_proto=ours.vocabulary.model)
  normal = ours.parsing_engine().normalizer.normalize_str
  normal_of = lambda text: '▁' + normal(text).replace(' ', '▁')
  assert [c for c in letters if normal_of(f'a{c}b') != model.normalize(f'a{c}b')] == ['\u0344']


def test_capitals_are_lowered_as_in_python():
  texts = ['ΟΔΟΣ ΣΑΣ. ΣΑΣ-ΣΣ', 'Σ AΣ B', 'ΑΣ\u0301', 'Σ.Σ. ΟΣ’Α', 'İSTANBUL Iı ẞ Ǆ', 'ÅNGSTRÖM']
  cased = trained('angled')
  section = {**cased.section, 'lowercase': True, 'strip_accents': False}
  both = cased, tokenizers.Tokenizer(section, cased.vocabulary)
  normal, lower = (t.parsing_engine().normalizer.normalize_str for t in both)
  assert list(map(lower, texts)) == [unicodedata.normalize('NFKC', t.lower()) for t in texts]
  assert normal('ΟΔΟΣ') == 'ΟΔΟΣ'


def test_symbols_of_several_characters_win_as_in_the_library():
  symbols = dict(user_defined_symbols=['nowhere', '...', 'xyzzy'])
  data = of_library(plain.sample(most=20_000), vocab_size=600, **symbols)
  vocabulary = kinds.Vocabulary(spiece_file.parse(data).pieces, [], data)
  engine = sentence_pieces.engine(vocabulary, [], ['<unk>', '<s>', '</s>'], False)
  texts = ['nowhere xyzzy... xxyzzyy', 'from nowhere to ....']
  theirs = library.SentencePieceProcessor(model_proto=data).encode(texts)
  assert [e.ids for e in engine.encode_batch(texts)] == theirs


def of_library(texts, **fields):
  """The file of a model that the library trains."""
  out = io.BytesIO()
  how = dict(model_writer=out, minloglevel=4, **fields)
  library.SentencePieceTrainer.train(sentence_iterator=iter(texts), **how)
  return out.getvalue()


# letters of Unicode 12 to 14, which NFKC replaces and the library's older tables keep
NEWER = '\ua7f2\ua7f3\ua7f4\U0001f16c'
MARKED = dict(exclude_categories=('Cs', 'Mn', 'Mc', 'Me', 'Cn', 'Co'), exclude_characters=NEWER)
COMMON = st.sampled_from('ab AB,.12▁—“”()-…\t\n\u00a0\u200b字語カﾞｶ가ß½ﬁé')


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(st.text(COMMON | st.characters(**MARKED), max_size=30))
def test_any_text_without_loose_marks_has_the_ids_of_the_library(text):
  for name in ('unigram', 'mask_last', 'bpe'):
    assert differing(trained(name), [text], trained(name).pieces[:9], ties=True) == []


def test_newer_letters_and_marks_out_of_order_are_the_known_gap_and_no_mark_is_lost():
  ours = trained('unigram')
  assert all(differing(ours, [c], ours.pieces[:9], ties=True) for c in NEWER)
  # The library reads from left to right and composes what stands first; NFKC sorts the marks
  # before.
  assert differing(trained('identity'), ['a\u0301\u0323 and a\u0323\u0301']) == []  # no table
  normal = trained('mask_last').parsing_engine().normalizer.normalize_str
  apart = lambda c: unicodedata.normalize('NFD', normal(c + '\u0301\u0323'))
  assert apart('a') == 'a\u0323\u0301'
  assert all(apart(c).count('\u0323') == 1 for c in 'aeou\ufb01')


def test_text_that_spells_special_pieces_never_becomes_one(ours):
  special = [*ours.special.values()]
  spelt = [p for i, p in enumerate(ours.pieces) if i in special or p in ('<s>', '</s>')]
  wide = [''.join(chr(ord(c) + 0xFEE0) for c in p) for p in spelt]
  never = {ours.pieces.index(p) for p in spelt} - {ours.special['unk']}
  for text, ids in zip(spelt + wide, ours.encode([*(f'a{p}b {p} {p}' for p in spelt + wide)])):
    assert not never & set(ids.tolist()), text
  mask = ours.special['mask']
  assert ours.encode_as_transformers([f'a {ours.pieces[mask]}'])[0].tolist()[-1] == mask


def test_special_pieces_stand_where_the_layout_says():
  bracketed = '[CLS] a [SEP] b [SEP]'
  for name, special, around in (
    ('unigram', dict(pad=0, unk=1, cls=2, sep=3, mask=4), bracketed),
    ('angled', dict(pad=5, unk=0, cls=3, sep=4, mask=6, eod=7, eop=8), 'a <sep> b <sep> <cls>'),
    ('mask_last', dict(pad=0, unk=3, cls=1, sep=2, mask=1199), bracketed),
  ):
    ours = trained(name)
    assert ours.special == special and ours.vocab_size == 1200
    assert (ours.pieces[-1] == '[MASK]') == (name == 'mask_last')
    row, wanted = ours.parsing_engine().encode('a', 'b'), []
    for x in around.split():
      wanted += ours.encode([x])[0].tolist() if x in 'ab' else [ours.pieces.index(x)]
    assert row.ids == wanted
    assert sorted(set(row.type_ids)) == ([0, 1, 2] if name == 'angled' else [0, 1])


def test_symbols_are_always_pieces_of_their_own():
  for name in ('unigram', 'bpe'):
    ours = trained(name)
    pieces = [ours.pieces[i] for i in ours.encode(['say ("a-b"). £5 – or'])[0]]
    assert [p for p in pieces if p.strip('▁') in set('()"-.–£')] == list('("-").£–'), name


def test_a_comma_behind_a_digit_ends_no_piece():
  texts = [f'in 19{i % 50 + 50}, or {i % 9},000 of 7, 8, 9,' for i in range(900)]
  ours = plain.train(parts.sentencepiece(vocab_size=900), texts + plain.sample(most=20_000))
  kept = tokenizers.Tokenizer({**ours.section, 'digit_commas': 'keep'}, ours.vocabulary)
  ends = [
    [p[-2:] for i in ids for p in [t.pieces[i]] if p[-2:-1].isdigit() and p[-1] == ',']
    for t in (ours, kept)
    for ids in t.encode([texts[0]])
  ]
  assert not ends[0] and ends[1]


def test_offsets_are_characters_of_the_text_as_given_and_blanks_have_no_ids(ours):
  texts = ['Hello  wörld, ﬁne', 'e\u0301a x', ' \t lead', '½ cup']
  for text, (ids, starts, ends) in zip(texts, ours.encode_with_offsets(texts)):
    assert ids.tolist() == ours.encode([text])[0].tolist()
    assert (starts[1:] >= starts[:-1]).all() and (starts <= ends).all()
    assert (ends <= len(text)).all()
    letters = {i for i, c in enumerate(text) if c.isalpha()}
    assert letters <= {i for a, b in zip(starts, ends) for i in range(a, b)}
  wide = ['\t\n', '\u3000'] * (ours.section['normalization'] != 'identity')
  assert not any(map(len, ours.encode(['', ' ', '   ', *wide])))


def test_word_starts_follow_the_rule_of_a_system_and_special_pieces_start_one(ours):
  rule, special = sentence_pieces.WORD_STARTS[ours.section['word_starts']], ours.special.values()
  starts = [i in special or rule(p) for i, p in enumerate(ours.pieces)]
  assert ours.word_starts.tolist() == starts
  pieces = '▁ ▁a < <x , - £ é abé 字 1 – 。 abc b ,,'.split()
  known = dict(ascii='▁ ▁a < <x , -', unicode='▁ ▁a < , - – 。')
  known['letters'] = '▁ ▁a < <x , - £ é abé 字 1 – 。'
  for name, wanted in known.items():
    assert [p for p in pieces if sentence_pieces.WORD_STARTS[name](p)] == wanted.split()


def test_save_and_load_give_the_same_tokenizer(ours, tmp_path):
  ours.save(tmp_path)
  again = tokenizers.load(tmp_path)
  assert (again.hash, again.special) == (ours.hash, ours.special)
  assert [a.tolist() for a in again.encode(TEXTS)] == [a.tolist() for a in ours.encode(TEXTS)]
  assert (tmp_path / 'spiece.model').read_bytes() == ours.vocabulary.model
  for file in tmp_path.iterdir():
    if file.name != 'spiece.model':
      file.unlink()
  for address in (tmp_path, tmp_path / 'spiece.model', f'hf:{tmp_path}'):
    assert tokenizers.load(address, ours.section).hash == ours.hash


def test_a_changed_model_file_is_refused(tmp_path):
  trained('unigram').save(tmp_path)
  data = (tmp_path / 'spiece.model').read_bytes()
  at = data.index(spiece_file.parse(data).charsmap) + 5000
  flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
  for changed in (data.replace('▁the'.encode(), '▁teh'.encode(), 1), flipped):
    (tmp_path / 'spiece.model').write_bytes(changed)
    with pytest.raises(errors.UserError, match='changed or damaged'):
      tokenizers.load(tmp_path)


def test_long_text_without_blanks_takes_part_in_training():
  chinese = '天地玄黄宇宙洪荒' * 400
  section = parts.sentencepiece(vocab_size=32, coverage=1.0)
  ours = plain.train(section, [chinese] * 3 + ['a b c d e f g'] * 5)
  assert ours.special['unk'] not in ours.encode([chinese])[0]


@pytest.mark.parametrize('layout', ['bracketed', 'mask_last'])
def test_the_size_that_a_small_text_yields_can_then_be_trained(layout):
  with pytest.raises(errors.UserError, match='yields at most') as e:
    plain.train(parts.sentencepiece(specials=layout), plain.sample(most=2000))
  size = int(str(e.value).split('vocab_size=')[1].split(',')[0])
  section = parts.sentencepiece(vocab_size=size, specials=layout)
  assert plain.train(section, plain.sample(most=2000)).vocab_size == size


LAYOUT = "'bracketed' has '<pad>' at id 0, .* id 0 is '<unk>': set --config.tokenizer.specials=ang"
SIZE = 'has 1200 pieces, the config has 30000: set --config.tokenizer.vocab_size=1200'
NONE, CASES = 'not a SentencePiece model', dict(vocab_size=1200, lowercase=False)


def test_a_model_that_does_not_fit_is_one_sentence(tmp_path):
  model = lambda name: trained(name).vocabulary.model
  char = of_library(['a b c'], model_type='char', vocab_size=7)
  broken = b'', b'{}', b'\xff' * 40, model('unigram')[:9000]
  for number, (data, files, changes, words) in enumerate(
    (
      (model('angled'), ('spiece',), CASES, LAYOUT),
      (model('unigram'), ('spiece',), {}, SIZE),
      *((x, ('spiece',), {}, NONE) for x in broken),
      (char, ('a',), {}, 'neither a unigram nor a bpe model'),
      (char, ('a', 'b'), {}, 'several SentencePiece models, a.model, b.model'),
    )
  ):
    (tmp_path / str(number)).mkdir()
    for name in files:
      (tmp_path / f'{number}/{name}.model').write_bytes(data)
    with pytest.raises(errors.UserError, match=words):
      tokenizers.load(tmp_path / str(number), parts.sentencepiece(**changes).to_dict())


def test_a_text_that_gives_no_model_is_one_sentence():
  def damaged():
    yield 'a text'
    raise errors.UserError('the file is damaged')

  many = ''.join(map(chr, range(0x4E00, 0x4E80)))
  for texts, size, words in (
    (['', ' '], {}, 'no text to train'),
    ([many], dict(vocab_size=50), r'alone take \d+ pieces, th'),
    (damaged(), {}, '^the file is damaged$'),
  ):
    with pytest.raises(errors.UserError, match=words):
      plain.train(parts.sentencepiece(**size), texts)


@plain.needs_data
def test_the_published_model_of_albert_gives_the_ids_of_the_released_code():
  ours = tokenizers.load(f'{plain.DATA}/vocab/albert', parts.sentencepiece().to_dict())
  assert ours.special == dict(pad=0, unk=1, cls=2, sep=3, mask=4)
  texts = [t for t in TEXTS + plain.sample('*.txt') if t not in UNLIKE]
  found = differing(ours, texts, ours.pieces[:5])
  assert found == ([])
