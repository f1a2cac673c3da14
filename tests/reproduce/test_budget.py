import importlib
import types

import pytest
import small_table

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.configs.tables import paper
from bertzoo_jax.reproduce import budget
from bertzoo_jax.reproduce import cost
from bertzoo_jax.reproduce import curves
from bertzoo_jax.reproduce import page
from bertzoo_jax.reproduce import plan
from bertzoo_jax.reproduce import rows as command


def test_one_process_chooses_k_by_hours_and_the_other_takes_it(tmp_path, monkeypatch):
  timed = []

  def warmed_up(*args):
    timed.append(args)
    return 36_000.0

  monkeypatch.setattr(command.budget, 'warmed_up', warmed_up)
  config = small_table.get_config('budget').lock()
  jobs = plan.jobs(config, str(tmp_path))
  divided = lambda hours: command._divided(config, jobs, {}, str(tmp_path), hours, None, print)
  ks = [divided(hours).table.tokens_divided_by for hours in (1.0, 2.0)]
  assert ks == [pytest.approx(10 / 0.9)] * 2 and len(timed) == 1


def test_the_curves_count_the_flops_of_each_phase():
  config = small_table.get_config()
  one = config.rows.whole.experiment
  one.phases, one.run.eval_every = ((10, {'length': 8}), (10, {})), 5
  short, long = budget.work(one.lock())
  spent = curves._spent(one)
  assert short < 0.52 * long
  whole = short + long
  shares = [0, short / 2 / whole, short / whole, 1 - long / 2 / whole, 1]
  assert [spent(step) for step in (0, 5, 10, 15, 20)] == pytest.approx(shares)


def test_a_budget_divides_tokens_and_keeps_the_shape_of_the_schedule():
  rows = (paper.row('one', 1.0), paper.row('two', 2.0, fields={'masking.rate': 0.3}))
  made = dict(paper='p', name='n', title='t', system='bert:base', varies={'masking.rate': '§1'})
  columns = (paper.held_out('MLM', 'mlm_accuracy'),)
  config = paper.table('budget,k=16', columns=columns, rows=rows, **made).lock()
  before, after = config.rows.one.experiment, budget.divided(config, 16.0).rows.one.experiment
  assert budget.tokens(after) == pytest.approx(budget.tokens(before) / 16, rel=0.01)
  assert after.batch_size == before.batch_size // 4
  assert after.schedule.learning_rate == pytest.approx(before.schedule.learning_rate / 2)
  share = lambda e: e.schedule.warmup / sum(n for n, _ in e.phases)
  assert share(after) == pytest.approx(share(before), rel=0.02)
  assert [length for _, length in after.phases] == [length for _, length in before.phases]
  rows = {k: budget.divided(config, k).rows.one.experiment.batch_size for k in (3.0, 50.0, 2e3)}
  assert rows == {3.0: 160, 50.0: 32, 2e3: 4}  # which a slice can share; 148, 36 and 6 it cannot


def test_a_budget_divides_each_phase_by_its_own_rows():
  config = small_table.get_config('budget,k=4')
  one = config.rows.whole.experiment
  one.batch_size, one.batch_tokens, one.length = 0, 64 * 128, 128
  one.run.accumulation = 2
  one.phases = ((40, {'length': 64}), (20, {}), (10, {'batch_size': 256, 'run.accumulation': 8}))
  after = budget.divided(config.lock(), 4.0).rows.whole.experiment
  sizes = [(p.steps, p.config.batch_size, p.config.length) for p in configuration.phases(after)]
  assert sizes == [(20, 64, 64), (10, 32, 128), (5, 128, 128)]
  assert [p.config.run.accumulation for p in configuration.phases(after)] == [1, 1, 4]
  with config.unlocked(), one.ignore_type():
    one.run.accumulation = 'auto'
  after = budget.divided(config.lock(), 4.0).rows.whole.experiment
  assert [p.config.run.accumulation for p in configuration.phases(after)] == ['auto', 'auto', 4]
  one = budget.divided(config, 1.0).rows.whole.experiment
  sizes = [(p.steps, p.config.batch_size, p.config.length) for p in configuration.phases(one)]
  assert sizes == [(40, 128, 64), (20, 64, 128), (10, 256, 128)]


def test_the_few_rows_of_a_warm_up_divide_into_its_microbatches(monkeypatch, tmp_path):
  seen = []
  monkeypatch.setattr(budget.pretrain, 'pretrain', lambda one, *_, **how: seen.append(one))
  monkeypatch.setattr(budget.metrics, 'read', lambda folder: [{'tokens_per_second': 9.0}])
  one = small_table.get_config('budget,k=4').rows.whole.experiment.copy_and_resolve_references()
  with one.unlocked():
    one.phases = ((40, {'batch_size': 144, 'run.accumulation': 3, 'length': 64}),)
  budget._timed(types.SimpleNamespace(experiment=one, name='whole'), None, tmp_path)
  [phase] = configuration.phases(seen[0])
  asked = phase.config.batch_size, phase.config.run.accumulation, phase.config.length
  assert asked == (8, 1, 64)


def test_a_row_whose_time_is_not_known_is_named_in_the_sum_and_refused_for_hours():
  large = cost.Line('large', 2, False, 'It needs 40 GiB of 30.8 GiB.', None, None)
  found = [cost.Line('small', 2, True, '', 1.5, 30.0), large]
  assert cost.table(found, 'v4-8', 4).endswith('1.50 days  $30, without large')
  with pytest.raises(errors.UserError, match=r'large takes on v4-8 .* 40 GiB'):
    cost.seconds(found, 'v4-8')
  assert cost.seconds(found[:1], 'v4-8') == 1.5 * 86400


def test_equal_programs_are_compiled_once(monkeypatch):
  compiled, days = [], types.SimpleNamespace(days=1.0, dollars=2.0)

  def preflight(asked, *_):
    compiled.append(asked.config.format.pairs)
    return types.SimpleNamespace(fits=True, run=days)

  monkeypatch.setattr(cost.verdict, 'preflight', preflight)
  config = importlib.import_module('configs.tables.albert_table5').get_config('tiny').lock()
  found = cost.lines(plan.jobs(config, '/nowhere'), 'v4-8', say=lambda line: None)
  assert [line.row for line in found] == list(config.table.rows)
  assert compiled == ['none', 'nsp']


def test_rows_that_differ_in_their_text_alone_are_run_once_and_a_budget_without_k_has_no_price(
  tmp_path,
):
  config = small_table.get_config()
  config.rows.deeper.experiment = config.rows.whole.experiment
  config.rows.deeper.init = ''
  jobs = plan.jobs(config.lock(), str(tmp_path))
  assert plan.alike(jobs) == {'deeper': 'whole'}
  assert plan.alike(plan.jobs(config, str(tmp_path), ['deeper'])) == {}
  config = small_table.get_config('budget').lock()
  with pytest.raises(errors.UserError, match='give --config FILE.py:budget,k=K'):
    command.preflight(config, str(tmp_path))


def shown(config):
  return page.markdown(page.collected(config.lock(), '/nowhere'))


def test_a_budget_of_steps_trains_tiny_networks_longer_and_keeps_the_share_of_each_row():
  tiny, longer = (small_table.get_config(scale) for scale in ('tiny', 'budget,steps=4000'))
  assert longer.table.scale == 'budget' and longer.table.tokens_divided_by == 1
  assert longer.rows.whole.experiment.encoder == tiny.rows.whole.experiment.encoder
  assert [steps for steps, _ in longer.rows.whole.experiment.phases] == [4000]
  assert 'size tiny, 4,000 steps' in shown(longer)
  electra = importlib.import_module('configs.tables.electra_table1').get_config
  tiny, longer = electra('tiny'), electra('budget,steps=600')
  assert longer.columns.cola.task.steps == 300 and longer.columns.cola.task.seeds == (0, 1, 2)
  steps = lambda row: sum(n for n, _ in row.experiment.phases)
  for name, row in tiny.rows.items():
    assert row.experiment is None or steps(longer.rows[name]) == 3 * steps(row)


def test_a_part_behind_the_scale_is_swapped_in_every_row_of_the_tiny_size():
  config = small_table.get_config('budget,steps=40,encoder=disentangled')
  encoders = [row.experiment.encoder for row in config.rows.values() if row.experiment]
  assert [e.name for e in encoders if e.num_layers == 1] == ['disentangled'] * 2
  assert 'Every row has encoder=disentangled.' in shown(config)
  with pytest.raises(ValueError, match='no encoder is called'):
    small_table.get_config('tiny,encoder=dissentangled')


def test_a_wrong_scale_is_refused():
  for scale in 'tinny budget,k=0 paper,k=2 budget,n=3 budget,steps=0 budget,k=2,steps=9'.split():
    with pytest.raises(ValueError, match='scale'):
      small_table.get_config(scale)
