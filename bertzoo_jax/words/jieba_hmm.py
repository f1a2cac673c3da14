"""jieba's two Markov models, which segment the single characters that its dictionary leaves, with
the same sums and ties.

Both take a stretch of characters and return [(begin, end, tag)], tag None without parts of speech.
They read jieba's tables of logarithms and do not call its code, which takes fifty times as long for
characters outside its tables (23 ms each). rjieba is not equal: it differs in 16,000 of 100,000
lines of Chinese text.
"""

import functools
import warnings

import numpy as np

_NEVER = -3.14e100  # jieba's logarithm of zero


def plain():
  """The model of jieba.cut: a character begins (B), continues (M), ends (E) or is (S) a word."""
  from jieba import finalseg

  emit, start, trans = finalseg.emit_P, finalseg.start_P, finalseg.trans_P
  # (state, its emissions, its two predecessors); the second predecessor wins a tie
  steps = [
    (state, emit[state], first, trans[first][state], second, trans[second][state])
    for state, first, second in ('BES', 'EBM', 'MBM', 'SES')
  ]

  def cut_han(text, at):
    sums, trail = {s: start[s] + emit[s].get(text[0], _NEVER) for s in 'BEMS'}, []
    for c in text[1:]:
      best, before = {}, {}
      for state, emitted, first, to_first, second, to_second in steps:
        p = emitted.get(c, _NEVER)
        one, other = sums[first] + to_first + p, sums[second] + to_second + p
        best[state], before[state] = (one, first) if one > other else (other, second)
      sums = best
      trail.append(before)
    states = ['E' if sums['E'] > sums['S'] else 'S']
    for before in reversed(trail):
      states.append(before[states[-1]])
    return _words([(s, None) for s in reversed(states)], at)

  return functools.partial(_cut, cut_han, finalseg.re_han, finalseg.re_skip, lambda part: None)


def tagged():
  """The model of jieba.posseg: the states are those four with 64 parts of speech each."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # its strings have deprecated escapes
    from jieba import posseg
  model = _Tagged(posseg)

  def cut_han(text, at):
    path = model.path(text)
    if path is None:
      return [(at + i, at + i + 1, 'x') for i in range(len(text))]
    return _words(path, at)

  def kind(part):
    return 'm' if posseg.re_num.match(part) else 'eng' if posseg.re_eng.match(part) else 'x'

  return functools.partial(_cut, cut_han, posseg.re_han_detail, posseg.re_skip_detail, kind)


class _Tagged:
  """jieba.posseg's tables as arrays over its S states, and their Viterbi path.

  In jieba the greatest state wins a tie. Here it is the first, since states are sorted descending.
  """

  def __init__(self, posseg):
    self.names = sorted(posseg.emit_P, reverse=True)
    self.start_S = np.array([posseg.start_P[name] for name in self.names])
    self.step_SS = np.array(
      [[posseg.trans_P[a].get(b, -np.inf) for b in self.names] for a in self.names]
    )
    self._emit, self._known = posseg.emit_P, posseg.char_state_tab_P
    self.seen = functools.lru_cache(1 << 14)(self._seen)
    self.follow = functools.lru_cache(1 << 14)(self._follow)

  def _seen(self, c):
    """(logarithm of each state's emission of a character [S], its possible states, ascending)."""
    emit_S = np.array([self._emit[name].get(c, _NEVER) for name in self.names])
    known = self._known.get(c)
    return emit_S, np.flatnonzero([known is None or name in known for name in self.names])

  def _follow(self, states: bytes):
    """(indices of the states that have a successor, their successors [S])."""
    steps = self.step_SS[np.frombuffer(states, np.int64)] > -np.inf
    return np.flatnonzero(steps.any(axis=1)), steps.any(axis=0)

  def path(self, text):
    """The most probable (B | M | E | S, tag) of each character; None where jieba fails."""
    emit_S, states = self.seen(text[0])
    sums, trail = self.start_S[states] + emit_S[states], []
    for c in text[1:]:
      on, next_S = self.follow(states.tobytes())
      if not len(on):
        return None
      emit_S, known = self.seen(c)
      possible = known[next_S[known]]
      if not len(possible):
        possible = np.flatnonzero(next_S)
      sums_BP = sums[on][:, None] + self.step_SS[states[on][:, None], possible] + emit_S[possible]
      best_P = sums_BP.argmax(axis=0)
      trail.append((states, on[best_P]))
      sums, states = sums_BP[best_P, np.arange(len(possible))], possible
    i = int(sums.argmax())
    path = [self.names[states[i]]]
    for earlier, back in reversed(trail):
      i = int(back[i])
      path.append(self.names[earlier[i]])
    return path[::-1]


def _cut(cut_han, han, skip, kind, text):
  words, at = [], 0
  for block in han.split(text):
    if han.match(block):
      words += cut_han(block, at)
      at += len(block)
      continue
    for part in skip.split(block):
      if part:
        words.append((at, at + len(part), kind(part)))
        at += len(part)
  return words


def _words(path, at):
  """Words of a path of (B | M | E | S, tag); characters outside a word are words of their own."""
  words, begin, following = [], 0, 0
  for i, (place, tag) in enumerate(path):
    if place == 'B':
      begin = i
    elif place in 'ES':
      first = begin if place == 'E' else i
      words += [(at + j, at + j + 1, path[j][1]) for j in range(following, first)]
      words.append((at + max(first, following), at + i + 1, tag))
      following = i + 1
  if following < len(path):
    words.append((at + following, at + len(path), path[following][1]))
  return words
