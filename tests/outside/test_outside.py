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
from tests.pretrain import runs
from tests.pretrain.runs import here  # noqa: F401  a fixture
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
  changes = {name: made[name] for name in ('format', 'masking', 'encoder', 'objective', 'hf')}
  machinery = dict(keep_every=KEPT_STEP, save_minutes=1000.0, eval_every=STEPS)
  changes |= {f'run__{field}': value for field, value in machinery.items()}
  changes |= dict(phases=((STEPS, {}),), length=32)
  whole, run, out = tmp_path / 'whole', tmp_path / 'run', tmp_path / 'hf'
  assert here(whole, **changes)['step'] == STEPS
  overview = capsys.readouterr().out
  assert 'config.hf=' not in overview and 'FLOPs unknown' not in overview
  losses = [row['loss'] for row in metrics.read(whole)]
  assert np.mean(losses[-9:]) < np.mean(losses[:9]) - 0.1, losses

  runs.cut(shutil.copytree(whole, run), KEPT_STEP)
  assert step_folders.steps(run)[-1] == KEPT_STEP
  here(run, **changes)
  runs.check_same(run, whole, STEPS)

  capsys.readouterr()
  rows = export.export(str(run), out)
  assert all(row.holds for row in rows) and rows[1].what.startswith('mlm logits')
  output = capsys.readouterr().out
  kept = 'kept_head' in checkpoint.load_params(str(run))[0]
  aside = f'{out / weights.HEADS_FILE}: kept_head, for which {made.hf} has no place'
  assert kept == (aside in output) == (out / weights.HEADS_FILE).exists()
  assert kept == (f'`{weights.HEADS_FILE}` holds' in (out / 'README.md').read_text())

  still = dict(phases=((1, {}),), schedule__warmup=0, schedule__learning_rate=0.0)
  here(tmp_path / 'again', init=f'hf:{out}', **{**changes, **still})
  trained, again = (checkpoint.load_params(str(w))[0] for w in (run, tmp_path / 'again'))
  jax.tree.map(np.testing.assert_array_equal, trained, again)

  found = scores.evaluate(str(run), str(world / 'corpus'), batches=1).scores
  assert {s.rows for s in found} >= {'mlm'} and all(np.isfinite(s.value) for s in found)


def exported(folder, network, name, seed=0):
  """(architecture, perturbed parameters) of a network whose names and config.json are written."""
  params = small.parameters(objectives.BY_NAME['mlm'](encoder=network), seed)
  a = architectures.choose(config(name).hf)
  directories.put(folder, *export.convert(a, weights.flatten(params), network, small.BERT_IDS))
  return a, params


@pytest.mark.parametrize('name', ['roformer', 'convolved'])
def test_all_parameters_perturbed_it_equals_its_reference_and_is_read_back_exactly(name, tmp_path):
  network = encoder(name)
  a, params = exported(tmp_path, network, name)
  rows = directories.compared(tmp_path, a, network, params, verify.random_batch(VOCAB, 40, 0, 0))
  print(verify.table(rows))
  assert all(row.holds for row in rows)
  loaded, report = weights.load(tmp_path, config(name).hf)
  jax.tree.map(np.testing.assert_array_equal, params, loaded)
  assert not report.ignored
  assert report.encoder == {**report.encoder, **SMALL[name]}


def test_a_directory_that_the_encoder_cannot_express_is_refused(tmp_path):
  exported(tmp_path, encoder('roformer'), 'roformer')
  path = tmp_path / 'config.json'
  content = json.loads(path.read_text())
  path.write_text(json.dumps({**content, 'rotary_value': True}))
  with pytest.raises(errors.UserError, match='says rotary_value=True'):
    weights.load(tmp_path, config('roformer').hf)


KEPT_OR_RANDOM = functools.partial(kept_or_random.kept_or_random, mask_id=4)
MADE = {'mlm': objectives.BY_NAME['mlm'], 'kept': KEPT_OR_RANDOM}


def losses(name, mesh, objective):
  """((state, notes), losses) of three steps with dropout on a mesh of the first devices."""
  on = sharding.mesh(mesh, jax.devices()[: int(np.prod(mesh))])
  network = encoder(name, dropout=0.1)
  run = toys.of_an_encoder(MADE[objective], network, on, rows=8, length=24)
  return run.target, toys.run(run, 3)[1]


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
