"""Scores of answers. A metric is a function (right, answers) → float in BY_NAME.

right: for each question a tuple of its right answers, () if the passage has none.
answers: answers.Answers. If a question has several right answers, the best score counts.
"""

import collections
import difflib
import functools
import re
import string

import numpy as np

_ARTICLES = re.compile(r'\b(a|an|the)\b')
_PUNCTUATION = str.maketrans('', '', string.punctuation)
# Characters that the evaluation of CMRC2018 (Cui et al. 2019) leaves out.
_MARKS = frozenset('-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』')
_HAN = ('\u4e00', '\u9fa5')
# Characters that NLTK's tokenizer, used by that evaluation, splits from a word; ％ ° ㎝ … stay in
# the word.
_ALONE = r';@#$%&?!\[\](){}<>"«»‘„\u2012-\u2015'
_SPLIT = (
  rf"[{_ALONE}]|\.{{2,}}|,(?!\d)|(?<=[^.])\.(?=[\])}}>\"'» ]*$)|''"
  r"|(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)"
  rf"|(?<=[^' ])(?:'(?:s|m|d|ll|re|ve)?|n't)(?![^\s{_ALONE}])"
)
_WORDS = re.compile(rf'{_SPLIT}|(?:(?!{_SPLIT})\S)+')


def normalized(text: str) -> str:
  """Lower case, without ASCII punctuation and English articles, one blank between words."""
  text = text.lower().translate(_PUNCTUATION)
  return ' '.join(_ARTICLES.sub(' ', text).split())


def segments(text: str) -> list[str]:
  """Chinese characters and words of other scripts, in lower case, without punctuation marks."""
  text = ''.join(c for c in text.lower().strip() if c not in _MARKS)
  out, word = [], ''
  for c in text:
    if _HAN[0] <= c <= _HAN[1]:
      out += [*_WORDS.findall(word), c]
      word = ''
    else:
      word += c
  return out + _WORDS.findall(word)


def same(right, predicted):
  return float(normalized(right) == normalized(predicted))


def overlap(right, predicted):
  a, b = normalized(right).split(), normalized(predicted).split()
  if not a or not b:
    return float(a == b)
  shared = sum((collections.Counter(a) & collections.Counter(b)).values())
  return 2 * shared / (len(a) + len(b))


def _same_zh(right, predicted):
  bare = lambda text: ''.join(c for c in text.lower().strip() if c not in _MARKS)
  return float(bare(right) == bare(predicted))


def _overlap_zh(right, predicted):
  a, b = segments(right), segments(predicted)
  if not a or not b:
    return float(not right and not predicted)  # CMRC's script drops texts of marks alone
  longest = difflib.SequenceMatcher(None, a, b, autojunk=False).find_longest_match().size
  return 2 * longest / (len(a) + len(b))


def _best(score, right, predicted) -> np.ndarray:
  """The score of each answer, float64 [Q]. Right answers without a word count if alone."""
  out = np.zeros(len(predicted))
  for i, (texts, text) in enumerate(zip(right, predicted, strict=True)):
    real = [t for t in texts if normalized(t)] or list(texts) or ['']
    out[i] = max(score(t, text) for t in real)
  return out


def _at_best_threshold(score, right, answers) -> tuple[float, float]:
  """(highest mean score, its threshold): odds of no answer above it mean that there is none."""
  answered = _best(score, right, answers.best)
  none = _best(score, right, [''] * len(answered))
  if not answers.may_have_none:
    return answered.mean(), 0.0
  order = np.argsort(answers.odds, kind='stable')
  odds = answers.odds[order]
  # sums[n]: the n questions with the lowest odds are answered
  sums = np.concatenate([[0.0], np.cumsum((answered - none)[order])]) + none.sum()
  allowed = np.concatenate([[True], odds[1:] > odds[:-1], [True]])  # equal odds go together
  n = int(np.argmax(np.where(allowed, sums, -np.inf)))
  return sums[n] / len(answered), float(odds[n - 1] if n else odds[0] - 1)


def _mean(score, right, answers):
  return np.mean(_best(score, right, answers.texts))


# SQuAD (Rajpurkar et al. 2016, 2018): answers that are right letter by letter, but for case,
# punctuation, English articles and blanks; F1 over the words that both have, each as often as it
# occurs in both, 1 if both have no answer; both at the threshold for no answer that makes them
# highest; and that threshold of F1, config.features.no_answer_threshold.
exact_match, f1 = (functools.partial(_mean, score) for score in (same, overlap))
best_exact_match = lambda right, answers: _at_best_threshold(same, right, answers)[0]
best_f1 = lambda right, answers: _at_best_threshold(overlap, right, answers)[0]
best_threshold = lambda right, answers: _at_best_threshold(overlap, right, answers)[1]
best_threshold.better = ''  # a threshold is no score
# CMRC2018: right but for case and punctuation; F1 of the longest piece that both share, in Chinese
# characters and words of other scripts. Words are split by NLTK's rules, but for its list of
# English contractions such as `cannot`.
exact_match_zh, f1_zh = (functools.partial(_mean, score) for score in (_same_zh, _overlap_zh))

BY_NAME = {
  'exact_match': exact_match,
  'f1': f1,
  'best_exact_match': best_exact_match,
  'best_f1': best_f1,
  'best_threshold': best_threshold,
  'exact_match_zh': exact_match_zh,
  'f1_zh': f1_zh,
}
