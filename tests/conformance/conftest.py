"""Parts of every axis and kinds of task that the conformance tests hold to their protocols: those
of the package, those of tests/outside, and those of configs given by hand:

    python -m pytest tests/conformance --config my/config.py:tiny
"""

import functools
import importlib
import importlib.util
import pathlib

import pytest
import small_networks as small

from bertzoo_jax import parts
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.objectives import generator
from tests import found as systems
from tests import tuned


def pytest_addoption(parser):
  parser.addoption(
    '--config',
    action='append',
    metavar='FILE.py[:SIZE]',
    help='A config whose parts, or kind of task, are tested, and no others.',
  )


def pytest_generate_tests(metafunc):
  given = metafunc.config.getoption('--config', None) or ()
  configs = {address: _of_file(address) for address in given}
  tasks = {address: config for address, config in configs.items() if 'source' in config}
  by_hand = {address: config for address, config in configs.items() if address not in tasks}
  axes = {
    'encoder': (lambda config: config.encoder, _encoders, _poorer),
    'objective': (lambda config: (config.encoder, config.objective), _objectives, _shared),
    'task': (None, lambda: dict.fromkeys(tuned.KINDS), lambda names: ()),
  }
  for axis in ('masking', 'format', 'schedule', 'optimizer'):
    parts_of = functools.partial(_parts, axis)
    axes[axis] = lambda config, axis=axis: config[axis], parts_of, lambda names: ()
  for axis, (take, usual, slow) in axes.items():
    if f'{axis}_of' in metafunc.fixturenames:
      if axis == 'task':
        cases = {name: (name, config) for name, config in (tasks if given else usual()).items()}
      else:
        cases = {name: take(config) for name, config in by_hand.items()} if given else usual()
      long = slow(cases)  # proofs that take long
      values = [pytest.param(x, marks=[pytest.mark.slow] * (n in long)) for n, x in cases.items()]
      metafunc.parametrize(f'{axis}_of', values, ids=list(cases), scope='module')


def _poorer(names):
  """Encoders that are another one without some of its parts, and all but the last from outside."""
  parts_of = {name: set(name.split(', ')) for name in names}
  poorer = {a for a in names for b in names if parts_of[a] < parts_of[b]}
  return poorer | set([name for name in names if name.endswith('_config')][:-1])


def _shared(names):
  """Other choices of an objective that stands there too: of configs, and all ways of sharing."""
  return {name for name in names if name in systems.SYSTEMS or ', shared ' in name}


def _parts(axis):
  """{name: section with its usual values} of each part of an axis, and of one from outside."""
  needed = dict(learning_rate=1e-3, warmup=2) if axis == 'schedule' else {}
  short = {  # for rows of few tokens and runs of few steps
    'permutation': dict(num_predictions=4, block=8),
    'memory_segments': dict(reuse_length=8),
    'warmup_stable_decay': dict(decay=9),
    'muon': dict(matrices=(('layers/.*kernel$', (-2,), (-1,)),)),
  }
  found = {n: getattr(parts, n)(**needed, **short.get(n, {})) for n in parts.SECTIONS[axis]}
  outside = {
    'masking': 'lettered:lettered',
    'format': 'own_parts:document_starts',
    'optimizer': 'own_parts:lion',
    'schedule': 'own_parts:restarts',
  }
  return {**found, 'outside': parts.part(f'tests.outside.{outside[axis]}')}


def _of_file(address):
  path, _, argument = address.partition(':')
  spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(argument) if argument else module.get_config()


def _encoders():
  """{name: section of a tiny config}: each encoder of the package, once per structure of a config,
  and the encoders of tests/outside.
  """
  tiny = [systems.config(system, 'tiny') for system in systems.SYSTEMS]
  first = {_structure(c.encoder): c.encoder for c in reversed(tiny)}
  assert {section.name for section in first.values()} == set(encoders.BY_NAME)
  outside = {name: importlib.import_module(name).get_config() for name in systems.OUTSIDE}
  return first | {name.split('.')[-1]: config.encoder for name, config in outside.items()}


# Fields that change numbers, but not the structure of a network.
NO_STRUCTURE = ('name', 'activation', 'initializer', 'convolution_activation')


def _structure(section):
  """A name for the structure of a section: its words, its switches, and its optional parts."""
  chosen = {k: v for k, v in section.items() if isinstance(v, str | bool) and k not in NO_STRUCTURE}
  parts_of = [k for k in ('embedding_size', 'buckets', 'convolution_size') if section.get(k)]
  words = [f'{k} {v}' for k, v in chosen.items() if not isinstance(v, bool)]
  switches = [k for k, v in chosen.items() if v is True]
  return ', '.join([section.name, *words, *switches, *parts_of])


def _objectives():
  """{name: (encoder or None for that of small_networks, section)}: each objective with its usual
  values, objectives of configs with other choices and their encoders, and all ways of sharing.
  """
  known = parts.SECTIONS['objective']
  cases = {n: (small.SECTIONS.get(n), parts.section(x)) for n, x in known.items()}
  seen = {_structure(own) for _, own in cases.values()}
  for system in systems.SYSTEMS:
    config = systems.last_phase(systems.config(system, 'tiny'))
    if _structure(config.objective) not in seen:
      cases[system] = config.encoder, config.objective
      seen.add(_structure(config.objective))
  there = {own.get('shared') for _, own in cases.values()}
  for shared in sorted(generator.SHARED.keys() - there):
    cases[f'replaced_token, shared {shared}'] = None, parts.replaced_token(shared=shared, width=1.0)
  kept = parts.part('tests.outside.kept_or_random:kept_or_random', mask_id=4)
  return cases | {'kept_or_random': (None, kept)}
