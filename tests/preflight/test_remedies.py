import json

import pytest

from bertzoo_jax.preflight import processes
from bertzoo_jax.preflight import report
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.runs import workdir as workdirs
from tests.preflight import asked


@asked.needs_libtpu
def test_each_side_of_the_limit_of_memory():
  # The state is 12 bytes a parameter (float32 and two moments), and here nearly all of it are words
  # of 1,024 numbers.
  made = dict(encoder__hidden_size=1024, phases=((50, {}),), batch_size=4, run__kernels='xla')
  wide = lambda words: asked.config(tokenizer__vocab_size=words, **made)
  fits = asked.preflight(wide(500_000), topology='v5e:2x2')
  assert fits.ready and 0.5 < fits.phases[0].program.peak / fits.slice_.chip.usable < 1.0
  state = fits.phases[0].parameters + fits.phases[0].optimizer
  assert state == pytest.approx(12 * 1024 * 500_000, rel=0.02)
  beyond = asked.preflight(wide(1_000_000), topology='v5e:2x2')
  assert not beyond.fits and asked.codes(beyond) == ['P09'] and beyond.run is None
  needed, usable = beyond.phases[0].program.peak, beyond.slice_.chip.usable
  assert needed > usable and beyond.phases[0].largest == 0, 'no batch helps'
  more = f'{(needed - usable) / chips.GIB:.2f} more than the 15.75 that v5e gives'
  assert more in beyond.findings[0].sentence
  *_, split = sorted(beyond.remedies, key=lambda r: r.fits)
  assert "--config.run.mesh='(-1, " in split.change and split.fits and split.peak < usable
  text = asked.printed(beyond)
  assert f'{split.change}: {split.peak / chips.GIB:.2f} GiB; parameters, gradients' in text
  assert 'P09' in text and '1 problem' in text
  json.dumps(report.as_dict(beyond))


@asked.needs_libtpu
def test_a_state_that_no_slice_holds_is_said_without_a_compilation(monkeypatch):
  jobs = asked.linear(monkeypatch, per_row=0)
  huge = asked.config(encoder__num_layers=1000, encoder__hidden_size=8192)
  found = asked.preflight(huge, topology='v5e:2x2')
  assert asked.codes(found) == ['P09'] and not jobs and found.remedies == []
  assert 'nothing that was tried is enough; take a larger slice' in asked.printed(found)
  json.dumps(report.as_dict(found))


@asked.needs_libtpu
def test_the_largest_batch_and_other_remedies_are_found_and_each_was_tried(monkeypatch):
  jobs = asked.linear(monkeypatch, full=0.1)
  found = asked.preflight(asked.config(batch_size=4096), topology='v5e:2x2')
  most = asked.MOST // 4 * 4
  assert found.phases[0].largest == most and len(jobs) <= 12
  slice_, remat = '--tpu=v5litepod-32', '--config.run.remat=full'
  batch = f'--config.batch_size={most}'
  assert asked.changes(found) == ['--config.run.accumulation=8', slice_, remat, batch]
  not_enough = [f'--config.run.remat={policy}' for policy in ('sublayers', 'feed_forward')]
  assert asked.changes(found, False) == not_enough
  assert all((r.peak <= found.slice_.chip.usable) == r.fits for r in found.remedies)
  text = asked.printed(found)
  assert f'accumulation=8: {1 + 512 / 64:.2f} GiB; the same update from 8 micro' in text
  assert 'not enough: --config.run.remat=sublayers (25.60 GiB), --config.run' in text


@asked.needs_libtpu
def test_auto_is_the_fewest_microbatches_that_fit_and_more_of_them_come_before_remat(monkeypatch):
  jobs = asked.linear(monkeypatch, full=0.1)
  auto = dict(run__accumulation='auto', run__remat='auto')
  phases = ((60, {}), (40, {'batch_size': 8, 'run.accumulation': 2}))
  config = asked.config(batch_size=4096, phases=phases, **auto)
  found = asked.preflight(config, topology='v5e:2x2')
  assert found.ready and found.config.run.remat == 'none'
  asked_for = [job.run.phases[0].config.run.accumulation for job in jobs if 0 in job.features]
  assert asked_for[0] == 1 and asked_for[-1] == 8 and {*asked_for} <= {1, 2, 4, 8}
  text = asked.printed(found)
  assert 'phase 0: 8 microbatches per step' in text and 'phase 1: 2 microbatches per step' in text
  assert [p['microbatches'] for p in report.as_dict(found)['phases']] == [8, 2]
  asked.linear(monkeypatch, per_row=1 << 35, full=0.1)  # a row alone has no room, but with remat
  found = asked.preflight(config, topology='v5e:2x2')
  assert found.ready and found.config.run.remat == 'full'
  asked.linear(monkeypatch, per_row=1 << 40)
  found = asked.preflight(config, topology='v5e:2x2')
  assert 'P09' in asked.codes(found) and not any(r.fits for r in found.remedies)
  json.dumps(report.as_dict(found))


@asked.needs_libtpu
def test_auto_is_said_and_takes_the_first_remat_that_fits(monkeypatch, tmp_path):
  asked.linear(monkeypatch, feed_forward=0.1, full=0.05)
  auto = dict(run__remat='auto', encoder__num_layers=2, phases=((20_000, {}),))
  found = asked.preflight(asked.config(batch_size=4096, **auto), topology='v5e:2x2')
  assert found.ready and found.config.run.remat == 'feed_forward'
  chosen = 'run.kernels fused · run.unroll 0 · run.remat feed_forward · run.dtype bfloat16\n'
  assert chosen in asked.printed(found)
  found = asked.preflight(asked.config(**auto), topology='v5e:2x2')
  machinery = dict(kernels='fused', unroll=0, remat='none', dtype='bfloat16')
  assert report.as_dict(found)['machinery'] == machinery
  workdirs.describe(tmp_path, asked.config(**auto, run__unroll=2), {'hash': ''}, lambda _: None)
  start = dict(start_step=0, devices='4 × TPU v5 lite', init=None)
  workdirs.add_attempt(tmp_path, corpus_hash='', **start)
  found = asked.preflight(asked.config(**auto), topology='v5e:2x2', workdir=str(tmp_path))
  assert found.ready and found.config.run.unroll == 2, 'as the run in the workdir goes on'


@asked.needs_libtpu
@pytest.mark.parametrize(
  'less, least, most',
  [(1 << 28, 880, 928), (15 << 30, 0, 0)],
  ids=['the line promises too much', 'none fits'],
)
def test_the_largest_batch_is_one_that_was_seen_to_fit(monkeypatch, less, least, most):
  jobs = asked.linear(monkeypatch, usable=chips.CHIPS['v5e'].usable - less)
  found = asked.preflight(asked.config(batch_size=4096), topology='v5e:2x2')
  assert least <= found.phases[0].largest <= most
  assert found.phases[0].largest in (0, *asked.rows_of(jobs))


@asked.needs_libtpu
def test_ctrl_c_ends_the_search_and_its_results_stand(monkeypatch):
  asked.linear(monkeypatch)
  line, messages, turns = processes.compiled, [], []

  def found(compiled):
    def interrupted(jobs, **options):
      turns.append(len(jobs))
      if len(turns) > compiled:
        raise KeyboardInterrupt
      return line(jobs, **options)

    turns.clear()
    monkeypatch.setattr(processes, 'compiled', interrupted)
    return asked.preflight(asked.config(batch_size=4096), topology='v5e:2x2', say=messages.append)

  nothing = found(1)
  assert asked.codes(nothing) == ['P09'] and nothing.remedies == []
  assert nothing.phases[0].largest == 0
  assert any('phase 0 does not fit (' in line for line in messages)
  assert asked.changes(found(5))[0] == '--config.run.accumulation=8'
  turns.clear()
  quiet = asked.preflight(asked.config(batch_size=4096), topology='v5e:2x2', largest=False)
  assert quiet.phases[0].largest is None and quiet.remedies is None and len(turns) == 1


@asked.needs_libtpu
def test_only_the_phase_that_needs_most_is_mended(monkeypatch):
  jobs, messages = asked.linear(monkeypatch), []
  own = {'batch_tokens': 4096 * 64, 'run.accumulation': 2}
  phases = ((60, {'batch_size': 3072}), (40, own))
  found = asked.preflight(asked.config(phases=phases), topology='v5e:2x2', say=messages.append)
  assert asked.codes(found) == ['P09', 'P09']
  assert [p.largest is None for p in found.phases] == [False, True]
  found = asked.preflight(asked.config(phases=((60, {}), (40, own))), topology='v5e:2x2')
  assert [(p.rows, p.program.fits) for p in found.phases] == [(8, True), (4096, False)]
  most = found.phases[1].largest
  assert most == 2 * asked.MOST // 8 * 8 and {min(j.features) for j in jobs[-6:]} == {1}
  assert 'run.accumulation=8 in phase 1 of the config' in asked.changes(found)
  assert f'batch_tokens={most * 64} in phase 1 of the config' in asked.changes(found)


ALL = '--config.run.remat=full --config.run.dtype=bfloat16'
SPLIT = dict(batch_size=4, run__mesh=(4, 1, 1), run__dtype='float32')


@asked.needs_libtpu
@pytest.mark.parametrize(
  'made, per_row, less, fits',
  [  # one is enough, and all together
    (dict(batch_size=1 << 15), 1 << 24, dict(full=0.1), '--config.run.accumulation=64'),
    (SPLIT, 8 << 30, dict(full=0.5, bfloat16=0.5), ALL),
  ],
)
def test_changes_that_are_not_enough_alone_are_tried_together(
  monkeypatch, made, per_row, less, fits
):
  asked.linear(monkeypatch, per_row=per_row, **less)
  found = asked.preflight(asked.config(**made), topology='v5e:2x2')
  assert asked.changes(found)[:1] == [fits]
  assert 'not enough: --config.run.remat=sublayers' in asked.printed(found)


@asked.needs_libtpu
def test_no_larger_slice_is_tried_for_a_mesh_that_would_not_grow_with_it(monkeypatch):
  asked.linear(monkeypatch)
  made = asked.config(batch_size=1024, run__mesh=(1, 4, 1))
  tried = asked.preflight(made, topology='v5e:2x2').remedies
  assert not any('--tpu' in r.change for r in tried)
  assert any('exchanged in each' in r.note for r in tried)
