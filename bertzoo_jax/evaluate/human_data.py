"""Surprisal beside data of people: reading times (de Varda et al. 2023), and the age at which
children know a word (Chang & Bergen 2022), as BabyLM's pipeline has them (docs/babylm.md).

Surprisal is −log p in nats. N words.
"""

import math

import numpy as np
from scipy import optimize
from scipy import stats

from bertzoo_jax.common import errors
from bertzoo_jax.evaluate import likelihoods
from bertzoo_jax.evaluate import pair_files
from bertzoo_jax.tasks.examples import Skipped
from bertzoo_jax.tasks.reading import tables

_MASKS = 3  # after a context: the first is the word's (Samuel 2024)
_EYE, _PACED = ('RTfirstfix', 'RTfirstpass', 'RTgopast', 'RTrightbound'), 'self_paced_reading_time'
_WORD, _BEFORE = ('Subtlex_log10', 'length', 'context_length'), ('prev_length', 'prev_pred')


def surprisal(subject, tokenizer, contexts: list[str], words: list[str]) -> np.ndarray:
  """The surprisal of each word after its context [N]: the sum over its pieces, each one after the
  text of those before it. A network of masks predicts the first of three. One from left to right
  also reads the special tokens behind the context.
  """
  word_of, texts, targets = [], [], []
  for n, (text, ids) in enumerate(zip(contexts, tokenizer.encode_as_transformers(words))):
    parts = [tokenizer.decode([i]) for i in ids]
    alone = tokenizer.encode_as_transformers(parts)  # other tokens than in the word, for some
    for i, part in enumerate(parts):
      word_of.append(n)
      texts.append(text)
      targets.append(int(alone[i][0] if i and len(alone[i]) else ids[i]))
      text += part
  if subject.how in (likelihoods.MASKED, likelihoods.WORDS):
    mask = tokenizer.decode([subject.special['mask']])
    texts, after, place = [text + mask * _MASKS for text in texts], [], -_MASKS
    subject = subject._replace(how=likelihoods.MASKED)
  else:
    before, _, behind = subject.frame.partition('A:0')
    after, place = [*(subject.special[role.split(':')[0]] for role in behind.split()), -1], -1
    subject = subject._replace(frame=before + 'A:0')
  rows = [[*ids.tolist(), *after] for ids in tokenizer.encode_as_transformers(texts)]
  for row, target in zip(rows, targets):
    row[place] = target
  spans = [(len(row) + place, len(row) + place + 1) for row in rows]
  return -np.bincount(word_of, likelihoods.log_likelihoods(subject, rows, spans), len(contexts))


def table(file) -> dict[str, list[str]]:
  """{column: texts} of a csv."""
  data = pair_files.there(file).read_bytes()
  rows = [*tables.rows(data, file, lambda names: dict(zip(names, names)))]
  if bad := [row for row in rows if isinstance(row, Skipped)]:
    raise errors.UserError(f'{file} has a row {bad[0].reason} ({bad[0].place}): download it again.')
  return {name: [row.values[name] for row in rows] for name in rows[0].values} if rows else {}


def read(subject, tokenizer, file) -> tuple[dict[str, np.ndarray], dict[str, float]]:
  """({'pred', 'prev_pred': surprisal of each word of a file and of the word before it, or NaN},
  {'rt' (mean of eye tracking), 'spr' (self-paced reading): see `explained`}).
  """
  with errors.unreadable(f'{file} is no table of reading times: download it again'):
    texts = table(file)
    numbers = lambda name: np.array([float('nan' if x in ('', 'NA') else x) for x in texts[name]])
    known = {name: numbers(name) for name in (*_EYE, _PACED, *_WORD, _BEFORE[0])}
    contexts, words = [text or 'None' for text in texts['item']], [*texts['word']]
    before = [n for n, text in enumerate(texts['prev_item']) if text]
    contexts += [texts['prev_item'][n] for n in before]
    words += [texts['prev_word'][n] for n in before]
  nats, count = surprisal(subject, tokenizer, contexts, words), len(texts['word'])
  predicted = dict(pred=nats[:count], prev_pred=np.full(count, np.nan))
  predicted['prev_pred'][before] = nats[count:]
  known |= predicted
  eye = float(np.mean([explained(known, name, _WORD) for name in _EYE]))
  return predicted, dict(rt=eye, spr=explained(known, _PACED, _WORD + _BEFORE))


def explained(known: dict[str, np.ndarray], name: str, predictors) -> float:
  """(R²' − R²) / (1 − R²) of a column: R² of the regression by predictors and the products of each
  two, R²' with `pred` besides. Rows with NaN are left out.
  """

  def r_squared(*more):
    used = np.isfinite([known[column] for column in (name, *predictors, *more)]).all(axis=0)
    y, x = known[name][used], [known[column][used] for column in predictors]
    x += [a * b for i, a in enumerate(x) for b in x[:i]] + [known[m][used] for m in more]
    if len(y) < len(x) + 2 or not np.ptp(y):
      raise errors.UserError(f'{name} has too few rows, or one value: download the table again.')
    rest = y - (x := np.stack([np.ones_like(y), *x], axis=1)) @ np.linalg.lstsq(x, y)[0]
    return float(1 - rest @ rest / np.square(y - y.mean()).sum())

  return (r_squared('pred') - (without := r_squared())) / (1 - without)


def acquired(words: list[str], nats: dict[int, np.ndarray], tokenizer, file) -> float:
  """Pearson's correlation of the times at which a network and children know a word; 0 if p > 0.1,
  or of fewer than three words.

  words, nats: the word of each surprisal; {number of words seen: surprisals}. A network knows a
  word where the sigmoid of its mean surprisal over log10 of the words seen is half way from chance
  to the least. file: the share of children who know a `word` at 16 to 30 months; they do at 0.5.
  """
  ages, x, words, times = table(file), np.log10([n + 1.0 for n in nats]), np.array(words), []
  with errors.unreadable(f'{file} is no table of words and ages: download it again'):
    months = [age for age in map(str, range(16, 31)) if age in ages]
    shares = np.stack([[float(share or 'nan') for share in ages[age]] for age in months], axis=1)
    row_of = {word: n for n, word in reversed([*enumerate(ages['word'])])}
  pieces = lambda text: len(tokenizer.encode_as_transformers([text])[0])
  for word in dict.fromkeys(words.tolist()) if len(x) > 2 else ():
    share = shares[row_of[word]] if word in row_of else np.full(len(months), np.nan)
    at, share = np.array(months, float)[np.isfinite(share)], share[np.isfinite(share)]
    if len(at) < 3:
      continue
    low, high = (0, 0, at[0], -0.5), (2, 1, at[-1], 0.5)
    child = _crossing(at, share, 0.5, (1, 0.1, at.mean(), 0), (low, high), 1000)
    y = -np.array([values[words == word].mean() for values in nats.values()])
    spread, chance = np.ptp(y), max(1, pieces(f'The {word}') - pieces('The'))
    half = (y.max() - chance * math.log(tokenizer.vocab_size)) / 2
    low = 0, 0, x.min() - 1, y.min() - 2 * spread - 1
    high = 10 * spread + 1, 100, x.max() + 1, y.max() + 1
    learned = _crossing(x, y, half, (spread, 1, x.mean(), y.min()), (low, high), 20_000)
    times += [(learned, child)] if None not in (learned, child) else []
  correlation, p = stats.pearsonr(*zip(*times)) if len(times) > 2 else (0, 1)
  return float(correlation) if p <= 0.1 else 0.0


def _crossing(x, y, level, first, bounds, most):
  """Where the sigmoid fitted to points has a value, if between the first x and the last."""
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
