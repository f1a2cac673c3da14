"""Scores of places → answers: against a search over all pairs; thresholds; text of the passage."""

import numpy as np
import pytest

from bertzoo_jax.tasks.answering import answers
from tests.tasks import test_windows

TEXTS = ('the time machine stood there', 'x' * 45, 'a b', 'one two three four five six seven')


def rows_of(**fields):
  return test_windows.asked(TEXTS, 'abc'), test_windows.in_characters(TEXTS, doc_stride=4, **fields)


def pairs(rows, starts, ends, most):
  """{question: [(score, begin, behind), …]}: all spans of all windows, by a plain search."""
  w, found, at = rows.detail, {}, 0
  for i, size in enumerate(w.size):
    row = rows.offsets[i] + w.place[i]
    for a in range(size):
      for b in range(a, min(a + most, size)):
        if w.best_context[at + a]:
          one = np.array([i])
          begin, behind = w.characters(one, one * 0 + a, one * 0 + b)
          score = float(starts[row + a]) + float(ends[row + b])
          found.setdefault(int(w.question[i]), []).append((score, int(begin[0]), int(behind[0])))
    at += size
  return found


def test_the_best_answers_are_those_of_a_search_over_all_spans():
  examples, rows = rows_of(max_answer=7)
  draw = np.random.default_rng(1)
  starts, ends = draw.normal(size=(2, len(rows.ids))).astype(np.float32)
  spans, odds = answers.from_scores(rows.detail, rows.offsets, starts, ends)
  said = answers.extract(rows.detail, examples, spans, odds, True, 0.0)
  cls = starts[rows.offsets[:-1]] + ends[rows.offsets[:-1]]
  for q, found in pairs(rows, starts, ends, 7).items():
    score, begin, behind = max(found)
    assert said.best[q] == TEXTS[q][begin:behind].strip()
    none = cls[rows.detail.question == q].min()
    np.testing.assert_allclose(odds[q], none - score, rtol=1e-5)
    assert said.texts[q] == ('' if none > score else said.best[q])
    others = [text for text, *_ in said.n_best[q]]
    assert len(others) == len(set(others)) <= 20
    shares = [p for _, p, _, _ in said.n_best[q]]
    assert shares == sorted(shares, reverse=True) and abs(sum(shares) - 1) < 1e-9


@pytest.mark.parametrize('most, wished', [(4, 'time'), (3, 'ime')])
def test_an_answer_has_as_many_tokens_as_allowed(most, wished):
  examples, rows = rows_of(max_answer=most)
  starts, ends = np.zeros((2, len(rows.ids)), np.float32)
  place = rows.detail.place[0]
  starts[[place + 3, place + 4]] = 9, 8  # 't' and 'i' of 'time', in the first window
  ends[place + 6] = 9
  spans, odds = answers.from_scores(rows.detail, rows.offsets, starts, ends)
  assert answers.extract(rows.detail, examples, spans, odds, False, 0.0).best[0] == wished


def test_a_higher_threshold_gives_more_answers_and_without_such_questions_all_have_one():
  examples, rows = rows_of()
  starts, ends = np.random.default_rng(2).normal(size=(2, len(rows.ids))).astype(np.float32)
  spans, odds = answers.from_scores(rows.detail, rows.offsets, starts, ends)
  said = lambda none, t: answers.extract(rows.detail, examples, spans, odds, none, t)
  given = [sum(map(bool, said(True, t).texts)) for t in (-99.0, *sorted(odds))]
  assert given == [0, 1, 2, 3, 4]
  assert said(False, -99.0).texts == said(True, 99.0).texts == said(True, 0.0).best


def test_a_beam_gives_the_answer_of_the_highest_product_that_is_a_span():
  examples, rows = rows_of()
  w, count = rows.detail, len(rows.labels)
  shapes = dict(start=(count, 2), end=(count, 2, 2))
  outputs = {f'{name}_share': np.full(shape, 0.0) for name, shape in shapes.items()}
  outputs |= {f'{name}_place': np.full(shape, -1.0) for name, shape in shapes.items()}
  outputs['impossible'] = np.arange(count, dtype=np.float32) - 1
  place = float(w.place[0])
  outputs['start_share'][0] = 0.6, 0.4
  outputs['start_place'][0] = 0, place + 3  # the special token; 't' of 'time'
  outputs['end_share'][0] = [[0.9, 0.1], [0.3, 0.7]]
  outputs['end_place'][0] = [[0, place + 4], [place + 6, place + 2]]  # the last is before its start
  spans, odds = answers.from_beams(w, outputs)
  said = answers.extract(w, examples, spans, odds, False, 0.0)
  assert said.best[0] == 'time' and said.best[1:] == ['', '', '']
  np.testing.assert_allclose(spans.start_score + spans.end_score, np.log(0.4 * 0.3))
  lowest = [outputs['impossible'][w.question == q].min() for q in range(len(TEXTS))]
  np.testing.assert_array_equal(odds, lowest)


def test_text_is_cut_without_blanks_and_with_its_accents():
  assert answers.cut('a cafe\u0301 b', 2, 6) == 'cafe\u0301'
  assert answers.cut(' \u3000two \u200b', 0, 7) == 'two'
  assert answers.cut('\ufeffthe end', 0, 4) == 'the' and answers.cut('', 0, 0) == ''


def test_odds_of_a_passage_without_a_token_are_finite():
  given = dict(contexts=('a b', ' '), question='abc', spans=[(0, 1), (0, 0)])
  examples = test_windows.asked(**given)
  rows = test_windows.in_characters(given.pop('contexts'), **given)
  starts, ends = np.zeros((2, len(rows.ids)), np.float32)
  spans, odds = answers.from_scores(rows.detail, rows.offsets, starts, ends)
  assert np.isfinite(odds).all() and odds[1] > 1e6
  assert answers.extract(rows.detail, examples, spans, odds, True, 0.0).texts[1] == ''
