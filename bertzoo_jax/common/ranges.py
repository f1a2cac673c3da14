"""The range of every number in a config, checked before anything is built or allocated.

Fields that parts have in common share a range. A part of the user's own has fields of its own
meaning: its numbers must be finite, no more.
"""

import math
import numbers
from collections.abc import Callable
from typing import NamedTuple

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import parts

_LARGEST, _SMALLEST = 3.4e38, 1.2e-38  # limits of float32; smaller positive numbers become 0


class Range(NamedTuple):
  """The values that a field may have.

  Attributes:
    words: the range in words, for the message.
    holds: number → whether it is in the range.
  """

  words: str
  holds: Callable


def _whole(least, most):
  return Range(
    f'a whole number from {least:,} to {most:,}',
    lambda x: isinstance(x, numbers.Integral) and least <= x <= most,
  )


_SHARE = Range('a number from 0 to 1', lambda x: 0 <= x <= 1)
_SHARE_ABOVE_0 = Range('a number above 0 and at most 1', lambda x: 0 < x <= 1)
_SHARE_BELOW_1 = Range('a number from 0 to below 1', lambda x: 0 <= x < 1)
_SHARE_BETWEEN = Range('a number above 0 and below 1', lambda x: 0 < x < 1)
_AT_LEAST_0 = Range('a number of at least 0', lambda x: x >= 0)
_FINITE = Range('a finite number', lambda x: True)
_ABOVE_0 = Range(f'a number of at least {_SMALLEST}', lambda x: x >= _SMALLEST)

# The upper bounds lie above all that was published (2^16 rows, 2^20 pieces, 1,000 layers), and
# below what takes minutes to trace or overflows an int32.
_STEPS = _whole(0, 2**31 - 1)  # the train state counts in int32
_TOKENS, _PIECES = _whole(1, 2**22), _whole(1, 2**24)
_LAYERS, _UNITS = _whole(1, 10_000), _whole(1, 2**20)
_COUNT, _COUNT_OR_0 = _whole(1, 2**31 - 1), _whole(0, 2**31 - 1)
_COLUMN = _whole(-10_000, 10_000)  # below 0: from the last one
_BATCH = 2**26  # tokens per batch; the largest published one has 2^24

NUMBERS = {
  # jax draws the weights from 32 bits of the seed: others would repeat the weights of these
  'seed': _whole(0, 2**32 - 1),
  'length': _TOKENS,
  'batch_size': _whole(0, 2**20),
  'batch_tokens': _whole(0, _BATCH),
  'epochs': _AT_LEAST_0,
  'steps': _STEPS,
  'warmup': _AT_LEAST_0,
  'layer_decay': _SHARE_ABOVE_0,
  'source.dev_share': _SHARE_BELOW_1,
  'source.word': _COLUMN,
  'source.tag': _COLUMN,
  'features.doc_stride': _TOKENS,
  'features.max_question': _TOKENS,
  'features.n_best': _COUNT,
  'features.max_answer': _TOKENS,
  'features.beam': _COUNT,
  'features.no_answer_threshold': _FINITE,
  'features.overlap': _AT_LEAST_0,
  'features.options': _COUNT_OR_0,
  'features.option_tokens': _TOKENS,
  'tokenizer.vocab_size': _PIECES._replace(words=f"{_PIECES.words}, or 'auto',"),
  'tokenizer.max_word_chars': _COUNT,
  'tokenizer.min_frequency': _COUNT_OR_0,
  'tokenizer.coverage': _SHARE_ABOVE_0,
  'corpus.held_out': _SHARE_BELOW_1,
  'corpus.min_chars': _COUNT_OR_0,
  'format.max_pieces': _COUNT,
  'format.short_rate': _SHARE,
  'format.negative_rate': _SHARE,
  'format.single_rate': _SHARE,
  'format.random_rate': _SHARE,
  'format.reuse_length': _TOKENS,
  'masking.rate': _SHARE_BETWEEN,
  'masking.repeat': _COUNT_OR_0,
  'masking.max_predictions': _COUNT_OR_0,
  'masking.p': _SHARE_BETWEEN,
  'masking.max_words': _COUNT,
  'masking.max_pair_targets': _COUNT,
  'masking.max_gram': _COUNT,
  'masking.context': _COUNT,
  'masking.max_span': _COUNT_OR_0,
  'masking.num_predictions': _TOKENS,
  'masking.block': _TOKENS,
  'encoder.num_layers': _LAYERS,
  'encoder.hidden_size': _UNITS,
  'encoder.num_heads': _UNITS,
  'encoder.intermediate_size': _UNITS,
  'encoder.embedding_size': _whole(0, 2**20),
  'encoder.vocab_multiple': _PIECES,
  'encoder.max_positions': _TOKENS,
  'encoder.type_vocab_size': _whole(0, 2**24),
  'encoder.max_distance': _whole(2, 2**22),
  'encoder.buckets': _whole(0, 2**20),
  'encoder.convolution_size': _whole(0, 2**20),
  'encoder.memory_length': _whole(0, 2**22),
  'encoder.reuse_length': _TOKENS,
  'encoder.clamp_length': _whole(0, 2**22),
  'encoder.num_groups': _LAYERS,
  'encoder.inner_group_num': _LAYERS,
  'encoder.norm_eps': _ABOVE_0,
  'encoder.dropout': _SHARE_BELOW_1,
  'encoder.attention_dropout': _SHARE_BELOW_1,
  'encoder.initializer_range': _ABOVE_0,
  'objective.dropout': _SHARE_BELOW_1,
  'objective.input_dropout': _SHARE_BELOW_1,
  'objective.answerable_weight': _AT_LEAST_0,
  'objective.hidden_size': _whole(0, 2**20),
  'objective.sift.weight': _AT_LEAST_0,
  'objective.sift.rate': _AT_LEAST_0,
  'objective.sift.init': _ABOVE_0,
  'objective.pair_weight': _AT_LEAST_0,
  'objective.boundary_weight': _AT_LEAST_0,
  'objective.num_offsets': _TOKENS,
  'objective.offset_size': _UNITS,
  'objective.width': _SHARE_ABOVE_0,
  'objective.depth': _SHARE_ABOVE_0,
  'objective.temperature': _ABOVE_0,
  'objective.generator_weight': _AT_LEAST_0,
  'objective.discriminator_weight': _AT_LEAST_0,
  'optimizer.b1': _SHARE_BELOW_1,
  'optimizer.b2': _SHARE_BELOW_1,
  'optimizer.eps': _ABOVE_0,
  'optimizer.weight_decay': _AT_LEAST_0,
  'optimizer.clip_norm': _AT_LEAST_0,
  'schedule.learning_rate': _AT_LEAST_0,
  'schedule.warmup': _STEPS,
  'schedule.end_share': _SHARE,
  'run.accumulation': _COUNT,
  'run.unroll': _COUNT_OR_0,
  'run.log_every': _COUNT,
  'run.eval_every': _STEPS,
  'run.eval_batches': _COUNT,
  'run.save_minutes': _AT_LEAST_0,
  'run.hang_minutes': _AT_LEAST_0,
  'run.keep': _COUNT,
  'run.keep_every': _STEPS,
}

# The range of each number in a tuple.
IN_TUPLES = {
  'masking.corruption': _SHARE,
  'masking.weights': _AT_LEAST_0,
  'optimizer.rates': _AT_LEAST_0,
  'run.mesh': _whole(-1, 2**20),
}


def check(config) -> None:
  """Raises UserError for a number that is not finite or not in its range, in a config or in what
  one of its phases overrides.
  """
  check_fields(config)
  steps = configuration.total_steps(config)
  if not _STEPS.holds(steps):
    raise errors.UserError(f'config.phases have {steps:,} steps in all: {_STEPS.words} is needed.')
  for phase in configuration.phases(config):
    check_fields(phase.config, f'in phase {phase.index}, config.')
    rows, length = phase.config.batch_size, phase.config.length
    if rows * length > _BATCH:
      raise errors.UserError(
        f'phase {phase.index} has {rows:,} rows × {length:,} tokens per batch: at most {_BATCH:,} '
        'tokens are possible, lower config.batch_size (or batch_tokens) or config.length.'
      )


def check_fields(config, prefix: str = 'config.') -> None:
  """As `check`, for the fields alone: of a config that need not have phases."""
  flat = configuration.flatten(config)
  for key, value in flat.items():
    # what a phase sets is checked where it applies
    for number in _numbers(value) if key != 'phases' else ():
      if not math.isfinite(number) or abs(number) > _LARGEST:
        raise errors.UserError(f'{prefix}{key} is {_shown(value)}: a finite number is needed.')
    if parts.is_outside(flat.get(f'{key.split(".")[0]}.name')):
      continue
    if key == 'tokenizer.vocab_size' and value == configuration.AUTO:
      continue
    if key in NUMBERS and not (_is_number(value) and NUMBERS[key].holds(value)):
      raise errors.UserError(f'{prefix}{key} is {_shown(value)}: {NUMBERS[key].words} is needed.')
    if key in IN_TUPLES and not all(map(IN_TUPLES[key].holds, _numbers(value))):
      raise errors.UserError(
        f'{prefix}{key} is {_shown(value)}: each of its numbers must be {IN_TUPLES[key].words}.'
      )


def _is_number(value) -> bool:
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _numbers(value) -> list:
  """All numbers in a value of a config: tuples and dicts may hold more."""
  if isinstance(value, dict):
    value = tuple(value.values())
  if isinstance(value, tuple):
    return [number for part in value for number in _numbers(part)]
  return [value] if _is_number(value) else []


def _shown(value) -> str:
  text = repr(value)
  return text if len(text) <= 80 else f'{text[:40]}…'
