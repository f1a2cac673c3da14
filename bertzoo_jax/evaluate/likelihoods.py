"""Log-likelihoods of sentences.

The score of a sentence is Σ log p(token | …) over the tokens of its text, or over a span of them:
the end of a sentence with its context before it. Special tokens around it are seen but not scored.
The context of a token depends on the network:

    masked         all other tokens, and a mask in its own place; one row per token (Salazar et al.
                   2020 §2: the pseudo-log-likelihood)
    query stream   all other tokens: the query does not see its own token; one row per token
    words          like masked; the later tokens of its word are masked too (Kauf & Ivanova 2023,
                   PLL-word-l2r)
    left to right  the tokens before it; one row per sentence

Legend: S sentences of one length, N their rows, R rows of a batch, L length, P predictions.
"""

from typing import Any
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.evaluate import scores
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective

MASKED, LEFT_TO_RIGHT = objective.MASKED, objective.LEFT_TO_RIGHT
WORDS, QUERIES = 'words', 'query stream'
_STEP = 4  # lengths of rows are multiples of it, and of an eighth of the next power of two
_TOKENS = 1 << 13  # tokens per batch


class Subject(NamedTuple):
  """A network that can be scored."""

  name: str  # '' if the run has only one
  encoder: Any  # linen module, float32
  params: dict  # of the network
  how: str  # MASKED, WORDS, QUERIES or LEFT_TO_RIGHT
  special: dict[str, int]  # {'mask' | 'cls' | 'sep' | 'pad' | …: id}
  frame: str  # template of a row with one text, `single` of hf.tokenizer.Shape
  step: int | None = None  # step of the checkpoint; None without one
  notes: tuple[str, ...] = ()  # sentences on the choice of the network
  ahead: bool = False  # whether the output at a token predicts the token after it
  words: dict | None = None  # {tokens of a text: the word of each, or None}, for WORDS


def ways(params: dict, learned=(MASKED,), in_order: bool = False) -> tuple[str, ...]:
  """How a network can be scored, the default first; () if it gives no probability of a token.

  params: of the network. learned: see objective.Network. in_order: whether its query stream learned
  to predict from left to right.
  """
  if 'next_head' in params:
    return (LEFT_TO_RIGHT,)
  if 'mlm_head' not in params:
    return ()
  if 'query' in params['encoder']['embeddings']:
    return (LEFT_TO_RIGHT if in_order else QUERIES,)
  masked = (MASKED, WORDS) if MASKED in learned else ()
  return masked + ((LEFT_TO_RIGHT,) if LEFT_TO_RIGHT in learned else ())


def log_likelihoods(subject: Subject, ids: list[list[int]], spans=None) -> np.ndarray:
  """The score of each text in nats, float64.

  ids: tokens of each text, without special ones. Equal texts are scored once, so they tie.
  spans: (first, end) of the tokens of each text that are scored; None: all.

  Raises UserError: a text that is too long for the network.
  """
  keys = [(tuple(x), *span) for x, span in zip(ids, spans or [(0, len(x)) for x in ids])]
  known, by_length = dict.fromkeys(keys), {}
  for key in known:
    by_length.setdefault(_length(subject, key[0]), []).append(key)
  for length, texts in sorted(by_length.items()):
    rows, text_SL = _framed(subject, texts, length)
    whole = subject.how == LEFT_TO_RIGHT
    sentence_N, place_N = (np.arange(len(texts)), None) if whole else np.nonzero(text_SL)
    size = max(1, _TOKENS // length)
    batches = _batches(subject, rows, text_SL, sentence_N, place_N, size)
    nll_N = scores.through(
      _read(subject.encoder), subject.encoder, subject.params, batches, rows=size
    )
    total_S = np.zeros(len(texts))
    np.add.at(total_S, sentence_N, -nll_N[: len(sentence_N)].astype(np.float64))
    known.update(zip(texts, total_S))
  return np.array([known[key] for key in keys])


def _length(subject, text) -> int:
  """L of the rows for a text, rounded up so that few programs are compiled."""
  tokens, most = len(text) + len(subject.frame.split()) - 1, subject.encoder.max_positions
  if most is not None and tokens > most:
    raise errors.UserError(
      f'A sentence has {tokens} tokens with its specials, and the network takes {most}: leave its '
      'pair out.'
    )
  step = max(_STEP, (1 << (tokens - 1).bit_length()) // 8)
  length = -(-tokens // step) * step
  return length if most is None else min(length, most)


def _framed(subject, texts, length) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """(input_ids, token_type_ids, segment_ids [S, L]; bool [S, L]: whether a token is scored).

  texts: (tokens, first, end) of each, see `log_likelihoods`.
  """
  ids_SL = np.full((len(texts), length), subject.special['pad'], np.int32)
  segments_SL, packs_SL = np.zeros_like(ids_SL), np.zeros_like(ids_SL)
  text_SL = np.zeros(ids_SL.shape, bool)
  left = subject.encoder.padding_side == 'left'
  for s, (text, first, end) in enumerate(texts):
    row = []
    for role, segment in (word.split(':') for word in subject.frame.split()):
      pieces = text if role == 'A' else [subject.special[role]]
      scored = lambda i, role=role, span=range(first, end): role == 'A' and i in span
      row += [(piece, int(segment), scored(i)) for i, piece in enumerate(pieces)]
    columns = slice(length - len(row), length) if left else slice(len(row))
    ids_SL[s, columns], segments_SL[s, columns], text_SL[s, columns] = zip(*row)
    packs_SL[s, columns] = 1
  rows = dict(input_ids=ids_SL, token_type_ids=segments_SL, segment_ids=packs_SL)
  if subject.how == WORDS:
    rows['words'] = np.full(ids_SL.shape, -1)
    for s, (text, first, end) in enumerate(texts):
      words = enumerate(subject.words[text][first:end])
      rows['words'][s, text_SL[s]] = [-2 - i if word is None else word for i, word in words]
  return rows, text_SL


def _batches(subject, rows, text_SL, sentence_N, place_N, size):
  """Yields batches of `size` rows. place_N: the place that each row predicts; None for its whole
  text.
  """
  for start in range(0, len(sentence_N), size):
    row_R = np.minimum(np.arange(start, start + size), len(sentence_N) - 1)
    batch = {name: x[sentence_N[row_R]] for name, x in rows.items()}
    if place_N is None:
      yield _from_left_to_right(subject, batch, text_SL[sentence_N[row_R]])
    else:
      yield _one_place(subject, batch, place_N[row_R])


def _one_place(subject, batch, place_R):
  """The batch with one prediction per row."""
  ids_RL = batch['input_ids']
  cells = np.arange(len(place_R)), place_R
  predicted = dict(
    masked_positions=np.maximum(place_R - subject.ahead, 0)[:, None].astype(np.int32),
    masked_targets=ids_RL[cells][:, None],
    # from left to right, nothing predicts the first token of a row
    masked_weights=(place_R >= subject.ahead)[:, None].astype(np.float32),
  )
  if subject.how in (MASKED, WORDS):
    ids_RL[cells] = subject.special['mask']
    if subject.how == WORDS:
      word_RL = batch.pop('words')
      later_RL = np.arange(ids_RL.shape[1]) > place_R[:, None]
      ids_RL[later_RL & (word_RL == word_RL[cells][:, None])] = subject.special['mask']
    return {**batch, **predicted}
  order_RL = np.zeros_like(ids_RL)  # a query sees tokens of a lower order than its own
  order_RL[cells] = 1
  return {**batch, **predicted, 'order': order_RL}


def _from_left_to_right(subject, batch, text_RL):
  """The batch with predictions of all tokens of the text, each from those before it."""
  targets_RL, length = batch['input_ids'], text_RL.shape[1]
  if subject.ahead or 'next_head' in subject.params:  # a vector predicts the token after it
    ahead = lambda x_RL: np.pad(x_RL[:, 1:], ((0, 0), (0, 1)))
    targets_RL, text_RL = ahead(targets_RL), ahead(text_RL) & (batch['segment_ids'] > 0)
  places_RL = np.broadcast_to(np.arange(length, dtype=np.int32), text_RL.shape)
  return dict(
    batch,
    masked_positions=places_RL,
    masked_targets=targets_RL,
    masked_weights=text_RL.astype(np.float32),
    order=places_RL,
  )


@scores.kept
def _read(encoder):
  """(params, batch, memory) → (nats of all predictions of each row [R], memory)."""

  def read(params, batch, memory):
    if 'next_head' in params:
      hidden_RLD = networks.encode(encoder, params['encoder'], batch, None)
      logits_RPV = networks.vocabulary_logits(encoder, params, hidden_RLD, name='next_head')
    else:
      states_RPD = networks.predictions(encoder, params['encoder'], batch, None).states_BPD
      logits_RPV = networks.vocabulary_logits(encoder, params, states_RPD)
    nll_RP, _ = networks.nll(logits_RPV, batch['masked_targets'])
    return (nll_RP * batch['masked_weights']).sum(axis=1), memory

  return read
