"""The vocabulary of config files: a constructor of each named part (bertzoo_jax/parts/ has them,
with defaults, ranges and meanings), `part` for one of your own, and `argument`.

A config file calls these, and ends in `experiment(...)`; its `get_config(argument)` passes the
argument through `argument(...)`, which understands

    base                          a size
    base,masking=token            a whole section swapped for another part with its usual values
    base,masking=mine.masks:odd   the same with a part of your own (see `part`), with its defaults
    base,steps=2000               all phases, and the steps in schedule and moving, scaled to
                                  2,000 steps in all; config.epochs is then 0
"""

import difflib

import ml_collections

from bertzoo_jax.common import trust
from bertzoo_jax.parts.corpus import *  # noqa: F403
from bertzoo_jax.parts.encoders import *  # noqa: F403
from bertzoo_jax.parts.experiments import *  # noqa: F403
from bertzoo_jax.parts.formats import *  # noqa: F403
from bertzoo_jax.parts.maskings import *  # noqa: F403
from bertzoo_jax.parts.objectives import *  # noqa: F403
from bertzoo_jax.parts.optimizers import *  # noqa: F403
from bertzoo_jax.parts.ranges import SECTIONS
from bertzoo_jax.parts.schedules import *  # noqa: F403
from bertzoo_jax.parts.tokenizers import *  # noqa: F403

# An encoder that takes the place of another one keeps these.
SIZES_OF_ENCODERS = (
  'num_layers',
  'hidden_size',
  'num_heads',
  'intermediate_size',
  'embedding_size',
  'max_positions',
  'dropout',
  'attention_dropout',
  'initializer_range',
)


def part(name, **fields):
  """A section with a part of your own: a function or class that any module holds.

  name: package.module:name; the module is looked for in the current folder and on PYTHONPATH.
  fields: its keyword arguments; a field that is left out has the part's own default.
  """
  if not all(word.isidentifier() for word in name.replace(':', '.').split('.')) or (
    name.count(':') != 1
  ):
    raise ValueError(f'{name!r} is no part: write package.module:name.')
  trust.names(name)
  return ml_collections.ConfigDict({'name': name, **fields})


def argument(text, build):
  """The config for `FILE.py:SIZE[,section=part][,steps=N]`.

  Args:
    text: the part after the colon.
    build: {size: function that returns an experiment}.

  Returns:
    The experiment, with sections swapped and phases scaled. A swapped encoder keeps the sizes and
    the dropout of the one before.

  Raises:
    ValueError: an unknown size, section or part; the message lists those that exist.
  """
  size, *changes = (text or '').split(',')
  if size not in build:
    raise ValueError(
      f'no size {size!r}: write FILE.py:SIZE with SIZE one of '
      f'{", ".join(build)}.{_near(size, build)}'
    )
  swapped = [change.partition('=')[0] for change in changes]
  if twice := [key for key in swapped if swapped.count(key) > 1]:
    raise ValueError(f'{twice[0]} is set twice in {text!r}: write it once.')
  config = build[size]()
  # scaling comes last: it also scales a new schedule's warmup
  for change in sorted(changes, key=lambda c: c.startswith('steps=')):
    key, _, value = change.partition('=')
    if key == 'steps':
      _scale(config, value)
    elif key in SECTIONS:
      parts = {f.__name__: f for f in SECTIONS[key]}
      if ':' in value:
        config[key] = part(value)
        continue
      if value not in parts:
        raise ValueError(
          f'no {key} is called {value!r}; there is {", ".join(parts)}.{_near(value, parts)}'
        )
      before, config[key] = config[key], parts[value]()
      if key == 'encoder':
        config[key].update(
          {f: before[f] for f in SIZES_OF_ENCODERS if f in before and f in config[key]}
        )
    else:
      known = (*SECTIONS, 'steps')
      raise ValueError(
        f'{change!r} swaps nothing: write section=part with section one of '
        f'{", ".join(known)}.{_near(key, known)}'
      )
  return config


def _scale(config, value):
  if not value.isdecimal() or not int(value):
    raise ValueError(f'steps={value!r}: a number of steps above 0 is needed.')
  share = int(value) / sum(steps for steps, _ in config.phases)
  ends = [
    round(share * sum(steps for steps, _ in config.phases[: i + 1]))
    for i in range(len(config.phases))
  ]
  if 0 in ends or len(set(ends)) < len(ends):
    raise ValueError(f'steps={value}: too few for {len(ends)} phases.')
  config.schedule.update(_counts(config.schedule, share))
  config.moving = tuple(
    (*row[:3], round(share * row[3]), max(round(share * row[4]), round(share * row[3]) + 1), row[5])
    for row in config.moving
  )
  config.epochs = 0.0  # else it would decide the steps
  config.phases = tuple(
    (end - start, _scaled(overrides, share))
    for start, end, (_, overrides) in zip([0, *ends], ends, config.phases)
  )


def _scaled(overrides, share):
  """A phase's overrides with the counts of steps that they set, if any, scaled."""
  overrides = {**overrides, **_counts(overrides, share, 'schedule.')}
  if 'schedule' in overrides:
    own = {**overrides['schedule']}
    overrides['schedule'] = ml_collections.ConfigDict({**own, **_counts(own, share)})
  return overrides


def _counts(fields, share, prefix=''):
  """The fields of a schedule that count steps, scaled. A schedule of your own may have none."""
  keys = [f'{prefix}{name}' for name in ('warmup', 'decay')]
  known = [key for key in keys if key in fields and type(fields[key]) is int]
  return {key: round(share * fields[key]) for key in known}


def _near(word, known):
  near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
  return f' Did you mean {near[0]!r}?' if near else ''
