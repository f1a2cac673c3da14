import functools

import pytest
import sentencepiece
import transformers

from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.tokenizers import growth
from tests.tokenizers import test_tokenizers

KINDS = {
  'wordpiece': parts.wordpiece(vocab_size=900),
  'byte_bpe': parts.byte_bpe(vocab_size=1000),
  'unigram': parts.sentencepiece(vocab_size=900),
  'mask_last': parts.sentencepiece(vocab_size=900, specials='mask_last', lowercase=False),
  'spiece_bpe': parts.sentencepiece(vocab_size=900, model='bpe'),
}
TEXTS = test_tokenizers.sample(most=60_000)


@functools.cache
def pair(kind):
  """(the tokenizer, one with 200 pieces more, the Growth)."""
  old = tokenizers.train(dict(KINDS[kind]), TEXTS)
  return old, *growth.grow(old, growth.read(old, TEXTS), 200)


@pytest.mark.parametrize('kind', KINDS)
def test_old_ids_stay_and_tokens_are_saved(kind):
  old, new, growing = pair(kind)
  assert new.pieces[: old.vocab_size] == old.pieces and len(growing.pieces) == 200
  assert new.pieces[old.vocab_size :] == growing.pieces and new.special == old.special
  before, after = (sum(map(len, t.encode(TEXTS))) for t in (old, new))
  assert (before, after) == (growing.before, growing.after) and after < 0.96 * before
  used = {i for row in new.encode(TEXTS) for i in row.tolist()}
  assert len(used & set(range(old.vocab_size, new.vocab_size))) > 120


@pytest.mark.parametrize('kind', KINDS)
def test_its_files_open_here_and_in_transformers_and_cut_alike(kind, tmp_path):
  _, new, _ = pair(kind)
  new.save(tmp_path)
  again, texts = tokenizers.load(tmp_path), [*TEXTS[:300], *test_tokenizers.NASTY]
  reader = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / 'tokenizer.json'))
  for text, row, ours in zip(texts, new.encode_as_transformers(texts), again.encode(texts)):
    assert reader(text, add_special_tokens=False)['input_ids'] == row.tolist()
    assert new.encode([text])[0].tolist() == ours.tolist()
  if kind == 'wordpiece':  # vocab.txt alone
    theirs = transformers.BertTokenizer(str(tmp_path / 'vocab.txt'), do_lower_case=True)
    for text, row in zip(TEXTS[:100], new.encode(TEXTS[:100])):
      assert theirs(text, add_special_tokens=False)['input_ids'] == row.tolist()


@pytest.mark.parametrize('kind', ['unigram', 'mask_last'])
def test_the_library_of_sentencepiece_reads_the_larger_model(kind):
  old, new, growing = pair(kind)
  library = sentencepiece.SentencePieceProcessor(model_proto=new.vocabulary.model)
  assert library.GetPieceSize() == new.vocab_size
  ids = new.special['mask'], old.vocab_size
  assert [library.IdToPiece(i) for i in ids] == ['[MASK]', growing.pieces[0]]
  text = 'we the people of the united states in order to form a more perfect union establish justi'
  assert library.EncodeAsIds(text) == new.encode([text])[0].tolist()


@pytest.mark.parametrize('kind', KINDS)
def test_each_word_of_a_file_is_one_token_also_in_a_sentence(kind, tmp_path):
  old, words, lines = pair(kind)[0], ['myocarditis', 'thrombolysis'], []
  (tmp_path / 'words.txt').write_text('\n'.join(words))
  texts = [*TEXTS, ' myocarditis and thrombolysis']
  new = growth.grown(old, texts, str(tmp_path / 'words.txt'), 'auto', lines.append)
  most = 2 if kind in ('wordpiece', 'unigram', 'mask_last') else 40
  assert 2 <= new.vocab_size - old.vocab_size <= most and '% fewer' in lines[0]
  ids = new.encode(['a myocarditis of old', 'a thrombolysis.'])
  pieces = [new.pieces[i] for row in ids for i in row]
  assert {*words} <= {''.join(c for c in p if c.isalpha() and c != 'Ġ') for p in pieces}
  assert new.decode(ids[0]).strip() == 'a myocarditis of old'


def test_mistakes_are_one_sentence(tmp_path):
  old, _, _ = pair('wordpiece')
  with pytest.raises(errors.UserError, match='the text yields .* pieces that each save'):
    growth.grow(old, growth.read(old, ['a few words']), 50)
  with pytest.raises(errors.UserError, match='is one piece already'):
    growth.grow(old, growth.read(old, TEXTS), words=growth.read(old, ['the']))
  old.save(tmp_path / 'old')
  section, address = dict(KINDS['wordpiece']), str(tmp_path / 'old')
  (tmp_path / 'empty.txt').write_text('\n')
  for given, at, sentence in (
    ('20', None, 'name it by --tokenizer'),
    ('0', address, '--add is 0'),
    ('20', address, 'has 920 pieces, the config has 900: set --config.tokenizer.vocab_size=920'),
    ('no.txt', address, 'a number of pieces, or a file of words'),
    (str(tmp_path / 'empty.txt'), address, 'has no words'),
  ):
    with pytest.raises(errors.UserError, match=sentence):
      growth.base(at, section, given)
  assert growth.base(address, {**section, 'vocab_size': 920}, '20').vocab_size == 900
