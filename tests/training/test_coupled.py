"""An objective that couples rows has one loss on any mesh and in any number of microbatches, in the
memory of one of them. With dropout.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_networks as small
import toys

from bertzoo_jax import kernels
from bertzoo_jax import objectives
from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import layers
from bertzoo_jax.objectives import objective
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding
from bertzoo_jax.training import step as steps
from tests.found import call_part
from tests.outside import coupled

ROWS, STEPS = 16, 20
ENCODER = dict(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=24, vocab_size=104)
OF_AN_ENCODER = {
  'contrastive': functools.partial(call_part, objectives, 'contrastive', widths=(8,)),
  'outside': functools.partial(coupled.coupled, how='contrast'),
}


def toy():
  """The losses of toys.toy, and one by the products of the rows' vectors with each other."""
  plain = toys.toy(dropout=0.3)

  def vectors(params, batch, normalizers, carry, key, train):
    words_VD = params['encoder']['embeddings']['word']['embedding']
    x_BD = words_VD[batch['input_ids']].mean(axis=1)
    if train:
      x_BD = layers.dropout(x_BD[:, None], 0.3, row_keys.join(batch['row_keys'], key))[:, 0]
    return x_BD, plain.loss(params, batch, normalizers, carry, key, train)

  def couple(x_BD, batch, normalizers):
    loss = jnp.sum(jax.nn.logsumexp(x_BD @ x_BD.T, axis=1) - jnp.sum(jnp.square(x_BD), axis=1))
    return loss / normalizers['pairs'], {'pairs': {'couple_loss': loss}}

  return objective.coupled(plain, vectors, couple)


def made(name='toy', mesh=(1, 1, 1), accumulation=1, chosen='xla', rows=ROWS, **sizes):
  """(PhaseRun with plain gradient descent that keeps the last gradients, its compiled step)."""
  placed = sharding.mesh(mesh, jax.devices()[: math.prod(mesh)])
  if name == 'toy':
    run = toys.phase_run(objective=toy(), rows=rows, mesh=placed, accumulation=accumulation)
  else:
    encoder = small.encoder(**{**ENCODER, **sizes, 'dropout': 0.1, 'attention_dropout': 0.1})
    chosen = kernels.choose(chosen, jax.devices()[0], 0.1)
    how = dict(rows=rows, length=16, accumulation=accumulation)
    run = toys.of_an_encoder(OF_AN_ENCODER[name], encoder, placed, chosen, **how)
    iterate = run.data.train.iterate
    data = toys.rows_of(run.data.features, iterate, [*iterate(50, 52)])
    run = dataclasses.replace(run, data=data)
  # At 0.05 an encoder's steps amplify rounding: 1e-7 of the parameters, on one device, are 4e-4 of
  # the loss after twenty steps; at 0.005 they are 1e-6.
  tx = optax.chain(optax.trace(0.0), optax.scale(-0.05 if name == 'toy' else -0.005))
  run = dataclasses.replace(run, tx=optax.with_extra_args_support(tx))
  batch = {
    k: jax.ShapeDtypeStruct(*v, sharding=sharding.batch_sharding(placed))
    for k, v in run.data.features.items()
  }
  return run, phase_runs.train_step(run).lower(run.target[0], batch).compile()


def trained(run, update):
  """(gradients of the first step, parameters after all, losses, held-out values)."""
  state, first = toys.run(run, 1, None, update)
  gradients = toys.flat(state.opt_state[0].trace)
  state, rest = toys.run(run, STEPS - 1, state, update)
  held_out = phase_runs.evaluation(run)(state.params)
  return gradients, toys.flat(state.params), np.array(first + rest), held_out


@functools.cache
def whole(name):
  """`trained` on one device in one microbatch."""
  return trained(*made(name))


SLOW = [
  ('toy', (1, 2, 2), 2, 'xla'),
  ('toy', (4, 1, 1), 1, 'xla'),
  ('contrastive', (2, 1, 2), 2, 'fused'),
  ('contrastive', (2, 2, 1), 2, 'xla'),
  *(
    (n, (d, 1, 1), a, 'xla')
    for n in OF_AN_ENCODER
    for d in (1, 2, 4)
    for a in (1, 2, 4)
    if d * a > 1
  ),
]


@pytest.mark.parametrize(
  'name, mesh, accumulation, chosen',
  [
    ('toy', (1, 1, 1), 4, 'xla'),
    ('toy', (4, 1, 1), 2, 'xla'),
    ('toy', (2, 2, 1), 2, 'xla'),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
  ],
)
def test_loss_gradients_and_updates_are_those_of_one_device_and_one_microbatch(
  name, mesh, accumulation, chosen
):
  run, update = made(name, mesh, accumulation, chosen)
  for ours, plain in zip(trained(run, update), whole(name), strict=True):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, plain)
  if math.prod(mesh) == mesh[0]:  # gradients and vectors go between devices once per step
    assert all(c.times == 1 for c in hlo.read(update.as_text()).collectives)


def test_more_microbatches_of_one_size_need_memory_for_vectors_and_scores_alone():
  sizes = dict(num_layers=4, hidden_size=32, intermediate_size=128)
  temporary = lambda **how: made('outside', **sizes, **how)[1].memory_analysis().temp_size_in_bytes
  eight, sixteen = (temporary(rows=16 * n, accumulation=n) for n in (8, 16))
  vectors, scores, features = 4 * 128 * 32, 4 * (256**2 - 128**2), 4 * 128 * (8 * 16 + 8 * 5)
  assert sixteen - eight < 4 * vectors + 4 * scores + 2 * features, (eight, sixteen)


X, REST = 'vectors of the objective are no', 'couple of the objective returns no'


def test_parts_of_an_objective_that_return_something_else_are_one_sentence():
  right, same = toy(), lambda *x: x
  for vectors, couple, words in (
    (lambda x, rest: x, same, X),
    (lambda x, rest: (x, rest[0]), same, X),
    (lambda x, rest: (x[:3], rest), same, X),
    (same, lambda value, sums: value, REST),
    (same, lambda value, sums: (sums, value), REST),
  ):
    changed = objective.coupled(
      right,
      lambda *args, vectors=vectors: vectors(*right.vectors(*args)),
      lambda x_BD, batch, normalizers, couple=couple: couple(0.0, {}),
    )
    step = steps.make_train_step(changed, optax.identity(), None, seed=0)
    state = jax.eval_shape(lambda changed=changed: steps.init(changed, optax.identity(), 0, 8))
    with pytest.raises(errors.UserError, match=words):
      jax.eval_shape(step, state, toys.batch(0))
