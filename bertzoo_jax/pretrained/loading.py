"""A trained network in Python: its config, parameters, tokenizer, vectors and predictions.

    import bertzoo_jax
    model = bertzoo_jax.load('run')
    vectors = model.encode(['A sentence.', 'Another one.'])
    bertzoo_jax.load('mine').predict(['A sentence.', 'Another one.'])

Legend: B batch, L length, T tokens of a text, D width, N texts.
"""

import contextlib
import functools
import itertools
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertzoo_jax import pretrained
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import trust
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.model import pooling as poolings
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective
from bertzoo_jax.pretrained import predicting
from bertzoo_jax.runs import step_folders
from bertzoo_jax.tasks import batches
from bertzoo_jax.tasks import features
from bertzoo_jax.tasks import frames
from bertzoo_jax.tasks.reading import asked

POOLING = (*poolings.KINDS, 'none')
_LONGEST = 512  # tokens of a row of an encoder that takes any number
_CHUNK = 64  # batches of texts that are sorted by length together


class Row(NamedTuple):
  """A text as the encoder reads it."""

  # ids, segments: int32 [T], special tokens included
  ids: np.ndarray
  segments: np.ndarray
  # starts, ends: int32 [T]: the characters that a token stands for, in its own text of a pair; −1
  # for special tokens around the text
  starts: np.ndarray
  ends: np.ndarray
  cut: bool  # whether tokens at the end of the text were dropped


class Loaded:
  """A trained network.

  Attributes:
    pretrained: pretrained.Pretrained.
    config: {'encoder': section, 'tokenizer': section or None, 'hf': name of the class}.
    encoder: linen module.
    params: {'encoder': …} and the heads, as arrays on the device.
    max_length: longest row that the encoder takes; None for any length.
  """

  def __init__(self, network: pretrained.Pretrained, dtype: str = 'float32', trust_code=False):
    """network: of `pretrained.open`. dtype, trust_code: of `bertzoo_jax.load`."""
    self.pretrained, self._trust_code = network, trust_code
    self.config = dict(encoder=network.section, tokenizer=network.tokenizer_section, hf=network.hf)
    self.encoder = pretrained.encoder(network, errors.choose(dtype, encoders.DTYPES, 'dtype'))
    self.params = jax.device_put(network.params)
    self.max_length = self.encoder.max_positions
    ways = itertools.product(POOLING, (False, True))  # (pooling, normalize)
    self._compiled = {way: jax.jit(functools.partial(self._pooled, way)) for way in ways}

  @functools.cached_property
  def tokenizer(self) -> tokenizers.Tokenizer | tokenizers.published.Published:
    """The tokenizer. Raises UserError without its files, or if they belong to other weights."""
    return tokenizer_of(self.pretrained)

  @functools.cached_property
  def predictor(self) -> predicting.Predictor:
    """Predictions by the head of a task. Raises UserError for a network without one."""
    return predicting.Predictor(self)

  def predict(self, inputs: list, batch_size: int = 32) -> list[dict]:
    """Predictions of a fine-tuned network, in the form that `finetune` writes. Rows have the length
    and the windows of the run.

    inputs: by the head: texts or pairs (a, b); for tags texts or lists of words; (question,
    passage); or (text, question, [option, …]).

    Returns a dict for each: label and probabilities; score; labels and probabilities; words, tags
    and probabilities; answer, start and others; or label, option and probabilities. Raises
    UserError for inputs of another form, and for a network that was not trained for a task.
    """
    with _trusting(self._trust_code):
      return self.predictor.ask(inputs, batch_size)

  def apply(self, params, batch) -> dict[str, jax.Array]:
    """The vectors of all tokens and the outputs of the heads, float32. This function is pure: it
    can be jitted and differentiated.

    batch: input_ids [B, L] int32; token_type_ids (0 if left out) and segment_ids (1 for tokens, 0
    for padding; 1 if left out) likewise. Raises UserError for names and values of an older batch.

    Returns {'vectors': [B, L, D]} and, for the heads of the network, the outputs of
    `networks.predict`: 'mlm' [B, L, V], 'next' [B, L, V], 'pair' [B, 2], 'replaced' [B, L], 'row'
    [B, C], 'start' and 'end' [B, L]. 'next' scores the token after each one, and so does 'mlm' if
    pretrained.predicts_next.
    """
    return networks.outputs(self.encoder, params, self._completed(batch))

  def encode(
    self,
    texts: list[str | tuple[str, str]],
    pooling: str | None = None,
    batch_size: int = 32,
    max_length: int | None = None,
    prompt: str | None = None,
  ) -> np.ndarray | list[np.ndarray]:
    """Vectors of texts, float32, in their order.

    texts: N texts, or pairs of texts (a, b), which are framed as the network's class frames them:
    [CLS] a [SEP] b [SEP]. pooling: mean (of all tokens of the row, special ones included, [N, D]) |
    first (the vector that classifies a row: its first token's, or its last token's where rows are
    padded on the left, [N, D]) | none (a list of arrays [T, D], special tokens included). None: as
    the network was trained to make vectors, or its directory of sentence-transformers says, with
    their normalisation; else mean. max_length: tokens per row; the ends of longer texts are cut, of
    a pair the longer one's first. None: pretrained.vectors.max_length, else as many as the encoder
    takes, or 512 if it takes any number. prompt: name of a text in pretrained.vectors.prompts,
    which is put before each text; '' for none, None for the default one.

    Raises UserError for an unknown pooling or prompt, modules that are not computed, a length that
    the encoder does not take, and inputs other than text.
    """
    rows = self.rows(texts, max_length, prompt)
    out = [None] * len(rows)
    for index, x in self.vectors(rows, pooling, batch_size):
      out[index] = x
    if pooling == 'none':
      return out
    return np.stack(out) if out else np.zeros((0, self.encoder.hidden_size), np.float32)

  def rows(
    self, texts: list, max_length: int | None = None, prompt: str | None = None
  ) -> list[Row]:
    """Texts as rows, with special tokens around them. Arguments and errors: see `encode`."""
    texts = asked.listed(texts, 'encode() takes a list of texts: write encode([text]).')
    texts = [_texts(x, n) for n, x in enumerate(texts)]
    known = self.pretrained.vectors
    prompt = known.prompt if prompt is None else prompt
    before = errors.choose(prompt, known.prompts, 'prompt') if prompt else ''
    shape, special = self.pretrained.shape, self.tokenizer.special
    length = self._length(max_length)
    frame = frames.Frame(shape.single, shape.pair, special, self.encoder.type_vocab_size, length)
    # id, start and end of each special token
    around = {role: np.array([[i], [-1], [-1]]) for role, i in special.items()}
    flat = [before + text if n == 0 else text for both in texts for n, text in enumerate(both)]
    flat = [text.lower() for text in flat] if known.lower else flat
    encoded = iter(self.tokenizer.encode_with_offsets(flat, special_text=True))
    out = []
    for both in texts:
      words = frame.words(len(both) > 1)
      specials = sum(role not in 'AB' for role, _ in words)
      if (room := length - specials) < len(both):
        raise errors.UserError(
          f'Rows of {length} tokens have no room beside the {specials} special ones: ask for '
          f'{specials + len(both)} or more.'
        )
      tokens = [np.stack(next(encoded)) for _ in both]
      if before:  # characters are those of the text behind it
        places = np.maximum(tokens[0][1:] - len(before), 0)
        tokens[0][1:] = np.where(tokens[0][2] > len(before), places, -1)
      sizes = [x.shape[1] for x in tokens]
      kept = features.longest_first(*sizes, room) if len(both) > 1 else [room]
      parts = {**around, **{role: x[:, :most] for role, x, most in zip('AB', tokens, kept)}}
      columns = np.concatenate([parts[role] for role, _ in words], axis=1).astype(np.int32)
      segments = [n for role, n in words for _ in range(parts[role].shape[1])]
      segments = np.asarray(segments, np.int32)
      out.append(Row(columns[0], segments, columns[1], columns[2], sum(sizes) > room))
    return out

  def vectors(self, rows: list[Row], pooling: str | None = None, batch_size: int = 32):
    """Yields (number of a row, its vectors), each row once, in any order.

    Rows of like length share a batch. They are padded to one of few lengths, so that few programs
    are compiled.
    """
    known = self.pretrained.vectors
    if pooling is None and known.refused:
      raise errors.UserError(known.refused)
    way = (known.pooling, known.normalize) if pooling is None else (pooling, False)
    errors.choose(way[0], dict.fromkeys(POOLING), 'pooling')
    compiled = self._compiled[way]
    if batch_size < 1:
      raise errors.UserError(f'batch_size is {batch_size}: at least 1 is needed.')
    order = np.argsort([len(row.ids) for row in rows], kind='stable')
    for start in range(0, len(rows), batch_size):
      numbers = order[start : start + batch_size]
      batch = self._batch([rows[n] for n in numbers], batch_size)
      with jax.default_matmul_precision('highest'):
        got = np.asarray(compiled(self.params, batch))
      for n, x, real in zip(numbers, got, batch['segment_ids'] > 0):
        yield int(n), x[real] if pooling == 'none' else x

  @staticmethod
  def chunk_size(batch_size: int) -> int:
    """Texts to hand to `vectors` at a time: enough to sort them by length."""
    return _CHUNK * batch_size

  def _batch(self, rows, batch_size):
    """The rows, padded; their number is filled up with copies of the last one."""
    longest = max(len(row.ids) for row in rows)
    limit = self.max_length or max(batches.BUCKETS[-1], longest)
    length = min([bucket for bucket in batches.BUCKETS if longest <= bucket <= limit] or [limit])
    size = min(batch_size, 1 << (len(rows) - 1).bit_length())
    rows = [*rows, *[rows[-1]] * (size - len(rows))]
    names = ('input_ids', 'token_type_ids', 'segment_ids')
    batch = {name: np.zeros((size, length), np.int32) for name in names}
    batch['input_ids'][:] = self.tokenizer.special['pad']
    for i, row in enumerate(rows):
      first = length - len(row.ids) if self.pretrained.shape.padding == 'left' else 0
      place = slice(first, first + len(row.ids))
      batch['input_ids'][i, place], batch['token_type_ids'][i, place] = row.ids, row.segments
      batch['segment_ids'][i, place] = 1
    return batch

  def _pooled(self, way, params, batch):
    """[B, D], or [B, L, D] for 'none', float32. way: (pooling, normalize)."""
    pooling, normalize = way
    batch = self._completed(batch)
    if objective.one_way(params, self.pretrained.learned):
      batch = networks.from_left_to_right(batch)
    hidden_BLD = networks.encode(self.encoder, params['encoder'], batch, None)
    if pooling == 'none':
      return hidden_BLD.astype(jnp.float32)
    x_BD = poolings.pooled(pooling, self.encoder, hidden_BLD, batch)
    return poolings.normalized(x_BD) if normalize else x_BD

  def _completed(self, batch):
    """The batch with the features that were left out, and no token type that the encoder
    lacks.
    """
    errors.refuse_pack_ids(batch, 'apply()')
    if 'segment_ids' in batch:
      _check_segments(batch, self.pretrained.shape.padding)
    batch = {name: jnp.asarray(x) for name, x in batch.items()}
    ids_BL = batch['input_ids']
    batch = {'token_type_ids': jnp.zeros_like(ids_BL), 'segment_ids': jnp.ones_like(ids_BL)} | batch
    if segments := self.encoder.type_vocab_size:
      batch['token_type_ids'] = jnp.minimum(batch['token_type_ids'], segments - 1)
    return batch

  def _length(self, max_length) -> int:
    if max_length is None:
      lengths = [n for n in (self.pretrained.vectors.max_length, self.max_length) if n]
      max_length = min(lengths, default=_LONGEST)
    if self.max_length is not None and max_length > self.max_length:
      raise errors.UserError(
        f'max_length is {max_length}, but the encoder of {self.pretrained.address} takes at most '
        f'{self.max_length} tokens per row: give {self.max_length} or less.'
      )
    return max_length


def _check_segments(batch, padding):
  """Raises UserError if segment_ids look like token types: where a row's first token (its last one
  where rows are padded on the left) is 0, or several segments have no position_ids.
  """
  ids = batch['segment_ids']
  if isinstance(ids, jax.core.Tracer) or 'token_type_ids' in batch:
    return
  edge_B = np.asarray(ids)[:, -1 if padding == 'left' else 0]
  if (edge_B == 0).any() or ('position_ids' not in batch and np.max(ids, initial=0) > 1):
    raise errors.UserError(
      'apply(): segment_ids are 0 for padding and 1 for the tokens of a text, and a row '
      'begins with padding or has several segments: give token types (0, 1) as token_type_ids.'
    )


def _texts(x, number) -> tuple[str, ...]:
  """The texts of a row. Raises UserError for an input that is neither a text nor a pair."""
  texts = (x,) if isinstance(x, str) else x
  is_row = isinstance(texts, tuple | list) and len(texts) in (1, 2)
  if not is_row or not all(isinstance(text, str) for text in texts):
    raise errors.UserError(
      f'encode() takes texts and pairs of texts (a, b); texts[{number}] is {str(x)[:40]!r} of type '
      f'{type(x).__name__}: leave it out, or write it as a text.'
    )
  return tuple(texts)


def tokenizer_of(
  network: pretrained.Pretrained,
) -> tokenizers.Tokenizer | tokenizers.published.Published:
  """The network's tokenizer. Raises UserError without its files, or if they belong to another."""
  folder = network.tokenizer_folder
  tokenizer = tokenizers.open_folder(folder)
  if tokenizer.vocab_size > network.vocab_size:
    raise errors.UserError(
      f'The tokenizer in {folder} has {tokenizer.vocab_size:,} pieces and the word table of '
      f'{network.address} {network.vocab_size:,} rows: they do not belong together; copy the '
      'folder again.'
    )
  return tokenizer


def load(address: str, dtype: str = 'float32', trust_code: bool = False) -> Loaded:
  """The network at an address, see `bertzoo_jax.load`."""
  if not isinstance(address, (str, os.PathLike)):
    raise errors.UserError(f'load() takes the address of a network as text, not {address!r:.40}.')
  address = os.fspath(address)
  if not address.startswith('hf:') and not step_folders.steps(address):
    below = step_folders.below(address)  # the workdir of a fine-tuning is a folder of runs
    address = below[0] if len(below) == 1 else address
  with _trusting(trust_code):
    loaded = Loaded(pretrained.open(address), dtype, trust_code)
    if trust_code:
      _ = loaded.tokenizer  # now, while its code may run
    return loaded


@contextlib.contextmanager
def _trusting(everything):
  """Allows all code that folders name inside the `with`, if `everything`."""
  before = trust.get_allowed()
  if everything:
    trust.allow_all()
  try:
    yield
  finally:
    trust.set_allowed(before)
