"""The command `reproduce` on a table of seconds."""

import contextlib
import importlib
import importlib.util
import json
import pathlib
import re
import shutil
import signal
import types

import jax
import pytest
import small_table

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.configs.tables import paper
from bertzoo_jax.finetune import jobs as running
from bertzoo_jax.reproduce import budget
from bertzoo_jax.reproduce import cost
from bertzoo_jax.reproduce import curves
from bertzoo_jax.reproduce import page
from bertzoo_jax.reproduce import plan
from bertzoo_jax.reproduce import rows as command
from tests import commands

ROOT = pathlib.Path(__file__).parents[2]
SAMPLE = str(ROOT / 'data' / 'sample')


def run(workdir, config=None, **kw):
  """On one device, for which its programs compile sooner."""
  said, devices = [], jax.devices()[:1]
  config = config or small_table.get_config().lock()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, 'devices', lambda *_: devices)
    done = command.reproduce(config, str(workdir), say=said.append, **{'task_dir': SAMPLE, **kw})
  return done, '\n'.join(said)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """(workdir, output) of a table that was run at once."""
  workdir = tmp_path_factory.mktemp('table') / 'R'
  done, said = run(workdir)
  assert done
  return workdir, said


def table(workdir):
  return json.loads((workdir / 'table.json').read_text())


def cells(workdir, row):
  [made] = [r for r in table(workdir)['rows'] if r['row'] == row]
  return {cell['column']: cell for cell in made['cells']}


def begun(workdir, row):
  """The first attempt of a row's pretraining."""
  attempts = workdir / f'rows/{row}/seed=0/pretrain/attempts.jsonl'
  return json.loads(attempts.read_text().splitlines()[0])


def test_a_table_has_the_papers_numbers_beside_ours(finished):
  whole, deeper = cells(finished[0], 'whole'), cells(finished[0], 'deeper')
  assert whole['mlm']['paper'] == [50.0] and 0 <= whole['mlm']['ours'][0] <= 100
  assert whole['ppl']['ours'][0] > 1 and whole['params']['ours'][0] > 0
  assert len(whole['books']['ours']) == 2 and whole['books']['paper'] == [80.1, 79.0]
  mean = (whole['mlm']['ours'][0] + sum(whole['books']['ours']) / 2) / 2
  assert whole['avg']['ours'][0] == pytest.approx(mean, abs=1e-3)
  assert whole['coreference']['why'] == 'not supported: a scorer of antecedents'
  assert deeper['mlm']['mark'] == 'mem' and deeper['params']['paper'] == []
  # a tiny run is set beside nothing
  assert all(not cell['deltas'] for cell in [*whole.values(), *deeper.values()])
  text = (finished[0] / 'table.md').read_text()
  assert 'TINY' in text and '(51.0 [mem])' in text and 'figure →' in text
  assert re.search(r'\| whole .*\| 1 \* +\| 6 +\|$', text, re.M)
  assert '* fewer than three seeds' in text and '* theirs: Of another paper.' in text
  assert re.search(r'\| theirs +\| 52.0 → not run ', text)


def test_a_table_says_how_its_tasks_were_fine_tuned_and_a_row_begins_with_anothers_weights(
  finished,
):
  books = cells(finished[0], 'whole')['books']
  low, high = books['task_spread']
  assert books['task_seeds'] == 2 and low <= books['ours'][0] <= high
  text = (finished[0] / 'table.md').read_text()
  assert '* Seeds of fine-tuning, whose median counts: 2 for books' in text
  assert re.search(r'^Run on \d+ × cpu; commits: \w+.*\.$', text, re.M)
  assert 'title="2 seeds of fine-tuning: ' in (finished[0] / 'table.html').read_text()
  assert begun(finished[0], 'deeper')['init'] == str(finished[0] / 'rows/whole/seed=0/pretrain')


def test_a_finished_row_is_fine_tuned_when_the_files_of_a_task_come_later(tmp_path):
  workdir, nowhere = tmp_path / 'R', tmp_path / 'nowhere'
  nowhere.mkdir()
  done, said = run(workdir, rows=['whole'], task_dir=str(nowhere))
  assert done and said.count('books is not run.') == 1
  assert cells(workdir, 'whole')['books']['why'] == 'not run: no files'
  done, said = run(workdir, rows=['whole'])
  assert done and 'whole, seed 0: the files of books are new' in said
  assert '1 run, 0 finished' in said and len(cells(workdir, 'whole')['books']['ours']) == 2
  assert '1 run, 1 finished' in run(workdir, rows=['whole'])[1]


def test_the_page_needs_nothing_else_and_has_the_curves_of_all_rows(finished):
  text = (finished[0] / 'table.html').read_text()
  assert not re.search(r'(src|href)="(?!#)|<script|@import', text)
  drawn = (finished[0] / 'curves.svg').read_text()
  assert text.count('<svg') == 1 and drawn in text
  assert all(name in drawn for name in ('>whole<', '>deeper<', '>steps<', '>train FLOPs<'))
  assert 'not supported' in text and 'tiny run' in text and '<th>Δ' not in text


def test_the_same_line_runs_nothing_again_and_another_table_is_refused(finished):
  before = {p: p.stat().st_mtime_ns for p in finished[0].rglob('scores.json')}
  done, said = run(finished[0])
  assert done and 'pretraining in' not in said and len(before) == 2
  assert before == {p: p.stat().st_mtime_ns for p in finished[0].rglob('scores.json')}
  changed = small_table.get_config()
  changed.rows.deeper.experiment.masking.rate = 0.4
  with pytest.raises(errors.UserError, match='rows.deeper.experiment.masking.rate'):
    run(finished[0], changed.lock())


def test_seeds_may_be_added_to_a_workdir(tmp_path):
  config = small_table.get_config()
  plan.check_same(config.lock(), str(tmp_path))
  config.unlock().seeds = (1, 2)
  assert plan.check_same(config.lock(), str(tmp_path)).seeds == (0, 1, 2)
  assert json.loads((tmp_path / plan.TABLE).read_text())['seeds'] == [0, 1, 2]
  config.unlock().columns.books.task.seeds = (0,)
  with pytest.raises(errors.UserError, match=re.escape('config.columns.books.task.seeds differs')):
    plan.check_same(config.lock(), str(tmp_path))


def test_a_row_that_diverges_has_no_scores_and_the_others_go_on(tmp_path):
  workdir, config = tmp_path / 'R', small_table.get_config()
  with config.rows.whole.experiment.unlocked() as one:
    one.schedule.learning_rate = 1e30
  config.rows.theirs = config.rows.whole.copy_and_resolve_references()
  config.rows.theirs.experiment.schedule.learning_rate = 1e-3
  done, said = run(workdir, config.lock())
  assert done and 'whole, seed 0 diverged.' in said and 'deeper, seed 0 is not run' in said
  whole, deeper, other = table(workdir)['rows']
  assert whole['diverged'] == deeper['diverged'] == 1 and other['seeds'] == 1
  assert cells(workdir, 'whole')['mlm']['why'].startswith('diverged: ')
  assert cells(workdir, 'deeper')['mlm']['why'] == 'diverged: whole'
  text = (workdir / 'table.md').read_text()
  assert re.search(r'\| whole +\| 50.0 → diverged .*\| 0, 1 diverged \| – ', text)
  assert 'pretraining in' not in run(workdir, config)[1]  # the same line meets it no more


def test_a_task_begins_with_the_best_run_of_the_task_that_its_recipe_names(tmp_path):
  config = small_table.get_config()
  first = config.columns.books
  second = first.copy_and_resolve_references()
  first.task.name, second.task.name, first.begins = 'first', 'second', 'after'
  config.columns.after = second
  config.table.columns = (*config.table.columns, 'after')
  for task in ('first', 'second'):
    (tmp_path / task).mkdir()
    shutil.copy(f'{SAMPLE}/two_books.tsv', tmp_path / task)
  workdir = tmp_path / 'R'
  done, said = run(workdir, config.lock(), rows=['whole'], task_dir=str(tmp_path))
  assert done and said.index('tasks/after') < said.index('tasks/books')
  records = workdir.glob('rows/whole/seed=0/tasks/books/first/*/config.json')
  [address] = {json.loads(record.read_text())['init'] for record in records}
  assert re.search(r'rows/whole/seed=0/tasks/after/second/seed=\d@4$', address)


def test_a_recipe_names_the_column_that_a_task_begins_with():
  config = importlib.import_module('configs.tables.deberta_sift').get_config('paper')
  begins = {name: column.begins for name, column in config.columns.items() if 'begins' in column}
  assert begins == {'rte': 'mnli_m_mm', 'rte_sift': 'mnli_m_mm_sift'}


def test_a_process_that_waits_names_the_owner_once(tmp_path, monkeypatch):
  monkeypatch.setattr(running, '_WAIT', 0.01)
  tries, said = iter([errors.TransientError(f'in use by {n}') for n in (1, 1, 1, 2)]), []

  @contextlib.contextmanager
  def hold(folder):
    if (refused := next(tries, None)) is not None:
      raise refused
    yield

  monkeypatch.setattr(running.lock, 'hold', hold)
  with running.holding(tmp_path / 'text', said.append):
    assert said == ['in use by 1', 'in use by 2']


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


def start(workdir, independent=False):
  """Runs the small table in a process. independent: with a third row that needs no other."""
  code = f"""
import small_table
from bertzoo_jax.reproduce import rows as command
config = small_table.get_config()
if {independent}:
  config.rows.theirs.experiment = config.rows.whole.experiment.copy_and_resolve_references()
  config.rows.theirs.experiment.masking.rate = 0.2
command.reproduce(config.lock(), {str(workdir)!r}, task_dir={SAMPLE!r})
"""
  places = dict(PYTHONPATH=f'{ROOT}:{ROOT / "tests"}', PYTHONUNBUFFERED='1')
  return commands.begin('-c', code, env=commands.on_one_device(**places), stderr=None)


def said_until(process, words):
  """The lines of a process up to the first with one of the words."""
  said = []
  for line in process.stdout:
    said.append(line)
    if any(word in line for word in words):
      break
  return ''.join(said)


def scores(workdir):
  """The files that must not depend on how often a run was killed."""
  rows = table(workdir)['rows']
  return [(row['title'], row['steps'], row['cells']) for row in rows]


@pytest.mark.slow
def test_one_process_finishes_the_row_that_a_killed_one_began(finished, tmp_path):
  workdir = tmp_path / 'R'
  first = start(workdir)
  said_until(first, ['step 4'])
  second = start(workdir)
  assert 'in use by process' in said_until(second, ['in use by'])
  first.send_signal(signal.SIGKILL)
  first.wait()
  second.communicate(timeout=300)
  assert second.returncode == 0
  assert scores(workdir) == scores(finished[0])


@pytest.mark.slow
def test_two_processes_share_the_rows(tmp_path):
  workdir = tmp_path / 'R'
  first = start(workdir, independent=True)
  said = [said_until(first, ['pretraining in'])]
  second = start(workdir, independent=True)
  said.append(second.communicate(timeout=900)[0])
  said[0] += first.communicate(timeout=900)[0]
  assert first.returncode == second.returncode == 0
  ran = [re.findall(r'^== (\w+), seed 0: pretraining', text, re.M) for text in said]
  assert all(ran) and sorted(ran[0] + ran[1]) == ['deeper', 'theirs', 'whole']
  assert all(row['seeds'] == 1 for row in table(workdir)['rows'])


@pytest.mark.slow
def test_a_row_begins_with_the_weights_at_an_address(finished, tmp_path):
  address = str(finished[0] / 'rows/whole/seed=0/pretrain')
  config = small_table.get_config()
  config.rows.deeper.init = address
  config.table.columns = ('params',)
  done, said = run(tmp_path / 'R', config.lock(), rows=['deeper'])
  assert done and said.count('pretraining in') == 1  # the row that it named before is not needed
  assert begun(tmp_path / 'R', 'deeper')['init'] == address


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec('libtpu'), reason='libtpu is not installed')
def test_preflight_says_what_a_table_costs(tmp_path):
  line = '--config=configs/tables/albert_table5.py:tiny --rows=None,SOP --preflight --tpu=v5e-4'
  done = commands.run(
    *('-m', 'bertzoo_jax.reproduce', *line.split(), f'--workdir={tmp_path / "R"}'),
    env=commands.environment(XLA_FLAGS=''),
  )
  assert done.returncode == 0, done.stderr
  rows = re.findall(r'^(none|sop|all) +(?:1 ×)? +[\d.]+ days', done.stdout, re.M)
  assert rows == ['none', 'sop', 'all'] and not (tmp_path / 'R').exists()


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


def test_a_row_whose_time_is_not_known_is_named_in_the_sum_and_refused_for_hours():
  found = [
    cost.Line('small', 2, True, '', 1.5, 30.0),
    cost.Line('large', 2, False, 'It needs 40 GiB of 30.8 GiB.', None, None),
  ]
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


def test_budget_shows_the_difference_of_rows_in_the_paper_and_here(finished):
  config = small_table.get_config()
  config.table.scale = 'budget'
  found = page.collected(config.lock(), str(finished[0])).rows
  ppl = [row.cells[1] for row in found]
  assert ppl[0].deltas == [] and ppl[1].deltas[0] == [-0.25]
  assert ppl[1].deltas[1][0] == pytest.approx(ppl[1].ours[0] - ppl[0].ours[0], abs=1e-3)
  assert found[1].cells[0].deltas == []  # a number from memory is compared with nothing


WORDS = 'rows.whole.experiment.tokenizer.vocab_size'


@pytest.mark.parametrize(
  'scale, changes, asked, words',
  [
    ('tiny', {'seeds': (0, 1, 0)}, {}, 'has 0 twice'),
    ('tiny', {'seeds': ()}, {}, 'names no seed'),
    ('tiny', {'seeds': ('a',)}, {}, "has 'a', which is no seed"),
    ('tiny', {'seeds': (0, -1)}, {}, 'has -1, which is no seed'),
    ('tiny', {'rows.whole.init': 'deeper'}, {}, 'The rows .* begin with the weights of each other'),
    ('tiny', {}, dict(rows=['wholee']), "Did you mean 'whole'"),
    ('tiny', {}, dict(hours=1.0), '--hours is for the scale budget'),
    ('budget,k=2', {}, dict(hours=1.0), 'without k and steps'),
    ('budget', {}, {}, 'needs --hours'),
    # a mistake names the field of the table
    ('tiny', {WORDS: 400_000}, dict(rows=['whole']), f'--config.{WORDS}='),
  ],
)
def test_a_mistake_is_one_sentence(tmp_path, scale, changes, asked, words):
  config = small_table.get_config(scale)
  for key, value in changes.items():
    paper._set(config.unlock(), key, value)
  with pytest.raises(errors.UserError, match=words) as e:
    run(tmp_path / 'R', config.lock(), **asked)
  assert '\n' not in str(e.value)
  assert not (tmp_path / 'R').exists() or WORDS in changes


@pytest.mark.parametrize('kind', [errors.UserError, errors.TransientError, errors.Diverged])
def test_a_mistake_keeps_its_kind_and_what_is_no_field_its_name(kind):
  with pytest.raises(errors.UserError) as raised, plan.naming({'length': 4}, 'whole'):
    raise kind('--config.length=4 is not that of config.json: set config.lengths.')
  words = '--config.rows.whole.experiment.length=4 is not that of config.json: set config.lengths.'
  assert raised.type is kind and str(raised.value) == words


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
