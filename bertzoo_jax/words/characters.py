"""Kinds of code points in arrays: blanks, letters of spaced scripts, lone characters, others."""

import functools
import re
import unicodedata

import numpy as np

# ALONE: letters of scripts without blanks between words, each a symbol of its own
BLANK, LETTER, ALONE, OTHER = range(4)

# Scripts without blanks between words (Unicode 16 blocks): Han, kana, bopomofo, yi, Thai, Lao,
# Khmer, Burmese, Tibetan.
_HAN = (
  '\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff'
  '\U00020000-\U0003ffff'
)
_UNSPACED = (
  f'{_HAN}\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3031-\u3035\u3040-\u312f'
  '\u31a0-\u31bf\u31f0-\u31ff\ua000-\ua4cf\uff66-\uff9f'
)
_CJK = f'{_HAN}\u3000-\u312f\u31a0-\u31bf\u31f0-\u31ff\ufe30-\ufe4f\uff00-\uffef'


def codes(text: str) -> np.ndarray:
  """Code points of a text, uint32 [characters]."""
  return np.frombuffer(text.encode('utf-32-le', 'surrogatepass'), np.uint32)


def kinds(codes_C: np.ndarray) -> np.ndarray:
  """BLANK, LETTER (also digits and combining marks), ALONE or OTHER of code points, uint8 [C]."""
  return _look_up(codes_C, _kind, np.uint8)


def is_han(codes_C: np.ndarray) -> np.ndarray:
  """Whether each is a Han character (of any block), bool [C]."""
  return _look_up(codes_C, _within(_HAN), bool)


def is_cjk(codes_C: np.ndarray) -> np.ndarray:
  """Whether each is Han, kana, bopomofo, or their punctuation and wide forms, bool [C]."""
  return _look_up(codes_C, _within(_CJK), bool)


def _look_up(codes_C, one, dtype):
  out_C = _table(one, dtype)[np.minimum(codes_C, 0xFFFF)]
  for i in np.flatnonzero(codes_C > 0xFFFF).tolist():
    out_C[i] = one(int(codes_C[i]))
  return out_C


@functools.cache
def _table(one, dtype):
  return np.array([one(c) for c in range(1 << 16)], dtype)


def _kind(code):
  category = unicodedata.category(chr(code))
  if chr(code).isspace() or category[0] == 'Z' or category == 'Cc':
    return BLANK
  if category[0] in 'LNM':
    return ALONE if _within(_UNSPACED)(code) else LETTER
  return OTHER


@functools.cache
def _within(blocks):
  return lambda code: bool(re.match(f'[{blocks}]', chr(code)))
