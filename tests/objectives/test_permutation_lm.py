import collections
import math
import types

import jax
import ml_collections
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import kernels
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import check as checks
from bertzoo_jax.experiment import resolve
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.training import data
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding
from configs import xlnet
from tests import toys
from tests.found import call_part

REUSE = small.TWO_STREAM['reuse_length']
STEPS, SAVED = 4, 2
FUSED = kernels.fused(hashed=True, interpret=True, gather=False)


def test_an_objective_that_cannot_be_built_is_refused_with_a_remedy():
  for kind, encoder, words in (
    ('permutation_lm', dict(section=small.SECTION), 'two_stream'),
    ('memory_mlm', dict(section=small.SECTION), 'memory'),
    ('memory_mlm', dict(section=small.TWO_STREAM, hidden_size=3, num_heads=1), 'even'),
  ):
    with pytest.raises(errors.UserError, match=words):
      call_part(objectives, kind, small.encoder(**encoder), pair_weight=0.0)
  objective = small.objective('permutation_lm')
  params, batch = small.parameters(objective), small.lanes(small.batch(4, REUSE - 1, 2))
  with pytest.raises(errors.UserError, match='reuse_length'):
    small.evaluate(objective, params, batch)


def test_a_pair_loss_is_added_with_its_weight():
  objective = small.objective('permutation_lm', pair_weight=0.5)
  batch = next(small.lane_batches())
  params, totals = small.parameters(objective), objective.normalizers(batch)
  assert 'pair_labels' in objective.reads
  assert 'pair_labels' not in small.objective('permutation_lm').reads
  loss = lambda params: objective.loss(params, batch, totals, objective.carry(4), None, False)
  loss, (_, sums) = jax.jit(loss)(params)
  masked = sums['masked']['mlm_loss'] / totals['masked']
  assert abs(loss - (masked + 0.5 * sums['pairs']['pair_loss'] / totals['pairs'])) < 1e-5


def test_a_memory_of_no_tokens_reads_no_resets():
  objective = small.objective('permutation_lm', memory_length=0)
  assert objective.carry(4) == () and 'resets' not in objective.reads
  assert {'resets', 'direction'} <= set(objective.may_read)
  params, batch = small.parameters(objective), next(small.lane_batches())
  del batch['resets']
  jax.eval_shape(lambda: small.evaluate(objective, params, batch))


def phase_run(mesh, accumulation, chosen=kernels.XLA, rows=8):
  """A phase of an encoder with all its dropouts, and lanes whose memories begin at step 0. Its
  weights are large, so that the memory shows in the loss.
  """
  rates = dict(dropout=0.1, attention_dropout=0.1)
  encoder = small.encoder(section=small.TWO_STREAM, **rates, initializer_range=0.1, vocab_size=104)
  make = lambda encoder, ops: call_part(objectives, 'permutation_lm', encoder, ops, pair_weight=0.0)
  at = lambda batch, step: small.lanes(batch, seed=step, resets=step == 0)
  sizes = dict(rows=rows, length=16, accumulation=accumulation)
  placed = sharding.mesh(mesh, jax.devices()[: math.prod(mesh)])
  return toys.of_an_encoder(make, encoder, placed, chosen, at=at, **sizes)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """(state, losses, workdir) of steps on one device at once; workdir has step SAVED."""
  workdir, run = tmp_path_factory.mktemp('run'), phase_run((1, 1, 1), 1)
  step = phase_runs.train_step(run)
  state, before = toys.run(run, SAVED, None, step)
  checkpoints = checkpoint.Checkpoints(workdir, keep=1, keep_every=0)
  checkpoints.save(state)
  checkpoints.close()
  state, after = toys.run(run, STEPS - SAVED, state, step)
  return state, before + after, workdir


@pytest.mark.slow
def test_losses_and_memories_are_the_same_in_any_number_of_parts_with_fused_kernels(trained):
  state, losses = toys.run(phase_run((2, 1, 2), 2, FUSED), STEPS)
  np.testing.assert_allclose(losses, trained[1], rtol=1e-5)
  assert np.abs(trained[0].carry).max() > 0.1
  assert small.worst(jax.device_get(state.carry), jax.device_get(trained[0].carry)) < 1e-4


def test_a_run_with_a_memory_goes_on_on_another_mesh_in_another_number_of_parts(trained):
  whole, losses, workdir = trained
  run = phase_run((2, 2, 2), 2)
  step = phase_runs.train_step(run)

  def restored():
    checkpoints = checkpoint.Checkpoints(workdir, keep=1, keep_every=0)
    state = checkpoints.restore(checkpoints.newest(), run.target[0])
    checkpoints.close()
    assert len(state.carry.sharding.device_set) == 8
    return state

  state, after = toys.run(run, STEPS - SAVED, restored(), step)
  np.testing.assert_allclose(after, losses[SAVED:], rtol=1e-5)
  assert small.worst(jax.device_get(state.carry), jax.device_get(whole.carry)) < 1e-4
  state = restored()
  _, [forgot] = toys.run(run, 1, state.replace(carry=0 * state.carry), step)
  assert abs(forgot / losses[SAVED] - 1) > 1e-4, 'no memory was read'


def held(lacking=()):
  """Data of lanes without some features."""
  row = small.lanes(small.batch())
  told = {k: (x.shape, x.dtype) for k, x in row.items() if k not in lacking}
  rows = types.SimpleNamespace(count=lambda: None)
  return data.Data({}, 200, collections.defaultdict(lambda: data.PhaseData(told, rows)))


def assembled(phases=((1000, {}),), features=(), whole=False, **changes):
  """The objective of a tiny config with changes, as a run makes it. whole: from its first phase on,
  otherwise of its last phase alone.
  """
  config = ml_collections.ConfigDict(xlnet.get_config('tiny'))
  for key, value in changes.items():
    section, _, field = key.partition('__')
    config[section] = {**config[section], field: value} if field else value
  config.phases = phases
  run = resolve.run(config.lock())
  start = 0 if whole else run.phases[-1].first_step
  built = checks.built(build.phases(run, held(features), toys.one_device(), start))
  return built.phase_runs[0].objective


def test_phases_that_hand_on_a_memory_have_one_batch_size():
  two = lambda changes, **how: assembled(phases=((500, {}), (500, changes)), whole=True, **how)
  two({'length': 96})
  for rows in (32, 128):
    with pytest.raises(errors.UserError, match=f'Phase 1 has batches of {rows} rows'):
      two({'batch_size': rows})
  two({'batch_size': 32}, encoder__memory_length=0)


def test_a_run_with_a_memory_is_built_if_it_holds_what_the_rows_say():
  assert assembled().carry(2).shape == (2, 2, 48, 128)
  assert assembled(encoder__memory_length=0).carry(2) == ()


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(encoder__reuse_length=16), 'reuse_length=16 and format.reuse_length=32'),
    (dict(phases=((500, {}), (500, {'format.reuse_length': 16}))), 'format.reuse_length=16'),
    (dict(features=('resets',)), 'needs resets'),
    (dict(features=('order',)), 'needs order'),
    (dict(objective=parts.memory_mlm()), "reads 'order'"),
    (dict(objective=parts.mlm(), features=('order',)), "reads 'resets'"),
    (dict(objective__pair_weight=1.0, features=('pair_labels',)), 'needs pair_labels'),
    (dict(encoder=parts.transformer()), 'two_stream'),
  ],
)
def test_a_run_whose_memory_would_hold_something_else_is_refused(changes, message):
  with pytest.raises(errors.UserError, match=message):
    assembled(**changes)
