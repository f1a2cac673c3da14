"""Masked tokens with their two neighbours, and rows with a single masked token.

N masked tokens, R rows, L length.
"""

import numpy as np

_SENTENCE = 88  # characters around a gap


class Masked:
  """The masked tokens of batches.

  Attributes:
    rows: all rows as one batch; originals: the tokens of the text [R, L].
    row, position, targets: row, column and true id of each masked token, [N].
    frame: ids of the special tokens around the text; mask: the mask's id.
  """

  def __init__(self, batches: list[dict], special: dict[str, int]):
    """batches: of a Pipeline, without predictions of special tokens. special: of the corpus."""
    self.mask = special['mask']
    self.frame = np.array(sorted({i for role, i in special.items() if role != 'unk'}))
    self.rows = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    self.row, slot = np.nonzero(self.rows['masked_weights'])
    self.position = self.rows['masked_positions'][self.row, slot]
    self.targets = self.rows['masked_targets'][self.row, slot]
    self.originals = self.rows['input_ids'].copy()
    self.originals[self.row, self.position] = self.targets

  def neighbours(self, ids) -> tuple[np.ndarray, np.ndarray]:
    """The tokens (left, right) of each masked token, [N]; −1 for a mask and where the text ends.

    ids: [R, L], `originals` or what the network sees: rows['input_ids'].
    """
    at = [self.position + step for step in (-1, 1)]
    beside = [ids[self.row, np.clip(place, 0, ids.shape[1] - 1)] for place in at]
    return tuple(
      np.where((place < 0) | (place >= ids.shape[1]) | np.isin(token, self.frame), -1, token)
      for place, token in zip(at, beside)
    )

  def alone(self, chosen) -> dict:
    """A batch with one masked token per row, in its first slot; all others are as in the text."""
    row, position = self.row[chosen], self.position[chosen]
    batch = {name: x[row] for name, x in self.rows.items()}
    cells = np.arange(len(row)), position
    ids = self.originals[row]
    ids[cells] = batch['input_ids'][cells]
    batch['input_ids'] = ids
    first = dict(positions=position, targets=self.targets[chosen], weights=1)
    for name, value in first.items():
      batch[f'masked_{name}'] = np.zeros_like(batch[f'masked_{name}'])
      batch[f'masked_{name}'][:, 0] = value
    return batch


def drawn(text: Masked, tokenizer, count: int, draw: int) -> np.ndarray:
  """Indices of masked tokens, at most one per row: whole words behind a mask, if there are any."""
  seen = text.rows['input_ids'][text.row, text.position]
  hidden = seen == text.mask
  right = text.neighbours(text.originals)[1]
  # the end of a row may be the start of a word
  whole = tokenizer.word_starts[text.targets] & (right >= 0) & tokenizer.word_starts[right]
  whole &= np.array([tokenizer.decode([t]).strip().isalpha() for t in text.targets.tolist()], bool)
  # a masking may replace words by other words only, never by a mask
  wanted = next(
    (w for w in (hidden & whole, (seen != text.targets) & whole, seen != text.targets) if w.any()),
    np.ones(len(seen), bool),
  )
  order = np.random.default_rng(draw).permutation(np.flatnonzero(wanted))
  _, first = np.unique(text.row[order], return_index=True)
  return np.sort(order[np.sort(first)[:count]])


def sentence(text: Masked, n: int, tokenizer) -> str:
  """The text around a masked token, up to the next special tokens, with ____ for it."""
  ids, position = text.originals[text.row[n]], text.position[n]
  ends = np.flatnonzero(np.isin(ids, text.frame))
  first = max([e + 1 for e in ends if e < position], default=0)
  end = min([e for e in ends if e > position], default=len(ids))
  while first < position and not tokenizer.word_starts[ids[first]]:  # rest of a cut word
    first += 1
  left, right = (
    tokenizer.decode(ids[a:b]).strip() for a, b in ((first, position), (position + 1, end))
  )
  half = _SENTENCE // 2
  left_room, right_room = max(half, _SENTENCE - len(right)), max(half, _SENTENCE - len(left))
  if len(left) > left_room:
    cut = left[-left_room:]
    left = f'… {cut.partition(" ")[2] or cut}'
  if len(right) > right_room:
    cut = right[:right_room]
    right = f'{cut.rpartition(" ")[0] or cut} …'
  return f'{left} ____ {right}'.strip()
