import types

import ml_collections
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.preflight import readiness
from bertzoo_jax.preflight import report
from bertzoo_jax.preflight import verdict
from bertzoo_jax.preflight.tpu import chips
from configs import bert
from tests.finetune.test_finetune import world  # noqa: F401
from tests.preflight import asked
from tests.tuned import config


def preflight(world, made, tpu='v5e-4', **kw):  # noqa: F811
  return asked.preflight(made, tpu=tpu, init=f'{world}/bert', task_dir=str(world), **kw)


@asked.needs_libtpu
def test_the_run_with_the_largest_batch_is_compiled_for_one_chip_and_all_are_timed(world):  # noqa: F811
  made = config(grid=(('batch_size', (8, 16)),), seeds=(0, 1, 2), steps=0, epochs=2.0)
  found = preflight(world, made, price=1.0)
  assert found.ready and found.mesh == {'data': 1, 'fsdp': 1, 'tensor': 1}
  (phase,) = found.phases
  # 96 rows twice, and two of the four chips have a second of the six runs
  assert (phase.rows, phase.length, phase.steps, phase.devices) == (16, 16, 12, 1)
  assert found.runs == verdict.Runs(6, 4, 384)
  assert found.run.steps_seconds == pytest.approx(24 * phase.time.likely)
  assert found.run.dollars == pytest.approx(24 * phase.time.likely / 3600 * 4)
  said = asked.printed(found)
  assert '6 runs, 4 at a time, each on its own device' in said
  assert 'epochs of the train rows' in said
  assert report.as_dict(found)['runs'] == {'number': 6, 'at_once': 4, 'rows': 384}


@asked.needs_libtpu
def test_one_run_has_all_chips(world, monkeypatch):  # noqa: F811
  asked.linear(monkeypatch)
  found = preflight(world, config())
  assert found.ready and found.mesh['data'] == 4 and found.runs == verdict.Runs(1, 1, 192)


REFUSALS = [  # changes of the config, code, words; of the last the slice
  (dict(source__text_a='words'), 'P06', "'label', 'text'"),
  (dict(batch_size=0), 'P01', 'config.batch_size is 0'),
  (dict(length=1000), 'P01', '--config.length='),
  (dict(run__dtype='float8'), 'P01', 'run.dtype'),
  ({}, 'P04', 'has 4: take a smaller slice'),
]


@asked.needs_libtpu
@pytest.mark.parametrize('changes, code, words', REFUSALS)
def test_refusals_of_finetune_and_several_hosts_are_refusals_here(world, changes, code, words):  # noqa: F811
  found = preflight(world, config(**changes), tpu='v5e-4' if changes else 'v5e-16')
  assert any(f.code == code and words in f.sentence for f in found.findings.problems)
  assert not found.ready and (changes or not found.phases)


def test_several_tasks_are_refused():
  findings, suite = readiness.Findings(), dict(a=config(), b=config())
  made = ml_collections.ConfigDict({'suite': suite})
  assert verdict.runs_of(findings, made, 'W', '.') == ([], None)
  assert 'preflight takes one: name it' in findings[0].sentence


def test_flags_of_the_other_kind_are_refused():
  for made, given, words in (
    (config(), dict(), 'give the weights'),
    (config(), dict(init='W', workdir='F'), '--workdir is checked for a pretraining'),
    (config(), dict(init='W', corpus='F'), '--corpus is checked for a pretraining'),
    (bert.get_config('tiny'), dict(init='W'), '--init is for a fine-tuning'),
  ):
    with pytest.raises(errors.UserError, match=words):
      asked.preflight(made, tpu='v5e-4', **given)


def test_runs_of_unlike_length_are_placed_where_one_ends_first():
  machinery = types.SimpleNamespace(mesh=(-1, 1, 1), wandb='')
  fields = lambda rows: dict(phases=((rows // 8, {}),), batch_size=8, run=machinery)
  made = lambda rows: types.SimpleNamespace(**fields(rows))
  run = lambda rows: types.SimpleNamespace(experiment=made(rows))
  found = verdict.placed([run(n) for n in (40, 24, 24, 24, 24, 16)], chips.by_type('v5e-4'))
  assert found == verdict.Runs(6, 4, 48)
