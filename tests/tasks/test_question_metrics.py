"""Scores of answers against values worked out by hand from their definitions."""

import numpy as np
import pytest

from bertzoo_jax.tasks.answering import answers
from bertzoo_jax.tasks.answering import question_metrics as metrics


def said(texts, best=None, odds=None):
  texts = list(texts)
  best = best or texts
  odds = np.zeros(len(texts)) if odds is None else np.asarray(odds, float)
  return answers.Answers(texts, best, odds, [], best != texts or odds.any())


@pytest.mark.parametrize(
  'right, text, exact, f1',
  [
    (('The cat.',), 'cat', 1, 1),
    (('cat',), 'a  CAT!', 1, 1),
    (('theater',), 'a theater', 1, 1),
    (('in the house of cards',), 'house of', 0, 2 * 1 * 0.5 / 1.5),  # 'the' is gone: 2 of 4 words
    (('a b b c',), 'b b b', 0, 2 * 2 / (3 + 3)),  # 'a' is an article; b is shared twice
    (('x y', 'x'), 'x', 1, 1),
    (('rock-n-roll',), 'rocknroll', 1, 1),
    ((), '', 1, 1),
    ((), 'x', 0, 0),
    (('x',), '', 0, 0),
    (('the', 'x'), 'x', 1, 1),  # of 'the' nothing is left
    (('\u2014 x',), 'x', 0, 2 / 3),  # ASCII punctuation alone is left out
  ],
)
def test_english_scores_are_squad_s(right, text, exact, f1):
  assert metrics.exact_match([right], said([text])) == exact
  assert metrics.f1([right], said([text])) == pytest.approx(f1)


@pytest.mark.parametrize(
  'right, text, exact, f1',
  [
    (('\u5149\u8363\u548c\u03c9-force',), '\u5149\u8363\u548c\u03c9-force', 1, 1),
    (('\u300a\u6218\u56fd\u300b\u3002',), '\u6218\u56fd', 1, 1),
    # the longest common piece is \u5929\u5730, 2 of 4 and of 3
    (('\u5929\u5730\u7384\u9ec4',), '\u5929\u5730\u9ec4', 0, 4 / 7),
    (('\u5929\u5730\u7384\u9ec4',), '\u7384\u5929', 0, 2 / 6),
    (('2008\u5e74',), '2008\u5e74\u5e95', 0, 4 / 5),
    (('ABC\u516c\u53f8',), 'abc\u516c\u53f8', 1, 1),
    (('\u5929',), '\u5730', 0, 0),
    (('\u5929', '\u5730'), '\u5730', 1, 1),
    (('\u3002',), '\u3002', 1, 0),  # the script counts no character
    # NLTK leaves these signs in their word
    (('30\uff05',), '30', 0, 0),
    (('25\u00b0',), '25', 0, 0),
    (('\u7d0410\u339d',), '10\u339d', 0, 2 / 3),
    (('\u221214',), '14', 0, 0),
    (('\u7b49\u2026\u2026',), '\u7b49', 0, 2 / 3),
    # and splits these
    (('1974\u201375',), '1974', 0, 2 / 4),
    (('$5.5',), '5.5', 0, 2 / 3),
    (('1,000%',), '1,000', 0, 2 / 3),
    (("it's x.",), 'it x', 0, 2 / 6),
    ((), '', 1, 1),
  ],
)
def test_chinese_scores_are_cmrc_s(right, text, exact, f1):
  assert metrics.exact_match_zh([right], said([text])) == exact
  assert metrics.f1_zh([right], said([text])) == pytest.approx(f1)


def test_chinese_is_split_into_characters_and_words_of_other_scripts():
  text = ' \u4ed6\u7528iPhone 12\uff0c 3,000\u5143\u7684 v2.5-x! '
  wished = ['\u4ed6', '\u7528', 'iphone', '12', '3,000', '\u5143', '\u7684', 'v2.5x', '!']
  assert metrics.segments(text) == wished


def test_the_best_threshold_is_the_one_of_a_search_over_all():
  draw = np.random.default_rng(0)

  def score(right, best, odds, threshold):
    return metrics.f1(right, said('' if o > threshold else b for o, b in zip(odds, best)))

  for _ in range(30):
    right = [('x',) if draw.random() < 0.6 else () for _ in range(12)]
    best = ['x' if draw.random() < 0.7 else 'y' for _ in range(12)]
    odds = draw.integers(-3, 4, 12).astype(float)
    found = said([''] * 12, best, odds)
    wished = max(score(right, best, odds, t) for t in (*odds, odds.min() - 1))
    assert metrics.best_f1(right, found) == pytest.approx(wished)
    assert metrics.best_exact_match(right, found) == pytest.approx(wished)
    at = metrics.best_threshold(right, found)
    assert score(right, best, odds, at) == pytest.approx(wished)


def test_without_questions_without_an_answer_the_best_score_is_the_score():
  found = answers.Answers(['x', 'y'], ['x', 'y'], np.array([9.0, -9.0]), [], False)
  assert metrics.best_f1([('x',), ('z',)], found) == metrics.f1([('x',), ('z',)], found) == 0.5
