"""jieba's two Markov models, which cut what its dictionary leaves as single characters; the same
sums and ties as there.

Both take a stretch of characters and return [(begin, end, tag)], tag None without parts of speech.
They read jieba's tables of logarithms and not its code, which takes a hundred times as long for
characters that its tables do not know.
"""

import functools
import warnings

import numpy as np

_NEVER = -3.14e100  # jieba's logarithm of zero


def plain():
  """The model of jieba.cut: each character begins (B), continues (M), ends (E) a word or is one
  (S).
  """
  from jieba import finalseg

  emit = [finalseg.emit_P[s] for s in 'BEMS']
  b0, e0, m0, s0 = (finalseg.start_P[s] for s in 'BEMS')
  eb, sb, me, be, mm, bm, ss, es = (
    finalseg.trans_P[a][b] for a, b in ('EB', 'SB', 'ME', 'BE', 'MM', 'BM', 'SS', 'ES')
  )

  def cut_han(text, at):
    emit_b, emit_e, emit_m, emit_s = emit
    c = text[0]
    b, e, m, s = (
      b0 + emit_b.get(c, _NEVER),
      e0 + emit_e.get(c, _NEVER),
      m0 + emit_m.get(c, _NEVER),
      s0 + emit_s.get(c, _NEVER),
    )
    back = []
    for c in text[1:]:
      p = emit_b.get(c, _NEVER)
      from_e, from_s = e + eb + p, s + sb + p
      b_e = from_e > from_s
      new_b = from_e if b_e else from_s
      p = emit_e.get(c, _NEVER)
      from_b, from_m = b + be + p, m + me + p
      e_b = from_b > from_m
      new_e = from_b if e_b else from_m
      p = emit_m.get(c, _NEVER)
      from_b, from_m = b + bm + p, m + mm + p
      m_b = from_b > from_m
      new_m = from_b if m_b else from_m
      p = emit_s.get(c, _NEVER)
      from_e, from_s = e + es + p, s + ss + p
      s_e = from_e > from_s
      s = from_e if s_e else from_s
      b, e, m = new_b, new_e, new_m
      back.append((b_e, e_b, m_b, s_e))
    state = 'E' if e > s else 'S'
    states = [state]
    for b_e, e_b, m_b, s_e in reversed(back):
      if state == 'B':
        state = 'E' if b_e else 'S'
      elif state == 'S':
        state = 'E' if s_e else 'S'
      elif state == 'E':
        state = 'B' if e_b else 'M'
      else:
        state = 'B' if m_b else 'M'
      states.append(state)
    return _words([(s, None) for s in reversed(states)], at)

  return functools.partial(_cut, cut_han, finalseg.re_han, finalseg.re_skip, lambda part: None)


def tagged():
  """The model of jieba.posseg: the states are those four with 64 parts of speech each."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # its strings are of another age
    from jieba import posseg
  # of equal sums the greatest name wins there: here the first
  names = sorted(posseg.emit_P, reverse=True)
  number = {name: i for i, name in enumerate(names)}
  start_S = np.array([posseg.start_P[name] for name in names])
  step_SS = np.array([[posseg.trans_P[a].get(b, -np.inf) for b in names] for a in names])
  every = np.arange(len(names))
  # steps there are, by target, a fraction of all pairs
  target_E, origin_E = np.nonzero(step_SS.T > -np.inf)
  weight_E = step_SS[origin_E, target_E]
  targets, group = np.unique(target_E, return_index=True)
  goes_on_S = (step_SS > -np.inf).any(axis=1)

  @functools.lru_cache(1 << 14)
  def seen(c):
    return (
      np.array([posseg.emit_P[name].get(c, _NEVER) for name in names]),
      np.array(sorted(number[name] for name in posseg.char_state_tab_P[c]))
      if c in posseg.char_state_tab_P
      else every,
    )

  @functools.lru_cache(1 << 14)
  def follow(states):
    """(which of the states lead on, where they lead), of the bytes of an array of states."""
    goes_on = goes_on_S[np.frombuffer(states, np.int64)]
    return goes_on, (step_SS[np.frombuffer(states, np.int64)[goes_on]] > -np.inf).any(axis=0)

  def few(before, sums, obs, emit_S):
    """(the best sum into each of `obs`, which of `before` it comes from), over all pairs."""
    all_SS = sums[:, None] + step_SS[before[:, None], obs] + emit_S[obs]
    best = all_SS.argmax(axis=0)
    return all_SS[best, np.arange(len(obs))], best

  def many(before, sums, obs, emit_S):
    """The same, over the steps there are."""
    sum_S, best_S = np.full((2, len(names)), -np.inf)
    place_S, from_S = np.zeros((2, len(names)), np.int64)
    sum_S[before], place_S[before] = sums, np.arange(len(before))
    all_E = sum_S[origin_E] + weight_E + emit_S[target_E]
    best_S[targets] = np.maximum.reduceat(all_E, group)
    hits = np.flatnonzero(all_E == best_S[target_E])[::-1]
    from_S[target_E[hits]] = origin_E[hits]  # of a target's hits the first is written last
    return best_S[obs], place_S[from_S[obs]]

  def cut_han(text, at):
    emit_S, states = seen(text[0])
    sums, trail = start_S[states] + emit_S[states], []
    for c in text[1:]:
      goes_on, next_S = follow(states.tobytes())
      before = states[goes_on]
      if not len(before):
        # jieba stops with an error here
        return [(at + i, at + i + 1, 'x') for i in range(len(text))]
      emit_S, possible = seen(c)
      obs = possible[next_S[possible]]
      obs = obs if len(obs) else np.flatnonzero(next_S)
      best, origin = (few if len(before) * len(obs) < len(target_E) else many)(
        before, sums[goes_on], obs, emit_S
      )
      trail.append((states, np.flatnonzero(goes_on)[origin]))
      sums, states = best, obs
    i = int(sums.argmax())
    path = [names[states[i]]]
    for earlier, back in reversed(trail):
      i = int(back[i])
      path.append(names[earlier[i]])
    return _words(path[::-1], at)

  def kind(part):
    return 'm' if posseg.re_num.match(part) else 'eng' if posseg.re_eng.match(part) else 'x'

  return functools.partial(_cut, cut_han, posseg.re_han_detail, posseg.re_skip_detail, kind)


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
  """Words of a path of (B | M | E | S, tag); characters that no word takes stand alone."""
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
