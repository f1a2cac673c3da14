"""Chinese words and parts of speech exactly as jieba finds them, for a whole batch of text at once.

Between punctuation jieba takes the most probable chain of words in its dictionary. It segments the
remaining single characters with a hidden Markov model. Here the dictionary is a trie in arrays, and
the chains of all stretches are computed in parallel, with the same float64 sums in the same order
and the same ties. Only the Markov model goes character by character, with a cache. A test compares
the result with `jieba.cut` and `jieba.posseg.cut`. C characters of the text.

jieba's own loading is not used: it prints, and leaves a cache in the folder of temporary files that
workers would share.
"""

import functools
import math
import pathlib
import warnings
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.words import characters
from bertzoo_jax.words import jieba_hmm
from bertzoo_jax.words import tries

NOUN, MODIFIER, ENTITY = 1, 2, 4  # bits of a word's part of speech
# characters; a longer stretch is segmented alone, since a batch takes the steps of its longest
_SHORT = 128
_REMEMBERED = 1 << 18  # stretches of single characters


class Segmenter:
  """Segments text as jieba; with `tags` as jieba.posseg, whose Markov model differs, with bits for
  parts of speech.

  Attributes:
    facts: {'segmenter', 'segmenter_version', 'segmenter_dictionary' (its SHA-256)}.

  Raises UserError: jieba is not installed.
  """

  def __init__(self, tags: bool):
    jieba = load()
    file = pathlib.Path(jieba.__file__).with_name('dict.txt')
    self._dictionary = _dictionary(file)
    self._inside = np.zeros(1 << 16, bool)  # characters of a stretch: jieba's re_han
    marks = [2 * c for c in ('+#&._' if tags else '+#&._%-')]
    for first, last in ('09', 'AZ', 'az', '\u4e00\u9fd5', *marks):
      self._inside[ord(first) : ord(last) + 1] = True
    self._cut = jieba_hmm.tagged() if tags else jieba_hmm.plain()
    self._tags, self._memory = tags, {}
    self.facts = dict(
      segmenter='jieba.posseg' if tags else 'jieba',
      segmenter_version=jieba.__version__,
      segmenter_dictionary=storage.sha256(file),
    )

  def __call__(self, text: str):
    """(bool [C]: whether a word starts at each character; uint8 [C]: bits of the word that starts
    there, 0 without tags; undefined at other characters).
    """
    codes_C = characters.codes(text)
    inside_C = self._inside[np.minimum(codes_C, 0xFFFF)] & (codes_C < 0xFFFF)
    size_C, node_C, edges = _chains(self._dictionary, codes_C, inside_C)
    starts_C = ~inside_C
    starts_C[1:] &= (codes_C[1:] != 10) | (codes_C[:-1] != 13)  # \r\n is one to jieba
    at_N = np.flatnonzero(inside_C & ~np.concatenate([[False], inside_C[:-1]]))
    while len(at_N):
      starts_C[at_N] = True
      at_N = at_N + size_C[at_N]
      at_N = at_N[at_N < len(codes_C)]
      at_N = at_N[inside_C[at_N]]
    tagged_C = starts_C & inside_C & self._tags
    bits_C = np.where(tagged_C, self._dictionary.bits[node_C], 0).astype(np.uint8)
    begin_N, end_N = _runs(starts_C & inside_C & (size_C == 1))
    loose_N = ~_are_words(begin_N, end_N - begin_N, edges)
    self._cut_singles(text, begin_N[loose_N], end_N[loose_N], starts_C, bits_C)
    return starts_C, bits_C

  def _cut_singles(self, text, begin_N, end_N, starts_C, bits_C):
    """Segments stretches of single characters with the Markov model, in place."""
    joined, tagged, bits, memory = [], [], [], self._memory
    for a, b in zip(begin_N.tolist(), end_N.tolist()):
      stretch = text[a:b]
      cut = memory.get(stretch)
      if cut is None:
        words = self._cut(stretch)
        joins = tuple(i for begin, end, _ in words for i in range(begin + 1, end))
        word_bits = tuple((begin, tag_bits(tag)) for begin, _, tag in words if self._tags)
        cut = memory[stretch] = joins, word_bits
      joined += [a + i for i in cut[0]]
      if cut[1]:
        tagged += [a + i for i, _ in cut[1]]
        bits += [bit for _, bit in cut[1]]
    starts_C[joined] = False
    if self._tags:
      bits_C[tagged] = bits
    if len(memory) > _REMEMBERED:
      memory.clear()


@functools.cache
def tag_bits(tag: str) -> int:
  """The bits of a tag of jieba: NOUN n… vn an j; MODIFIER also a ad b z; ENTITY nr… ns nt nz."""
  noun = tag[:1] == 'n' or tag in ('vn', 'an', 'j')
  return (
    NOUN * noun
    | MODIFIER * (noun or tag in ('a', 'ad', 'b', 'z'))
    | ENTITY * (tag[:2] in ('nr', 'ns', 'nt', 'nz'))
  )


def load():
  """The module jieba, without its log; UserError if it is not installed."""
  with errors.needing('Chinese words need jieba', 'zh'), warnings.catch_warnings():
    warnings.simplefilter('ignore')  # its imports are deprecated
    import jieba
  return jieba


# --- chains of dictionary words ---


def _chains(dictionary, codes_C, inside_C):
  """The most probable chain of words of every stretch: the size [C] and the node [C] of the word
  that begins at each character; and the edges.

  The sums run from the end of a stretch to its beginning. The longer word wins a tie, as in jieba.
  """
  size_C, node_C = np.ones(len(codes_C), np.int64), np.full(len(codes_C), -1, np.int32)
  score_C, sum_C = np.full(len(codes_C), dictionary.unknown), np.zeros(len(codes_C) + 1)
  edges = dictionary.edges(codes_C, inside_C)
  for at, _, _ in edges[1:]:
    score_C[at] = -np.inf  # a single character that is no word is the last resort
  at, node, score = edges[0]
  score_C[at], node_C[at] = score, node
  begin_N, end_N = _runs(inside_C)
  long_N = end_N - begin_N > _SHORT
  # number of characters that follow in a short stretch
  left_C = np.full(len(codes_C), -1, np.int64)
  inside = np.flatnonzero(inside_C)
  left_C[inside] = np.where(
    np.repeat(long_N, end_N - begin_N), -1, np.repeat(end_N, end_N - begin_N) - 1 - inside
  )
  steps = [_by_step(inside, left_C)] + [
    _by_step(at, left_C, node, score) for at, node, score in edges[1:]
  ]
  for step in range(int(left_C.max(initial=-1)) + 1):
    at = steps[0][0][steps[0][1][step] : steps[0][1][step + 1]]
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
  return size_C, node_C, edges


def _by_step(at, left_C, *values):
  """(places by step, where each step begins among them, values in that order)."""
  left = left_C[at]
  order = np.argsort(left.astype(np.int16), kind='stable')
  order = order[np.count_nonzero(left < 0) :]
  return (
    at[order],
    np.concatenate([[0], np.cumsum(np.bincount(left[order]))]).tolist(),
    *(v[order] for v in values),
  )


def _runs(true_C):
  """(begin, end) of the stretches that are true."""
  border = np.flatnonzero(np.diff(np.concatenate([[0], true_C.view(np.int8), [0]])))
  return border[::2], border[1::2]


def _are_words(begin_N, size_N, edges):
  """Whether jieba does not segment the characters: a single one, or a word of the dictionary."""
  out_N = size_N == 1
  for n, (at, _, _) in enumerate(edges[1:], 2):
    out_N |= (size_N == n) & np.isin(begin_N, at)
  return out_N


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


# --- the dictionary ---


class _Dictionary(NamedTuple):
  """jieba's words."""

  trie: tries.Trie
  score: np.ndarray  # float64 [N], log probability of each node's word, -inf for a mere prefix
  bits: np.ndarray  # uint8 [N + 1], the last for no word
  unknown: float  # score of a character that begins no word

  def edges(self, codes_C, inside_C):
    """For n = 1, 2, …: (where words of n characters begin, nodes, scores), within stretches."""
    edges = []
    for at, node in self.trie.walk(codes_C, inside_C):
      score = self.score[node]
      word = score > -np.inf
      edges.append((at[word], node[word], score[word]))
    return edges


@functools.cache
def _dictionary(file) -> _Dictionary:
  """The words of jieba's file: one word per line, its frequency and part of speech."""
  fields = file.read_text(encoding='utf-8').replace('\n', ' ').split(' ')
  words, counts, tags = fields[0:-1:3], fields[1::3], fields[2::3]
  total = math.log(sum(map(int, counts)))
  entries = dict(zip(words, zip(counts, tags)))  # the last entry of a repeated word counts
  letters_WN = np.array(list(entries)).view(np.uint32).reshape(len(entries), -1).astype(np.int64)
  trie, node_W = tries.build(np.where(letters_WN > 0, letters_WN, -1), 1 << 16)
  logs = {count: math.log(int(count)) - total if int(count) else -np.inf for count in set(counts)}
  score, bits = np.full(trie.size, -np.inf), np.zeros(trie.size + 1, np.uint8)
  score[node_W] = [logs[count] for count, _ in entries.values()]
  bits[node_W] = [tag_bits(tag) for _, tag in entries.values()]
  return _Dictionary(trie, score, bits, math.log(1) - total)
