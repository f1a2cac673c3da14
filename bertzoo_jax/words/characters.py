"""Characters by kind, many at once: blanks, letters of spaced scripts, lone ones, others."""

import functools
import unicodedata

import numpy as np

# ALONE: letters of scripts that part no words by blanks, each a symbol of its own
BLANK, LETTER, ALONE, OTHER = range(4)

# Scripts without blanks between words (Unicode 16 blocks): Han, kana, bopomofo, yi, Thai, Lao,
# Khmer, Burmese, Tibetan.
_HAN = (
  (0x2E80, 0x2FDF),
  (0x3005, 0x3007),
  (0x3021, 0x3029),
  (0x3400, 0x4DBF),
  (0x4E00, 0x9FFF),
  (0xF900, 0xFAFF),
  (0x20000, 0x3FFFF),
)
_UNSPACED = (
  *_HAN,
  (0x0E00, 0x0EFF),
  (0x0F00, 0x0FFF),
  (0x1000, 0x109F),
  (0x1780, 0x17FF),
  (0x3031, 0x3035),
  (0x3040, 0x312F),
  (0x31A0, 0x31BF),
  (0x31F0, 0x31FF),
  (0xA000, 0xA4CF),
  (0xFF66, 0xFF9F),
)
_CJK = (
  *_HAN,
  (0x3000, 0x312F),
  (0x31A0, 0x31BF),
  (0x31F0, 0x31FF),
  (0xFE30, 0xFE4F),
  (0xFF00, 0xFFEF),
)


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
  return lambda code: any(a <= code <= b for a, b in blocks)
