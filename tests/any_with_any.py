"""Finds which maskings, input formats, encoders and objectives go together, and writes the page.

    python -m tests.any_with_any > docs/any_with_any.md

A combination has the usual values of its parts, with the CHANGES. These make the networks small,
and let each part go with as many others as it can.
"""

import functools
import itertools
import types
import warnings
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.experiment import check
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.parts import named as named_parts

AXES = ('objective', 'encoder', 'masking', 'format')
NAMES = {axis: tuple(parts.SECTIONS[axis]) for axis in AXES}

VOCAB, ROWS, LENGTH, REUSED, STEPS = 32, 4, 20, 10, 3
SPECIAL = dict(pad=0, unk=1, cls=2, sep=3, mask=4, eod=5, eop=6)
SMALL = dict(num_layers=1, hidden_size=8, num_heads=2, intermediate_size=8)
SMALL |= dict(dropout=0.0, attention_dropout=0.0)
PREDICTIONS = 3  # per row, so that batches have the same shapes; `in_order` predicts all tokens
CHANGES = {
  'permutation': dict(num_predictions=PREDICTIONS, block=REUSED, context=3),
  'memory_segments': dict(reuse_length=REUSED),
  'transformer': SMALL,
  'disentangled': {**SMALL, 'max_distance': 8, 'buckets': 4},
  'two_stream': {**SMALL, 'memory_length': 4, 'reuse_length': REUSED},
  'modern': {**SMALL, 'window': 4, 'attention_output_dropout': 0.0},
}
GENERATOR = dict(width=1.0)  # a two_stream generator of another width could not share its tables


class Combination(NamedTuple):
  """Names of four parts."""

  objective: str
  encoder: str
  masking: str
  format: str

  @property
  def pairs(self) -> set:
    """Each two of its parts."""
    return set(itertools.combinations(zip(AXES, self), 2))

  @property
  def remembers(self) -> bool:
    """Whether its network has a memory. Only rows of `memory_segments` allow one."""
    return (self.encoder, self.format) == ('two_stream', 'memory_segments')


def combinations() -> list[Combination]:
  return [Combination(*names) for names in itertools.product(*NAMES.values())]


def config(c: Combination):
  sections = {axis: _section(axis, name, c.remembers) for axis, name in zip(AXES, c)}
  return types.SimpleNamespace(**sections)


@functools.cache
def _section(axis, name, remembers=False):
  made = getattr(parts, name)()
  changes = {'objective': GENERATOR, 'encoder': {} if remembers else {'memory_length': 0}}
  changes = {**CHANGES.get(name, {}), **changes.get(axis, {})}
  made.update({k: v for k, v in changes.items() if k in made})
  return made


@functools.cache
def _corpus():
  """Documents of eight sentences of random tokens."""
  draw = np.random.default_rng(0)
  starts = np.append(0, np.cumsum(draw.integers(1, 7, 200)))
  tokens = draw.integers(len(SPECIAL), VOCAB, starts[-1])
  return corpora.in_memory(tokens, starts, np.arange(0, 201, 8), VOCAB, SPECIAL)


@functools.cache
def rows_of(masking: str, format: str):
  """The pipeline of a masking and a format."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # of so few rows
    given = dict(length=LENGTH, batch_size=ROWS, seed=0, causal_at=lambda step: 0.5)
    sections = dict(format=_section('format', format), masking=_section('masking', masking))
    made = pipeline.build(_corpus(), **sections, **given)
  assert made.num_predictions == (LENGTH if masking == 'in_order' else PREDICTIONS)
  return made


@functools.cache
def batches(masking: str, format: str) -> list[dict]:
  """The first batches of a masking and a format."""
  return [rows_of(masking, format).batch(step) for step in range(STEPS)]


@functools.cache
def built(objective: str, encoder: str, remembers: bool):
  """(encoder, objective), or the sentence that refuses them."""
  format = 'memory_segments' if remembers else 'token_blocks'
  made = config(Combination(objective, encoder, 'token', format))
  given = dict(vocab_size=VOCAB, dtype=jnp.float32, unroll=SMALL['num_layers'])
  try:
    network = named_parts.build(made.encoder, encoders.BY_NAME, 'encoder', **given)
    given = dict(encoder=network)
    return network, named_parts.build(made.objective, objectives.BY_NAME, 'objective', **given)
  except errors.UserError as e:
    return str(e)


def network_of(c: Combination):
  """(encoder, objective) of a combination, or the sentence that refuses these two."""
  return built(c.objective, c.encoder, c.remembers)


def refusal(c: Combination) -> str | None:
  """The sentence that refuses a combination; None if it works."""
  built = network_of(c)
  if isinstance(built, str):
    return built
  try:
    check.rows(config(c), rows_of(c.masking, c.format).features, *built)
  except errors.UserError as e:
    return str(e)
  return None


def read_by(c: Combination) -> tuple[str, ...]:
  """The batch features that a combination reads. It must be one that works."""
  _, objective = network_of(c)
  written = rows_of(c.masking, c.format).features
  maybe = (name for name in (*objective.may_read, 'position_ids') if name in written)
  return tuple(sorted({*objective.reads, *maybe}))


class Program(NamedTuple):
  """Identifies a train step: combinations with equal Programs have the same one."""

  objective: str
  encoder: str
  remembers: bool
  reads: tuple[str, ...]


def program(c: Combination) -> Program:
  """The Program of a combination that works."""
  return Program(c.objective, c.encoder, c.remembers, read_by(c))


@functools.cache
def refusals() -> dict[Combination, str | None]:
  return {c: refusal(c) for c in combinations()}


def working() -> list[Combination]:
  return [c for c, sentence in refusals().items() if sentence is None]


@functools.cache
def covering() -> tuple[Combination, ...]:
  """A few combinations that work, which together have each pair of parts that go together.

  Greedy: the next one has the most new pairs. Among equals one whose Program is already chosen.
  """
  left, chosen, programs = set().union(*(c.pairs for c in working())), [], set()
  keys = {c: program(c) for c in working()}
  while left:
    best = max(working(), key=lambda c: 2 * len(c.pairs & left) + (keys[c] in programs))
    chosen.append(best)
    programs.add(keys[best])
    left -= best.pairs
  return tuple(chosen)


def row_of(objective: str) -> dict[str, tuple[str, ...]]:
  """{axis: names of the parts that an objective goes with}."""
  found = [c for c in working() if c.objective == objective]
  of = lambda axis: {getattr(c, axis) for c in found}
  return {axis: tuple(x for x in NAMES[axis] if x in of(axis)) for axis in AXES[1:]}


def page() -> str:
  """The page, Markdown. Objectives that go with the same parts share a row."""
  objectives_of = {}
  for name in NAMES['objective']:
    cells = tuple(_cell(axis, there) for axis, there in row_of(name).items())
    objectives_of.setdefault(cells, []).append(f'`{name}`')
  rows = [f'| {", ".join(names)} | {" | ".join(cells)} |' for cells, names in objectives_of.items()]
  return '\n'.join(
    [
      _TITLE.format(working=f'{len(working()):,}', all=f'{len(combinations()):,}'),
      '| objectives | encoders | maskings | input formats |',
      '|---|---|---|---|',
      *rows,
      _REFUSED,
    ]
  )


def _cell(axis, there):
  missing = [name for name in NAMES[axis] if name not in there]
  if not missing:
    return 'all'
  but, only = (', '.join(f'`{name}`' for name in names) for names in (missing, there))
  return f'all but {but}' if len(missing) < len(there) else only


_TITLE = """# Any with any

<!-- Written by `python -m tests.any_with_any > docs/any_with_any.md`. -->

A config names one part per axis; `--config configs/bert.py:tiny,objective=mlm,masking=span` swaps
two of them. A swapped encoder keeps the sizes and the dropout of the one before.

{working} of the {all} combinations of the package's objectives, encoders, maskings and input
formats train. An objective trains with all encoders, maskings and input formats in its row.
The other combinations are refused at the start, with a sentence that names a remedy.
"""
_REFUSED = """
* `permutation_lm` and `memory_mlm` need `--config.encoder.memory_length=0` with other formats than
  `memory_segments`.
* A generator shares all embeddings of a `disentangled` or `two_stream` encoder only if it is as
  wide: `--config.objective.width=1.0`. Of `disentangled` it shares the words alone at any width:
  `--config.objective.shared=token`.
* A `disentangled` encoder with a convolution does not train from left to right.

`tests/test_any_with_any.py` builds every combination. It takes three training steps with each pair
of parts that go together; `make test-slow` takes them with every combination.
"""


if __name__ == '__main__':
  print(page(), end='')
