"""Hugging Face's classes by name: one file per family.

`hf/architecture.py` explains how to write such a file.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf.architectures import albert
from bertzoo_jax.hf.architectures import bert
from bertzoo_jax.hf.architectures import deberta
from bertzoo_jax.hf.architectures import deberta_v2
from bertzoo_jax.hf.architectures import electra
from bertzoo_jax.hf.architectures import ernie
from bertzoo_jax.hf.architectures import eurobert
from bertzoo_jax.hf.architectures import modernbert
from bertzoo_jax.hf.architectures import roberta
from bertzoo_jax.hf.architectures import xlnet
from bertzoo_jax.parts import named


def choose(name: str) -> architecture.Architecture:
  """The architecture of a name.

  name: of a class in ARCHITECTURES, or `package.module:NAME` for an Architecture elsewhere. Raises
  UserError: no such class, no such module, no such name in it, or something else by that name.
  """
  if not named.is_outside(name):
    return errors.choose(name, ARCHITECTURES, 'Hugging Face architecture')
  a = named.outside(name, 'hf', lambda x: isinstance(x, architecture.Architecture))
  if not isinstance(a, architecture.Architecture):
    raise errors.UserError(
      f'{name!r} is no Architecture but of type {type(a).__name__}: see '
      'bertzoo_jax/hf/architecture.py for how to write one.'
    )
  return a


def reader(content: dict[str, Any], wished: str | None = None) -> architecture.Architecture:
  """The architecture that reads the weights of a config.json: the one that it names, else the first
  of its model type.

  content: of config.json. wished: the run's config.hf. As `package.module:NAME`, it and the other
  classes of its module take precedence over the table for their model type. Raises UserError: no
  model type, or one without an architecture.
  """
  model_type, names = content.get('model_type'), content.get('architectures') or []
  if not isinstance(model_type, str):
    raise errors.UserError('config.json does not say its model_type: it is no Hugging Face model.')
  if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
    raise errors.UserError(
      f'config.json says architectures={str(names)[:40]}: a list of names is needed; download or '
      'export the directory again.'
    )
  outside = [a for a in _beside(wished or '').values() if a.model_type == model_type]
  readers = {a.model_type: [] for a in ARCHITECTURES.values()}
  for a in ARCHITECTURES.values():
    readers[a.model_type] += [a] if a.reads else []
  if not outside and model_type not in readers:
    raise errors.UserError(
      f'No readable model type is called {model_type!r}.{errors.did_you_mean(model_type, readers)} '
      'A class of your own is read only by a run whose config.hf names it.'
    )
  candidates = outside or readers[model_type]
  return ([a for name in names for a in candidates if a.name == name] or candidates)[0]


def _beside(name: str) -> dict[str, architecture.Architecture]:
  """{`package.module:NAME`: architecture} of a module, `name` first; {} for a name in the table."""
  if ':' not in name:
    return {}
  module, by_name = name.partition(':')[0], {name: choose(name)}
  for attribute, value in vars(importlib.import_module(module)).items():
    if isinstance(value, architecture.Architecture):
      by_name.setdefault(f'{module}:{attribute}', value)
  return by_name


def task_class_of(name: str, head: str = task_heads.ROW) -> tuple[str, str]:
  """The class for a task in the family of the class `name`, and the form of its head.

  If the family has no class for the task, the class is `name`. The form is then that of the
  family's row head for rows and options ('tanh' without one), and 'linear' for tokens.

  name: of a class, see `choose`, or a model_type. head: name of the task's head among the
  parameters. Raises UserError: `name` is no class and no model_type.
  """
  types = {a.model_type for a in ARCHITECTURES.values()}
  model_type = name if name in types else choose(name).model_type
  for other, a in {**_beside(name), **ARCHITECTURES}.items():
    if a.model_type == model_type and (form := task_heads.form_of(a.places, head)):
      return other, form
  if head in (task_heads.ROW, task_heads.CHOICE):
    return name, 'tanh' if head == task_heads.ROW else task_class_of(name)[1]
  return name, 'linear'


def fitting(name: str, activation: str, params: Mapping[str, Any]) -> str:
  """The architecture to write: it holds the network's encoder and most of its heads. Ties go to
  `name`, then to its model type. `name` if no class holds the encoder.

  name: name of the architecture that is wished for. activation: activation of the encoder. params:
  parameters of the network, by path; arrays or shapes.

  Raises UserError: `name` is no architecture.
  """
  wished, least = choose(name), {}
  for other, a in {**ARCHITECTURES, **_beside(name)}.items():
    if _holds(a, activation, params):
      far = (other != name) + (a.model_type != wished.model_type)
      least[other] = len(architecture.aside(a, params)), far
  return min(least, key=least.get, default=name)


def for_encoder(name: str, activation: str, params: Mapping[str, Any]) -> str:
  """`name` if a class of its model type holds the network's encoder, else the class of `fitting`.

  Args and errors: see `fitting`.
  """
  wished, known = choose(name), {**ARCHITECTURES, **_beside(name)}.values()
  family = [a for a in known if a.model_type == wished.model_type]
  held = any(_holds(a, activation, params) for a in family)
  return name if held else fitting(name, activation, params)


def fitting_note(name: str, activation: str, params: Mapping[str, Any]) -> str | None:
  """A sentence if export takes another class, because `name` cannot hold the encoder or the other
  class holds more heads; None if `name` is written.

  Args and errors: see `fitting`.
  """
  wished, other = choose(name), fitting(name, activation, params)
  if activation not in wished.activations:
    return f'Hugging Face has no activation {activation}: export cannot write this model.'
  why = _why(wished, activation, params)
  if other == name:
    fits = _holds(wished, activation, params)
    return None if fits else f'{name} {why}: no architecture that export knows fits.'
  left = ', '.join(sorted(architecture.aside(choose(other), params)))
  beside = f', and {left} to {HEADS_FILE}, which transformers does not read' if left else ''
  return f'{name} {why}: export writes {other}{beside}.'


def _holds(a, activation, params) -> bool:
  """Whether a class holds a network, apart from heads that it has no place for."""
  held = architecture.placed(a, params)
  return not any(architecture.misfits(a, held)) and architecture.applies(a, activation)


def _why(a, activation, params) -> str:
  """Why a class does not hold a network."""
  homeless, empty = architecture.misfits(a, params)
  for head in task_heads.KINDS:
    ours, theirs = (task_heads.form_of(paths, head) for paths in (params, a.places))
    if ours and theirs and ours != theirs:
      return f'has a head of the kind {theirs}, and objective.head is {ours}'
  if homeless:
    return f'cannot hold {homeless[0]}'
  if empty:
    return f'needs {empty[0]}, which is not trained here'
  if not a.holds(params):
    return 'cannot hold a head of this width'
  return f'always applies {a.head_activation} in its head, and encoder.activation is {activation}'


# File beside the weights with the heads that the class lacks, in our names and layouts.
# transformers does not read it.
HEADS_FILE = 'heads.safetensors'
# Classes of transformers that read the weights from left to right, with is_decoder=True.
CAUSAL = {
  'bert': 'BertLMHeadModel',
  'electra': 'ElectraForCausalLM',
  'ernie': 'ErnieForCausalLM',
  'roberta': 'RobertaForCausalLM',
}

_FAMILIES = bert, ernie, roberta, electra, albert, deberta, deberta_v2, xlnet, modernbert, eurobert
# In order of preference: if the wished class does not fit, the first fitting one is taken.
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
    modernbert.MASKED_LM,
    modernbert.MODEL,
    eurobert.MODEL,
    *(f.TASKS[head] for head in task_heads.KINDS for f in _FAMILIES if head in f.TASKS),
    xlnet.CONDITIONAL_QUESTIONS,
    *(family.MODEL for family in (bert, ernie, roberta, electra, albert, deberta)),
  )
}
