import dataclasses
import json
import math
import types

import jax
import numpy as np
import pytest

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import check
from bertzoo_jax.experiment import machinery
from bertzoo_jax.experiment import resolve
from bertzoo_jax.model import stack
from bertzoo_jax.preflight import readiness
from bertzoo_jax.pretrain import pretrain
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding
from tests.preflight import asked
from tests.pretrain import runs
from tests.refused import refused


def on(kind):
  """A mesh of one device of a kind."""
  platform = {'T': 'tpu', 'N': 'gpu', 'c': 'cpu'}[kind[0]]
  device = types.SimpleNamespace(device_kind=kind, platform=platform, compute_capability='9.0')
  return types.SimpleNamespace(devices=np.array([device]))


def resolved(kind, kept=None, steps=10_000, layers=12, **changes):
  made = asked.config(phases=((steps, {}),), encoder__num_layers=layers, **changes)
  run = machinery.resolved(resolve.run(made), 300, on(kind), kept)
  assert run.phases[0].config.run.to_dict() == run.config.run.to_dict()
  return tuple(run.config.run[field] for field in ('kernels', 'unroll', 'remat', 'dtype'))


def test_auto_becomes_the_fastest_choice_of_a_device_and_a_value_wins():
  for kind, expected, given in (
    ('cpu', ('xla', 0, 'none'), {}),
    ('cpu', ('xla', 1, 'none'), dict(steps=249)),
    ('NVIDIA H200', ('cudnn', 1, 'none'), dict(steps=1_999)),
    ('NVIDIA H200', ('cudnn', 0, 'none'), {}),
    ('NVIDIA H200', ('xla', 0, 'none'), dict(encoder__attention_dropout=0.1)),
    ('TPU v4', ('fused', 0, 'none'), {}),
    ('TPU v5 lite', ('fused', 0, 'none'), {}),
    ('TPU v6 lite', ('fused', 0, 'none'), {}),
    ('TPU v5', ('fused', 1, 'none'), {}),
    ('TPU v3', ('xla', 1, 'none'), {}),
    ('TPU of tomorrow', ('fused', 1, 'none'), {}),
    ('TPU v4', ('fused', 1, 'none'), dict(steps=9_999)),
    ('TPU v4', ('fused', 1, 'none'), dict(layers=25)),
    ('TPU v4', ('xla', 2, 'full'), dict(run__kernels='xla', run__unroll=2, run__remat='full')),
  ):
    given = {'run__remat': 'auto', 'encoder__attention_dropout': 0.0, **given}
    assert resolved(kind, **given)[:3] == expected, (kind, given)


@pytest.mark.parametrize(
  'kind, flags, expected',
  [
    ('cpu', 'flags : sse avx2 fma avx512f', 'float32'),
    ('cpu', '', 'float32'),
    ('cpu', 'flags : avx2 avx512_bf16', 'bfloat16'),
    ('cpu', 'flags : amx_bf16 amx_tile', 'bfloat16'),
    ('cpu', 'Features : asimd i8mm bf16 dgh', 'bfloat16'),
    ('NVIDIA H200', 'flags : avx2', 'bfloat16'),
    ('TPU v4', 'flags : avx2', 'bfloat16'),
  ],
)
def test_products_are_of_bfloat16_where_the_device_has_them(monkeypatch, kind, flags, expected):
  monkeypatch.setattr(machinery, 'cpu', lambda: flags)
  assert resolved(kind, run__dtype='auto')[3] == expected
  assert resolved(kind, {'run.dtype': 'float32'}, run__dtype='auto')[3] == 'float32', 'kept'
  assert resolved(kind, {'run.dtype': 'float32'}, run__dtype='bfloat16')[3] == 'bfloat16'


def test_values_of_the_run_so_far_win_over_the_devices_but_not_over_the_config():
  kept = {'run.unroll': 3, 'run.remat': 'auto', 'run.kernels': 'xla', 'run.keep': 7}
  assert resolved('TPU v4', kept, run__remat='auto')[:3] == ('xla', 3, 'none')
  assert resolved('TPU v4', kept, run__unroll=0, run__kernels='xla')[:3] == ('xla', 0, 'none')
  other = dict(run__dtype='float32', encoder__attention_dropout=0.0)
  assert resolved('NVIDIA H200', {'run.kernels': 'cudnn'}, **other)[0] == 'xla', 'it has 16 bits'
  with pytest.raises(errors.UserError, match="config.run.unroll is 'all'"):
    resolved('TPU v4', {'run.unroll': 'all'})


def test_auto_is_the_plain_loop_where_no_device_decides():
  plain = {field: asked.config().run[field] for field in ('unroll', 'remat')}
  assert plain == {'unroll': 'auto', 'remat': 'none'}, 'remat is set in this config'
  encoder = build.encoder(asked.config(run__remat='auto', encoder__num_layers=3), 300)
  assert (encoder.unroll, encoder.remat) == (1, 'none')
  assert build.encoder(asked.config(run__unroll=0, encoder__num_layers=3), 300).unroll == 3


@dataclasses.dataclass
class Described:
  phase: object
  mesh: object
  inputs = staticmethod(tuple)


@pytest.mark.parametrize('enough', stack.REMAT)
def test_remat_is_the_first_with_which_all_phases_that_are_left_compile(
  monkeypatch, capsys, enough
):
  config = asked.config(phases=((9, {}), (9, {'batch_size': 64, 'run.accumulation': 2}), (9, {})))
  auto = config.copy_and_resolve_references().unlock()
  auto.run.remat = 'auto'
  seen, mesh = [], types.SimpleNamespace(devices=np.array([types.SimpleNamespace(platform='tpu')]))

  def phases(run, data, mesh, start):
    made = [Described(p, mesh) for p in run.phases if p.end_step > start]
    return build.Built(run, data, made)

  def peak(phase_run):  # the second phase needs most
    seen.append((index := phase_run.phase.index, policy := phase_run.phase.config.run.remat))
    return 1.0 if policy == enough or index == 0 else math.inf

  monkeypatch.setattr(build, 'phases', phases)
  monkeypatch.setattr(machinery, 'peak', peak)
  whole = resolve.run(config)
  fitted = lambda start: machinery.fitted(phases(whole, None, mesh, start), auto, {})
  made = fitted(0)
  policies = list(stack.REMAT)[: list(stack.REMAT).index(enough) + 1]
  assert made.run.config.run.remat == enough
  assert [p.config.run.accumulation for p in made.run.phases] == [1, 2, 1], 'as they were'
  assert len(capsys.readouterr().out.splitlines()) == len(seen)
  assert seen == [(index, policy) for policy in policies for index in (0, 1)] + [(2, enough)]
  enough = 'none at all'
  with pytest.raises(
    errors.UserError, match='no room .*=2 and run.remat=full it needs too much'
  ) as e:
    fitted(0)
  assert 'Take run.accumulation=auto, more devices' in str(e.value)
  enough = policies[-1]
  seen.clear()
  assert len(fitted(18).phase_runs) == 1 and {index for index, _ in seen} == {2}, 'what is left'
  assert machinery.fitted(made, whole.config, {}) is made, 'a policy was asked for'


@pytest.mark.parametrize('error', ['RESOURCE_EXHAUSTED: Ran out of memory in hbm', 'INTERNAL: no'])
def test_a_program_without_room_does_not_fit_and_other_errors_are_raised(monkeypatch, error):
  def compile():
    raise jax.errors.JaxRuntimeError(error)

  peak = lambda: machinery.peak(types.SimpleNamespace(compiled=compile))
  if error.startswith('RESOURCE'):
    assert peak() == math.inf
  else:
    with pytest.raises(jax.errors.JaxRuntimeError, match='INTERNAL'):
      peak()


def built(phases=((9, {}), (9, {'run.accumulation': 4}), (9, {'batch_size': 32})), over=1):
  """A run with run.accumulation=auto."""
  config = asked.config(phases=phases, run__accumulation='auto')
  run = resolve.run(config)
  text = readiness.text(readiness.Findings(), run, None, 1)
  return build.phases(run, text.data, sharding.mesh((over, 1, 1), jax.devices()[:over]), 0)


def numbers(made):
  return [p.phase.config.run.accumulation for p in made.phase_runs]


def test_auto_is_the_fewest_microbatches_of_each_phase_that_fit_and_a_resume_keeps_them(
  monkeypatch, capsys
):
  run, seen = built(), []

  def peak(phase_run):  # 1 MB of the state, and 1 MB per row of a microbatch
    seen.append(number := phase_run.phase.config.run.accumulation)
    return 1e6 + 1e6 * phase_run.rows / number / phase_run.mesh.size

  def fitted(limit, run, kept=None):
    seen.clear()
    monkeypatch.setattr(machinery, '_limit', lambda mesh: limit)
    made = machinery.fitted(run, run.run.config, kept or {})
    assert numbers(made) == [
      p.config.run.accumulation for p in configuration.phases(made.run.config)
    ]
    assert made.run.config.run.accumulation == 'auto'
    said = [x for x in capsys.readouterr().out.splitlines(True) if 'compiling with' not in x]
    return numbers(made), {'phases': made.run.config.phases}, ''.join(said)

  monkeypatch.setattr(machinery, 'peak', peak)
  monkeypatch.setattr(check, 'per_device', lambda tree: 1_000_000)
  assert fitted(1e9, run)[0] == [1, 4, 1] and seen == [1, 1]
  found, kept, said = fitted(3.1e6, run)
  assert found == [4, 4, 16] and seen == [1, 4, 1, 16], 'those between need too much in any case'
  assert said == (
    'run.accumulation=auto: 4 in phase 0 (0.003 GB of the 0.0031 GB per device; with 1 it needs '
    '0.009 GB)\n'
    'run.accumulation=auto: 16 in phase 2 (0.003 GB of the 0.0031 GB per device; with 1 it needs '
    '0.033 GB)\n'
  )
  found, _, said = fitted(1e9, run, kept)
  assert found == [4, 4, 16] and seen == [4, 16] and said.count(', as before (') == 2
  found, _, said = fitted(2.1e6, run, kept)
  assert found == [8, 4, 32] and seen == [4, 8, 16, 32] and '; with 16 it needs 0.003' in said
  assert fitted(3.1e6, built(over=4), kept)[0] == [1, 4, 4], 'a phase of two rows per device'
  with pytest.raises(
    errors.UserError, match='no room .* with run.accumulation=8 .* needs 0.002'
  ) as e:
    fitted(1.9e6, run)
  assert 'run.mesh' in str(e.value) and e.value.code == 2


def test_the_step_that_was_measured_is_the_step_that_runs(monkeypatch):
  monkeypatch.setattr(machinery, '_limit', lambda mesh: 1e12)
  run = built(phases=((9, {}),))
  made = machinery.fitted(run, run.run.config, {})
  [phase_run] = made.phase_runs
  [program] = phase_run.programs.values()
  sizes = program.memory_analysis()
  assert phase_run.compiled() is program and numbers(made) == [1]
  state = check.per_device(phase_run.target[0])
  assert (
    state
    < machinery.peak(phase_run)
    == state
    + sum(check.per_device(x) for x in jax.tree.leaves(phase_run.inputs()[1]))
    + sizes.temp_size_in_bytes
    + sizes.output_size_in_bytes
    - sizes.alias_size_in_bytes
  )


@pytest.mark.parametrize('platform, hosts', [('cpu', 1), ('gpu', 2), ('tpu', 1)])
def test_the_limit_is_that_of_the_device_with_the_least_memory(
  monkeypatch, tmp_path, platform, hosts
):
  device = types.SimpleNamespace(platform=platform, memory_stats=lambda: {'bytes_limit': 8e9})
  mesh = types.SimpleNamespace(local_devices=[device, device], devices=np.array([device]))
  (tmp_path / 'meminfo').write_text('MemTotal:  9000 kB\nMemAvailable:  2000 kB\n')
  monkeypatch.setattr(check, '_HOST', tmp_path / 'meminfo')
  monkeypatch.setattr(machinery.jax, 'process_count', lambda: hosts)
  gather = types.SimpleNamespace(process_allgather=lambda x: np.array([x, 6e9]))
  monkeypatch.setattr(machinery, 'multihost_utils', gather)
  expected = {'cpu': 1024 * 2000 / 2, 'gpu': 6e9, 'tpu': math.inf}[platform]
  assert machinery._limit(mesh) == pytest.approx(machinery._SHARE * expected)
  (tmp_path / 'meminfo').write_text('MemTotal:  9000 kB\n')  # an old system
  assert machinery._limit(mesh) > 0


def test_a_workdir_records_the_values_of_auto_and_a_resumed_run_keeps_them(
  world, tmp_path, capsys, monkeypatch
):
  runs.on_one_device(monkeypatch)
  runs.kill_at_once(monkeypatch)

  def run(**changes):
    with pytest.raises(RuntimeError, match='killed'):
      pretrain(runs.config(world, **changes), str(tmp_path), corpus=str(world / 'corpus'))
    written = json.loads((tmp_path / 'config.json').read_text())['run']
    line = ' · '.join(f'{field} {written[field]}' for field in machinery.FIELDS)
    assert f'machinery {line}\n' in capsys.readouterr().out
    return tuple(written[field] for field in ('kernels', 'unroll', 'remat'))

  assert run(**{'run.unroll': 2, 'run.remat': 'full'}) == ('xla', 2, 'full'), 'explicit values win'
  assert run() == ('xla', 2, 'full'), 'and are kept'
  monkeypatch.setattr(machinery, 'peak', lambda p: 8e9 / p.phase.config.run.accumulation)
  for limit in (2.1e9, 1e12):
    monkeypatch.setattr(machinery, '_limit', lambda mesh, limit=limit: limit)
    assert run(**{'run.accumulation': 'auto'}) == ('xla', 2, 'full')
    phases = json.loads((tmp_path / 'config.json').read_text())['phases']
    assert [more['run.accumulation'] for _, more in phases] == [4, 2], 'a phase has its own'
  attempts = tmp_path / 'attempts.jsonl'
  attempts.write_text(attempts.read_text().replace('cpu"', 'TPU v4"'))
  assert run() == ('xla', 1, 'none'), 'on other devices'


def test_a_program_without_room_ends_a_run_with_the_number_of_microbatches_to_try(
  world, tmp_path, monkeypatch
):
  def compiled(*_):
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory')

  runs.on_one_device(monkeypatch)
  monkeypatch.setattr(phase_runs.PhaseRun, 'compiled', compiled)
  start = lambda: pretrain(runs.config(world), str(tmp_path), corpus=str(world / 'corpus'))
  refused('not enough memory .*Try run.accumulation=2', start, kind=errors.Stopped)
