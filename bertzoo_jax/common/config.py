"""Reads the config of an experiment: its phases, and the fields that are science.

A config is complete and locked (`configs/`). Science decides what is learned; `run` is machinery
and may change between attempts of one run.
"""

import dataclasses
import json

import ml_collections

from bertzoo_jax.common import errors

# The value of a field that the corpus or the devices decide: tokenizer.vocab_size, fields of `run`.
AUTO = 'auto'

# The fields that a phase may set (shapes of parameters never change inside a run).
_PHASE_SECTIONS = (
  'length batch_size batch_tokens mixture frozen format masking objective schedule'
).split()
# The only field of `run` that a phase may set: microbatches depend on the batch.
_PHASE_MACHINERY = 'run.accumulation'

# Not science: these change only rounding and the draw of dropout.
_MACHINERY = ('run', 'hf')
# Not science either: how the scores of a trained network become answers (parts/features.py).
_DECODING = (
  *(f'features.{field}' for field in ('n_best', 'max_answer', 'beam', 'no_answer_threshold')),
  'objective.threshold',
)


@dataclasses.dataclass(frozen=True)
class Phase:
  """A stretch of steps with one batch function and one compiled step."""

  index: int  # place in `config.phases`, from 0
  first_step: int  # first global step of the phase
  steps: int  # number of steps; the phase ends before `first_step + steps`
  # the whole config with this phase's overrides applied, locked. Its batch_size is the rows of a
  # batch, also if batch_tokens was set.
  config: ml_collections.ConfigDict
  examples: int  # rows that all earlier phases read
  # index of the phase whose order of rows it continues. Neighbouring phases with the same format
  # and length have one order, that of the first of them.
  order: int
  first_example: int  # place of its first row in that order
  before: tuple = ()  # ((rows, mixture), …) that earlier phases read of that order

  @property
  def end_step(self) -> int:
    return self.first_step + self.steps


def phases(config) -> tuple[Phase, ...]:
  """The phases of a run in order. Raises UserError for an override of an unknown field."""
  if not config.phases:
    raise errors.UserError(
      'config.phases is empty: a run needs at least one phase, as in ((1000, {}),).'
    )
  out, first, examples = [], 0, 0
  for index, phase in enumerate(config.phases):
    with errors.unreadable(
      f'config.phases[{index}] is {phase!r}: a phase is (steps, {{key: value}})'
    ):
      steps, overrides = phase
      overrides = dict(overrides)
    if type(steps) is not int or steps <= 0:
      needed = 'a phase needs at least one' if type(steps) is int else 'a whole number is needed'
      raise errors.UserError(f'config.phases[{index}] has {steps!r} steps: {needed}.')
    resolved = config.copy_and_resolve_references().unlock()
    for key, value in overrides.items():
      _override(resolved, key, value, index)
    _set_rows(resolved, overrides, index)
    resolved = ml_collections.ConfigDict(resolved).lock()
    rows = lambda config: (config.length, flatten(config.format))  # before masking
    order = out[-1].order if out and rows(out[-1].config) == rows(resolved) else index
    until = out[order].examples if order < index else examples
    before = tuple((p.steps * p.config.batch_size, p.config.mixture) for p in out[order:])
    out.append(Phase(index, first, steps, resolved, examples, order, examples - until, before))
    first += steps
    examples += steps * resolved.batch_size
  return tuple(out)


def _set_rows(config, overrides, index):
  """Sets a phase's batch_size from batch_size or batch_tokens; the phase overrides the config."""
  if 'batch_size' in overrides and 'batch_tokens' not in overrides:
    config.batch_tokens = 0
  if 'batch_tokens' in overrides and 'batch_size' not in overrides:
    config.batch_size = 0
  if (config.batch_size == 0) == (config.batch_tokens == 0):
    raise errors.UserError(
      f'In phase {index}, config.batch_size is {config.batch_size} and config.batch_tokens '
      f'{config.batch_tokens}: set one of them and leave the other at 0.'
    )
  if config.batch_tokens:
    config.batch_size = config.batch_tokens // max(config.length, 1)
    if config.batch_size < 1:
      raise errors.UserError(
        f'In phase {index}, config.batch_tokens is {config.batch_tokens} and rows have '
        f'{config.length} tokens: a batch needs at least one row, raise config.batch_tokens.'
      )
    config.batch_tokens = 0


def phase_at(config, step: int) -> Phase:
  """The phase of the last step before a checkpoint of `step` updates."""
  run_phases = phases(config)
  return next((p for p in run_phases if step <= p.end_step), run_phases[-1])


def _override(config, key: str, value, index: int) -> None:
  section = key.split('.')[0]
  if section not in _PHASE_SECTIONS and key != _PHASE_MACHINERY:
    raise errors.UserError(
      f'config.phases[{index}] sets {key!r}: a phase may set {", ".join(_PHASE_SECTIONS)}, '
      f'their fields, and {_PHASE_MACHINERY}.'
      + (errors.did_you_mean(section, _PHASE_SECTIONS) if section not in config else '')
    )
  known = flatten(config)
  if key in known:
    old = known[key]
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
      value = float(value)
    elif isinstance(old, tuple):
      value = _plain(value)
    if type(value) is not type(old) and not (key == _PHASE_MACHINERY and AUTO in (value, old)):
      raise errors.UserError(
        f'config.phases[{index}] sets {key} to {value!r}: it is a {type(old).__name__}.'
      )
    with config.ignore_type():  # a number in place of 'auto'
      config.update_from_flattened_dict({key: value})
  # a whole section, from bertzoo_jax.parts
  elif key == section and isinstance(value, (dict, ml_collections.ConfigDict)):
    config[key] = ml_collections.ConfigDict(value)
  else:
    names = [k for k in known if k.split('.')[0] in _PHASE_SECTIONS]
    raise errors.UserError(
      f'config.phases[{index}] sets {key!r}, which the config does not '
      f'have.{errors.did_you_mean(key, names)}'
    )


def total_steps(config) -> int:
  return sum(steps for steps, _ in config.phases)


def flatten(config) -> dict:
  """{'section.key': value}, with lists as tuples, in the config's order."""
  out = {}

  def visit(prefix, node):
    if isinstance(node, (ml_collections.ConfigDict, dict)):
      for k, v in node.items():
        visit(f'{prefix}.{k}' if prefix else k, v)
    else:
      out[prefix] = _plain(node)

  visit('', config)
  return out


def science(config) -> dict:
  """The flat part of the config that decides what is learned."""
  learned = {
    k: v
    for k, v in flatten(config).items()
    if k.split('.')[0] not in _MACHINERY and k not in _DECODING
    if (k, v) != ('frozen', ())  # older runs lack the field
  }
  if isinstance(learned.get('phases'), tuple):
    learned['phases'] = tuple(map(_learned, learned['phases']))
  return learned


def decoding(config) -> dict:
  """The flat part of the config that decides how a trained network's scores become answers."""
  return {k: v for k, v in flatten(config).items() if k in _DECODING}


def _learned(phase):
  """A phase without the machinery that its overrides set."""
  if not (isinstance(phase, tuple) and len(phase) == 2 and isinstance(phase[1], dict)):
    return phase
  return phase[0], {k: v for k, v in phase[1].items() if k != _PHASE_MACHINERY}


def differences(old: dict, new: dict) -> list[str]:
  """'key: old → new' of each key that differs in flat configs; of another part its name only."""
  value = lambda flat, key: flat.get(key, '(absent)')
  keys = [k for k in sorted(old.keys() | new.keys()) if value(old, k) != value(new, k)]
  parts = tuple(key.removesuffix('name') for key in keys if key.endswith('.name'))
  keys = [key for key in keys if key.endswith('.name') or not key.startswith(parts)]
  return [f'{key}: {value(old, key)} → {value(new, key)}' for key in keys]


def check_text(what: str, facts, tokenizer, splitting) -> None:
  """Raises UserError if the text that a run reads was made with another config. The text defines
  vocabulary, tokenizer and splitting. what: begins the sentence ('The corpus C'). facts: its
  vocab_size, and its sections `tokenizer` and `corpus` if known.
  """
  if tokenizer['vocab_size'] == AUTO:
    tokenizer = {**tokenizer, 'vocab_size': facts['vocab_size']}
  name, wanted = facts.get('tokenizer', tokenizer)['name'], tokenizer['name']
  if name != wanted:
    raise errors.UserError(
      f'{what} was made with the tokenizer {name}, the config has {wanted}: prepare a corpus with '
      f'this config, or write tokenizer={name} after the size of the config.'
    )
  if facts['vocab_size'] != tokenizer['vocab_size']:
    raise errors.UserError(
      f'{what} has a vocabulary of {facts["vocab_size"]}, the config one of '
      f'{tokenizer["vocab_size"]}: set --config.tokenizer.vocab_size={facts["vocab_size"]}, or '
      'prepare a corpus with this config.'
    )
  expected = {'tokenizer': tokenizer, 'corpus': splitting}
  known = [section for section in expected if section in facts]
  if lines := differences(
    flatten({section: facts[section] for section in known}),
    flatten({section: expected[section] for section in known}),
  ):
    raise errors.UserError(
      f'{what} was made with other settings than the config has (text → config): '
      f'{"; ".join(lines)}. Give its values, or prepare a corpus with this config.'
    )


def to_json(config) -> str:
  """The resolved config as JSON; `from_json` reads it back."""
  return json.dumps(_plain(config), indent=1, ensure_ascii=False) + '\n'


def from_json(text: str) -> ml_collections.ConfigDict:
  """The locked config that `to_json` wrote, with tuples for lists."""
  return ml_collections.ConfigDict({**_plain(json.loads(text))}).lock()


def _plain(node):
  if isinstance(node, (ml_collections.ConfigDict, dict)):
    return {k: _plain(v) for k, v in node.items()}
  return tuple(_plain(v) for v in node) if isinstance(node, (list, tuple)) else node
