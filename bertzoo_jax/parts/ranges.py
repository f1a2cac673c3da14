"""Checks and lists the fields of a config by the declarations of its parts."""

from typing import NamedTuple

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import moving
from bertzoo_jax.parts import encoders
from bertzoo_jax.parts import experiments
from bertzoo_jax.parts import features
from bertzoo_jax.parts import fields
from bertzoo_jax.parts import formats
from bertzoo_jax.parts import maskings
from bertzoo_jax.parts import named
from bertzoo_jax.parts import objectives
from bertzoo_jax.parts import optimizers
from bertzoo_jax.parts import schedules
from bertzoo_jax.parts import sources
from bertzoo_jax.parts import task_objectives
from bertzoo_jax.parts import tokenizers

# The parts that each swappable section of an experiment may be: {section: {name: declaration}}.
SECTIONS = {
  'tokenizer': fields.parts(tokenizers),
  'format': fields.parts(formats),
  'masking': fields.parts(maskings),
  'encoder': fields.parts(encoders),
  'objective': fields.parts(objectives),
  'optimizer': fields.parts(optimizers),
  'schedule': fields.parts(schedules),
}
# The same of a fine-tuning.
TASK_SECTIONS = {
  'source': fields.parts(sources),
  'features': fields.parts(features),
  'objective': fields.parts(task_objectives),
  'optimizer': SECTIONS['optimizer'],
  'schedule': SECTIONS['schedule'],
}
EXPERIMENT_FIELDS = tuple(fields.parameters(experiments.Experiment))
_UNNAMED = {
  'corpus': experiments.Corpus,
  'run': experiments.Run,
  'objective.sift': task_objectives.Sift,
}


class Row(NamedTuple):
  """A field of a config, described in words."""

  key: str
  value: object
  range: str  # '' for any value of its type
  meaning: str  # '' if a user's part gives none


def check(config, choices: bool = True) -> tuple[configuration.Phase, ...]:
  """The phases of a config. Raises UserError for a field that is not in its range, or a number that
  is not finite, in the config or in an override of a phase.

  choices: whether to check names, too; rows can be counted without them.
  """
  check_fields(config, choices=choices)
  phases = configuration.phases(config)
  steps = phases[-1].end_step
  allowed = fields.get_range(fields.STEPS)
  if not allowed.holds(steps):
    raise errors.UserError(f'config.phases have {steps:,} steps in all: {allowed.words} is needed.')
  for phase in phases:
    check_fields(phase.config, f'in phase {phase.index}, config.', choices)
    rows, length = phase.config.batch_size, phase.config.length
    if rows * length > fields.BATCH:
      raise errors.UserError(
        f'phase {phase.index} has {rows:,} rows × {length:,} tokens per batch: at most '
        f'{fields.BATCH:,} tokens are possible, lower config.batch_size (or batch_tokens) or '
        'config.length.'
      )
  return phases


def check_fields(config, prefix: str = 'config.', choices: bool = True) -> None:
  """As `check`, for the fields of a config only, which need not have phases. Fields of a user's
  part are checked when it is built, since that runs its code.
  """
  for key, value in configuration.flatten(config).items():
    # overrides are checked in the config of the phase
    if key != 'phases':
      fields.check(key, value, _annotation(config, key), prefix, choices)
  if 'moving' in config and config.moving:
    where = f' {prefix}'.removesuffix('config.').rstrip(', ')
    moving.check(config, configuration.flatten(config), where)
    for ends in moving.ends(config):
      for key, value in ends.items():
        fields.check(key, value, _annotation(config, key), f'config.moving takes {prefix}', choices)


def table(config) -> list[Row]:
  """Every field of a config. Imports the user's parts, whose defaults need not be in the config."""
  flat = {}
  for section, values in config.items():
    usual = named.defaults(values, section) if hasattr(values, 'items') else {}
    missing = {key: value for key, value in usual.items() if key not in values}
    flat |= configuration.flatten({section: {**values, **missing} if missing else values})
  rows = []
  for key, value in flat.items():
    annotation = _annotation(config, key, outside=True)
    range_ = fields.get_range(annotation)
    rows.append(Row(key, value, range_.words if range_ else '', fields.meaning(annotation)))
  return rows


def _annotation(config, key, outside=False):
  """The annotation of a field, or None. outside: whether to import a user's part for it."""
  section, _, name = key.rpartition('.')
  part = None
  if not section:
    part = experiments.Experiment if 'phases' in config else experiments.FineTuning
  elif section in _UNNAMED:
    part = _UNNAMED[section]
  elif '.' not in section:
    known = {**SECTIONS.get(section, {}), **TASK_SECTIONS.get(section, {})}
    chosen = config[section]['name'] if 'name' in config[section] else None
    if named.is_outside(chosen):
      part = named.resolve(chosen, {}, section) if outside else None
    elif chosen is None:  # of a fine-tuning's encoder, which the weights name
      part = next((p for p in known.values() if name in fields.parameters(p)), None)
    else:
      part = known.get(chosen)
  known = (fields.parameters(part) or {}) if part else {}
  return known[name].annotation if name in known else None
