"""Questions with their passages as rows of tokens: a long passage becomes several windows.

Legend: Q questions, W windows, T tokens of all rows.
"""

import dataclasses
import functools

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.parts import features as definitions
from bertzoo_jax.tasks import frames

_SPARE = 0.01  # of a window's length, which BERT's release adds to the context of a token


@dataclasses.dataclass(frozen=True)
class Windows:
  """How the rows of a split belong to its questions."""

  question: np.ndarray  # int32 [W], ascending: the question of each window
  passage: np.ndarray  # int32 [W], the number of its text
  first: np.ndarray  # int64 [W], its first token in that text
  size: np.ndarray  # int64 [W], its tokens of the text
  place: np.ndarray  # int64 [W], position of its first token in the row
  cls: np.ndarray  # int64 [W], position in the row of the special token that stands for no answer
  # starts, ends: int32, characters of the tokens of all texts
  starts: np.ndarray
  ends: np.ndarray
  texts: np.ndarray  # int64 [texts + 1], offsets of the texts in them
  decoding: definitions.QuestionWindows  # config.features, how scores become answers

  def characters(self, window, start, end):
    """(first character, last character + 1) of tokens start … end, counted from the window's first
    token of its text. All are int arrays of one shape.
    """
    at = self.texts[self.passage[window]] + self.first[window]
    return self.starts[at + start], self.ends[at + end]

  @functools.cached_property
  def best_context(self) -> np.ndarray:
    """Whether no other window has more context, for each token of each window's text (the smaller
    number of tokens left and right of it, as in BERT's release), bool [sum of size].
    """
    window = np.repeat(np.arange(len(self.size)), self.size)
    place = _within(self.size)
    token = self.first[window] + place
    ours = np.minimum(place, self.size[window] - 1 - place) + _SPARE * self.size[window]
    out = np.ones(len(window), bool)
    for step in range(1, len(self.size)):
      met = False
      for other, beats in ((window - step, np.greater_equal), (window + step, np.greater)):
        inside = (other >= 0) & (other < len(self.size))
        other = np.where(inside, other, 0)
        at = token - self.first[other]
        inside &= (self.question[other] == self.question[window]) & (at >= 0)
        inside &= at < self.size[other]
        met |= inside.any()
        context = np.minimum(at, self.size[other] - 1 - at) + _SPARE * self.size[other]
        out &= ~(inside & beats(context, ours))
      if not met:
        break
    return out


def question_windows(
  fields: definitions.QuestionWindows, examples, numbers, tokenizer, frame: frames.Frame
) -> frames.Rows:
  """A row for each window of each question's passage. Arguments: see `features.texts`.

  Returns Rows of W windows. labels: int32 [W, 2], positions of the answer's first and last token,
  twice that of the special token for no answer; None without answers. token_features: answer_mask,
  1 for tokens of the passage and that special token. features: impossible, float32 [W], 1 if the
  window does not have the answer. detail: Windows.

  Raises UserError: no room for the passage.
  """
  del numbers
  words = frame.words(True)
  named = [role for role, _ in words]
  # auto: the passage is the first text if a row ends in the special token (code of XLNet's release)
  order = fields.order
  passage_first = named[-1] == 'cls' if order == 'auto' else order == 'passage_first'
  question_role, passage_role = 'BA' if passage_first else 'AB'
  encode = functools.partial(tokenizer.encode_with_offsets, special_text=True)
  questions, question_index = frames.distinct(examples.column('question'))
  passages, passage_index = frames.distinct(examples.column('context'))
  q = frames.flat([ids for ids, _, _ in frames.encoded(encode, questions)])
  encoded = frames.encoded(encode, passages)
  p, starts, ends = (frames.flat([text[i] for text in encoded]) for i in range(3))
  asked = np.minimum(q.sizes, fields.max_question)[question_index]
  fixed = sum(role not in 'AB' for role in named)
  room = frame.max_length - fixed - asked
  if len(room) and room.min() < 1:
    raise errors.UserError(
      f'config.length={frame.max_length} leaves no room for the passage beside a question of '
      f'{asked.max()} tokens: set --config.length={frame.max_length - room.min() + 1} or more, '
      'or a lower --config.features.max_question.'
    )
  sizes = p.sizes[passage_index]
  stride = np.minimum(fields.doc_stride, room)
  counts = 1 + np.maximum(0, -(-(sizes - room) // stride))
  window = np.repeat(np.arange(len(counts)), counts)  # the question of each
  first = _within(counts) * stride[window]
  size = np.minimum(room[window], sizes[window] - first)
  parts = {  # of the rows: (tokens, where each row's begin, how many they are)
    question_role: (q.values, q.offsets[question_index[window]], asked[window]),
    passage_role: (p.values, p.offsets[passage_index[window]] + first, size),
  }
  laid, lengths = frames.laid_out(words, frame.special, parts)
  within = np.cumsum(lengths, axis=1) - lengths  # where each word begins in its row
  cls = within[:, named.index('cls')]
  detail = Windows(
    question=window.astype(np.int32),
    passage=passage_index[window].astype(np.int32),
    first=first,
    size=size,
    place=within[:, named.index(passage_role)],
    cls=cls,
    starts=starts.values,
    ends=ends.values,
    texts=p.offsets,
    decoding=fields,
  )
  labels = None
  if examples.labels is not None:
    labels = _answer_places(detail, np.array(examples.column('span'), np.int64).reshape(-1, 2))
  answers = np.array([role in (passage_role, 'cls') for role in named], np.int32)
  impossible = np.zeros(len(window)) if labels is None else labels[:, 0] == cls
  return frames.Rows(
    **laid,
    uncut=(fixed + asked + sizes)[window],
    labels=labels,
    label_axis='places',
    features={'impossible': impossible.astype(np.float32)},
    token_features={'answer_mask': np.repeat(np.tile(answers, len(window)), lengths.reshape(-1))},
    detail=detail,
  )


def _answer_places(w: Windows, spans) -> np.ndarray:
  """int32 [W, 2]: see question_windows. spans: int64 [Q, 2], in characters."""
  spans = spans[w.question]
  # All texts are concatenated: the characters of text n begin at n · wide.
  wide = int(max(spans.max(initial=0), w.ends.max(initial=0))) + 2
  number = np.repeat(np.arange(len(w.texts) - 1), np.diff(w.texts)) * wide
  behind = np.maximum.accumulate(number + w.ends)
  begin = np.minimum.accumulate((number + w.starts)[::-1])[::-1]
  base = w.passage * np.int64(wide)
  # the first token that ends after the answer's first character, the last that begins in it
  start = np.searchsorted(behind, base + spans[:, 0], 'right') - w.texts[w.passage] - w.first
  end = np.searchsorted(begin, base + spans[:, 1], 'left') - 1 - w.texts[w.passage] - w.first
  inside = (spans[:, 0] >= 0) & (start >= 0) & (start <= end) & (end < w.size)
  out = np.where(inside[:, None], w.place[:, None] + np.stack([start, end], axis=1), w.cls[:, None])
  return out.astype(np.int32)


def _within(sizes) -> np.ndarray:
  """0 … n − 1 for each n of sizes, concatenated."""
  ends = np.cumsum(sizes)
  return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
