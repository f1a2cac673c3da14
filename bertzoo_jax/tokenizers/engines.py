"""Tokens of texts, by engines of the `tokenizers` library."""

import functools
import json

import numpy as np
import tokenizers as hf

from bertzoo_jax.common import errors


class Engines:
  """Ids of texts, int32 [T], their characters and words. Raises UserError for anything but texts.

  A class below has two engines: for `_parsing` a special piece that a text spells is special, for
  `_plain` it is text. `_spelling` is the one of them that decodes.
  """

  def __call__(self, texts: str | list[str]) -> np.ndarray | list[np.ndarray]:
    """As transformers' AutoTokenizer(texts)['input_ids']: ids with the special tokens around them,
    int32 [T] of one text, a list of arrays of several.
    """
    if isinstance(texts, str):
      return _ids(self._parsing, [texts], True)[0]
    return _ids(self._parsing, texts, True)

  def encode(self, texts: list[str]) -> list[np.ndarray]:
    """Ids of each text, int32, no special ones."""
    return _ids(self._plain, texts)

  def encode_as_transformers(self, texts: list[str]) -> list[np.ndarray]:
    """As transformers' AutoTokenizer(text, add_special_tokens=False): specials are parsed."""
    return _ids(self._parsing, texts)

  def encode_with_offsets(
    self, texts: list[str], special_text: bool = False
  ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(ids, starts, ends) of each text, int32 [T]: token t stands for the characters starts[t] …
    ends[t] − 1 of the text as given.

    special_text: True for the ids of `encode_as_transformers`; False for those of `encode`.
    """
    engine, out = self._parsing if special_text else self._plain, []
    with _splitting():
      encoded = engine.encode_batch(_checked(texts), add_special_tokens=False)
    for e in encoded:
      offsets = np.asarray(e.offsets, np.int32).reshape(-1, 2)
      out.append((np.asarray(e.ids, np.int32), offsets[:, 0], offsets[:, 1]))
    return out

  def words_of(self, texts: list[str]) -> list[list[int | None]]:
    """The word of each token of `encode_as_transformers`, by the pre-tokenizer, or None."""
    with _splitting():
      found = self._parsing.encode_batch(_checked(texts), add_special_tokens=False)
    return [e.word_ids for e in found]

  def encode_words(self, sentences: list[list[str]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """As transformers' AutoTokenizer(words, is_split_into_words=True, add_special_tokens=False).

    Returns:
      (ids, words) of each sentence, int32 [T]: token t belongs to the word words[t]. A word may
      have no token. A byte-level BPE puts a blank before each word (add_prefix_space=True).
    """
    options = dict(is_pretokenized=True, add_special_tokens=False)
    with _splitting():
      found = self._of_words.encode_batch(sentences, **options)
    return [(np.asarray(e.ids, np.int32), np.asarray(e.word_ids, np.int32)) for e in found]

  @functools.cached_property
  def _of_words(self) -> hf.Tokenizer:
    content = json.loads(self._parsing.to_str())
    made = blank_before_words(content)
    return self._parsing if made == content else hf.Tokenizer.from_str(json.dumps(made))

  def decode(self, ids) -> str:
    """The text of ids, special tokens spelt out."""
    with _splitting():
      return self._spelling.decode([int(i) for i in ids], skip_special_tokens=False)


_splitting = functools.partial(errors.unreadable, 'The tokenizer fails at this text: take another')


def _ids(engine, texts, special=False) -> list[np.ndarray]:
  with _splitting():
    encoded = engine.encode_batch_fast(_checked(texts), add_special_tokens=special)
    return [np.asarray(e.ids, np.int32) for e in encoded]


def _checked(texts):
  """The texts, a list. The library's own error says neither which one is wrong nor the remedy."""
  if isinstance(texts, (str, bytes)) or not hasattr(texts, '__iter__'):
    raise errors.UserError(f'A list of texts is wanted, not {texts!r:.40}: write [text].')
  texts = list(texts)
  for i, text in enumerate(texts):
    if not isinstance(text, str):
      raise errors.UserError(
        f"Of {len(texts):,} texts number {i} is {text!r:.40}, no text: leave it out, or give ''."
      )
  return texts


def blank_before_words(content: dict) -> dict:
  """A tokenizer.json whose byte-level parts put a blank before each word: transformers'
  add_prefix_space=True, without which it refuses words. The same one if it has no such parts.
  """
  kinds = ('ByteLevel', 'RobertaProcessing')

  def of(part):
    if isinstance(part, list):
      return [of(x) for x in part]
    if not isinstance(part, dict):
      return part
    own = {'add_prefix_space': True} if part.get('type') in kinds else {}
    return {**part, **{k: of(part[k]) for k in ('pretokenizers', 'processors') if k in part}, **own}

  return {**content, **{k: of(content.get(k)) for k in ('pre_tokenizer', 'post_processor')}}
