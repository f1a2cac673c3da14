"""RowSpec, the rows that a phase needs; and the format and masking that make them."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from bertzoo_jax.batches import formats
from bertzoo_jax.batches import masking as maskings
from bertzoo_jax.batches import rows as rows_lib
from bertzoo_jax.common import errors
from bertzoo_jax.parts import named


@dataclasses.dataclass(frozen=True)
class RowSpec:
  """The rows that one phase of a run needs."""

  # format, masking: config sections (`name` and the part's fields)
  format: Any
  masking: Any
  # length, batch_size: L, and the rows of the global batch, B
  length: int
  batch_size: int
  seed: int  # seed of the run
  split: str = 'train'  # 'train' or 'held_out'
  # (index, count); the host holds the global rows [index · B / count, (index + 1) · B / count)
  host: tuple[int, int] = (0, 1)
  # index of the phase that fixed the order of rows and masks (Phase.order). Held-out rows depend on
  # neither seed nor phase, and predict no special token (masking.without_special_targets).
  phase: int = 0
  first_example: int = 0  # n₀, place of the first row in that order
  first_step: int = 0  # step of the run at which the phase begins; `moves` count steps of the run
  moves: tuple = ()  # common.moving.Move of fields of the masking; not used for held-out rows
  # step of the phase (None for held-out rows) → share of rows whose `causal` is 1; None for batches
  # without this feature
  causal_at: Callable | None = None
  # mixture, before: config.mixture and Phase.before; ignored for a single corpus
  mixture: tuple = ()
  before: tuple = ()
  keep_units: bool = False  # batches also have 'units' [B, L] (words/word_marks.py), for statistics

  @property
  def learns(self) -> bool:
    return self.split == 'train'


def format_over(spec, has_end, part):
  """The format over a part of a split. has_end: the tokenizer has an end-of-document token."""
  form = named.build(spec.format, formats.BY_NAME, 'format', rows_lib.text_of(part), spec.length)
  return form.in_lanes(spec.batch_size, has_end) if form.in_lanes else form


def masking_of(spec, corpus, **changes):
  """The masking of a phase. changes: {field: value} of fields that config.moving moves."""
  section = {**spec.masking, **changes}
  masking = named.build(section, maskings.BY_NAME, 'masking', spec.length, corpus)
  if not isinstance(masking, maskings.Masking):
    raise errors.UserError(
      f'masking={spec.masking["name"]} gives a {type(masking).__name__}: return a Masking '
      '(bertzoo_jax/batches/masking/contract.py).'
    )
  return masking


class Moving:
  """The maskings of a phase whose fields config.moving moves."""

  def __init__(self, spec, corpus):
    self._spec, self._corpus = spec, corpus
    ends = itertools.product(*(((m.field, m.start), (m.field, m.end)) for m in spec.moves))
    masks = (self._keeping(masking_of(spec, corpus, **dict(end))) for end in ends)
    self.widest = max(masks, key=lambda mask: mask.num_predictions)

  def at(self, step):
    """The masking at a step of the phase, its features padded to the widest masking's."""
    now = {m.field: m.at(self._spec.first_step + step) for m in self._spec.moves}
    mask = self._keeping(masking_of(self._spec, self._corpus, **now))
    return maskings.padded_to(mask, self.widest)

  def _keeping(self, mask):
    return maskings.with_units(mask, self._spec.length) if self._spec.keep_units else mask


def check_split(corpus, split, batch_size, hosts):
  if batch_size < 1 or batch_size % hosts:
    raise errors.UserError(
      f'config.batch_size is {batch_size}: a positive multiple of the {hosts} host processes is '
      'needed.'
    )
  if split not in corpus.splits:
    raise errors.UserError(
      f'No split is called {split!r}.{errors.did_you_mean(split, corpus.splits)}'
    )
  if not corpus.splits[split].num_tokens:
    raise errors.UserError(
      f'The split {split!r} of the corpus is empty: prepare a corpus with more text'
      + (' or a larger config.corpus.held_out.' if split == 'held_out' else '.')
    )


def check_fit(corpus, form, format, masking):
  """Raises UserError if format, masking and corpus exclude each other."""
  if form.assemble and corpus.name:
    raise errors.UserError(
      f'format={format["name"]} reads each lane as one continuous text, which a mixture of corpora '
      'interrupts: give one --corpus, or take another --config.format.'
    )
  if form.needs_sentences and corpus.manifest['splitter'] == 'none':
    raise errors.UserError(
      f'format={format["name"]} ends its segments at sentence ends, but the corpus was not split '
      'into sentences: prepare it with --config.corpus.splitter=rules:LANG (or lines, or '
      'regex:PATTERN), or take format=full_sentences.'
    )
  if 'reuse_length' in format and 'block' in masking and format['reuse_length'] % masking['block']:
    raise errors.UserError(
      f'config.format.reuse_length is {format["reuse_length"]} and config.masking.block '
      f'{masking["block"]}: the first must be a multiple '
      'of the second, or tokens of the memory would be permuted with others.'
    )
