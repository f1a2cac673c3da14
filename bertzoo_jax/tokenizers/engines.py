"""Tokens of texts, by engines of the `tokenizers` library."""

import functools
import json

import numpy as np
import tokenizers as hf

from bertzoo_jax.common import errors


class Engines:
  """Ids of texts, int32 [T], their characters and words. Raises UserError for anything but texts.

  A subclass has two engines. A special piece spelt in a text is special for `_parsing` and text for
  `_plain`. `_spelling` is the one of them that decodes.
  """

  def __call__(self, texts: str | list[str]) -> np.ndarray | list[np.ndarray]:
    """Like transformers' AutoTokenizer(texts)['input_ids']: ids with special tokens around them,
    int32 [T] for one text, a list of arrays for several.
    """
    if isinstance(texts, str):
      return _ids(self._parsing, [texts], True)[0]
    return _ids(self._parsing, texts, True)

  def encode(self, texts: list[str]) -> list[np.ndarray]:
    """Ids of each text, int32, no special ones."""
    return _ids(self._plain, texts)

  def encode_as_transformers(self, texts: list[str]) -> list[np.ndarray]:
    """Like transformers' AutoTokenizer(text, add_special_tokens=False): specials are parsed."""
    return _ids(self._parsing, texts)

  def encode_with_offsets(
    self, texts: list[str], special_text: bool = False
  ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(ids, starts, ends) of each text, int32 [T]: token t stands for the characters starts[t] …
    ends[t] − 1 of the text as given.

    special_text: whether special pieces are parsed, as by `encode_as_transformers`.
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
      encoded = self._parsing.encode_batch(_checked(texts), add_special_tokens=False)
    return [e.word_ids for e in encoded]

  def encode_words(self, sentences: list[list[str]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Like transformers' AutoTokenizer(words, is_split_into_words=True, add_special_tokens=False).

    Returns (ids, words) of each sentence, int32 [T]: token t belongs to the word words[t]. A word
    may have no token. A byte-level BPE puts a blank before each word (add_prefix_space=True).
    """
    options = dict(is_pretokenized=True, add_special_tokens=False)
    with _splitting():
      encoded = self._word_engine.encode_batch(sentences, **options)
    return [(np.asarray(e.ids, np.int32), np.asarray(e.word_ids, np.int32)) for e in encoded]

  @functools.cached_property
  def _word_engine(self) -> hf.Tokenizer:
    content = json.loads(self._parsing.to_str())
    worded = blank_before_words(content)
    return self._parsing if worded == content else hf.Tokenizer.from_str(json.dumps(worded))

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
  """The texts as a list. Raises UserError, which names the wrong text, for anything but texts."""
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
  add_prefix_space=True, without which it refuses words. Unchanged without such parts.
  """
  kinds = ('ByteLevel', 'RobertaProcessing')

  def with_blank(part):
    if isinstance(part, list):
      return [with_blank(x) for x in part]
    if not isinstance(part, dict):
      return part
    prefix = {'add_prefix_space': True} if part.get('type') in kinds else {}
    inner = {k: with_blank(part[k]) for k in ('pretokenizers', 'processors') if k in part}
    return {**part, **inner, **prefix}

  return {**content, **{k: with_blank(content.get(k)) for k in ('pre_tokenizer', 'post_processor')}}
