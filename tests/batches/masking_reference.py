"""The sequential maskings in plain Python, a row at a time, on the same random bits."""

import numpy as np

from bertzoo_jax.batches.masking import contract
from bertzoo_jax.common import hashing
from bertzoo_jax.words import word_marks
from tests.batches.masking_rows import SPECIAL


class Row:
  """One row: its words [(first column, column behind)], in runs, and its random bits."""

  def __init__(self, features, keys, r, level='word', exclude=()):
    names = 'input_ids', 'segment_ids', 'units'
    self.ids, self.pack, self.marks = (features[k][r].tolist() for k in names)
    self.length, self.key = len(self.ids), (keys[r, :1], keys[r, 1:])
    self.used = sum(p > 0 for p in self.pack)
    barred = {SPECIAL[name] for name in ('cls', 'sep', *exclude)}
    is_text = [p > 0 and i not in barred for i, p in zip(self.ids, self.pack)]
    self.text = [c for c in range(self.length) if is_text[c]]
    bits = dict(
      word=(0, 1),
      phrase=(word_marks.IN_PHRASE, word_marks.CONTINUES_PHRASE),
      entity=(word_marks.IN_ENTITY, word_marks.CONTINUES_ENTITY),
    )
    within, bit = bits[level]
    self.words, self.run = [], []  # run[i]: number of word i's run
    for c in self.text:
      joined = c > 0 and is_text[c - 1] and self.pack[c - 1] == self.pack[c]
      continues = self.marks[c] & (bit if self.marks[c] & within else 1)
      if joined and continues:
        self.words[-1] = (self.words[-1][0], c + 1)
      else:
        self.run.append(self.run[-1] + (not joined) if self.run else 0)
        self.words.append((c, c + 1))
    self.word_of = {c: w for w, (a, b) in enumerate(self.words) for c in range(a, b)}

  def bits(self, purpose, counter):
    return int(hashing.bits(hashing.fold(self.key, purpose), np.array([counter]))[0])

  def ranked(self, columns):
    """Columns in random order: largest rank first, signed, whose low bits are the column + 1."""
    low = (self.length + 1).bit_length()
    rank = {c: self.bits(hashing.SELECT, c) >> low << low | c + 1 for c in columns}
    return sorted(columns, key=lambda c: rank[c] - (rank[c] >> 31 << 32), reverse=True)

  def draw_length(self, thresholds, counter, most=None):
    last = len(thresholds) - 1
    value = self.bits(hashing.COUNT, counter) * int(thresholds[min(most or last, last)]) >> 32
    return int(sum(value >= t for t in thresholds[:-1]))

  def room(self, w):
    return sum(r == self.run[w] for r in self.run[w:])

  def tokens(self, words):
    return {c for w in words for c in range(*self.words[w])}


def nearest(n, rate):
  return max(1, round(n * rate)) if n else 0


def take(row, runs, budget):
  """Lan et al.'s rule: the first words of each run that fit the budget, unless they touch one
  taken.
  """
  taken, left = set(), budget
  for first, size in runs:
    words = [
      w for w in range(first, first + size) if w < len(row.words) and row.run[w] == row.run[first]
    ]
    while words and row.words[words[-1]][1] - row.words[first][0] > left:
      words.pop()
    if words and not taken & set(words):
      taken |= set(words)
      left -= row.words[words[-1]][1] - row.words[first][0]
  return row.tokens(taken)


def whole_word(row, rate):
  starts = {a: w for w, (a, _) in enumerate(row.words)}
  return take(row, [(starts[c], 1) for c in row.ranked(list(starts))], nearest(row.used, rate))


def independent(row, rate):
  falls = lambda a: row.bits(hashing.COIN, a) < hashing.threshold(rate)
  return row.tokens(w for w, (a, _) in enumerate(row.words) if falls(a))


def shuffled(row, rate, weights):
  thresholds = contract.cumulative(weights, '')
  starts = {a: w for w, (a, _) in enumerate(row.words)}
  size = lambda c: row.draw_length(thresholds, c, row.room(starts[c]))
  runs = [(starts[c], size(c)) for c in row.ranked(list(starts))]
  return take(row, runs, nearest(row.used, rate))


def left_to_right(row, rate, weights):
  thresholds, left, rest = contract.cumulative(weights, ''), nearest(row.used, rate), len(row.text)
  mean = round(1024 * sum((n + 1) * w for n, w in enumerate(weights)) / sum(weights))
  taken, w = set(), 0
  while w < len(row.words) and left:
    start, end = row.words[w]
    if row.bits(hashing.COIN, start) * (left * 1024 + mean * (rest - left)) < left * 1024 << 32:
      size = row.draw_length(thresholds, start, row.room(w))
      words = [v for v in range(w, w + size) if row.words[v][1] - start <= left]
    else:
      words = []
    taken |= set(words)
    skipped = words or [w]
    left -= sum(row.words[v][1] - row.words[v][0] for v in words)
    rest -= sum(row.words[v][1] - row.words[v][0] for v in skipped)
    w = skipped[-1] + 1
  return row.tokens(taken)


def span(row, rate, p, most, cut):
  thresholds = contract.cumulative([(1 - p) ** n for n in range(most)], '')
  masked, left = set(), int(np.ceil(rate * len(row.text) - 1e-9))
  for anchor in row.ranked(row.text):
    if anchor in masked:
      continue
    w = row.word_of[anchor]
    for v in range(w, min(w + row.draw_length(thresholds, anchor), w + row.room(w))):
      new = [c for c in range(*row.words[v]) if c not in masked]
      if len(new) > left and not cut:
        break
      masked |= set(new[:left])
      left -= min(left, len(new))
  return masked


def windows(row, rate, max_gram, spread):
  thresholds = contract.cumulative([1 / n for n in range(1, max_gram + 1)], '')
  offset, runs, t, budget = 0, [], 0, nearest(row.used, rate)
  count = len(row.words)
  while offset < count * (2 if spread else 1):
    n = row.draw_length(thresholds, t)
    context = min(n * int(1 / rate), count * (2 if spread else 1) - offset)
    begin = offset + (row.bits(hashing.CONTEXT, t) * context >> 32)
    runs.append((begin, n))
    offset = max(offset + context, begin + n)
    t += 1
  if spread:
    windows = -(-2 * row.length // int(1 / rate))
    low, shift = (windows + 1).bit_length(), row.bits(hashing.SELECT, 0) * count >> 32
    rank = {t: (row.bits(hashing.SPREAD, t) >> low << low | t + 1) % 2**31 for t in range(windows)}
    first_lap = [t for t, (begin, _) in enumerate(runs) if begin < count]
    order = sorted(first_lap, key=rank.get, reverse=True) + list(range(len(first_lap), len(runs)))
    return take(row, [((runs[t][0] + shift) % count, runs[t][1]) for t in order], budget)
  taken = set()
  for begin, n in runs:
    for w in range(begin, begin + n):
      if w < len(row.words) and row.run[w] == row.run[begin]:
        if len(taken) + row.words[w][1] - row.words[w][0] > budget:
          return taken
        taken |= row.tokens([w])
  return taken


def xlnet_spans(row, block, goals, context, max_span, pieces, reverse):
  """The tokens in spans of each block of a row, read from its end where `reverse`."""
  thresholds, out = contract.cumulative([1 / n for n in range(1, max_span + 1)], ''), set()
  for b, goal in enumerate(goals):
    low, high = b * block, min((b + 1) * block, row.length)
    column_of = {
      ((b + 1) * block - 1 - c if reverse else c - low): c for c in row.text if low <= c < high
    }  # as the block is read
    part = _Block(row, b, column_of)
    column, left, t = 0, goal, 0
    while left > 0 and column < block:
      n = min(part.draw_length(thresholds, t), left)
      before = part.bits(hashing.CONTEXT, t) * (context * n) >> 32
      t += 1
      first = next((w for w, (a, _) in enumerate(part.words) if a >= column + before), None)
      if column + before >= block or first is None:
        break
      run = [w for w in range(first, len(part.words)) if part.run[w] == part.run[first]]
      begin = part.words[first][0]
      if (begin + n >= block) if pieces else (first + n >= len(part.words)):
        break
      if pieces:
        end = min(begin + n, part.words[run[-1]][1])
      else:
        ends = [part.words[w][1] for w in run[:n]]
        end = max([x for x in ends if x - begin <= left], default=begin)
      out |= {part.column[c] for c in range(begin, end)}
      left -= end - begin
      column = end + context * n - before
  return out


def single_tokens(row, number, low, high, block, goal, spans):
  """Tokens that fill a block's predictions up: of its text outside of spans, those with the largest
  ranks.
  """
  part = _Block(row, number, {})
  shift = (block + 1).bit_length()
  rank = {
    c: (part.bits(hashing.SELECT, c - low) >> shift << shift | c - low + 1) % 2**31
    for c in row.text
    if low <= c < high and c not in spans
  }
  missing = goal - sum(low <= c < high for c in spans)
  return set(sorted(rank, key=rank.get, reverse=True)[: max(missing, 0)])


class _Block(Row):
  """A block of a row in its reading order: columns from 0, words as they come in that order."""

  def __init__(self, row, number, column_of):
    self.key, self.column = hashing.fold(row.key, np.array([number])), column_of
    self.words, self.run = [], []
    for p in sorted(self.column):
      c, previous = self.column[p], self.column.get(p - 1)
      joined = previous is not None and row.pack[previous] == row.pack[c]
      if joined and row.marks[c] & 1:
        self.words[-1] = (self.words[-1][0], p + 1)
      else:
        self.run.append(self.run[-1] + (not joined) if self.run else 0)
        self.words.append((p, p + 1))
