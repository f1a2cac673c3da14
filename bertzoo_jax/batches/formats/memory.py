"""Rows for a network with memory: each row of the batch is a lane that reads its own stretch of the
text, step after step.

The stream is the tokens of all documents in order, an end-of-document token behind each where the
tokenizer has one. Places of the stream are counted from 0; a lane that reads from right to left has
its own mirrored count, in which everything else is the same. B rows of the batch, L length, N rows
of an epoch.
"""

import functools
from typing import NamedTuple

import numpy as np

from bertzoo_jax.batches import rows as rows_lib
from bertzoo_jax.batches.formats import format as formats
from bertzoo_jax.batches.formats import pairs
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import formats as definitions
from bertzoo_jax.words import word_marks


def memory_segments(fields: definitions.MemorySegments, text, length):
  """Rows [reused part] A [SEP] B [SEP] [CLS]; a row begins where the reused part of the lane's
  previous row ends (Yang et al. 2019 §2.5; code).

  The first reuse_length tokens are the lane's next tokens, which later steps read from the memory.
  A and B are the length − reuse_length − 3 tokens after them, up to the end of a sentence, divided
  at the end of a random one. With probability random_rate, or if no sentence ends, B is a random
  run of sentences of the lane, and the pair's label is 1. The longer of the two is cut at its end.
  token_type_ids: 0 up to A's separator, 1 for B and its separator, 2 for the classifier.

  Args:
    text: rows.Text; length: L.
    both_directions: odd lanes read the text of the lane before them from right to left. (The
      release reverses the second half of a host's rows; here the feature `direction` marks them.)
    random_rate: XLNet has no loss on the labels; only an ablation reads them.

  Raises UserError: lengths that leave nothing for A and B; with `in_lanes`, less text than the
  lanes need for one row each.
  """
  formats.check_length(length, 8, 'memory_segments')
  reuse_length = fields.reuse_length
  if not 1 <= reuse_length <= length - 5:
    raise errors.UserError(
      f'config.format.reuse_length is {reuse_length}: from 1 to config.length − 5 ({length - 5}) '
      'is needed.'
    )
  make = functools.partial(
    formats.Format,
    every_epoch=False,
    has_pairs=True,
    packed=False,
    needs_sentences=True,
    features=_FEATURES,
  )

  def in_lanes(batch_size, ends):
    streams = -(-batch_size // 2) if fields.both_directions else batch_size
    stream = Stream(text, streams, ends)
    lanes = _Lanes(
      stream, batch_size, length, reuse_length, fields.both_directions, fields.random_rate
    )
    # An epoch's lanes begin up to a reused part later than the one before, so that rows differ.
    steps = (stream.lane_length - 2 * reuse_length - lanes.room) // reuse_length + 1
    if steps < 1:
      most = max(1, stream.size // (2 * reuse_length + lanes.room))
      most *= 1 + fields.both_directions
      raise errors.UserError(
        f'A split has {stream.size:,} tokens, too few for {batch_size} lanes of rows of {length}: '
        f'lower config.batch_size to at most {most}, or prepare more text (config.corpus.held_out).'
      )
    return make(lambda key: range(steps * batch_size), None, assemble=lanes.assemble)

  return make(None, None, in_lanes=in_lanes)


class _Lanes(NamedTuple):
  """The rows of a batch, each a lane of a stream. Fields: see `memory_segments`."""

  stream: 'Stream'
  batch_size: int
  length: int
  reuse_length: int
  both_directions: bool
  random_rate: float

  @property
  def room(self) -> int:
    """Tokens of A and B."""
    return self.length - self.reuse_length - 3

  def assemble(self, key, rows, numbers, gather, special, gather_units):
    """The features of rows, by their numbers in an epoch; see formats.Format."""
    del rows
    stream, length, reuse_length = self.stream, self.length, self.reuse_length
    step, lane = np.divmod(numbers, self.batch_size)
    mirrored = (lane % 2 == 1) & self.both_directions
    lane_begin = (lane // 2 if self.both_directions else lane) * stream.lane_length
    lane_begin = np.where(mirrored, stream.size - lane_begin - stream.lane_length, lane_begin)
    begin = lane_begin + hashing.below(hashing.bits(key, 0), reuse_length) + step * reuse_length
    a, b, random = _two_runs(
      key, stream, mirrored, begin + reuse_length, self.room, lane_begin, self.random_rate
    )
    reused = np.full_like(begin, reuse_length)
    runs = ((begin, reused, 0 * begin), (*a, reused), (*b, reuse_length + 1 + a[1]))
    positions = np.repeat(stream.tokens(begin, mirrored)[:, None], length, axis=1)
    ends = []
    firsts = []
    for start, size, column in runs:
      stream.lay(
        positions, ends, firsts, start, size, column + length * np.arange(len(numbers)), mirrored
      )
    separators = (
      length * np.arange(len(numbers)) + reuse_length + a[1],
      length * np.arange(1, len(numbers) + 1) - 2,
    )
    special_cells = np.concatenate([*ends, *separators, separators[1] + 1])
    ids = gather(positions)
    if gather_units:
      units = gather_units(positions, ids)
      flat, begins = units.reshape(-1), np.concatenate(firsts)
      flat[begins] &= word_marks.IN_PHRASE | word_marks.IN_ENTITY
      flat[special_cells] = 0
    flat = ids.reshape(-1)
    flat[np.concatenate(separators)], flat[separators[1] + 1] = special['sep'], special['cls']
    if stream.ends:
      flat[np.concatenate(ends)] = special['eod']
    segment = (np.arange(length) > reuse_length + a[1][:, None]).astype(np.int32)
    segment[:, -1] = 2
    features = {
      'input_ids': ids,
      'token_type_ids': segment,
      'segment_ids': np.ones_like(ids),
      'direction': mirrored.astype(np.int32),
      'resets': (step == 0).astype(np.int32),
      'pair_labels': random.astype(np.int32),
    }
    return {**features, 'units': units} if gather_units else features


_FEATURES = {'direction': ((), np.int32), 'resets': ((), np.int32)}


def _two_runs(key, stream, mirrored, begin, room, lane_begin, random_rate):
  """(start, size) [B] of A, the same of B, and whether B is random. `begin` and the starts are
  places of the row's direction. Together A and B have at most `room` tokens.
  """
  low, high = stream.border(mirrored, begin, 'right'), stream.border(mirrored, begin + room, 'left')
  end = stream.border_place(mirrored, high)  # the end of the sentence at which room ends
  count = np.maximum(high - low, 0)
  draw = lambda purpose: hashing.bits(hashing.fold(key, purpose), begin)
  border = stream.border_place(
    mirrored, low + hashing.below(draw(hashing.CUT), np.maximum(count, 1))
  )
  end_a = np.where(count > 0, border, end)
  random = (count == 0) | (draw(hashing.COIN) < hashing.threshold(random_rate))
  wanted = np.maximum(room - (end_a - begin), 1)
  start_b = lane_begin + hashing.below(
    draw(hashing.SENTENCE), np.maximum(stream.lane_length - wanted, 1)
  )
  end_b = stream.border_place(mirrored, stream.border(mirrored, start_b + wanted, 'left'))
  start_b = stream.border_place(
    mirrored, np.maximum(stream.border(mirrored, start_b, 'right') - 1, 0)
  )
  start_b, end_b = np.where(random, start_b, end_a), np.where(random, end_b, end)
  size_a, size_b = pairs.truncated_lengths(end_a - begin, end_b - start_b, room)
  return (begin, size_a), (start_b, size_b), random


class Stream(NamedTuple):
  """The text as one stream of places, in lanes of equal length."""

  text: rows_lib.Text
  lanes: int  # number of lanes
  ends: bool  # whether the end of a document takes a place, behind its last token

  @property
  def size(self) -> int:
    return int(self.text.sentence_starts[-1]) + self.text.num_documents * self.ends

  @property
  def lane_length(self) -> int:
    return self.size // self.lanes

  # --- borders of sentences, numbered 0 … num_sentences, for a mirrored row from the end of the
  # stream ---

  def border(self, mirrored, place, side):
    """How many borders lie before `place` (side 'left'), or before or at it ('right')."""
    place = place + (side == 'right')
    behind = self.text.num_sentences + 1 - self._borders_before(self.size - place + 1)
    return np.where(mirrored, behind, self._borders_before(place))

  def border_place(self, mirrored, number):
    """Where the border is."""
    number = np.clip(number, 0, self.text.num_sentences)
    number = np.where(mirrored, self.text.num_sentences - number, number)
    place = self.text.sentence_starts[number]
    if self.ends:
      place = place + self.text.document_starts.searchsorted(number, 'right') - 1
    return np.where(mirrored, self.size - place, place)

  def _borders_before(self, place):
    return np.searchsorted(self.text.sentence_starts, place - self._document(place), 'left')

  def _document(self, place):
    """The document of a place; 0 if document ends take no place."""
    if not self.ends:
      return np.zeros_like(place)
    low, high = np.full_like(place, -1), np.full_like(place, self.text.num_documents + 1)
    while (high - low > 1).any():  # the last document that starts before or at the place
      middle = (low + high) // 2
      starts = self._document_place(np.clip(middle, 0, self.text.num_documents)) <= place
      low, high = np.where(starts, middle, low), np.where(starts, high, middle)
    return low

  def _document_place(self, document):
    return self.text.sentence_starts[self.text.document_starts[document]] + document

  # --- rows ---

  def tokens(self, start, mirrored):
    """A token of the corpus near each place, to fill places that will be overwritten."""
    place = np.where(mirrored, self.size - 1 - start, start)
    return np.clip(place - self._document(place), 0, self.text.sentence_starts[-1] - 1)

  def lay(self, positions, ends, firsts, start, size, cell, mirrored):
    """Lays runs of places into rows.

    positions: int64 [B, L], gets the token of the corpus for each place. ends: list, gets the flat
    cells that hold a document's end; firsts: list, gets the flat cells where a word must begin.
    start, size: [B] first place and length of each run, counted in its row's direction; cell: [B]
    flat cell of its first place. mirrored: bool [B].
    """
    low = np.where(mirrored, self.size - start - size, start)  # start of the run in the stream
    row, i = rows_lib.ragged(np.zeros_like(size), size)
    cells = cell[row] + i
    place = np.where(mirrored[row], low[row] + size[row] - 1 - i, low[row] + i)
    firsts.append((cell + np.where(mirrored, size - 1, 0))[size > 0])
    if not self.ends:
      positions.reshape(-1)[cells] = place
      return
    first, last = self._document(low), self._document(low + np.maximum(size, 1) - 1)
    owner, document = rows_lib.ragged(first, last - first + 1)
    end = self._document_place(document + 1) - 1  # end of the document, in or behind the run
    inside = end < (low + size)[owner]
    owner, end = owner[inside], end[inside]
    before = np.cumsum(size) - size
    at = before[owner] + np.where(
      mirrored[owner], low[owner] + size[owner] - 1 - end, end - low[owner]
    )  # in `place`
    is_end = np.zeros(len(place), np.int64)
    is_end[at] = 1
    passed = np.cumsum(is_end)
    # ends of the run up to here, this place included
    passed -= (passed - is_end)[np.minimum(before, len(place) - 1)][row]
    total = np.bincount(owner, minlength=len(size))
    # Read forward, a document's tokens come before its end; mirrored, its end comes first.
    document = first[row] + np.where(mirrored[row], total[row] - passed, passed - is_end)
    positions.reshape(-1)[cells] = np.minimum(
      place - document - is_end, self.text.sentence_starts[-1] - 1
    )
    ends.append(cells[at])
    after = at + np.where(mirrored[owner], -1, 1)
    firsts.append(cells[after[(after >= before[owner]) & (after < (before + size)[owner])]])
