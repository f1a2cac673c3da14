"""The measurements of `show --stats` on batches, beside the values of the config.

B rows, L length, P predictions. A run is predictions side by side, in one stretch of text without a
special token.
"""

import numpy as np

from bertzoo_jax.words import word_marks

_TENTHS = 10
_MOST_WORDS = 10  # longer runs share one line


class Meter:
  """Counts over batches.

  special: {'pad' | 'cls' | 'sep' | 'mask' | …: id}.
  """

  def __init__(self, special):
    self._special, self._batches, self._sums, self._lengths = special, 0, {}, []

  def add(self, batch):
    """Counts a batch: {name: array [B, …]}, with 'units' [B, L] where words are to be measured."""
    ids, used, real = batch['input_ids'], batch['segment_ids'] > 0, batch['masked_weights'] > 0
    seen = np.take_along_axis(ids, batch['masked_positions'], axis=1)
    is_mask, is_kept = seen == self._special['mask'], seen == batch['masked_targets']
    before, predicted = restored(batch)
    text = used & ~np.isin(before, [self._special['cls'], self._special['sep']])
    full = used.all(axis=1)
    counts = dict(
      rows=len(ids),
      cells=ids.size,
      tokens=used.sum(),
      text=text.sum(),
      predictions=real.sum(),
      fullest=(real.all(axis=1)).sum(),
      masked=(real & is_mask).sum(),
      kept=(real & is_kept & ~is_mask).sum(),
      packed=batch['segment_ids'].max(axis=1).sum(),
      on_special=(predicted & used & ~text).sum(),
      on_padding=(predicted & ~used).sum(),
      twice=real.sum() - predicted.sum(),
      full=full.sum(),
      tenths=_tenths(predicted[full]),
    )
    if 'units' in batch:
      counts |= _words(_in_reading_order(batch), batch['segment_ids'], text, predicted)
    if 'pair_labels' in batch:
      counts |= dict(labels=batch['pair_labels'].sum(), second=(batch['token_type_ids'] == 1).sum())
    if 'span_right' in batch:
      counts['bordered'] = (batch['span_right'] > 0).sum()
    if 'direction' in batch:
      counts['mirrored'] = (batch['direction'] > 0).sum()
    if 'order' in batch:
      counts['in_sight'] = _in_sight(batch, predicted)
    self._sums = {k: self._sums.get(k, 0) + v for k, v in counts.items()}
    self._lengths.append(used.sum(axis=1))

  def measures(self, fields):
    """[(name, measured, unit, the config's value or None)]. Shares from 0 to 1 have the unit '%',
    texts ''.

    fields: config with the sections `format` and `masking`.
    """
    if not self._sums:
      return []
    n, masking, format = self._sums, fields.masking, fields.format
    rows, predictions = n['rows'], max(int(n['predictions']), 1)
    lengths = np.concatenate(self._lengths)
    out = [
      ('rows', int(rows)),
      ('tokens per row', float(lengths.mean())),
      ('shortest', int(lengths.min())),
      ('longest', int(lengths.max())),
      ('padding', 1 - n['tokens'] / n['cells'], '%'),
      ('predictions per row', n['predictions'] / rows),
      ('rows with as many as fit', n['fullest'] / rows, '%'),
      (
        'predicted, of all tokens',
        n['predictions'] / max(n['tokens'], 1),
        '%',
        _field(masking, 'rate'),
      ),
      ('predicted, of the text', n['predictions'] / max(n['text'], 1), '%'),
      ('predicted special tokens', int(n['on_special'])),
      ('predicted padding', int(n['on_padding']), '', 0),
    ]
    if n['twice']:
      out.append(('predicted once more', n['twice'] / predictions, '%'))
    out += _corruption(n, masking, predictions)
    if n['full']:
      tenths = ' '.join(f'{share:.1%}' for share in n['tenths'] / n['full'])
      out.append(('predicted in each tenth of full rows', tenths))
    if 'word_runs' in n:
      out += _word_lines(n, masking)
    if n['packed'] > rows:
      out.append(('packed segments per row', n['packed'] / rows))
    if 'labels' in n:
      name = 'swapped segments' if _field(format, 'pairs') == 'sop' else 'random second segments'
      # lone sentences all get label 1
      lone = _field(format, 'lone_sentences') in (None, 'random')
      says = None if lone else _field(format, 'negative_rate')
      out.append((name, n['labels'] / rows, '%', says))
      out.append(('tokens of the second segment', n['second'] / rows))
    if 'bordered' in n:
      out.append(('predictions with borders', n['bordered'] / predictions, '%'))
    if 'mirrored' in n:
      out.append(('rows read from right to left', n['mirrored'] / rows, '%'))
    if 'in_sight' in n:
      out.append(('tokens of its row that a prediction sees', n['in_sight'] / predictions))
    line = lambda name, value, unit='', says=None: (name, value, unit, says)
    return [line(*x) for x in out]


def _field(section, field):
  return section[field] if field in section else None


def _in_reading_order(batch):
  """The unit marks in the order in which the rows are read."""
  marks = batch['units']
  if 'direction' not in batch:
    return marks
  joins = word_marks.CONTINUES_WORD | word_marks.CONTINUES_PHRASE | word_marks.CONTINUES_ENTITY
  turned = np.pad(marks, ((0, 0), (1, 0)))[:, :-1] & joins | marks & ~joins
  return np.where(batch['direction'][:, None] > 0, turned, marks)


def restored(batch):
  """(input_ids with the targets put back, bool [B, L]: predicted positions)."""
  ids, predicted = batch['input_ids'].copy(), np.zeros(batch['input_ids'].shape, bool)
  row, slot = np.nonzero(batch['masked_weights'])
  place = row, batch['masked_positions'][row, slot]
  ids[place], predicted[place] = batch['masked_targets'][row, slot], True
  return ids, predicted


def _corruption(n, masking, predictions):
  if 'corruption' not in masking:
    return []
  masked, random, kept = masking.corruption
  other = 1 - (n['masked'] + n['kept']) / predictions
  last = ('… kept', n['kept'] / predictions, '%', kept)
  if _field(masking, 'substitute') == 'similar':
    replaced = other + n['masked'] / predictions
    return [('replaced by other words', replaced, '%', masked + random), last]
  return [
    ('corrupted to the mask token', n['masked'] / predictions, '%', masked),
    ('… to a random token', other, '%', random),
    last,
  ]


def _tenths(predicted_RL):
  """[10]: the share of each tenth of full rows that is predicted, summed over the rows."""
  if not len(predicted_RL) or predicted_RL.shape[1] < _TENTHS:
    return np.zeros(_TENTHS)
  return np.array([part.mean() for part in np.array_split(predicted_RL.sum(axis=0), _TENTHS)])


# --- words ---


def _words(units, packs, text, predicted):
  """Counts of words of several tokens, touched and whole, and of runs by length in words."""
  fresh = text & ~_follows(text, packs)
  begins = fresh | (text & (units & word_marks.CONTINUES_WORD == 0))
  number = np.cumsum(begins).reshape(text.shape)[text]  # of each text token, from 1
  count = int(begins.sum()) + 1
  size = np.bincount(number, minlength=count)
  touched = np.bincount(number, weights=predicted[text], minlength=count)
  several = size > 1
  starts = predicted & ~(_follows(predicted, packs) & ~fresh)
  run = np.cumsum(starts).reshape(text.shape)[predicted & text]
  word = np.cumsum(begins).reshape(text.shape)[predicted & text]
  pairs = np.unique(np.stack([run, word], 1), axis=0)[:, 0]  # each word of each run once
  lengths = np.bincount(np.bincount(pairs)[1:], minlength=_MOST_WORDS + 2)
  lengths = np.append(lengths[: _MOST_WORDS + 1], lengths[_MOST_WORDS + 1 :].sum())
  return dict(
    several=int(several.sum()),
    touched=int((several & (touched > 0)).sum()),
    whole=int((several & (touched == size)).sum()),
    word_runs=lengths,
    run_words=len(pairs),
  )


def _follows(marked, packs):
  """bool [B, L]: whether a place and the one before it are marked, in one packed segment."""
  out = np.zeros_like(marked)
  out[:, 1:] = marked[:, 1:] & marked[:, :-1] & (packs[:, 1:] == packs[:, :-1])
  return out


def _word_lines(n, masking):
  runs, says = max(int(n['word_runs'].sum()), 1), _lengths(masking)
  mean = None if says is None else float(np.dot(says, np.arange(1, len(says) + 1)))
  whole = n['whole'] / max(n['touched'], 1)
  out = [
    ('words of several tokens, all of them predicted or none', whole, '%'),
    ('runs, words on average', n['run_words'] / runs, '', mean),
  ]
  for words in range(1, _MOST_WORDS + 1):
    drawn = float(says[words - 1]) if says is not None and words <= len(says) else None
    if drawn is not None or n['word_runs'][words] >= 0.001 * runs:
      name = f'runs of {words} word{"s" * (words > 1)}'
      out.append((name, n['word_runs'][words] / runs, '%', drawn))
  if n['word_runs'][-1]:
    out.append((f'runs of more than {_MOST_WORDS} words', n['word_runs'][-1] / runs, '%'))
  return out


def _lengths(masking):
  """Shares of 1, 2, … words that the config samples, before runs touch; None if it samples none."""
  name = masking.name
  weights = {
    'ngram': lambda: masking.weights,
    'span': lambda: (1 - masking.p) ** np.arange(masking.max_words),
    'ngram_windows': lambda: 1 / np.arange(1, masking.max_gram + 1),
    'permutation': lambda: 1 / np.arange(1, masking.max_span + 1),
  }
  if name not in weights:
    return None
  weights = np.asarray(weights[name](), float)
  return weights / weights.sum() if len(weights) else None


def _in_sight(batch, predicted):
  """The tokens that predictions see in their rows, summed over predictions."""
  total = 0
  for order, packs, mine in zip(batch['order'], batch['segment_ids'], predicted):
    sees = (order[None] < (order + ~mine)[mine][:, None]) & (packs[None] == packs[mine][:, None])
    total += int(sees.sum())
  return total
