"""The vectors beside a span help: the boundary head with them, and with zeros in their place,
trained in the same way on the sample text.
"""

import pathlib
import warnings

import jax
import jax.numpy as jnp
import pytest

from bertzoo_jax import objectives
from bertzoo_jax import prepare
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import trees
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective as objective_lib
from bertzoo_jax.objectives import span_boundary
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import schedules
from bertzoo_jax.training import step as steps
from configs import spanbert
from tests.found import call_part

SAMPLE = pathlib.Path(__file__).parents[2] / 'data' / 'sample'
CONFIG = spanbert.get_config('tiny,steps=800')
CONFIG.batch_size = 16
BELOW = 0.03  # nats, after a tenth of the text that the config trains on


def without_neighbours(encoder, ops=operations.PLAIN, *, boundary_weight, num_offsets, offset_size):
  """mlm_span_boundary, whose head sees zeros in place of the vectors beside the span."""
  fields = dict(num_offsets=num_offsets, offset_size=offset_size)
  made = call_part(
    objectives, 'mlm_span_boundary', encoder, ops, boundary_weight=boundary_weight, **fields
  )
  head = heads.boundary(**fields)

  def loss(params, batch, normalizers, carry, key, train):
    states_BPD, hidden_BLD, _ = networks.predictions(encoder, params['encoder'], batch, key, ops)
    logits_BPV = networks.vocabulary_logits(encoder, params, states_BPD, ops.constrain)
    sums = {
      'masked': networks.masked_sums(logits_BPV, batch),
      'boundary': span_boundary.boundary_sums(
        head, encoder, params, jnp.zeros_like(hidden_BLD), batch, ops.constrain
      ),
    }
    means = [
      sums[total][name] / objective_lib.at_least_one(normalizers[total])
      for total, name in (('masked', 'mlm_loss'), ('boundary', 'boundary_loss'))
    ]
    return means[0] + boundary_weight * means[1], (carry, sums)

  return made._replace(loss=loss)


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  path = tmp_path_factory.mktemp('corpus') / 'corpus'
  books = ('federalist.txt', 'sherlock.txt', 'time_machine.txt')
  prepare.prepare(CONFIG, [str(SAMPLE / book) for book in books], str(path), say=lambda _: None)
  return corpora.open(path)


def rows_of(corpus, split, seed):
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    return pipeline.build(
      corpus,
      format=CONFIG.format,
      masking=CONFIG.masking,
      length=CONFIG.length,
      batch_size=CONFIG.batch_size,
      seed=seed,
      split=split,
    )


def held_out_loss(objective_of, corpus, seed):
  """Nats per token of a span on held-out text, after the training of the config."""
  encoder = objectives.build(CONFIG, corpus.vocab_size).networks[0].encoder
  fields = {k: v for k, v in CONFIG.objective.items() if k != 'name'}
  objective = objective_of(encoder, **fields)
  schedule = schedules.for_phase(CONFIG.schedule, 0, CONFIG.phases[0][0], CONFIG.phases[0][0])
  fields = {k: v for k, v in CONFIG.optimizer.items() if k != 'name'}
  paths = trees.paths_of(jax.eval_shape(objective.init, jax.random.key(0)))
  tx = call_part(optimizers, CONFIG.optimizer.name, schedule, paths, **fields)
  state = jax.jit(lambda: steps.init(objective, tx, seed, CONFIG.batch_size))()
  step = jax.jit(steps.make_train_step(objective, tx, schedule, seed=seed), donate_argnums=0)
  for batch in rows_of(corpus, 'train', seed).iterate(0, CONFIG.phases[0][0]):
    state, _ = step(state, batch)

  @jax.jit
  def sums(params, batch):
    totals = objective.normalizers(batch)
    _, (_, found) = objective.loss(params, batch, totals, (), None, False)
    return found['boundary']['boundary_loss'], totals['boundary']

  batches = rows_of(corpus, 'held_out', 0).evaluation_batches(50)
  found = [sums(state.params, batch) for batch in batches]
  return float(sum(loss for loss, _ in found) / sum(total for _, total in found))


@pytest.mark.slow
@pytest.mark.parametrize('seed', [0, 1, 2])
def test_the_vectors_beside_a_span_lower_the_boundary_loss(corpus, seed):
  with_them = held_out_loss(span_boundary.mlm_span_boundary, corpus, seed)
  with_zeros = held_out_loss(without_neighbours, corpus, seed)
  print(f'seed {seed}: {with_them:.3f} nats with the vectors, {with_zeros:.3f} with zeros')
  assert with_them < with_zeros - BELOW
