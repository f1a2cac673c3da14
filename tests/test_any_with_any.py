import functools
import itertools
import pathlib
import re

import jax
import numpy as np
import optax
import pytest
import small_networks as small

from bertzoo_jax.training import step as steps
from tests import any_with_any as every

PAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'any_with_any.md'
OBJECTIVES = every.NAMES['objective']
DESCENT = optax.GradientTransformationExtraArgs(
  lambda params: (),
  lambda gradients, state, params=None, **_: (jax.tree.map(lambda g: -0.01 * g, gradients), state),
)


def of_objective(combinations, objective):
  return [c for c in combinations if c.objective == objective]


def read(c, batch):
  return {name: batch[name] for name in every.read_by(c)}


@functools.cache
def first_state(objective):
  params = small.parameters(objective)
  return steps.init(objective._replace(init=lambda key: params), DESCENT, 0, every.ROWS)


@functools.cache
def step_of(program):
  """The train step of all combinations that have this program."""
  objective = every.built(*program[:3])[1]
  return jax.jit(steps.make_train_step(objective, DESCENT, lambda s: 0.01, seed=0))


def trains(c):
  """Asserts that three steps on three batches move each network."""
  state = first = first_state(every.network_of(c)[1])
  step = step_of(every.program(c))
  for batch in every.batches(c.masking, c.format):
    state, metrics = step(state, read(c, batch))
    assert np.isfinite(metrics['loss']) and metrics['loss'] > 0, c
  assert int(state.step) == every.STEPS and int(state.nonfinite['total']) == 0, c
  frozen = every.network_of(c)[1].frozen
  for name in state.params:
    moved = small.worst(state.params[name], first.params[name]) > 0
    assert moved != any(name in regex for regex in frozen), (c, name)


def shape_of_loss(c):
  """Shape of the loss, which is traced and not computed."""
  _, objective = every.network_of(c)

  def loss(params, batch):
    normalizers, carry = objective.normalizers(batch), objective.carry(every.ROWS)
    return objective.loss(params, batch, normalizers, carry, None, False)[0]

  features = every.rows_of(c.masking, c.format).features
  batch = {name: jax.ShapeDtypeStruct(*features[name]) for name in every.read_by(c)}
  batch['row_keys'] = jax.ShapeDtypeStruct((every.ROWS, 2), np.uint32)
  return jax.eval_shape(loss, jax.eval_shape(objective.init, jax.random.key(0)), batch).shape


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_every_combination_builds_or_is_refused_with_a_sentence_and_a_remedy(objective):
  # The programs of covering() are built by the test that trains them.
  built = {every.program(c) for c in every.covering()}
  for c in of_objective(every.combinations(), objective):
    sentence = every.refusals()[c]
    if sentence is not None:
      assert re.fullmatch(r'.*: take .*\.', sentence), sentence
    elif every.program(c) not in built:
      built.add(every.program(c))
      assert shape_of_loss(c) == ()


def test_a_row_of_the_page_is_all_that_an_objective_goes_with():
  for objective in OBJECTIVES:
    cells = every.row_of(objective)
    assert set(of_objective(every.working(), objective)) == {
      every.Combination(objective, *names) for names in itertools.product(*cells.values())
    }


def test_the_page_is_the_one_that_is_written():
  assert PAGE.read_text() == every.page(), (
    f'write it again: python -m tests.any_with_any > docs/{PAGE.name}'
  )


def test_a_few_combinations_have_each_two_parts_that_go_together():
  chosen = every.covering()
  assert set().union(*(c.pairs for c in chosen)) == set().union(*(c.pairs for c in every.working()))
  assert len(chosen) < len(every.working()) / 5


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_each_two_parts_that_go_together_train(objective):
  for c in of_objective(every.covering(), objective):
    trains(c)


@pytest.mark.slow
@pytest.mark.parametrize('objective', OBJECTIVES)
def test_all_combinations_that_are_not_refused_train(objective):
  for c in of_objective(every.working(), objective):
    trains(c)
