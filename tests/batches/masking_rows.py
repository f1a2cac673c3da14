"""Rows of any layout for the tests of maskings."""

import numpy as np

from bertzoo_jax.batches import masking
from bertzoo_jax.common import hashing
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.words import word_marks
from tests.found import call_part

V, SPECIAL = 1000, dict(pad=0, unk=100, cls=101, sep=102, mask=103)


def corpus(**fields):
  """A corpus whose token i occurs 1000 − i times, i from 104 on."""
  tokens = np.repeat(np.arange(104, V), V - np.arange(104, V))
  return corpora.in_memory(tokens, [0, len(tokens)], [0, 1], V, SPECIAL, **fields)


def layout(rows, length, seed=0, long=0.4, direction=False, unknown=0.0):
  """Features before masking, and keys. rows: for each row its segments, for each segment its runs
  of text (token counts): [CLS] run [SEP] run [SEP] …. long, unknown: shares of tokens that continue
  a word, and of unknown ones.
  """
  draw = np.random.default_rng(seed)
  ids = np.full((len(rows), length), SPECIAL['pad'], np.int32)
  pack = np.zeros((len(rows), length), np.int32)
  for r, segments in enumerate(rows):
    at = 0
    for p, runs in enumerate(segments):
      first = at
      ids[r, at] = SPECIAL['cls']
      at += 1
      for run in runs:
        ids[r, at : at + run] = np.where(
          draw.random(run) < unknown, SPECIAL['unk'], draw.integers(104, V, run)
        )
        at += run
        ids[r, at] = SPECIAL['sep']
        at += 1
      pack[r, first:at] = p + 1
      assert at <= length, 'the row is too long'
  word = draw.random(ids.shape) < long
  phrase = draw.random(ids.shape) < 0.3
  continues_phrase = phrase & np.roll(phrase, 1, 1) & (draw.random(ids.shape) < 0.7)
  # words do not cross the ends of phrases
  word &= ~(phrase ^ np.roll(phrase, 1, 1)) & (~phrase | continues_phrase)
  units = (
    word * word_marks.CONTINUES_WORD
    + phrase * (word_marks.IN_PHRASE + word_marks.IN_ENTITY)
    + continues_phrase * (word_marks.CONTINUES_PHRASE + word_marks.CONTINUES_ENTITY)
  )
  frame = (pack == 0) | np.isin(ids, [SPECIAL['cls'], SPECIAL['sep']])
  units[frame] = 0
  units[np.roll(frame, 1, 1)] &= word_marks.IN_PHRASE | word_marks.IN_ENTITY
  keys = np.stack(hashing.fold(hashing.new_key(seed), np.arange(len(rows))), -1)
  features = dict(input_ids=ids, token_type_ids=np.zeros_like(ids), segment_ids=pack)
  features['units'] = units.astype(np.int32)
  if direction:
    features['direction'] = draw.integers(0, 2, len(rows)).astype(np.int32)
  return features, keys


def some_layout(rows, length, seed=0, **fields):
  """Rows of one to four segments of one or two runs, of all sizes, empty ones and padding among
  them.
  """
  draw, out = np.random.default_rng(seed), []
  for _ in range(rows):
    left, segments = length if draw.random() < 0.5 else int(draw.integers(2, length + 1)), []
    for _ in range(draw.integers(1, 5)):
      runs = []
      left -= 1
      for _ in range(draw.integers(1, 3)):
        if left >= 1:
          run = int(draw.choice([0, 1, left - 1, draw.integers(0, left)]))
          runs.append(min(run, left - 1))
          left -= runs[-1] + 1
      segments += [runs] if runs else []
      if left < 2:
        break
    out.append(segments)
  return layout(out, length, seed, **dict(unknown=0.05) | fields)


def full(rows, length, seed=0, **fields):
  """[CLS] text [SEP] without padding."""
  return layout([[[length - 2]]] * rows, length, seed, **fields)


def build(section, length, corpus):
  fields = dict(section)
  return call_part(masking, fields.pop('name'), length, corpus, **fields)


def run(mask, features, keys):
  """The masked features. A masking writes to none of its arguments."""
  given = {k: v.copy() for k, v in features.items() if k != 'units' or mask.reads_units}
  for array in (*given.values(), keys := keys.copy()):
    array.flags.writeable = False
  return mask.apply(given, keys)


def chosen(out):
  """bool [B, L]: the predicted positions."""
  found = np.zeros(out['input_ids'].shape, bool)
  row, slot = np.nonzero(out['masked_weights'])
  found[row, out['masked_positions'][row, slot]] = True
  return found
