"""Tries in arrays, which find the entries of a lexicon at all places of a text in parallel."""

from typing import NamedTuple

import numpy as np

_FREE = np.uint64(2**64 - 1)


class Trie(NamedTuple):
  """Prefixes of sequences of symbols (integers from 0), as nodes.

  first: the node of a first symbol, or -1. keys, children: a hash table, node · 2³² + symbol →
  node. size: number of nodes.
  """

  first: np.ndarray
  keys: np.ndarray
  children: np.ndarray
  size: int

  def walk(self, symbols_C, inside_C):
    """Yields for n = 1, 2, … (places where a prefix of n symbols begins, ascending; their nodes).
    Prefixes do not cross a place that is not inside.

    symbols_C: int [C], -1 for a symbol that no entry has. inside_C: bool [C]. Yields at least for
    n = 1 and stops when no prefix is left, at the longest entry at the latest.
    """
    symbols_C, at = symbols_C.astype(np.int64), np.flatnonzero(inside_C)
    known_C = (symbols_C >= 0) & (symbols_C < len(self.first))
    node, n = np.where(known_C[at], self.first[np.where(known_C[at], symbols_C[at], 0)], -1), 1
    while True:
      at, node = at[node >= 0], node[node >= 0]
      yield at, node
      more = at + n < len(symbols_C)
      more[more] = inside_C[at[more] + n] & (symbols_C[at[more] + n] >= 0)
      at, node = at[more], node[more]
      if not len(at):
        return
      node = self._step(node, symbols_C[at + n])
      n += 1

  def _step(self, node, symbol):
    """The child of each node by symbol, or -1."""
    key = node.astype(np.uint64) << np.uint64(32) | symbol.astype(np.uint64)
    slot = _slot(key, len(self.keys))
    slot_keys = self.keys[slot]
    out = np.where(slot_keys == key, self.children[slot], -1)
    left = np.flatnonzero((slot_keys != key) & (slot_keys != _FREE))
    while len(left):
      slot[left] = slot[left] + 1 & len(self.keys) - 1
      slot_keys = self.keys[slot[left]]
      hit = slot_keys == key[left]
      out[left[hit]] = self.children[slot[left[hit]]]
      left = left[~hit & (slot_keys != _FREE)]
    return out


def build(entries_WN, symbols: int) -> tuple[Trie, np.ndarray]:
  """A trie of rows of ints < symbols, padded with -1, and the last node of each row [W]."""
  node_W, size, keys, children = np.zeros(len(entries_WN), np.int64), 0, [], []
  first = np.full(symbols, -1, np.int64)
  for column in range(entries_WN.shape[1]):
    rows = np.flatnonzero(entries_WN[:, column] >= 0)
    key = node_W[rows].astype(np.uint64) << np.uint64(32) | entries_WN[rows, column].astype(
      np.uint64
    )
    edges, index = np.unique(key, return_inverse=True)
    node_W[rows] = size + index
    if column:
      keys.append(edges)
      children.append(size + np.arange(len(edges)))
    else:
      first[edges.astype(np.int64)] = np.arange(len(edges))
    size += len(edges)
  keys = np.concatenate(keys) if keys else np.zeros(0, np.uint64)
  return Trie(
    first, *_table(keys, np.concatenate(children) if children else np.zeros(0, np.int64)), size
  ), node_W


def _table(keys, values):
  """(keys, values) of a hash table: every key is at its slot, or at the next free one."""
  slots = 1 << max(4, int(len(keys) * 4 - 1).bit_length())
  table, held = np.full(slots, _FREE), np.full(slots, -1, np.int64)
  slot, left = _slot(keys, slots), np.arange(len(keys))
  while len(left):
    free = left[table[slot[left]] == _FREE]
    table[slot[free]] = keys[free]
    mine = table[slot[left]] == keys[left]
    held[slot[left[mine]]] = values[left[mine]]
    left = left[~mine]
    slot[left] = slot[left] + 1 & slots - 1
  return table, held


def _slot(key, slots):
  return (key * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(65 - slots.bit_length())).astype(
    np.int64
  )
