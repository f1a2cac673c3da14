"""Maps an example to a row of a single corpus, or of several corpora that take turns.

`config.mixture` gives the share of each corpus, in the order of --corpus:

    ()             proportional to its rows: all have the same number of epochs
    ('size', 0.7)  proportional to its rows to the power 0.7: small corpora repeat more often
    (0.9, 0.1)     these weights

Of the first n examples of a mixture, a corpus with the share w gives w · n, to within one. The
examples of a corpus are numbered from 0, and its epochs have the same orders as in a run on that
corpus alone. Shares are exact if a cycle of _TURNS turns can hold them, else rounded to it.
"""

import fractions
import math
from typing import NamedTuple

import numpy as np

from bertzoo_jax.batches import epochs
from bertzoo_jax.batches import rows as rows_lib
from bertzoo_jax.common import amounts
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.words import word_marks

_TURNS = 1 << 16


class Source(NamedTuple):
  """The rows of one corpus."""

  corpus: object  # corpus.corpus.Corpus
  order: epochs.Order
  length: int  # tokens per row
  reads_units: bool  # whether rows have the feature 'units' (words/word_marks.py)

  @property
  def rows_per_epoch(self) -> int:
    return self.order.rows_per_epoch

  def at(self, example):
    """Features before masking, and row keys, of the ascending examples [b]."""
    epoch, place = np.divmod(example, self.rows_per_epoch)
    return self.rows(epoch, place, shuffled=not self.order.in_lanes)

  def read(self, first: int, end: int) -> tuple[amounts.Reading, ...]:
    """The Reading of the examples [first, end): how much of the corpus they cover."""
    words = self.corpus.manifest.get('words', {}).get('train')  # a corpus in memory has no count
    return (amounts.Reading(self.corpus.name, end - first, self.rows_per_epoch, words),)

  def rows(self, epoch, place, shuffled):
    """Features and row keys of the places [b] of epochs [b]. `shuffled`: places count in the
    epoch's order, else in the order of its lists.
    """
    stretches, parts = [], self.order.lists.parts
    for e, part, places in self.order.stretches(np.broadcast_to(epoch, place.shape), place):
      rows, numbers, key = self.order.rows(e, part, places, shuffled)
      split, form = parts.split(part), parts.form(part)
      gather = lambda positions, split=split: self._gather(split, positions)
      units = None
      if self.reads_units:
        units = lambda positions, tokens, split=split: self._units(split, positions, tokens)
      special = self.corpus.special
      if form.assemble:
        features = form.assemble(key, rows, numbers, gather, special, units)
      else:
        spans = form.spans(key, rows, numbers)
        features = rows_lib.assemble(
          spans, len(numbers), self.length, gather, special, form.packed, units
        )
      row_keys = hashing.fold(hashing.fold(key, hashing.ROW), numbers)
      stretches.append((features, np.stack(row_keys, axis=-1)))
    return _joined(stretches)

  def _gather(self, split, positions):
    tokens = split.gather(positions)
    if tokens.max() >= self.corpus.vocab_size:
      where = int(positions.reshape(-1)[tokens.argmax()])
      raise errors.UserError(
        f'Token {where} of the split {self.order.split!r} is {int(tokens.max())}, in a vocabulary '
        f'of {self.corpus.vocab_size}: the corpus is damaged or not of this tokenizer; prepare it '
        'again into a new folder.'
      )
    return tokens

  def _units(self, split, positions, tokens):
    """The marks of tokens: from the corpus, or, without marks, the word starts of its pieces."""
    if self.corpus.has_marks:
      return split.gather_units(positions)
    return np.where(self.corpus.word_starts[tokens], 0, word_marks.CONTINUES_WORD).astype(np.int32)


class Mixture:
  """The rows of several corpora, with the methods of a Source.

  Attributes:
    rows_per_epoch: rows of all corpora in an epoch.
    rounding: see Turns.
  """

  def __init__(self, sources, mixture: tuple, before: tuple):
    """mixture: config.mixture. before: ((examples, mixture), …) of the earlier phases that share
    the order of rows; the examples of this phase follow theirs.
    """
    self._sources, rows = sources, [s.rows_per_epoch for s in sources]
    self.rows_per_epoch = sum(rows)
    self._turns = Turns(mixture, rows)
    self.rounding = self._turns.rounding
    # the first example of this mixture, and the examples read of each corpus before it
    self._start, self._read, examples, last = 0, np.zeros(len(rows), np.int64), 0, None
    for count, weights in (*before, (0, mixture)):
      if last not in (None, weights):
        self._read = self._read + Turns(last, rows).counts(examples - self._start)
        self._start = examples
      examples, last = examples + count, weights

  def at(self, example):
    which, number = self._turns.at(example - self._start)
    places, parts = [], []
    for i in np.unique(which).tolist():
      places.append(np.flatnonzero(which == i))
      parts.append(self._sources[i].at(self._read[i] + number[places[-1]]))
    features, keys = _joined(parts)
    order = np.argsort(np.concatenate(places))
    return {name: rows[order] for name, rows in features.items()}, keys[order]

  def read(self, first: int, end: int) -> tuple[amounts.Reading, ...]:
    first, end = (self._turns.counts(n - self._start) for n in (first, end))
    return tuple(s.read(0, n)[0] for s, n in zip(self._sources, (end - first).tolist()))


class Turns:
  """The corpus of each example of a mixture: among the corpora below their share, the one whose
  next example is due first. The order repeats after a cycle.

  Attributes:
    rounding: the largest relative error of a share.
  """

  def __init__(self, mixture: tuple, rows: list[int]):
    shares = _shares(mixture, rows)
    self._cycle = _cycle(shares)
    total, taken, turns = sum(self._cycle), [0] * len(rows), []
    both = zip(shares, self._cycle)
    self.rounding = float(max(abs(count / (total * share) - 1) for share, count in both if share))
    for n in range(total):
      i = min(
        (i for i, count in enumerate(self._cycle) if taken[i] * total < count * (n + 1)),
        key=lambda i: -(-(taken[i] + 1) * total // self._cycle[i]),
      )
      turns.append(i)
      taken[i] += 1
    self._turns = np.array(turns)
    ones = self._turns[:, None] == np.arange(len(rows))
    self._before = np.concatenate([np.zeros((1, len(rows)), np.int64), np.cumsum(ones, axis=0)])

  def counts(self, n: int) -> np.ndarray:
    """int64: how many of the first n examples each corpus gives."""
    cycles, rest = divmod(n, len(self._turns))
    return cycles * self._before[-1] + self._before[rest]

  def at(self, n):
    """(corpus, number in that corpus) of each of the examples n: int64 [b] each."""
    cycles, rest = np.divmod(n, len(self._turns))
    which = self._turns[rest]
    return which, cycles * self._before[-1, which] + self._before[rest, which]


def check(mixture: tuple, count: int) -> None:
  """Raises UserError unless config.mixture is for this number of corpora."""
  if mixture and mixture[0] != 'size' and len(mixture) != count:
    raise errors.UserError(
      f'config.mixture has {len(mixture)} weights and there are {count} corpora: give one '
      "weight for each --corpus, or ('size', POWER)."
    )


def _shares(mixture, rows) -> list[fractions.Fraction]:
  """The share of each corpus; they sum to 1."""
  if mixture[:1] == ('size',) or not mixture:
    power = mixture[1] if mixture else 1
    shares = [fractions.Fraction(n if power == 1 else n**power) for n in rows]
  else:
    shares = [fractions.Fraction(str(weight)) for weight in mixture]
  return [share / sum(shares) for share in shares]


def _cycle(shares) -> list[int]:
  """Turns of each corpus in a cycle: whole numbers without a common divisor."""
  whole = math.lcm(*(share.denominator for share in shares))
  if whole > _TURNS:
    return [max(1, round(share * _TURNS)) if share else 0 for share in shares]
  return [int(share * whole) for share in shares]


def _joined(parts):
  """Concatenates several (features, keys) into one."""
  if len(parts) == 1:
    return parts[0]
  features, keys = zip(*parts)
  return {n: np.concatenate([f[n] for f in features]) for n in features[0]}, np.concatenate(keys)
