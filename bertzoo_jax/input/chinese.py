"""Chinese words and parts of speech exactly as jieba finds them, for a whole batch of text at once.

Between punctuation jieba takes the most probable chain of its dictionary's words; what is left as single characters it cuts
with a hidden Markov model. Here the dictionary is a trie in arrays, and the chains of all stretches are found side by side,
with the same float64 sums in the same order and the same ties; only the Markov model goes character by character, and
remembers. The result equals `jieba.cut` and `jieba.posseg.cut` (a test holds it to that). C characters of the text.

jieba's own loading is not used: it talks, and leaves a cache in the folder of temporary files that workers would share.
"""

import functools
import hashlib
import math
import pathlib
import warnings
from typing import NamedTuple

import numpy as np

from bertzoo_jax import errors
from bertzoo_jax.input import characters
from bertzoo_jax.input import markov

NOUN, MODIFIER, ENTITY = 1, 2, 4  # what a word's part of speech allows it to be, as bits
_SHORT = 128  # characters: a longer stretch is cut by itself, for a batch takes the steps of its longest
_REMEMBERED = 1 << 18  # stretches of single characters
_SLOTS, _FREE = 21, np.uint64(2**64 - 1)


class Segmenter:
  """jieba's words, with bits for their parts of speech if `tags`; these words are then jieba.posseg's, whose Markov model differs.

  Attributes:
    facts: {'segmenter', 'segmenter_version', 'segmenter_dictionary' (its SHA-256)}.

  Raises:
    UserError: jieba is not installed.
  """

  def __init__(self, tags: bool):
    jieba = load()
    data = pathlib.Path(jieba.__file__).with_name('dict.txt').read_bytes()
    self._trie = _trie(data.decode('utf-8'))
    self._inside = np.zeros(1 << 16, bool)  # characters of a stretch: what jieba calls re_han
    for a, b in (('0', '9'), ('A', 'Z'), ('a', 'z'), ('\u4e00', '\u9fd5'), *((c, c) for c in ('+#&._' if tags else '+#&._%-'))):
      self._inside[ord(a):ord(b) + 1] = True
    self._cut = markov.tagged() if tags else markov.plain()
    self._tags, self._memory = tags, {}
    self.facts = dict(segmenter='jieba.posseg' if tags else 'jieba', segmenter_version=jieba.__version__,
                      segmenter_dictionary=hashlib.sha256(data).hexdigest())

  def __call__(self, text: str):
    """(bool [C]: a word starts at this character; uint8 [C]: bits of the word that starts there, 0 without tags)."""
    codes_C = characters.codes(text)
    inside_C = self._inside[np.minimum(codes_C, 0xFFFF)] & (codes_C < 0xFFFF)
    size_C, node_C = _chains(self._trie, codes_C, inside_C)
    starts_C = ~inside_C
    starts_C[1:] &= (codes_C[1:] != 10) | (codes_C[:-1] != 13)  # \r\n is one to jieba
    at_N = np.flatnonzero(inside_C & ~np.concatenate([[False], inside_C[:-1]]))
    while len(at_N):
      starts_C[at_N] = True
      at_N = at_N + size_C[at_N]
      at_N = at_N[at_N < len(codes_C)]
      at_N = at_N[inside_C[at_N]]
    bits_C = np.where(starts_C & inside_C, self._trie.bits[node_C], 0).astype(np.uint8) if self._tags else np.zeros(len(codes_C), np.uint8)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (starts_C & inside_C & (size_C == 1)).view(np.int8), [0]])))
    self._cut_singles(text, edges[::2], edges[1::2], starts_C, bits_C)
    return starts_C, bits_C

  def _cut_singles(self, text, begin_N, end_N, starts_C, bits_C):
    """Cuts stretches of two or more single characters with the Markov model, in place."""
    several = end_N - begin_N > 1
    joined, tagged, bits, memory = [], [], [], self._memory
    for a, b in zip(begin_N[several].tolist(), end_N[several].tolist()):
      stretch = text[a:b]
      found = memory.get(stretch)
      if found is None:
        found = memory[stretch] = self._cut_stretch(stretch)
      joined += [a + i for i in found[0]]
      if found[1]:
        tagged += [a + i for i, _ in found[1]]
        bits += [bit for _, bit in found[1]]
    starts_C[joined] = False
    if self._tags:
      bits_C[tagged] = bits
      bits_C[joined] = 0
    if len(memory) > _REMEMBERED:
      memory.clear()

  def _cut_stretch(self, stretch):
    """(offsets of characters that continue a word, ((offset, bits) of each word, if there are tags))."""
    if self._trie.has_word(stretch):
      return (), ()
    words = self._cut(stretch)
    joined = tuple(i for a, b, _ in words for i in range(a + 1, b))
    return joined, tuple((a, tag_bits(tag)) for a, _, tag in words) if self._tags else ()


@functools.cache
def tag_bits(tag: str) -> int:
  """What a part of speech, as jieba names it, allows: NOUN n… vn an j; MODIFIER also a ad b z; ENTITY nr… ns nt nz."""
  noun = tag[:1] == 'n' or tag in ('vn', 'an', 'j')
  return NOUN * noun | MODIFIER * (noun or tag in ('a', 'ad', 'b', 'z')) | ENTITY * (tag[:2] in ('nr', 'ns', 'nt', 'nz'))


def load():
  """The module jieba, quiet; UserError where it is not installed."""
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # its imports are of another age
      import jieba
  except ImportError as e:
    raise errors.UserError('Chinese words need jieba: pip install "bertzoo_jax[zh]".') from e
  return jieba


# --- chains of dictionary words ---------------------------------------------------------------------------------------


def _chains(trie, codes_C, inside_C):
  """The most probable chain of words of every stretch: from each character the word's size [C] and its node [C].

  The sums run from a stretch's end to its beginning and of equal ones the longer word wins, as in jieba.
  """
  size_C, node_C = np.ones(len(codes_C), np.int64), np.full(len(codes_C), -1, np.int32)
  score_C, sum_C = np.full(len(codes_C), trie.unknown), np.zeros(len(codes_C) + 1)
  edges = trie.walk(codes_C, inside_C)
  for at, _, _ in edges[1:]:
    score_C[at] = -np.inf  # a character alone is a last resort, unless it is a word
  at, node, score = edges[0]
  score_C[at], node_C[at] = score, node
  border = np.flatnonzero(np.diff(np.concatenate([[0], inside_C.view(np.int8), [0]])))
  begin_N, end_N = border[::2], border[1::2]
  long_N = end_N - begin_N > _SHORT
  left_C = np.full(len(codes_C), -1, np.int64)  # characters that follow in the stretch, where this is short
  inside = np.flatnonzero(inside_C)
  left_C[inside] = np.where(np.repeat(long_N, end_N - begin_N), -1, np.repeat(end_N, end_N - begin_N) - 1 - inside)
  steps = [_by_step(inside, left_C)] + [_by_step(at, left_C, node, score) for at, node, score in edges[1:]]
  for step in range(int(left_C.max(initial=-1)) + 1):
    at = steps[0][0][steps[0][1][step]:steps[0][1][step + 1]]
    sum_C[at] = score_C[at] + sum_C[at + 1]
    for n, (at_E, borders, node_E, score_E) in enumerate(steps[1:], 2):
      if step + 1 >= len(borders) or borders[step] == borders[step + 1]:
        continue
      mine = slice(borders[step], borders[step + 1])
      at, total = at_E[mine], score_E[mine] + sum_C[at_E[mine] + n]
      better = total >= sum_C[at]
      at = at[better]
      sum_C[at], size_C[at], node_C[at] = total[better], n, node_E[mine][better]
  for begin, end in zip(begin_N[long_N].tolist(), end_N[long_N].tolist()):
    _long_chain(begin, end, edges, score_C, size_C, node_C)
  return size_C, node_C


def _by_step(at, left_C, *values):
  """(places in the order of their steps, where each step begins among them, values in that order)."""
  left = left_C[at]
  order = np.argsort(left.astype(np.int16), kind='stable')
  order = order[np.count_nonzero(left < 0):]
  return at[order], np.concatenate([[0], np.cumsum(np.bincount(left[order]))]).tolist(), *(v[order] for v in values)


def _long_chain(begin, end, edges, score_C, size_C, node_C):
  """The chain of one stretch, in place."""
  longer = [[] for _ in range(end - begin)]
  for n, (at, node, score) in enumerate(edges[1:], 2):
    mine = slice(*np.searchsorted(at, (begin, end)))
    for i, word, value in zip(at[mine].tolist(), node[mine].tolist(), score[mine].tolist()):
      longer[i - begin].append((n, word, value))
  alone, sums = score_C[begin:end].tolist(), [0.0] * (end - begin + 1)
  for i in range(end - begin - 1, -1, -1):
    best = alone[i] + sums[i + 1]
    for n, word, value in longer[i]:
      if value + sums[i + n] >= best:
        best = value + sums[i + n]
        size_C[begin + i], node_C[begin + i] = n, word
    sums[i] = best


# --- the dictionary ---------------------------------------------------------------------------------------------------


class _Trie(NamedTuple):
  """Prefixes of the dictionary's words, as nodes.

  first: [65536] node of a first character, or -1. keys, children: a hash table (node · 2²¹ + character) → node.
  score: float64 [N], a word's logarithm of probability, -inf for a mere prefix. bits: uint8 [N + 1], the last is no word's.
  unknown: score of a character that begins no word.
  """
  first: np.ndarray
  keys: np.ndarray
  children: np.ndarray
  score: np.ndarray
  bits: np.ndarray
  unknown: float

  def walk(self, codes_C, inside_C):
    """For n = 1, 2, …: (where a word of n characters begins, ascending; its node; its score), within stretches."""
    at = np.flatnonzero(inside_C)
    node = self.first[codes_C[at]]
    edges, n = [], 0
    wide_C = codes_C.astype(np.uint64)
    while len(at) or not n:
      alive = node >= 0
      at, node, n = at[alive], node[alive], n + 1
      score = self.score[node]
      word = score > -np.inf
      edges.append((at[word], node[word], score[word]))
      more = at + n < len(codes_C)
      more[more] = inside_C[at[more] + n]
      at, node = at[more], node[more]
      node = self._step(node, wide_C[at + n])
    return edges

  def has_word(self, word) -> bool:
    """Whether this is a word of the dictionary, and not a mere prefix."""
    codes = characters.codes(word)
    node = self.first[codes[:1]]
    for code in codes[1:].astype(np.uint64):
      node = self._step(node[node >= 0], np.array([code]))
      if not len(node):
        return False
    return bool(node[0] >= 0 and self.score[node[0]] > -np.inf)

  def _step(self, node, code):
    """The node behind each node and character, or -1."""
    key = node.astype(np.uint64) << np.uint64(21) | code
    slot = _slot(key)
    there = self.keys[slot]
    out = np.where(there == key, self.children[slot], -1)
    open_ = np.flatnonzero((there != key) & (there != _FREE))
    while len(open_):
      slot[open_] = slot[open_] + 1 & len(self.keys) - 1
      there = self.keys[slot[open_]]
      hit = there == key[open_]
      out[open_[hit]] = self.children[slot[open_[hit]]]
      open_ = open_[~hit & (there != _FREE)]
    return out


def _slot(key):
  return (key * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - _SLOTS)).astype(np.int64)


@functools.cache
def _trie(text: str) -> _Trie:
  """The trie of jieba's dictionary: a line a word, its frequency and part of speech."""
  fields = text.replace('\n', ' ').split(' ')
  words, counts, tags = fields[0:-1:3], fields[1::3], fields[2::3]
  total = math.log(sum(map(int, counts)))
  entries = dict(zip(words, zip(counts, tags)))  # of a word that stands twice the last counts
  letters_WN = np.array(list(entries)).view(np.uint32).reshape(len(entries), -1)
  nodes, size, keys, ids = np.zeros(len(entries), np.int64), 0, [], []
  last = np.zeros(len(entries), np.int64)
  first = np.full(1 << 16, -1, np.int32)
  for column in range(letters_WN.shape[1]):
    here = np.flatnonzero(letters_WN[:, column])
    found, index = np.unique(nodes[here].astype(np.uint64) << np.uint64(21) | letters_WN[here, column], return_inverse=True)
    nodes[here] = last[here] = size + index
    if column:
      keys.append(found)
      ids.append(size + np.arange(len(found)))
    else:
      first[found.astype(np.int64)] = np.arange(len(found))
    size += len(found)
  logs = {count: math.log(int(count) or 1) - total for count in set(counts)}
  score, bits = np.full(size, -np.inf), np.zeros(size + 1, np.uint8)
  score[last] = [logs[count] if count != '0' else -np.inf for count, _ in entries.values()]
  bits[last] = [tag_bits(tag) for _, tag in entries.values()]
  return _Trie(first, *_hash_table(np.concatenate(keys), np.concatenate(ids)), score, bits, math.log(1) - total)


def _hash_table(keys, values):
  """(keys [2^_SLOTS], values): every key at its slot, or at the next that is free."""
  table, held = np.full(1 << _SLOTS, _FREE), np.full(1 << _SLOTS, -1, np.int32)
  slot, left = _slot(keys), np.arange(len(keys))
  while len(left):
    free = left[table[slot[left]] == _FREE]
    table[slot[free]] = keys[free]
    mine = left[table[slot[left]] == keys[left]]
    held[slot[mine]] = values[mine]
    left = left[table[slot[left]] != keys[left]]
    slot[left] = slot[left] + 1 & len(table) - 1
  return table, held
