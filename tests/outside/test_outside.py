"""Encoders and an objective from outside the package: each is a file, a config and a file of names,
and all commands take them.
"""

# ruff: noqa: F811  a fixture of another file is an argument here

import functools
import importlib
import json
import shutil

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import kernels
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.evaluate import scores
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.parts import named as named_parts
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import step_folders
from bertzoo_jax.training import sharding
from configs import bert
from tests import toys
from tests.hf import directories
from tests.outside import kept_or_random
from tests.outside import roformer
from tests.pretrain.runs import here  # noqa: F401  a fixture
from tests.pretrain.runs import state_of
from tests.pretrain.runs import world  # noqa: F401

STEPS, KEPT_STEP, VOCAB = 36, 12, 104
KEPT = 'tests.outside.kept_or_random:kept_or_random'
SMALL = {
  'roformer': dict(num_layers=3, hidden_size=32, num_heads=4, intermediate_size=48),
  'convolved': dict(num_layers=2, hidden_size=32, num_heads=2, intermediate_size=48),
  'bert': dict(num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32, max_positions=64),
}
SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)
RUNS = ('convolved', SLOW('roformer with kept_or_random'), SLOW('bert with kept_or_random'))


def config(name):
  """The tiny config of a run, with the encoder made smaller still."""
  system, _, objective = name.partition(' with ')
  if system == 'bert':
    made = bert.get_config('tiny,format=full_sentences')
    made.hf = 'BertForMaskedLM'
  else:
    made = importlib.import_module(f'tests.outside.{system}_config').get_config('tiny')
  if objective:
    made.objective = parts.part(KEPT, mask_id=4)
  made.encoder.update(SMALL[system])
  return ml_collections.ConfigDict(made).lock()


def encoder(name, **changes):
  section = {**config(name).encoder, **changes}
  given = dict(vocab_size=VOCAB, dtype=jnp.float32)
  return named_parts.build(section, encoders.BY_NAME, 'encoder', **given)


@pytest.mark.parametrize('name', RUNS)
def test_it_trains_resumes_is_exported_evaluated_and_begins_another_run(
  name, here, world, tmp_path, capsys
):
  made = config(name)
  sections = ('format', 'masking', 'encoder', 'objective', 'hf')
  changes = {section: made[section] for section in sections}
  changes |= dict(
    phases=((STEPS, {}),),
    length=32,
    run__keep_every=KEPT_STEP,
    run__save_minutes=1000.0,
    run__eval_every=STEPS,
  )
  whole, run, out = tmp_path / 'whole', tmp_path / 'run', tmp_path / 'hf'
  assert here(whole, **changes)['step'] == STEPS
  overview = capsys.readouterr().out
  assert 'config.hf=' not in overview and 'FLOPs unknown' not in overview
  losses = [row['loss'] for row in metrics.read(whole)]
  assert np.mean(losses[-9:]) < np.mean(losses[:9]) - 0.1, losses

  shutil.copytree(whole, run)
  for step in [s for s in step_folders.steps(run) if s > KEPT_STEP]:
    shutil.rmtree(run / f'checkpoints/{step}')
  assert step_folders.steps(run)[-1] == KEPT_STEP
  here(run, **changes)
  assert state_of(run, STEPS) == state_of(whole, STEPS)

  capsys.readouterr()
  rows = export.export(str(run), out)
  assert all(row.holds for row in rows) and rows[1].what.startswith('mlm logits')
  said = capsys.readouterr().out
  kept = 'kept_head' in checkpoint.load_params(str(run))[0]
  aside = f'{out / weights.HEADS_FILE}: kept_head, for which {made.hf} has no place'
  assert kept == (aside in said) == (out / weights.HEADS_FILE).exists()
  assert kept == (f'`{weights.HEADS_FILE}` holds' in (out / 'README.md').read_text())

  still = dict(phases=((1, {}),), schedule__warmup=0, schedule__learning_rate=0.0)
  here(tmp_path / 'again', init=f'hf:{out}', **{**changes, **still})
  trained, again = (
    weights.flatten(checkpoint.load_params(str(w))[0]) for w in (run, tmp_path / 'again')
  )
  assert trained.keys() == again.keys()
  for path, x in trained.items():
    assert np.array_equal(x, again[path]), path

  found = scores.evaluate(str(run), str(world / 'corpus'), batches=1).scores
  assert {s.rows for s in found} >= {'mlm'} and all(np.isfinite(s.value) for s in found)


def exported(folder, network, name, seed=0):
  """(architecture, perturbed parameters) of a network whose names and config.json are written."""
  params = small.parameters(objectives.BY_NAME['mlm'](encoder=network), seed)
  a = architectures.choose(config(name).hf)
  directories.put(folder, *export.convert(a, weights.flatten(params), network, small.BERT_IDS))
  return a, params


def compared(folder, a, network, params, length=40):
  batch = verify.random_batch(VOCAB, length, 0, 0)
  return directories.compared(folder, a, network, params, batch)


@pytest.mark.parametrize('name', ['roformer', 'convolved'])
def test_all_parameters_perturbed_it_equals_its_reference_and_is_read_back_exactly(name, tmp_path):
  network = encoder(name)
  a, params = exported(tmp_path, network, name)
  rows = compared(tmp_path, a, network, params)
  print(verify.table(rows))
  assert all(row.holds for row in rows)
  loaded, report = weights.load(tmp_path, config(name).hf)
  trained, loaded = weights.flatten(params), weights.flatten(loaded)
  assert trained.keys() == loaded.keys() and not report.ignored
  for path, x in trained.items():
    assert np.array_equal(x, loaded[path]), path
  assert report.encoder == {**report.encoder, **SMALL[name]}


def other(network, **members):
  kind = type('Other', (roformer.RoFormer,), members)
  return kind(network.vocab_size, network.dtype, **SMALL['roformer'])


def of_halves(base, q_BLHK, k_BLHK):
  """Rotary positions that pair feature i with i + K/2."""
  halves = lambda x: jnp.concatenate([x[..., ::2], x[..., 1::2]], axis=-1)
  whole = lambda x: jnp.stack(jnp.split(x, 2, axis=-1), axis=-1).reshape(x.shape)
  q, k, _ = roformer.rotary(base, whole(q_BLHK), whole(k_BLHK))
  return halves(q), halves(k), None


def paired_apart(network):
  block = network._block()
  apart = functools.partial(of_halves, network.base)
  heads = block.attention.clone(parent=None, positions=apart)
  return other(network, _block=lambda self: block.clone(parent=None, attention=heads))


PLANTED = {
  'base of another': lambda e: other(e, base=9_000.0),
  'features in other pairs': paired_apart,
  'epsilon of another': lambda e: other(e, norm_eps=1e-3),
}


@pytest.mark.parametrize('error', [SLOW(e) if e == 'epsilon of another' else e for e in PLANTED])
def test_an_error_in_the_network_is_seen_by_the_comparison(error, tmp_path):
  network = encoder('roformer')
  a, params = exported(tmp_path, network, 'roformer')
  row = compared(tmp_path, a, PLANTED[error](network), params)[1]
  print(error, row.difference)
  assert not row.holds


def test_a_directory_that_the_encoder_cannot_express_is_refused(tmp_path):
  exported(tmp_path, encoder('roformer'), 'roformer')
  path = tmp_path / 'config.json'
  content = json.loads(path.read_text())
  path.write_text(json.dumps({**content, 'rotary_value': True}))
  with pytest.raises(errors.UserError, match='says rotary_value=True'):
    weights.load(tmp_path, config('roformer').hf)


def make(objective):
  if objective == 'mlm':
    return objectives.BY_NAME['mlm']
  return functools.partial(kept_or_random.kept_or_random, mask_id=4)


def losses(name, mesh, objective='mlm', chosen=kernels.XLA, steps=3):
  """Losses of some steps with dropout on a mesh of the first devices."""
  devices = jax.devices()[: int(np.prod(mesh))]
  network = encoder(name, dropout=0.1)
  sizes = dict(rows=8, length=24)
  run = toys.of_an_encoder(make(objective), network, sharding.mesh(mesh, devices), chosen, **sizes)
  return run.target, toys.run(run, steps)[1]


@functools.cache
def alone(name, objective):
  return losses(name, (1, 1, 1), objective)[1]


@pytest.mark.parametrize('name, objective', [('roformer', 'kept'), SLOW('convolved', 'mlm')])
@pytest.mark.parametrize('mesh', [SLOW((2, 1, 2)), (1, 4, 1)])
def test_losses_are_those_of_one_device_on_any_mesh(name, objective, mesh):
  wanted = alone(name, objective)
  assert len(set(wanted)) == len(wanted)
  (state, notes), here = losses(name, mesh, objective)
  np.testing.assert_allclose(here, wanted, rtol=1e-5)
  assert not notes
  for path, x in weights.flatten(state.params).items():
    if path.endswith('kernel') and 'head' not in path:
      assert not x.sharding.is_fully_replicated, path
