"""Surprisal beside data of people: reading times (de Varda et al. 2023), and the age at which
children know a word (Chang & Bergen 2022), as BabyLM's pipeline has them (docs/babylm.md).

N words, S checkpoints. Surprisal is −log p in nats.
"""

import csv
import math

import numpy as np
from scipy import optimize
from scipy import stats

from bertzoo_jax.common import errors
from bertzoo_jax.evaluate import likelihoods
from bertzoo_jax.evaluate import pair_files

_MASKS = 3  # after a context: the word, and what may follow it (Samuel 2024)
_EYE = ('RTfirstfix', 'RTfirstpass', 'RTgopast', 'RTrightbound')
_WORD, _BEFORE = ('Subtlex_log10', 'length', 'context_length'), ('prev_length', 'prev_pred')
_PACED = 'self_paced_reading_time'
_AGES = [str(months) for months in range(16, 31)]


def surprisal(subject, tokenizer, contexts: list[str], words: list[str]) -> np.ndarray:
  """The surprisal of each word after its context [N]: the sum over its pieces, each one after the
  text of those before it.

  A network that was trained with masks predicts the first of three masks. One from left to right
  also reads the special tokens at the end of the context's row.
  """
  pieces = [ids.tolist() for ids in tokenizer.encode_as_transformers(words)]
  if not all(pieces):
    raise errors.UserError('A word of the reading data has no token: leave its row out.')
  word_of, texts, targets = [], [], []
  for n, (text, ids) in enumerate(zip(contexts, pieces)):
    parts = [tokenizer.decode([i]) for i in ids]
    again = tokenizer.encode_as_transformers(parts)  # a piece alone may have other tokens
    for i, part in enumerate(parts):
      word_of.append(n)
      texts.append(text)
      targets.append(int(again[i][0]) if i and len(again[i]) else ids[i])
      text += part
  if subject.how in (likelihoods.MASKED, likelihoods.WORDS):
    texts = [text + _MASKS * tokenizer.decode([subject.special['mask']]) for text in texts]
    after, subject = [], subject._replace(how=likelihoods.MASKED)
  else:
    before, _, after = subject.frame.partition('A:0')
    after = [*(subject.special[word.split(':')[0]] for word in after.split()), -1]
    subject = subject._replace(frame=f'{before}A:0')
  rows = [[*ids.tolist(), *after] for ids in tokenizer.encode_as_transformers(texts)]
  places = [len(row) - (1 if after else _MASKS) for row in rows]
  for row, place, target in zip(rows, places, targets):
    row[place] = target
  nats = likelihoods.log_likelihoods(subject, rows, [(place, place + 1) for place in places])
  return -np.bincount(word_of, nats, len(words))


def table(file) -> dict[str, list[str]]:
  """{column: texts} of a csv. Raises UserError for rows of another length."""
  lines = [line for _, line in pair_files.lines(file)]
  rows = list(csv.reader(lines))
  for number, row in enumerate(rows, 1):
    if len(row) != len(rows[0]):
      raise errors.UserError(f'{file}, row {number} has {len(row)} fields, not {len(rows[0])}.')
  return dict(zip(rows[0], map(list, zip(*rows[1:])))) if len(rows) > 1 else {}


def read(subject, tokenizer, file) -> tuple[dict[str, np.ndarray], dict[str, float]]:
  """({'pred', 'prev_pred': surprisal of each word of a file, and of the word before it; NaN without
  one}, {'rt' (eye tracking), 'spr' (self-paced reading): see `explained`}).
  """
  texts = table(file)
  with errors.unreadable(f'{file} is no table of reading times: download it again'):
    contexts = [text or 'None' for text in texts['item']]
    numbers = lambda name: np.array([float(x) if x.strip() else np.nan for x in texts[name]])
    known = {name: numbers(name) for name in (*_EYE, _PACED, *_WORD, _BEFORE[0])}
    before = [n for n, text in enumerate(texts['prev_item']) if text]
    previous = [texts['prev_item'][n] for n in before], [texts['prev_word'][n] for n in before]
  nats = surprisal(subject, tokenizer, contexts + previous[0], texts['word'] + previous[1])
  predicted = dict(pred=nats[: len(contexts)], prev_pred=np.full(len(contexts), np.nan))
  predicted['prev_pred'][before] = nats[len(contexts) :]
  known |= predicted
  eye = float(np.mean([explained(known, name, _WORD) for name in _EYE]))
  return predicted, dict(spr=explained(known, _PACED, (*_WORD, *_BEFORE)), rt=eye)


def explained(known: dict[str, np.ndarray], name: str, predictors) -> float:
  """The share of the variance of a column that surprisal explains, of the share that a linear
  regression by predictors and the products of each two leaves: (R²' − R²) / (1 − R²).
  """
  square = lambda columns: _r_squared(known, name, predictors, columns)
  return (square(('pred',)) - (without := square(()))) / (1 - without)


def _r_squared(known, name, predictors, more):
  used = np.isfinite([known[column] for column in (name, *predictors, *more)]).all(axis=0)
  y, x = known[name][used], [known[column][used] for column in predictors]
  products = [a * b for i, a in enumerate(x) for b in x[:i]]
  x = np.stack([np.ones_like(y), *x, *products, *(known[column][used] for column in more)], axis=1)
  rest = y - x @ np.linalg.lstsq(x, y)[0]
  return float(1 - rest @ rest / ((y - y.mean()) @ (y - y.mean())))


def acquired(nats_NS, seen_S, chance_N, ages: dict[str, list[str]], words: list[str]) -> float:
  """Pearson's correlation of the times at which the network and children know a word; 0 if it is
  not significant (p > 0.1) or of fewer than three words.

  nats_NS: mean surprisal of each word. seen_S: words seen. chance_N: surprisal without knowledge. A
  network knows a word where a sigmoid of log10 of the words seen is half way from `chance` to the
  least surprisal. ages: a table with the column `word` and the share of children that know it, at
  16 to 30 months; children know a word where the sigmoid of their share is 0.5.
  """
  x, times, row_of = np.log10(np.asarray(seen_S) + 1.0), [], {}
  with errors.unreadable('The table of children has no words and shares: download it again'):
    for n, word in enumerate(ages['word']):
      row_of.setdefault(word, n)
    months = np.array([float(name) for name in _AGES if name in ages])
    shares = np.array([[float(s or 'nan') for s in ages[m]] for m in _AGES if m in ages]).T
  for nats_S, chance, word in zip(nats_NS, chance_N, words):
    if word not in row_of:
      continue
    share = shares[row_of[word]]
    at, share = months[np.isfinite(share)], share[np.isfinite(share)]
    y, spread = -nats_S, np.ptp(nats_S)
    child = learned = None
    if len(at) > 2:
      low, high = (0, 0, at[0], -0.5), (2, 1, at[-1], 0.5)
      child = _crossing(at, share, 0.5, (1, 0.1, at.mean(), 0), (low, high), 1000)
    if len(x) > 2:
      low = 0, 0, x.min() - 1, y.min() - 2 * spread - 1
      high = 10 * spread + 1, 100, x.max() + 1, y.max() + 1
      half = -(chance + nats_S.min()) / 2
      learned = _crossing(x, y, half, (spread, 1, x.mean(), y.min()), (low, high), 20_000)
    if None not in (child, learned):
      times.append((learned, child))
  if len(times) < 3:
    return 0.0
  correlation, p = stats.pearsonr(*zip(*times))
  return float(correlation) if p <= 0.1 else 0.0


def _crossing(x, y, level, first, bounds, most):
  """Where the sigmoid fitted to points has a value, if that is between the first x and the last."""
  sigmoid = lambda x, a, b, c, d: a / (1 + np.exp(-b * (x - c))) + d
  try:
    with np.errstate(all='ignore'):
      (a, b, c, d), _ = optimize.curve_fit(sigmoid, x, y, p0=first, bounds=bounds, max_nfev=most)
  except (RuntimeError, ValueError):  # no fit
    return None
  if min(a, b) <= 1e-6 or not d < level < a + d:
    return None
  at = c - math.log(a / (level - d) - 1) / b
  return at if x[0] <= at <= x[-1] else None
