"""Converts scores of places in windows to answers, cut out of the passages as they were read.

Legend: Q questions, W windows, K starts and M ends of a beam.
"""

import unicodedata
from typing import NamedTuple

import numpy as np

_INVISIBLE = '\u200b\u2060\ufeff\u00ad'  # of no width, and no part of a word
_CHUNK = 2048  # windows at a time
_CERTAIN = 1e9  # odds of no answer if no span is possible; finite, for JSON


class Answers(NamedTuple):
  texts: list[str]  # per question; '' for no answer
  best: list[str]  # the best answer that is not empty, per question
  odds: np.ndarray  # float64 [Q], of having no answer; above the threshold the text is ''
  # per question, [(text, probability, score of its start, of its end)], the best first
  n_best: list[list[tuple[str, float, float, float]]]
  may_have_none: bool  # whether there are questions without an answer
  starts: list[int] = ()  # the first character of `best` in the passage; −1 for none


class Spans(NamedTuple):
  """Candidates of many windows: flat arrays of one length."""

  # window, start, end: the tokens, counted from the window's first token of the passage
  window: np.ndarray
  start: np.ndarray
  end: np.ndarray
  # start_score, end_score: the answer's score is their sum
  start_score: np.ndarray
  end_score: np.ndarray


def from_scores(windows, offsets, starts, ends) -> tuple[Spans, np.ndarray]:
  """(Spans, odds of no answer per question [Q]) from two scores per token (Devlin et al. 2018 §4.2,
  4.3).

  The n_best best starts and ends of a window are paired. The score of no answer is that of the
  special token, the lowest of a question's windows; the odds are its distance to the best answer,
  and _CERTAIN for a question without a candidate.

  windows: windows.Windows. offsets: int64 [W + 1], of the windows' rows in the scores. starts,
  ends: float32, scores of all tokens.
  """
  n, most = windows.decoding.n_best, windows.decoding.max_answer
  chunks = []
  bounds = np.concatenate([[0], np.cumsum(windows.size)])
  for a in range(0, len(windows.size), _CHUNK):
    b = min(a + _CHUNK, len(windows.size))
    size = windows.size[a:b]
    wide = max(int(size.max()), 1)
    present = np.arange(wide) < size[:, None]
    at = np.where(present, (offsets[a:b] + windows.place[a:b])[:, None] + np.arange(wide), 0)
    best = np.zeros_like(present)
    best[present] = windows.best_context[bounds[a] : bounds[b]]
    tops = [
      _top(np.where(mask, scores[at].astype(np.float64), -np.inf), n)
      for scores, mask in ((starts, best), (ends, present))
    ]
    (start, start_score), (end, end_score) = tops
    lengths = end[:, None, :] - start[:, :, None] + 1
    pairs = start_score[:, :, None] + end_score[:, None, :]
    pairs = np.where((lengths >= 1) & (lengths <= most), pairs, -np.inf)
    which, scores = _top(pairs.reshape(b - a, -1), n)
    row, column = np.nonzero(np.isfinite(scores))
    i, j = np.divmod(which[row, column], end.shape[1])
    chunks.append((row + a, start[row, i], end[row, j], start_score[row, i], end_score[row, j]))
  spans = Spans(*(np.concatenate(x) for x in zip(*chunks)))
  cls = offsets[:-1] + windows.cls
  none = _lowest(windows, starts[cls].astype(np.float64) + ends[cls])
  best = np.full(len(none), -np.inf)
  np.maximum.at(best, windows.question[spans.window], spans.start_score + spans.end_score)
  return spans, np.where(np.isfinite(best), none - best, _CERTAIN)


def from_beams(windows, outputs) -> tuple[Spans, np.ndarray]:
  """(Spans, odds of no answer per question [Q]) from a beam (Yang et al. 2019, released code).

  outputs: start_share, start_place [W, K], end_share, end_place [W, K, M]: probabilities and places
  in the row, the best first; impossible [W]: score that the window has no answer. A question has
  the lowest `impossible` of its windows. An answer's score is the logarithm of its probability.
  """
  k, most = windows.decoding.beam, windows.decoding.max_answer
  place = windows.place[:, None]
  start_share = outputs['start_share'][:, :k].astype(np.float64)
  start = outputs['start_place'][:, :k].astype(np.int64) - place
  end_share = outputs['end_share'][:, :k, :k].astype(np.float64)
  end = outputs['end_place'][:, :k, :k].astype(np.int64) - place[:, :, None]
  inside = (start >= 0) & (start < windows.size[:, None])
  bounds = np.concatenate([[0], np.cumsum(windows.size)])
  at = np.where(inside, bounds[:-1, None] + start, 0)
  if len(windows.best_context):
    inside &= windows.best_context[at]
  lengths = end - start[:, :, None] + 1
  right = inside[:, :, None] & (lengths >= 1) & (lengths <= most)
  right &= (end < windows.size[:, None, None]) & (start_share[:, :, None] > 0) & (end_share > 0)
  w, i, j = np.nonzero(right)
  spans = Spans(w, start[w, i], end[w, i, j], np.log(start_share[w, i]), np.log(end_share[w, i, j]))
  return spans, _lowest(windows, outputs['impossible'].astype(np.float64))


def extract(
  windows, questions, spans: Spans, odds, may_have_none: bool, threshold: float
) -> Answers:
  """The best answer to each question, and its n best ones. spans: candidates of all windows. odds:
  float64 [Q], of no answer, which is given, if may_have_none, where they are above the threshold.
  """
  number = windows.question[spans.window]
  score = spans.start_score + spans.end_score
  order = np.lexsort((spans.end, spans.start, spans.window, -score, number))
  begin, behind = windows.characters(spans.window, spans.start, spans.end)
  bounds = np.searchsorted(number[order], np.arange(len(questions) + 1))
  n_best, best, starts = [], [], []
  for i, context in enumerate(questions.column('context')):
    seen = {}
    for c in order[bounds[i] : bounds[i + 1]]:
      text = cut(context, begin[c], behind[c])
      if text and text not in seen:
        if not seen:
          first = context.find(text, begin[c])
        seen[text] = (spans.start_score[c], spans.end_score[c])
        if len(seen) == windows.decoding.n_best:
          break
    shares = np.array([a + b for a, b in seen.values()])
    shares = np.exp(shares - shares.max()) if len(shares) else shares
    n_best.append(
      [
        (text, float(p), float(a), float(b))
        for (text, (a, b)), p in zip(seen.items(), shares / max(shares.sum(), 1e-300))
      ]
    )
    best.append(next(iter(seen), ''))
    starts.append(first if seen else -1)
  none = odds > threshold if may_have_none else np.zeros(len(best), bool)
  texts = ['' if none[i] else text for i, text in enumerate(best)]
  return Answers(texts, best, odds, n_best, may_have_none, starts)


def cut(context: str, begin: int, end: int) -> str:
  """The characters begin … end − 1 of a passage, stripped of blanks and invisible characters, with
  the accents that follow: to a tokenizer that drops accents they belong to no token.
  """
  while end < len(context) and unicodedata.category(context[end])[0] == 'M':
    end += 1
  return context[begin:end].strip().strip(_INVISIBLE).strip()


def _top(scores, n):
  """(places, scores) of the n highest of each row, sorted; the first of equal ones wins."""
  n = min(n, scores.shape[1])
  if scores.shape[1] > 4 * n:
    # keeps every score above the n-th, and the first ones of those equal to it
    least = -np.partition(-scores, n - 1, axis=1)[:, n - 1 : n]
    above, equal = scores > least, scores == least
    room = n - above.sum(axis=1, keepdims=True)
    kept = above | (equal & (np.cumsum(equal, axis=1) <= room))
    places = np.nonzero(kept)[1].reshape(-1, n)
  else:
    places = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
  top = np.take_along_axis(scores, places, axis=1)
  order = np.argsort(-top, axis=1, kind='stable')[:, :n]
  return np.take_along_axis(places, order, axis=1), np.take_along_axis(top, order, axis=1)


def _lowest(windows, scores) -> np.ndarray:
  """The lowest score of the windows of each question, float64 [Q]."""
  out = np.full(int(windows.question.max(initial=-1)) + 1, np.inf)
  np.minimum.at(out, windows.question, scores)
  return out
