import functools

import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.hf import architecture
from bertzoo_jax.pretrained import carried
from tests.tokenizers import test_tokenizers

KINDS = {
  'wordpiece': parts.wordpiece(vocab_size=900),
  'cased': parts.wordpiece(vocab_size=900, lowercase=False, strip_accents=False),
  'byte_bpe': parts.byte_bpe(vocab_size=1000),
  'sentencepiece': parts.sentencepiece(vocab_size=900),
}


@functools.cache
def tokenizer(kind):
  return tokenizers.train(dict(KINDS[kind]), test_tokenizers.sample())


def table(old):
  """A word table whose row i is (i, i², 1)."""
  i = np.arange(old.vocab_size, dtype=np.float32)
  return np.stack([i, i**2, np.ones_like(i)], axis=1)


def carry(old, new):
  words = {'word': {'embedding': table(old)}}
  params = {'encoder': {'embeddings': words}, 'mlm_head': {'bias': table(old)[:, 0]}}
  made, lines = carried.parameters(params, old, new)
  rows = made['encoder']['embeddings']['word']['embedding']
  np.testing.assert_allclose(made['mlm_head']['bias'], rows[:, 0], rtol=1e-6)
  assert rows.shape == (new.vocab_size, 3) and rows.dtype == np.float32
  np.testing.assert_allclose(rows[:, 2], 1, rtol=1e-6)  # each row is a mean
  return rows[:, 0], lines


@pytest.mark.parametrize('old', KINDS)
@pytest.mark.parametrize('new', KINDS)
def test_specials_keep_their_roles_and_words_meet_by_their_text(old, new):
  old, new = tokenizer(old), tokenizer(new)
  rows, lines = carry(old, new)
  if old is new:
    size = f'{old.vocab_size:,}'
    assert rows.tolist() == list(range(old.vocab_size))
    assert lines == [f'vocabulary: of {size} pieces {size} have the row of one old piece']
  assert [rows[new.special[r]] for r in ('pad', 'unk', 'cls', 'sep', 'mask')] == [
    old.special[r] for r in ('pad', 'unk', 'cls', 'sep', 'mask')
  ]
  theirs, ours = carried.spellings(old), carried.spellings(new)
  shared = {*theirs} & {*ours} - {None}
  assert {('the', True), ('ing', False), ('of', True)} <= shared and len(shared) > 200
  assert all(rows[ours.index(key)] == theirs.index(key) for key in shared)


def test_a_word_that_is_no_piece_has_the_mean_of_its_tokens():
  old, new = tokenizer('wordpiece'), tokenizer('sentencepiece')
  rows, (line,) = carry(old, new)
  theirs, ours = carried.spellings(old), carried.spellings(new)
  seen = 0
  for i, key in enumerate(ours):
    if key and key not in theirs and key[1] and key[0].isalpha():
      (ids,) = old.encode([key[0]])
      np.testing.assert_allclose(rows[i], np.mean(ids), rtol=1e-5)
      seen += len(ids) > 1
    elif key and key not in theirs and key[0].isalpha():
      (ids,) = old.encode([key[0]])
      inside = (theirs[ids[0]][0], False)
      if inside in theirs:
        ids[0] = theirs.index(inside)
        np.testing.assert_allclose(rows[i], np.mean(ids), rtol=1e-5)
        seen += 1
  assert seen > 100 and 'the mean of 2' in line, line


def test_bytes_that_are_no_text_have_the_mean_of_all_rows():
  old, new = tokenizer('sentencepiece'), tokenizer('byte_bpe')
  rows, (line,) = carry(old, new)
  unread = [i for i, key in enumerate(carried.spellings(new)) if key is None]
  unread = [i for i in unread if i not in new.special.values() and new.pieces[i] not in old.pieces]
  assert unread and set(rows[unread].tolist()) == {float(np.mean(table(old)[:, 0]))}
  assert line.endswith('the mean of all rows')


def test_rows_behind_the_pieces_are_left_out():
  old = tokenizer('wordpiece')
  spare = np.full((7, 3), np.inf, np.float32)
  params = {'encoder': {'embeddings': {'word': {'embedding': np.concatenate([table(old), spare])}}}}
  made, _ = carried.parameters(params, old, tokenizer('byte_bpe'))
  rows = made['encoder']['embeddings']['word']['embedding']
  assert np.isfinite(rows).all() and architecture.WORD_TABLE.endswith('word/embedding')
