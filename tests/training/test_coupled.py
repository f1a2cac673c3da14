"""An objective that couples rows has one loss on any mesh and in any number of microbatches, in the
memory of one of them. With dropout.
"""

import dataclasses
import functools
import math

import jax
import numpy as np
import optax
import pytest
import small_networks as small
import toys

from bertzoo_jax import kernels
from bertzoo_jax import objectives
from bertzoo_jax.common import errors
from bertzoo_jax.objectives import objective
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding
from bertzoo_jax.training import step as steps
from tests.found import call_part
from tests.outside import coupled

ROWS, STEPS, RATE = 16, 20, 0.02
SIZES = dict(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=24, vocab_size=104)
OBJECTIVES = {
  'contrastive': functools.partial(call_part, objectives, 'contrastive', widths=(8,)),
  'outside': functools.partial(coupled.coupled, how='contrast'),
}


def made(name='contrastive', mesh=(1, 1, 1), accumulation=1, chosen='xla', rows=ROWS, **sizes):
  """(PhaseRun with plain gradient descent, its compiled step)."""
  encoder = small.encoder(**{**SIZES, **sizes, 'dropout': 0.1, 'attention_dropout': 0.1})
  placed = sharding.mesh(mesh, jax.devices()[: math.prod(mesh)])
  chosen = kernels.choose(chosen, jax.devices()[0], 0.1)
  how = dict(rows=rows, length=16, accumulation=accumulation)
  run = toys.of_an_encoder(OBJECTIVES[name], encoder, placed, chosen, **how)
  held_out = [*run.data.train.iterate(50, 52)]
  data = toys.rows_of(run.data.features, run.data.train.iterate, held_out)
  run = dataclasses.replace(run, data=data, tx=optax.with_extra_args_support(optax.sgd(RATE)))
  batch = {
    k: jax.ShapeDtypeStruct(*v, sharding=sharding.batch_sharding(placed))
    for k, v in run.data.features.items()
  }
  return run, phase_runs.train_step(run).lower(run.target[0], batch).compile()


def trained(run, update):
  """(gradients of the first step, parameters after all, losses, held-out values)."""
  start = toys.flat(phase_runs.fresh(run).params)
  state, first = toys.run(run, 1, None, update)
  after = toys.flat(state.params)
  state, rest = toys.run(run, STEPS - 1, state, update)
  held_out = phase_runs.evaluation(run)(state.params)
  gradients = {path: (start[path] - x) / RATE for path, x in after.items()}
  return gradients, toys.flat(state.params), first + rest, held_out


@functools.cache
def whole(name):
  """`trained` on one device in one microbatch."""
  return trained(*made(name))


@pytest.mark.parametrize(
  'name, mesh, accumulation, chosen',
  [
    ('contrastive', (1, 1, 1), 4, 'xla'),
    ('contrastive', (4, 1, 1), 1, 'xla'),
    ('contrastive', (2, 1, 2), 2, 'fused'),
    ('contrastive', (2, 2, 1), 2, 'xla'),
    ('outside', (4, 1, 1), 2, 'xla'),
    *(
      pytest.param(name, (devices, 1, 1), accumulation, chosen, marks=pytest.mark.slow)
      for name in OBJECTIVES
      for devices in (1, 2, 4)
      for accumulation in (1, 2, 4)
      for chosen in ('xla', 'fused')
    ),
  ],
)
def test_loss_gradients_and_updates_are_those_of_one_device_and_one_microbatch(
  name, mesh, accumulation, chosen
):
  run, update = made(name, mesh, accumulation, chosen)
  for ours, plain in zip(trained(run, update), whole(name), strict=True):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, plain)
  collectives = hlo.read(update.as_text()).collectives
  if math.prod(mesh) == mesh[0]:  # then gradients and vectors go between devices once
    assert all(c.times == 1 for c in collectives)


def test_the_memory_of_eight_microbatches_is_that_of_one_and_the_vectors_of_all_rows():
  sizes = dict(num_layers=4, hidden_size=32, intermediate_size=128)
  temporary = lambda **how: made(**sizes, **how)[1].memory_analysis().temp_size_in_bytes
  one, eight, whole = temporary(rows=16), temporary(rows=128, accumulation=8), temporary(rows=128)
  print(one, eight, whole)
  vectors = 4 * 128 * 2 * 32
  scores = 4 * 128 * 128
  assert eight < one + 4 * vectors + 4 * scores < whole / 2


@pytest.mark.parametrize(
  'vectors, couple, words',
  [
    (lambda x, rest: x, None, 'vectors of the objective are no'),
    (lambda x, rest: (x, rest[0]), None, 'vectors of the objective are no'),
    (lambda x, rest: (x[:3], rest), None, 'vectors of the objective are no'),
    (None, lambda value, sums: value, 'couple of the objective returns no'),
    (None, lambda value, sums: (sums, value), 'couple of the objective returns no'),
  ],
)
def test_parts_of_an_objective_that_return_something_else_are_one_sentence(vectors, couple, words):
  right = coupled.coupled(small.encoder())
  changed = objective.coupled(
    right,
    lambda *args: (vectors or (lambda *x: x))(*right.vectors(*args)),
    lambda x, batch, totals: (couple or (lambda *x: x))(0.0, {}),
  )
  step = steps.make_train_step(changed, optax.identity(), None, seed=0)
  state = jax.eval_shape(lambda: steps.init(changed, optax.identity(), 0, 4))
  with pytest.raises(errors.UserError, match=words):
    jax.eval_shape(step, state, small.batch())
