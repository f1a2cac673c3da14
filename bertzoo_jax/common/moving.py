"""Numbers of a config that move with the step: config.moving is a tuple of

    (field, from, to, first step, last step, shape)

Up to the first step the field is `from`, from the last step on it is `to`. In between it follows
the shape: with x from 0 to 1, x (linear) or (1 − cos πx)/2 (cosine). Steps count from the start of
the run, also in later phases. Held-out figures use the value of the field in the config.
"""

import math
from typing import NamedTuple

from bertzoo_jax.common import errors

SECTIONS = 'masking', 'objective'
_SHAPES = {'linear': lambda x, cos: x, 'cosine': lambda x, cos: (1.0 - cos(math.pi * x)) / 2.0}


class Move(NamedTuple):
  field: str
  start: float
  end: float
  first: int
  last: int
  shape: str

  def at(self, step, numpy=None):
    """The number at a step. numpy: jax.numpy for a traced step."""
    x = (step - self.first) / (self.last - self.first)
    if numpy is not None:
      x = _SHAPES[self.shape](numpy.clip(x, 0.0, 1.0), numpy.cos)
      return self.start + (self.end - self.start) * x
    x = _SHAPES[self.shape](min(max(x, 0.0), 1.0), math.cos)
    low, high = sorted((self.start, self.end))
    return min(max(self.start + (self.end - self.start) * x, low), high)  # against rounding


def get_moves(config, section: str) -> tuple[Move, ...]:
  """The moves of a section's fields, whose names omit the section."""
  moves = [Move(*row) for row in config.moving]
  prefix = f'{section}.'
  return tuple(
    m._replace(field=m.field.removeprefix(prefix)) for m in moves if m.field.startswith(prefix)
  )


def check(config, known: dict, where: str = '') -> None:
  """Raises UserError for an invalid row of config.moving. known: {field: value} of the config.
  where: ' in phase 1' for the config of a phase. The range check of both ends uses `ends`.
  """
  seen = set()
  for row in config.moving:
    kinds = (str, (int, float), (int, float), int, int, str)
    if not (isinstance(row, tuple) and len(row) == 6 and all(map(isinstance, row, kinds))):
      raise errors.UserError(
        f'config.moving has {row!r}: a row is (field, from, to, first step, last step, shape), as '
        "('masking.rate', 0.3, 0.15, 0, 10_000, 'linear')."
      )
    move = Move(*row)
    errors.choose(move.shape, _SHAPES, 'shape in config.moving')
    movable = {
      key: value
      for key, value in known.items()
      if key.split('.')[0] in SECTIONS and type(value) is float
    }
    errors.choose(
      move.field, movable, f'number of masking or objective that config.moving can move{where}'
    )
    if not 0 <= move.first < move.last:
      raise errors.UserError(
        f'config.moving moves {move.field} from step {move.first} to {move.last}: steps count '
        'from 0, and the last must come after the first.'
      )
    if move.field in seen:
      raise errors.UserError(f'config.moving has {move.field} twice: write one row.')
    seen.add(move.field)


def ends(config) -> list[dict]:
  """[{field: value} of all moving fields at their start, the same at their end]."""
  moves = [Move(*row) for row in config.moving]
  return [{m.field: float(m.start) for m in moves}, {m.field: float(m.end) for m in moves}]
