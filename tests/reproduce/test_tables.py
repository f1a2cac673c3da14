import functools
import importlib
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks

from bertzoo_jax import objectives
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import trees
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.parts import named
from bertzoo_jax.reproduce import work
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import schedules
from bertzoo_jax.training import step as steps
from tests import found
from tests.batches import test_masking_replacement

ROOT = pathlib.Path(__file__).parents[2]
TABLES = found.holding('def get_config', 'configs/tables')
SPECIAL = dict(pad=0, unk=1, cls=2, sep=3, mask=4, eod=5, eop=6)
VOCAB, ROWS, LENGTH = 100, 4, 32
# A number, 'F1/EM' of two, with where it is from if it was not read; a figure; nothing.
PRINTED = re.compile(
  r'|figure|(\[(mem|3rd)\] )?[\d.e]+|(\[(mem|3rd)\] )?([\d.]+|–)(/([\d.]+|–))+|–'
)
_made = {}


@functools.cache
def table(name, scale):
  return importlib.import_module(f'configs.tables.{name}').get_config(scale)


def test_every_table_and_every_column_that_no_task_covers_is_named_in_the_docs():
  pages = [(ROOT / 'docs' / f'{page}.md').read_text() for page in ('finetuning', 'tables')]
  assert set(re.findall(r'^\| `(\w+)\.py` \|', pages[1], re.M)) == set(TABLES)
  named = set(re.findall(r'^\|([^|]*)\|', '\n'.join(pages), re.M))
  for name in TABLES:
    lacking = [c.title for c in table(name, 'tiny').columns.values() if c.kind == 'not_supported']
    assert {f' {title} ' for title in lacking} <= named, name


def experiments(name, scale):
  """{row: its experiment}, of rows that are run."""
  rows = table(name, scale).rows
  return {row: one.experiment for row, one in rows.items() if one.experiment is not None}


def once(make, *sections, of=()):
  """What `make` returns, the same for equal sections of configs. of: further things that decide."""
  key = (make.__name__, *of, *(str(sorted(configuration.flatten(s).items())) for s in sections))
  if key not in _made:
    _made[key] = make(*sections, *of)
  return _made[key]


def objective_of(encoder, objective, vocab_size):
  given = dict(vocab_size=vocab_size, dtype=jnp.float32)
  made = named.build(encoder, encoders.BY_NAME, 'encoder', **given)
  return named.build(objective, objectives.BY_NAME, 'objective', encoder=made)


@pytest.mark.parametrize('name', TABLES)
def test_a_table_is_one_at_every_scale_and_prints_numbers(name):
  for scale in ('paper', 'budget,k=64', 'budget,steps=4000', 'tiny'):
    made = table(name, scale)
    assert len(set(made.table.columns)) == len(made.columns) == len(made.table.columns)
    assert len(set(made.table.rows)) == len(made.rows) == len(made.table.rows)
    for one in made.rows.values():
      assert all(PRINTED.fullmatch(number) for number in one.printed.values()), one.printed
      assert one.experiment is not None or one.note
      assert one.init in ('', *made.rows) or scale in ('paper', 'budget,k=64')
    for column in made.columns.values():
      assert set(column.get('of', ())) <= set(made.columns), column
      if column.kind == 'task':
        files = column.task.source.get('files') or column.task.source.splits
        said = [metric.split() for metric in column.metrics]
        assert all(split in files and metric in column.task.metrics for split, metric in said)


@pytest.mark.parametrize('scale', ['paper', 'tiny'])
@pytest.mark.parametrize('name', TABLES)
def test_rows_differ_in_the_fields_that_the_table_names_and_nowhere_else(name, scale):
  declared = dict(table(name, scale).varies)
  flat = [configuration.science(one) for one in experiments(name, scale).values()]
  changed = {
    key for one in flat for key in flat[0].keys() | one.keys() if flat[0].get(key) != one.get(key)
  }
  under = lambda key, section: key == section or key.startswith(f'{section}.')
  assert not [key for key in changed if not any(under(key, d) for d in declared)]
  if scale == 'paper':
    assert not [d for d in declared if not any(under(key, d) for key in changed)]
  assert all(declared.values())


@pytest.mark.parametrize('name', TABLES)
def test_every_row_builds_as_published(name):
  """Shapes are those of the last row; test_systems.py counts all sizes."""
  for one in experiments(name, 'paper').values():
    made = [
      once(objective_of, x.config.encoder, x.config.objective, of=(one.tokenizer.vocab_size,))
      for x in configuration.phases(one)
    ]
  shapes = jax.eval_shape(made[0].init, jax.random.key(0))
  assert sum(x.size for x in jax.tree.leaves(shapes)) > 5e6


def small(experiment):
  """The experiment with an eighth of the width and a few short rows, on the stand-in corpus."""
  one = experiment.copy_and_resolve_references().unlock()
  for field in ('hidden_size', 'intermediate_size', 'embedding_size'):
    if field in one.encoder:
      one.encoder[field] //= 8
  one.batch_size, one.batch_tokens = ROWS, 0
  if one.format.name != 'memory_segments':  # whose parts have lengths of their own
    one.length = min(one.length, LENGTH)
  return one


@functools.cache
def corpus():
  draw = np.random.default_rng(0)
  starts = np.append(0, np.cumsum(draw.integers(1, 20, 400)))
  documents = np.arange(0, 401, 8)
  tokens = draw.integers(len(SPECIAL), VOCAB, starts[-1])
  similar = test_masking_replacement._table()
  return corpora.in_memory(tokens, starts, documents, VOCAB, SPECIAL, similar=similar)


def batch_of(format, masking, length):
  made = dict(format=format, masking=masking, length=length, batch_size=ROWS, seed=0)
  return pipeline.build(corpus(), **made).batch(0)


def step_of(optimizer, objective, shapes):
  """(state, step) with a row's optimizer. The rate is an argument of the step, so that rows with
  unlike schedules share a program. shapes: of its batch.
  """
  drawn = objective._replace(init=lambda _: small_networks.parameters(objective))
  paths = trees.paths_of(jax.eval_shape(objective.init, jax.random.key(0)))
  made = lambda schedule: named.build(optimizer, optimizers.BY_NAME, 'optimizer', schedule, paths)

  def step(state, batch, rate):
    schedule = lambda _: rate
    return steps.make_train_step(objective, made(schedule), schedule, seed=0)(state, batch)

  return steps.init(drawn, made(lambda _: 0.0), 0, ROWS), jax.jit(step)


@pytest.mark.parametrize('trained', ['last row', pytest.param('all rows', marks=pytest.mark.slow)])
@pytest.mark.parametrize('name', TABLES)
def test_every_row_takes_a_training_step_at_tiny(name, trained):
  """With 'last row' the steps of the other rows are only traced: their shapes fit."""
  rows = experiments(name, 'tiny')
  for row, one in rows.items():
    config = small(one)
    for phase in configuration.phases(config):
      at = phase.config
      objective = once(objective_of, at.encoder, at.objective, of=(VOCAB,))
      written = once(batch_of, at.format, at.masking, of=(at.length,))
      wanted = {*objective.reads, *(k for k in objective.may_read if k in written)}
      batch = {name: written[name] for name in wanted | ({'position_ids'} & written.keys())}
      total = configuration.total_steps(config)
      schedule = schedules.for_phase(at.schedule, phase.first_step, phase.steps, total)
      rate = schedule(phase.first_step + 1)  # in the first step some are 0
      shapes = tuple(sorted((name, x.shape, str(x.dtype)) for name, x in batch.items()))
      state, step = once(step_of, config.optimizer, of=(objective, shapes))
      if trained == 'last row' and row != [*rows][-1]:
        after, metrics = jax.eval_shape(step, state, batch, rate)
        assert metrics['loss'].shape == metrics['grad_norm'].shape == ()
        assert jax.tree.structure(after) == jax.tree.structure(state)
        continue
      after, metrics = step(state, batch, rate)
      assert np.isfinite(metrics['loss']) and np.isfinite(metrics['grad_norm'])
      assert 0 < metrics['lr'] < 0.1 and int(after.nonfinite['total']) == 0
      assert int(after.step) == 1
      moved = jax.tree.map(lambda a, b: bool((a != b).any()), state.params, after.params)
      assert any(jax.tree.leaves(moved))


def test_the_mean_cosine_is_that_of_all_pairs_of_different_rows():
  words_VE = np.random.default_rng(0).normal(0.3, 1, (7, 4))
  unit_VE = words_VE / np.linalg.norm(words_VE, axis=1, keepdims=True)
  pairs = [unit_VE[i] @ unit_VE[j] for i in range(7) for j in range(7) if i != j]
  with_zero_VE = np.concatenate([words_VE, np.zeros((1, 4))])
  np.testing.assert_allclose(work.mean_cosine(with_zero_VE), np.mean(pairs), rtol=1e-12)
