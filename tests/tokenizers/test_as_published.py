import json

import pytest
import tokenizers as hf

from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.tokenizers import growth

SECTION = dict(name='published', vocab_size='auto')
ROLES = ('unk', 'cls', 'sep', 'pad', 'mask')
WORDS = 'the cat sat on the mat and the dog ran after the catalogue of cats'
TEXTS = [WORDS, 'two  blanks, four    blanks', 'a [MASK] cat', 'naïve café', 'The Cat']


def directory(folder, kind):
  """Writes a tokenizer.json of this kind, special pieces behind all others, blanks as pieces."""
  models, split, trainers = hf.models, hf.pre_tokenizers, hf.trainers
  if kind == 'byte_bpe':  # as ModernBERT's
    built, trainer = hf.Tokenizer(models.BPE()), trainers.BpeTrainer
    built.pre_tokenizer = split.ByteLevel(add_prefix_space=False)
    built.normalizer, built.decoder = hf.normalizers.NFC(), hf.decoders.ByteLevel()
    more = dict(initial_alphabet=split.ByteLevel.alphabet(), vocab_size=280)
  elif kind == 'wordpiece':
    built = hf.Tokenizer(models.WordPiece(unk_token='[UNK]'))
    built.pre_tokenizer, trainer = split.BertPreTokenizer(), trainers.WordPieceTrainer
    more = dict(special_tokens=['[UNK]'], vocab_size=50)
  else:
    built, trainer = hf.Tokenizer(models.Unigram()), trainers.UnigramTrainer
    built.pre_tokenizer = split.Metaspace()
    more = dict(special_tokens=['[UNK]'], unk_token='[UNK]', vocab_size=40)
  built.train_from_iterator([WORDS] * 3, trainer(show_progress=False, **more))
  built.add_tokens([hf.AddedToken(' ' * n) for n in (4, 2)])
  special = [hf.AddedToken(f'[{r.upper()}]', normalized=False, lstrip=r == 'mask') for r in ROLES]
  built.add_special_tokens(special)
  ends = [(x, built.token_to_id(x)) for x in ('[CLS]', '[SEP]')]
  built.post_processor = hf.processors.TemplateProcessing(
    single='[CLS] $A [SEP]', pair='[CLS] $A [SEP] $B:1 [SEP]:1', special_tokens=ends
  )
  built.save(str(folder / 'tokenizer.json'))
  names = {f'{r}_token': f'[{r.upper()}]' for r in ROLES}
  says = {'tokenizer_class': 'PreTrainedTokenizerFast', **names}
  (folder / 'tokenizer_config.json').write_text(json.dumps(says))
  return folder


@pytest.fixture(params=['byte_bpe', 'wordpiece', 'unigram'])
def theirs(request, tmp_path):
  folder = tmp_path / 'theirs'
  folder.mkdir()
  return directory(folder, request.param)


def test_it_cuts_as_transformers_does_and_so_does_what_is_saved(theirs, tmp_path):
  transformers = pytest.importorskip('transformers')
  expected = transformers.AutoTokenizer.from_pretrained(str(theirs))(TEXTS)['input_ids']
  ours = tokenizers.load(f'hf:{theirs}', SECTION)
  ours.save(tmp_path / 'saved')
  again = tokenizers.load(tmp_path / 'saved')
  assert again.hash == ours.hash and again.special == ours.special
  for tokenizer in (ours, again):
    assert [list(row) for row in tokenizer(TEXTS)] == expected
    assert '[MASK]' in tokenizer.decode(tokenizer([TEXTS[2]])[0])
    assert tokenizer.special['mask'] not in tokenizer.encode([TEXTS[2]])[0]  # text is no mask
  starts = {p for p, starts in zip(ours.pieces, ours.word_starts) if starts}
  assert 0 < len(starts) < len(ours.pieces)


def test_more_pieces_stand_behind_all_others_and_old_ids_stay(theirs, tmp_path):
  transformers = pytest.importorskip('transformers')
  ours = tokenizers.load(f'hf:{theirs}', SECTION)
  text = growth.read(ours, [WORDS] * 3)
  if json.loads((theirs / 'tokenizer.json').read_text())['model']['type'] == 'Unigram':
    with pytest.raises(errors.UserError, match='take tokenizer=sentencepiece'):
      growth.base(f'hf:{theirs}', SECTION, '3')  # before any text is read
    return
  grown, how = growth.grow(ours, text, 3)
  assert grown.pieces[: ours.vocab_size] == ours.pieces and grown.special == ours.special
  assert grown.vocab_size == ours.vocab_size + 3 and how.after < how.before
  grown.save(tmp_path / 'saved')
  settings = (theirs / 'tokenizer_config.json').read_bytes()
  (tmp_path / 'saved/tokenizer_config.json').write_bytes(settings)
  reference = transformers.AutoTokenizer.from_pretrained(str(tmp_path / 'saved'))
  assert [list(row) for row in grown(TEXTS)] == reference(TEXTS)['input_ids']


def test_words_get_a_blank_in_front_where_pieces_hold_blanks(theirs):
  ours = tokenizers.load(f'hf:{theirs}', SECTION)
  words = WORDS.split()
  (ids, _), plain = ours.encode_words([words])[0], ours.for_words().encode([WORDS])[0]
  assert list(ids) == list(plain)


def test_it_is_read_and_never_trained(tmp_path):
  with pytest.raises(errors.UserError, match='give --tokenizer=hf:DIR'):
    tokenizers.train(SECTION, iter([WORDS]), 100)
  (tmp_path / 'vocab.txt').write_text('[PAD]\n')
  with pytest.raises(errors.UserError, match='a folder with tokenizer.json'):
    tokenizers.load(str(tmp_path), SECTION)
