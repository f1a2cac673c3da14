"""The parts of an experiment: each is declared once, in a file per kind, with its fields, their
defaults, ranges and meanings. Nothing here imports a framework.

A config file calls the constructors of sections, one per part, by the part's name:

    parts.token(rate=0.2)                          the section of a masking
    parts.part('my_masks:every_third', rate=0.2)   of a part of your own
    parts.experiment(…), parts.fine_tuning(…)      a whole config

A field that is left out has its default. The parts themselves are in batches/, model/, objectives/,
training/ and tasks/ under the same names.
"""

import ml_collections

from bertzoo_jax.common import trust
from bertzoo_jax.parts import experiments
from bertzoo_jax.parts import fields
from bertzoo_jax.parts import task_objectives
from bertzoo_jax.parts.fields import section  # noqa: F401
from bertzoo_jax.parts.ranges import SECTIONS
from bertzoo_jax.parts.ranges import TASK_SECTIONS


def _constructor(declaration):
  return lambda **values: fields.section(declaration, **values)


for _known in (*TASK_SECTIONS.values(), *SECTIONS.values()):
  globals().update({name: _constructor(declaration) for name, declaration in _known.items()})
answer_span = _constructor(task_objectives.Span)  # `span` is the masking
experiment, fine_tuning, corpus, run, sift = map(
  _constructor,
  (
    experiments.Experiment,
    experiments.FineTuning,
    experiments.Corpus,
    experiments.Run,
    task_objectives.Sift,
  ),
)


def part(name, **fields):
  """A section with a part of your own: a function or class that any module holds.

  name: package.module:name; the module is looked for in the current folder and on PYTHONPATH.
  fields: its keyword arguments; a field that is left out has the part's own default.
  """
  words = name.replace(':', '.').split('.')
  if name.count(':') != 1 or not all(map(str.isidentifier, words)):
    raise ValueError(f'{name!r} is no part: write package.module:name.')
  trust.allow_config(name)
  return ml_collections.ConfigDict({'name': name, **fields})
