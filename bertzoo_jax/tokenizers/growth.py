"""More pieces for a vocabulary: prepare --add.

Each round takes the span of neighbouring tokens that saves most tokens on the text, makes it a
piece, and tokenizes the words with it again. In BPE a span is a pair, and the piece a further merge
(Sennrich et al. 2016, algorithm 1, continued after the old merges). In the others a span has any
length: whole words and parts of words compete by the tokens that they save. Old pieces keep their
ids; new ones get the next ids.
"""

import collections
import heapq
from collections.abc import Callable
from collections.abc import Iterable
from typing import NamedTuple

from bertzoo_jax import tokenizers
from bertzoo_jax.common import config
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

_LEAST = 2  # occurrences of a new piece in the text
_LONGEST = 40  # characters of a word; longer words are skipped
_MOST_WORDS = 300_000  # most frequent different words, from which pieces are taken


class Added(NamedTuple):
  """A new piece, the tokens that it joins, and its share of the tokens of the text."""

  piece: str
  tokens: tuple[str, ...]
  share: float


class Text(NamedTuple):
  """counts: {word: occurrences}, words as the pre-tokenizer splits them. words: number of words by
  blanks; size: bytes of UTF-8.
  """

  counts: collections.Counter
  words: int
  size: int


class Growth(NamedTuple):
  """The tokens of a text before and after new pieces. pieces: in the order of choice."""

  pieces: list[str]
  before: int
  after: int

  def describe(self, text: Text) -> list[str]:
    """Lines for people: tokens before and after, and the first fifty pieces."""
    row = lambda tokens: f'{tokens / text.words:.3f} per word and {tokens / text.size:.3f} per byte'
    return [
      f'{len(self.pieces):,} pieces added. Tokens of the text: {row(self.before)} before, '
      f'{row(self.after)} after, {1 - self.after / max(1, self.before):.1%} fewer.',
      f'The first of them: {" ".join(self.pieces[:50])}',
    ]


def base(address: str | None, section: dict, add: str) -> tokenizers.Tokenizer:
  """The tokenizer at an address, before it gets further pieces.

  section: config.tokenizer; its vocab_size is 'auto' or the size of the larger vocabulary. add:
  number of pieces, or a file of words.

  Raises UserError as `tokenizers.load`, and for a wrong size, number or file.
  """
  if not address:
    raise errors.UserError('--add adds pieces to a vocabulary: name it by --tokenizer=hf:DIR.')
  loaded = tokenizers.load(address, {**section, 'vocab_size': config.AUTO})
  loaded.with_pieces([], [])  # refuses a vocabulary that cannot grow
  if not str(add).isdecimal():
    _words_of(add)
  elif not int(add):
    raise errors.UserError('--add is 0: give a number of pieces, or leave it out.')
  else:
    _check_size(section['vocab_size'], loaded.vocab_size + int(add), add)
  return loaded


def grown(loaded, texts: Iterable[str], add: str, wished: int | str, say: Callable):
  """The tokenizer with further pieces for the texts. say: takes lines of text. add: see `base`.
  wished: config.tokenizer.vocab_size.
  """
  text = read(loaded, texts)
  if str(add).isdecimal():
    larger, growth = grow(loaded, text, int(add))
  else:
    inside = [f' {word}' for word in _words_of(add)]  # as after another word
    larger, growth = grow(loaded, text, words=read(loaded, inside))
  for line in growth.describe(text):
    say(line)
  _check_size(wished, larger.vocab_size, add)
  return larger


def _check_size(wished, size, add):
  if wished not in (config.AUTO, size):
    raise errors.UserError(
      f'With --add={add} the vocabulary has {size:,} pieces, the config has {wished:,}: set '
      f'--config.tokenizer.vocab_size={size}, or auto.'
    )


def _words_of(file) -> list[str]:
  path = storage.path(file)
  if not path.is_file():
    raise errors.UserError(f'--add={file}: give a number of pieces, or a file of words.')
  with errors.unreadable(f'--add={file} is not UTF-8: write one word per line'):
    words = path.read_bytes().decode('utf-8-sig').split()
  if not words:
    raise errors.UserError(f'--add={file} has no words: write one word per line.')
  return words


def read(tokenizer, texts: Iterable[str]) -> Text:
  """The words of texts, as the tokenizer splits them."""
  engine = tokenizer.kind.engine(tokenizer.vocabulary)
  counts, words, size = collections.Counter(), 0, 0
  for text in texts:
    words, size = words + len(text.split()), size + len(text.encode('utf-8', 'replace'))
    text = engine.normalizer.normalize_str(text) if engine.normalizer else text
    counts.update(word for word, _ in engine.pre_tokenizer.pre_tokenize_str(text))
  return Text(counts, words, size)


def grow(tokenizer, text: Text, most: int | None = None, words: Text | None = None):
  """(Tokenizer with further pieces, Growth).

  tokenizer: tokenizers.Tokenizer. text: the one to save tokens on. most: number of pieces to add.
  words: in place of `most`, words that each become one piece; a byte-level BPE also gets the pieces
  that lead to them.

  Raises UserError if the text does not yield `most` pieces, or no word needs one.
  """
  kind, model_of = tokenizer.kind, lambda t: t.kind.engine(t.vocabulary).model
  model = model_of(tokenizer)
  tokens = lambda model: sum(n * len(model.tokenize(w)) for w, n in text.counts.items())
  before = tokens(model)
  chosen = (words or text).counts.most_common(_MOST_WORDS)
  cut = {word: tuple(t.value for t in model.tokenize(word)) for word, _ in sorted(chosen)}
  unknown = tokenizer.pieces[tokenizer.special['unk']]
  cut = {w: x for w, x in cut.items() if len(w) <= _LONGEST and unknown not in x}
  search = _Search(cut, (words or text).counts, kind.joined, kind.pairs, words is not None)
  added, new, known = [], [], set(tokenizer.pieces)
  while most is None or len(new) < most:
    span, occurrences = search.take()
    if span is None or words is None and occurrences < _LEAST:
      break
    piece = kind.joined(span)
    added.append(Added(piece, span, occurrences / max(1, before)))
    if piece not in known:
      known.add(piece)
      new.append(piece)
  if not new or most and len(new) < most:
    raise errors.UserError(
      f'--add: the text yields {len(new):,} pieces that each save {_LEAST} tokens or more: ask for '
      'at most as many, or bring more text.'
      if words is None
      else '--add: each of these words is one piece already, or has unknown characters.'
    )
  grown = tokenizer.with_pieces(added, new)
  return grown, Growth(new, before, tokens(model_of(grown)))


class _Search:
  """The spans of words by the tokens that they save."""

  def __init__(self, cut: dict, counts, joined: Callable, pairs: bool, whole: bool):
    """cut: {word: its tokens}. joined: tokens → piece, '' if they may not be one. pairs: whether
    spans are pairs. whole: whether only whole words become pieces.
    """
    self._cut, self._counts, self._joined = dict(cut), counts, joined
    self._pairs, self._whole = pairs, whole
    self._occurrences, self._where, self._tokens = collections.Counter(), {}, {}
    for word in cut:
      self._count(word, 1)
    self._heap = [self._entry(span) for span in self._occurrences]
    heapq.heapify(self._heap)

  def take(self) -> tuple[tuple[str, ...] | None, int]:
    """(the span that saves most, its occurrences); (None, 0) at the end. Words with the span are
    tokenized again. Ties go to the first in alphabetical order.
    """
    while self._heap:
      entry = heapq.heappop(self._heap)
      key = entry[1]
      occurrences = self._occurrences[key]
      if occurrences and entry != self._entry(key):
        heapq.heappush(self._heap, self._entry(key))
      elif occurrences:
        span, changed = self._tokens[key], set()
        for word in sorted(self._where[key]):
          self._count(word, -1)
          self._cut[word] = self._replaced(self._cut[word], key)
          changed.update(self._count(word, 1))
        for other in changed:
          heapq.heappush(self._heap, self._entry(other))
        return span, occurrences
    return None, 0

  def _entry(self, key):
    return -self._occurrences[key] * (len(self._tokens[key]) - 1), key

  def _key(self, span):
    """The identity of a span: its two sides for a merge, else its text."""
    return span if self._pairs else self._joined(span)

  def _spans(self, tokens):
    size = len(tokens)
    if self._whole and not self._pairs:
      return [tokens] if size > 1 and self._joined(tokens) else []
    widest = 2 if self._pairs else size
    spans = (tokens[i:j] for i in range(size) for j in range(i + 2, min(size, i + widest) + 1))
    return [span for span in spans if self._joined(span)]

  def _count(self, word, sign):
    """Adds or takes away the spans of a word; returns their keys."""
    keys = []
    for span in self._spans(self._cut[word]):
      keys.append(key := self._key(span))
      self._occurrences[key] += sign * self._counts[word]
      where = self._where.setdefault(key, set())
      if sign > 0:
        where.add(word)
        self._tokens.setdefault(key, span)
      else:
        where.discard(word)
    return keys

  def _replaced(self, tokens, key):
    """The tokens, each span of this key joined to one, from left to right."""
    out, at = [], 0
    while at < len(tokens):
      ends = range(at + 2, len(tokens) + 1)
      end = next((j for j in ends if self._key(tokens[at:j]) == key), None)
      out.append(tokens[at] if end is None else self._joined(tokens[at:end]))
      at = end or at + 1
    return tuple(out)
