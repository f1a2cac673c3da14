"""The argument of a file of a system: `FILE.py:SIZE[,section=part][,steps=N]`.

base                          a size
base,masking=token            a whole section swapped for another part with its usual values
base,masking=mine.masks:odd   the same with a part of your own (parts.part), with its defaults
base,steps=2000               all phases, and the steps in schedule and moving, scaled to
                              2,000 steps in all; config.epochs is then 0
"""

import difflib

import ml_collections

from bertzoo_jax import parts

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


def config(text, build):
  """The config of an argument.

  Args:
    text: the argument, after the colon.
    build: {size: function that returns an experiment}; SIZES of the file.

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
      f'{", ".join(build)}.{near(size, build)}'
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
    elif key in parts.SECTIONS:
      known = parts.SECTIONS[key]
      if ':' in value:
        config[key] = parts.part(value)
        continue
      if value not in known:
        raise ValueError(
          f'no {key} is called {value!r}; there is {", ".join(known)}.{near(value, known)}'
        )
      before, config[key] = config[key], parts.section(known[value])
      if key == 'encoder':
        config[key].update(
          {f: before[f] for f in SIZES_OF_ENCODERS if f in before and f in config[key]}
        )
    else:
      known = (*parts.SECTIONS, 'steps')
      raise ValueError(
        f'{change!r} swaps nothing: write section=part with section one of '
        f'{", ".join(known)}.{near(key, known)}'
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


def near(word, known):
  near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
  return f' Did you mean {near[0]!r}?' if near else ''
