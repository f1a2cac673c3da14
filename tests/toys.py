"""A bag of words with two heads, small enough for a test of the step to be about the step. It has
what real ones have: two normalizers, uneven weights, dropout, parameters with a stacked axis.
"""

import dataclasses
import types

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import small_networks as small

from bertzoo_jax import kernels
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import row_keys
from bertzoo_jax.common import trees
from bertzoo_jax.experiment import build
from bertzoo_jax.model import layers
from bertzoo_jax.model import transformer
from bertzoo_jax.objectives import objective
from bertzoo_jax.training import data
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import schedules
from bertzoo_jax.training import sharding
from configs import bert
from tests import found
from tests.found import call_part

VOCAB, WIDTH, LENGTH, PREDICTIONS = 16, 8, 6, 2
NO_DECAY = (r'norm/', r'bias$')


def toy(dropout=0.1, with_carry=False):
  """A masked-token loss and a pair loss over the mean of a row's vectors."""

  def init(key):
    a, b, c = jax.random.split(key, 3)
    draw = lambda key, *shape: 0.3 * jax.random.normal(key, shape)
    words = {'embedding': draw(a, VOCAB, WIDTH)}
    dense = {'kernel': draw(b, 2, WIDTH, WIDTH), 'bias': jnp.zeros((2, WIDTH))}
    head = {'kernel': draw(c, WIDTH, 2), 'bias': jnp.zeros(2)}
    embeddings = {'word': words, 'norm': {'scale': jnp.ones(WIDTH)}}
    encoder = {'embeddings': embeddings, 'layers': {'feed_forward': {'in': dense}}}
    return {'encoder': encoder, 'pair_head': {'classifier': head}}

  def normalizers(batch):
    pairs = jnp.float32(batch['pair_labels'].shape[0])
    return {'masked': batch['masked_weights'].sum(), 'pairs': pairs}

  def loss(params, batch, normalizers, carry, key, train):
    words = params['encoder']['embeddings']['word']['embedding']
    x = words[batch['input_ids']].mean(axis=1) * params['encoder']['embeddings']['norm']['scale']
    for i in range(2):
      dense = params['encoder']['layers']['feed_forward']['in']
      x = x + jnp.tanh(x @ dense['kernel'][i] + dense['bias'][i])
    if train and dropout:
      x = layers.dropout(x[:, None], dropout, row_keys.join(batch['row_keys'], key))[:, 0]
    if with_carry:
      x = x + carry
      carry = 0.5 * x
    log_p = jax.nn.log_softmax(x @ words.T)
    nll = -jnp.take_along_axis(log_p, batch['masked_targets'], axis=1)
    masked = jnp.sum(nll * batch['masked_weights'])
    head = params['pair_head']['classifier']
    log_q, labels = jax.nn.log_softmax(x @ head['kernel'] + head['bias']), batch['pair_labels']
    pair = -jnp.take_along_axis(log_q, labels[:, None], axis=1).sum()
    value = masked / objective.at_least_one(normalizers['masked'])
    value += pair / objective.at_least_one(normalizers['pairs'])
    sums = {'masked': {'mlm_loss': masked}, 'pairs': {'pair_loss': pair}}
    return value, (jax.lax.stop_gradient(carry), sums)

  carry = (lambda n: jnp.zeros((n, WIDTH))) if with_carry else (lambda n: ())
  reads = ('input_ids', 'masked_targets', 'masked_weights', 'pair_labels')
  axes = transformer.Transformer.axes
  return objective.Objective(init, normalizers, loss, reads, carry=carry, axes=axes)


def amplified(objective):
  """The objective, its loss and gradient times the largest weight of the batch, which is 1 where
  nothing is poisoned.
  """

  def loss(params, batch, *rest):
    value, found = objective.loss(params, batch, *rest)
    return value * batch['masked_weights'].max(), found

  return objective._replace(loss=loss)


def batch(step, rows=8, poison=(), weight=np.inf):
  """Batch of a step; rows have 0, 1 or 2 predictions, so a mean of microbatch means would be wrong.
  poison: steps that have this weight; an infinite one gives NaN.
  """
  draw = np.random.default_rng((7, step))
  weights = (draw.random((rows, PREDICTIONS)) < 0.5).astype(np.float32)
  weights[0] = 1.0
  if step in poison:
    weights[0] = weight
  return {
    'input_ids': draw.integers(0, VOCAB, (rows, LENGTH), dtype=np.int32),
    'masked_positions': np.zeros((rows, PREDICTIONS), np.int32),
    'masked_targets': draw.integers(0, VOCAB, (rows, PREDICTIONS), dtype=np.int32),
    'masked_weights': weights,
    'pair_labels': draw.integers(0, 2, rows, dtype=np.int32),
  }


def phase_run(
  first=0,
  end=8,
  *,
  rows=8,
  mesh=None,
  accumulation=1,
  objective=None,
  optimizer='adamw_uncorrected',
  poison=(),
  weight=np.inf,
  batches=None,
  total=8,
  learning_rate=0.05,
  ema=0.0,
  **changes,
):
  """A PhaseRun of toy batches. changes: of the optimizer's fields."""
  objective = objective or toy()
  rates = dict(learning_rate=learning_rate, warmup=2)
  schedule = call_part(schedules, 'linear_after_warmup', total, **rates)
  paths = trees.paths_of(jax.eval_shape(objective.init, jax.random.key(0)))
  fields = dict(b2=0.999, no_decay=NO_DECAY, clip_norm=1.0)
  fields = found.fields('optimizer', optimizer, **{**fields, **changes})
  tx = call_part(optimizers, optimizer, schedule, paths, **fields)
  features = {k: (v.shape, v.dtype) for k, v in batch(0, rows).items()}
  make = batches or (lambda a, b: (batch(first + s, rows, poison, weight) for s in range(a, b)))
  config = ml_collections.ConfigDict(dict(seed=0, ema=ema, run=dict(accumulation=accumulation)))
  return phase_runs.PhaseRun(
    configuration.Phase(0, first, end - first, config, 0, 0, 0),
    objective,
    tx,
    schedule,
    rows_of(features, make, [batch(1000 + i, rows) for i in range(3)]),
    mesh or one_device(),
  )


def of_an_encoder(
  make,
  encoder,
  mesh,
  chosen=kernels.XLA,
  *,
  rows,
  length,
  accumulation=1,
  at=lambda batch, step: batch,
):
  """A PhaseRun of random rows with a real encoder. make: (encoder, ops) → Objective. at: (batch,
  step) → the batch of a step. It begins with constants: random ones take seconds to compile.
  """
  ops = build.operations_on(mesh, chosen, encoder.axes)
  sizes = dict(rows=rows, length=length, vocab_size=encoder.vocab_size)
  batch_of = lambda step: at(small.batch(**sizes, seed=step), step)
  features = {k: (v.shape, v.dtype) for k, v in batch_of(0).items()}
  made = make(encoder, ops)
  params = small.parameters(made)
  made = made._replace(init=lambda key: jax.tree.map(jnp.asarray, params))
  how = dict(objective=made, mesh=mesh, accumulation=accumulation)
  rows = rows_of(features, lambda a, b: map(batch_of, range(a, b)))
  return dataclasses.replace(phase_run(**how, learning_rate=2e-3), data=rows)


def rows_of(features, iterate, held_out=()):
  """The PhaseData of batches. iterate: (first, end) → batches; held_out: a list of them."""
  train = types.SimpleNamespace(iterate=iterate, rows_per_epoch=20)
  evaluated = types.SimpleNamespace(evaluation_batches=lambda n: held_out)
  return data.PhaseData(features, train, {'': evaluated} if held_out else {})


def config(**fields):
  """The tiny config of BERT over toy batches. fields: others than there."""
  made = bert.get_config('tiny').unlock()
  vocab_size = fields.pop('vocab_size', VOCAB)
  made.update({'batch_size': 8, 'length': LENGTH, 'phases': ((6, {}),), **fields})
  made.tokenizer.vocab_size = vocab_size
  return ml_collections.ConfigDict(made).lock()


def one_device():
  return sharding.mesh((1, 1, 1), jax.devices()[:1])


def run(phase_run, steps, state=None, update=None):
  """(state, losses) after some steps; waits for each, since CPU collectives under way together can
  hang. update: the phase_run's compiled step, if there already is one.
  """
  state = phase_runs.fresh(phase_run) if state is None else state
  update, losses = update or phase_runs.train_step(phase_run), []
  first = int(state.step) - phase_run.phase.first_step
  for values in phase_run.data.train.iterate(first, first + steps):
    state, metrics = update(state, sharding.to_devices(values, phase_run.mesh, phase_run.rows))
    losses.append(float(jax.block_until_ready(metrics)['loss']))
  return state, losses


def flat(tree):
  return {trees.path_of(p): np.asarray(x) for p, x in jax.tree_util.tree_leaves_with_path(tree)}
