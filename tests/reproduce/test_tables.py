"""The tables of the papers: every row builds as published, differs from the others only in what the
table says, and takes a training step at `tiny`.
"""

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
from tests.batches import test_masking_replacement

ROOT = pathlib.Path(__file__).parents[2]
TABLES = tuple(
  p.stem
  for p in sorted((ROOT / 'configs/tables').glob('*.py'))
  if 'def get_config' in p.read_text(encoding='utf-8')
)
SPECIAL = dict(pad=0, unk=1, cls=2, sep=3, mask=4, eod=5, eop=6)
VOCAB, ROWS, LENGTH = 100, 4, 32
# A number, 'F1/EM' of two, with where it is from if it was not read; a figure; nothing.
PRINTED = re.compile(
  r'|figure|(\[(mem|3rd)\] )?[\d.e]+|(\[(mem|3rd)\] )?([\d.]+|–)(/([\d.]+|–))+|–'
)


@functools.cache
def table(name, scale):
  return importlib.import_module(f'configs.tables.{name}').get_config(scale)


def test_every_column_that_no_task_covers_is_named_in_the_docs():
  pages = [(ROOT / 'docs' / f'{page}.md').read_text() for page in ('finetuning', 'tables')]
  named = {  # the first cells of the rows of tables
    line.split('|')[1].strip() for page in pages for line in page.splitlines() if line[:1] == '|'
  }
  lacking = {
    column.title
    for name in TABLES
    for column in table(name, 'tiny').columns.values()
    if column.kind == 'not_supported'
  } - named
  assert not lacking


def experiments(name, scale):
  """{row: its experiment}, of rows that are run."""
  rows = table(name, scale).rows
  return {row: one.experiment for row, one in rows.items() if one.experiment is not None}


def key_of(*sections):
  return tuple(str(sorted(configuration.flatten(s).items())) for s in sections)


_built = {}


def objective_of(experiment, vocab_size):
  """The objective of an experiment; the same for equal encoders and objectives."""
  key = (*key_of(experiment.encoder, experiment.objective), vocab_size)
  if key not in _built:
    encoder = named.build(
      experiment.encoder, encoders.BY_NAME, 'encoder', vocab_size=vocab_size, dtype=jnp.float32
    )
    _built[key] = named.build(
      experiment.objective, objectives.BY_NAME, 'objective', encoder=encoder
    )
  return _built[key]


def shapes_of(objective):
  return jax.eval_shape(objective.init, jax.random.key(0))


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


def test_the_page_has_every_table():
  page = (ROOT / 'docs/tables.md').read_text(encoding='utf-8')
  assert set(re.findall(r'^\| `(\w+)\.py` \|', page, re.M)) == set(TABLES)


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
      objective_of(phase.config, one.tokenizer.vocab_size) for phase in configuration.phases(one)
    ]
  assert sum(x.size for x in jax.tree.leaves(shapes_of(made[0]))) > 5e6


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
  return corpora.in_memory(
    draw.integers(len(SPECIAL), VOCAB, starts[-1]),
    starts,
    np.arange(0, 401, 8),
    VOCAB,
    SPECIAL,
    similar=test_masking_replacement._table(),
  )


_batches = {}


def batch_of(config):
  """The first batch of a phase; the same for equal formats, maskings and lengths."""
  key = (*key_of(config.format, config.masking), config.length)
  if key not in _batches:
    made = pipeline.build(
      corpus(),
      format=config.format,
      masking=config.masking,
      length=config.length,
      batch_size=ROWS,
      seed=0,
    )
    _batches[key] = made.batch(0)
  return _batches[key]


_steps = {}


def step_of(objective, batch, optimizer):
  """(state, step) with a row's optimizer; the same for equal programs. The rate is an argument of
  the step, so that rows with unlike schedules share a program.
  """
  shapes = str(sorted((name, x.shape, str(x.dtype)) for name, x in batch.items()))
  key = (objective, shapes, *key_of(optimizer))
  if key not in _steps:
    drawn = objective._replace(init=lambda _: small_networks.parameters(objective))
    paths = trees.paths_of(jax.eval_shape(objective.init, jax.random.key(0)))
    made = lambda schedule: named.build(optimizer, optimizers.BY_NAME, 'optimizer', schedule, paths)

    def step(state, batch, rate):
      schedule = lambda _: rate
      return steps.make_train_step(objective, made(schedule), schedule, seed=0)(state, batch)

    _steps[key] = steps.init(drawn, made(lambda _: 0.0), 0, ROWS), jax.jit(step)
  return _steps[key]


@pytest.mark.parametrize('trained', ['last row', pytest.param('all rows', marks=pytest.mark.slow)])
@pytest.mark.parametrize('name', TABLES)
def test_every_row_takes_a_training_step_at_tiny(name, trained):
  """With 'last row' the steps of the other rows are only traced: their shapes fit."""
  rows = experiments(name, 'tiny')
  for row, one in rows.items():
    config = small(one)
    for phase in configuration.phases(config):
      objective, written = objective_of(phase.config, VOCAB), batch_of(phase.config)
      wanted = {*objective.reads, *(k for k in objective.may_read if k in written)}
      batch = {name: written[name] for name in wanted | ({'position_ids'} & written.keys())}
      total = configuration.total_steps(config)
      schedule = schedules.for_phase(phase.config.schedule, phase.first_step, phase.steps, total)
      rate = schedule(phase.first_step + 1)  # in the first step some are 0
      state, step = step_of(objective, batch, config.optimizer)
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
