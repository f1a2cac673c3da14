"""Chinese words by jieba, and their parts of speech."""

import functools

import numpy as np

from bertzoo_jax import errors

NOUN, MODIFIER, ENTITY = 1, 2, 4  # what a word's part of speech allows it to be, as bits


class Segmenter:
  """jieba's words. Attributes: facts, for the manifest."""

  def __init__(self, tags: bool):
    self._jieba = _import()
    self._tags = tags
    self.facts = dict(segmenter='jieba.posseg' if tags else 'jieba', segmenter_version=self._jieba.__version__)

  def __call__(self, text: str):
    """(bool [C]: a word starts at this character, uint8 [C]: bits of the word that starts there)."""
    starts_C, bits_C = np.zeros(len(text), bool), np.zeros(len(text), np.uint8)
    at = 0
    for word, tag in self._words(text):
      starts_C[at] = True
      bits_C[at] = tag_bits(tag)
      at += len(word)
    return starts_C, bits_C

  def _words(self, text):
    if not self._tags:
      return ((w, '') for w in self._jieba.cut(text))
    from jieba import posseg
    return posseg.cut(text)


@functools.cache
def tag_bits(tag: str) -> int:
  """The bits of a part of speech as jieba names it."""
  noun = tag[:1] == 'n' or tag in ('vn', 'an', 'j')
  return NOUN * noun | MODIFIER * (noun or tag in ('a', 'ad', 'b', 'z')) | ENTITY * (tag[:2] in ('nr', 'ns', 'nt', 'nz'))


def _import():
  try:
    import jieba
  except ImportError as e:
    raise errors.UserError('Chinese words need jieba: pip install "bertzoo_jax[zh]".') from e
  import logging
  jieba.setLogLevel(logging.WARNING)
  return jieba
