"""Hugging Face's classes by name: one file for each family of them.

How such a file is written is told in `hf/architecture.py`.
"""

import importlib
from typing import Any

from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import row_heads
from bertzoo_jax.hf.architecture import Architecture
from bertzoo_jax.hf.architectures import albert
from bertzoo_jax.hf.architectures import bert
from bertzoo_jax.hf.architectures import deberta
from bertzoo_jax.hf.architectures import deberta_v2
from bertzoo_jax.hf.architectures import electra
from bertzoo_jax.hf.architectures import ernie
from bertzoo_jax.hf.architectures import roberta
from bertzoo_jax.hf.architectures import xlnet
from bertzoo_jax.parts import named


def choose(name: str) -> Architecture:
  """The architecture of a name.

  Args:
    name: of a class in ARCHITECTURES, or `package.module:NAME` for an Architecture elsewhere.

  Raises:
    UserError: no such class, no such module, no such name in it, or something else by that name.
  """
  if not named.is_outside(name):
    return errors.choose(name, ARCHITECTURES, 'Hugging Face architecture')
  found = named.outside(name, 'hf', lambda x: isinstance(x, Architecture))
  if not isinstance(found, Architecture):
    raise errors.UserError(
      f'{name!r} is no Architecture but of type {type(found).__name__}: see '
      'bertzoo_jax/hf/architecture.py for how to write one.'
    )
  return found


def reader(content: dict[str, Any], wished: str | None = None) -> Architecture:
  """The architecture that reads the weights of a config.json: the one that it names, else the first
  of its model type.

  Args:
    content: of config.json.
    wished: the run's config.hf. As `package.module:NAME`, it and the others of its module read
      the directories of their model type, and the table is not asked.

  Raises:
    UserError: no model type, or one without an architecture.
  """
  model_type, names = content.get('model_type'), content.get('architectures') or []
  if not isinstance(model_type, str):
    raise errors.UserError('config.json does not say its model_type: it is no Hugging Face model.')
  if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
    raise errors.UserError(
      f'config.json says architectures={str(names)[:40]}: a list of names is needed; download or '
      'export the directory again.'
    )
  own = [a for a in _beside(wished or '').values() if a.model_type == model_type]
  readers = {a.model_type: [] for a in ARCHITECTURES.values()}
  for a in ARCHITECTURES.values():
    readers[a.model_type] += [a] if a.reads else []
  candidates = own or errors.choose(model_type, readers, 'readable model type')
  named = [a for name in names for a in candidates if a.name == name]
  return (named or candidates)[0]


def _beside(name: str) -> dict[str, Architecture]:
  """The architecture of a `package.module:NAME`, and after it the others of its module, by such
  names; empty for a name of the table.
  """
  if ':' not in name:
    return {}
  module, found = name.partition(':')[0], {name: choose(name)}
  for attribute, value in vars(importlib.import_module(module)).items():
    if isinstance(value, Architecture):
      found.setdefault(f'{module}:{attribute}', value)
  return found


def task_class_of(name: str, head: str = row_heads.HEAD) -> tuple[str, str]:
  """The class for a task in the family of the class `name`, and its head (tanh, gelu or linear).

  A family may have no class for the task. Then it is `name` itself and the family's head for rows,
  or 'tanh'. Export then says what `name` has no place for.

  Args:
    name: of a class, see `choose`, or a model_type.
    head: name of the task's head among the parameters.

  Raises:
    UserError: `name` is no class and no model_type.
  """
  types = {a.model_type for a in ARCHITECTURES.values()}
  model_type = name if name in types else choose(name).model_type
  for other, a in {**_beside(name), **ARCHITECTURES}.items():
    if a.model_type == model_type and (form := row_heads.kind(a, head)):
      return other, form
  return name, 'tanh' if head == row_heads.HEAD else task_class_of(name)[1]


def placed(name: str, params, own_heads) -> dict[str, Any]:
  """`architecture.placed` of a name. Raises UserError if it is no architecture."""
  return architecture.placed(choose(name), params, own_heads)


def fitting(name: str, activation: str, paths) -> str:
  """The architecture to write: `name`, or if that does not fit one of its model type that does, or
  else any that does.

  Args:
    name: of the architecture that is wished for.
    activation: of the encoder.
    paths: '/'-joined paths of the network's parameters.

  Raises:
    UserError: `name` is no architecture.
  """
  wished, paths = choose(name), list(paths)
  fits = {
    other: a
    for other, a in {**ARCHITECTURES, **_beside(name)}.items()
    if not any(architecture.misfits(a, paths)) and architecture.applies(a, activation)
  }
  related = [other for other, a in fits.items() if a.model_type == wished.model_type]
  return name if name in fits else next(iter(related or fits), name)


def fitting_note(name: str, activation: str, paths) -> str | None:
  """What export does where `name` cannot hold a network's parameters or activation, in a sentence;
  None if it can.

  Args and errors: see `fitting`.
  """
  a, paths = choose(name), list(paths)
  homeless, empty = architecture.misfits(a, paths)
  ours, theirs = row_heads.kind_of(paths), row_heads.kind(a)
  if activation not in a.activations:
    return f'Hugging Face has no activation {activation}: export cannot write this model.'
  if ours and theirs and ours != theirs:
    why = f'has a head of the kind {theirs}, and objective.head is {ours}'
  elif homeless:
    why = f'cannot hold {homeless[0]}'
  elif empty:
    why = f'needs {empty[0]}, which is not trained here'
  elif not architecture.applies(a, activation):
    why = f'always applies {a.head_activation} in its head, and encoder.activation is {activation}'
  else:
    return None
  other = fitting(name, activation, paths)
  return f'{name} {why}: ' + (
    f'export writes {other}.' if other != name else 'no architecture known to export does.'
  )


# The likeliest first: where a class does not fit, the first one that does is taken.
ARCHITECTURES = {
  a.name: a
  for a in (
    bert.PRETRAINING,
    bert.MASKED_LM,
    bert.LEFT_TO_RIGHT,
    ernie.PRETRAINING,
    ernie.MASKED_LM,
    roberta.MASKED_LM,
    electra.PRETRAINING,
    electra.MASKED_LM,
    albert.PRETRAINING,
    albert.MASKED_LM,
    deberta.MASKED_LM,
    deberta_v2.MASKED_LM,
    deberta_v2.DISCRIMINATOR,
    xlnet.LM,
    xlnet.MODEL,
    bert.CLASSIFICATION,
    ernie.CLASSIFICATION,
    roberta.CLASSIFICATION,
    electra.CLASSIFICATION,
    albert.CLASSIFICATION,
    deberta.CLASSIFICATION,
    deberta_v2.CLASSIFICATION,
    xlnet.CLASSIFICATION,
    bert.QUESTIONS,
    ernie.QUESTIONS,
    roberta.QUESTIONS,
    electra.QUESTIONS,
    albert.QUESTIONS,
    deberta.QUESTIONS,
    deberta_v2.QUESTIONS,
    xlnet.QUESTIONS,
    xlnet.CONDITIONAL_QUESTIONS,
    bert.TAGS,
    ernie.TAGS,
    roberta.TAGS,
    electra.TAGS,
    albert.TAGS,
    deberta.TAGS,
    deberta_v2.TAGS,
    xlnet.TAGS,
    bert.CHOICES,
    ernie.CHOICES,
    roberta.CHOICES,
    electra.CHOICES,
    albert.CHOICES,
    deberta_v2.CHOICES,
    xlnet.CHOICES,
  )
}
