"""jieba's two Markov models, which cut what its dictionary leaves as single characters; the same sums and ties as there.

Both take a stretch of characters and return [(begin, end, tag)], tag None without parts of speech. They read jieba's tables
of logarithms and not its code, which takes a hundred times as long for characters that its tables do not know.
"""

import functools

import numpy as np

_NEVER = -3.14e100  # jieba's logarithm of zero


def plain():
  """The model of jieba.cut: each character begins (B), continues (M), ends (E) a word or is one (S)."""
  from jieba import finalseg
  emit = [finalseg.emit_P[s] for s in 'BEMS']
  b0, e0, m0, s0 = (finalseg.start_P[s] for s in 'BEMS')
  step = {(a, b): finalseg.trans_P[a][b] for a, b in ('EB', 'SB', 'ME', 'BE', 'MM', 'BM', 'SS', 'ES')}
  eb, sb, me, be, mm, bm, ss, es = step.values()
  eb_, sb_, me_, be_, mm_, bm_, ss_, es_ = eb, sb, me, be, mm, bm, ss, es

  def cut_han(text, at):
    emit_b, emit_e, emit_m, emit_s = emit
    c = text[0]
    b, e, m, s = b0 + emit_b.get(c, _NEVER), e0 + emit_e.get(c, _NEVER), m0 + emit_m.get(c, _NEVER), s0 + emit_s.get(c, _NEVER)
    back = []
    for c in text[1:]:
      p = emit_b.get(c, _NEVER)
      from_e, from_s = e + eb_ + p, s + sb_ + p
      b_e = from_e > from_s
      new_b = from_e if b_e else from_s
      p = emit_e.get(c, _NEVER)
      from_b, from_m = b + be_ + p, m + me_ + p
      e_b = from_b > from_m
      new_e = from_b if e_b else from_m
      p = emit_m.get(c, _NEVER)
      from_b, from_m = b + bm_ + p, m + mm_ + p
      m_b = from_b > from_m
      new_m = from_b if m_b else from_m
      p = emit_s.get(c, _NEVER)
      from_e, from_s = e + es_ + p, s + ss_ + p
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
  from jieba import posseg
  names = sorted(posseg.emit_P, reverse=True)  # of equal sums the greatest name wins there: here the first
  number = {name: i for i, name in enumerate(names)}
  start = np.array([posseg.start_P[name] for name in names])
  step_SS = np.array([[posseg.trans_P[a].get(b, -np.inf) for b in names] for a in names])
  leads_SS = np.array([[b in posseg.trans_P[a] for b in names] for a in names])
  every = np.arange(len(names))

  @functools.lru_cache(1 << 14)
  def seen(c):
    return (np.array([posseg.emit_P[name].get(c, _NEVER) for name in names]),
            np.array(sorted(number[name] for name in posseg.char_state_tab_P[c])) if c in posseg.char_state_tab_P else every)

  def cut_han(text, at):
    emit, states = seen(text[0])
    sums, trail = start[states] + emit[states], []
    for c in text[1:]:
      goes_on = leads_SS[states].any(axis=1)
      before = states[goes_on]
      if not len(before):
        return [(at + i, at + i + 1, 'x') for i in range(len(text))]  # jieba stops with an error here
      emit, possible = seen(c)
      next_S = leads_SS[before].any(axis=0)
      obs = possible[next_S[possible]]
      obs = obs if len(obs) else np.flatnonzero(next_S)
      all_SS = sums[goes_on][:, None] + step_SS[before[:, None], obs] + emit[obs]
      best = all_SS.argmax(axis=0)
      trail.append((states, np.flatnonzero(goes_on)[best]))
      sums, states = all_SS[best, np.arange(len(obs))], obs
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
