"""Runs the rows of a table of a paper, and writes it."""

import pathlib

from bertzoo_jax import prepare
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.finetune import jobs
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.reproduce import budget
from bertzoo_jax.reproduce import cost
from bertzoo_jax.reproduce import page
from bertzoo_jax.reproduce import plan
from bertzoo_jax.reproduce import work
from bertzoo_jax.runs import lock
from bertzoo_jax.runs import workdir as workdirs

_SAMPLE = pathlib.Path(__file__).parents[2] / 'data' / 'sample'


def reproduce(
  config, workdir, *, source=(), task_dir='.', rows=(), hours=None, tpu=None, say=print
) -> bool:
  """Runs the missing rows of a table, and writes it; False if it was asked to stop.

  Args:
    config: config of a table (configs/tables/).
    workdir: folder of all rows; one that holds rows of this table is resumed.
    source: text of all rows, as prepare takes it; () for the sample.
    task_dir: folder of the tasks' files.
    rows: titles or names of rows; () for all.
    hours: on this machine, or on `tpu`, from which the scale `budget` computes the tokens; None if
      the config sets them.
    tpu: accelerator type on which `hours` are spent; None for this machine.
    say: prints a line.

  Raises UserError: anything that does not fit. TransientError and Stopped: see pretrain.
  """
  plan.check(config)
  _check_hours(config, hours, workdir)
  workdirs.check_unlike(workdir, ('manifest.json', 'a corpus'), ('config.json', 'a run'))
  asked = plan.jobs(config, workdir, rows)
  left_out = plan.alike(asked)
  for row, earlier in left_out.items():
    say(
      f'{config.rows[row].title} differs from {config.rows[earlier].title} only in its text: it is '
      f'left out. Run it with --rows {row}, its --source and another --workdir.'
    )
  asked = [job for job in asked if job.name not in left_out]
  texts = _texts(asked, config, workdir, source, say)
  config = _divided(config, asked, texts, workdir, hours, tpu, say)
  asked = [job for job in plan.jobs(config, workdir, rows) if job.name not in left_out]
  shown = plan.check_same(config, workdir)
  for sentence in work.absent(config, task_dir):
    say(sentence)
  for job in asked:
    if job.done and (late := work.late(job, config, task_dir)):
      say(f'{job.title}: the files of {", ".join(late)} are new')
      with jobs.holding(job.folder, say):
        if job.done and work.late(job, config, task_dir):  # no other process has run them
          (job.folder / job.record).unlink()
  left = [job for job in asked if not job.done]
  say(f'{len(asked)} {"run" if len(asked) == 1 else "runs"}, {len(asked) - len(left)} finished')
  page.write(shown, workdir)

  def held(job):
    job.folder.mkdir(parents=True, exist_ok=True)
    return lock.hold(job.folder)

  def do(job, _):
    if not job.done:  # no other process has run it
      if work.run(job, config, texts[plan.text_of(job.experiment)], task_dir, say) is None:
        say('stopped: run the same command to resume')
        return False
      page.write(shown, workdir)
    return True

  if not jobs.run(left, do, held=held, say=say):
    return False
  text = page.markdown(page.write(shown, workdir))
  say(f'\n{text}\n{storage.path(workdir) / page.HTML} has curves, too')
  return True


def preflight(config, workdir, *, rows=(), tpu=None, price=None, say=print) -> str:
  """The cost of pretraining all rows on a slice, as text; nothing is run.

  Arguments and errors: see `reproduce`. The workdir need not exist. tpu: None for that of the
  config. price: dollars per chip and hour; None for that of preflight.
  """
  plan.check(config)
  tpu = tpu or config.table.topology
  if config.table.scale == 'budget':
    k = config.table.tokens_divided_by or plan.recorded(workdir)
    if not k:
      raise errors.UserError(
        'The scale budget needs the number by which tokens are divided: give '
        '--config FILE.py:budget,k=K or FILE.py:budget,steps=N with --preflight.'
      )
    config = budget.divided(config, k)
  asked, slice_ = plan.jobs(config, workdir, rows), chips.by_type(tpu)
  return cost.table(cost.lines(asked, tpu, price, say), tpu, slice_.devices)


def _check_hours(config, hours, workdir):
  """Raises UserError unless the scale, --hours and the workdir say one k."""
  t = config.table
  if hours is None:
    if not t.tokens_divided_by and not plan.recorded(workdir):
      raise errors.UserError(
        'The scale budget needs --hours H, or FILE.py:budget,k=K, or FILE.py:budget,steps=N.'
      )
    return
  if t.scale != 'budget':
    raise errors.UserError(
      f'--hours is for the scale budget, and this one is {t.scale}: give FILE.py:budget.'
    )
  if t.tokens_divided_by:
    raise errors.UserError('--hours chooses k: give FILE.py:budget without k and steps.')


def _divided(config, asked, texts, workdir, hours, tpu, say):
  """The table with its tokens divided: by the config's k, by that of the workdir, or by hours. One
  process chooses k by hours, and the others that share the workdir wait for it.
  """
  if config.table.scale != 'budget':
    return config
  if k := config.table.tokens_divided_by or plan.recorded(workdir):
    return budget.divided(config, k)
  with jobs.holding(storage.path(workdir) / 'hours', say):
    if k := plan.recorded(workdir):
      return budget.divided(config, k)
    if tpu is None:
      seconds = budget.warmed_up(asked, texts, workdir, say)
    else:
      seconds = cost.seconds(cost.lines(asked, tpu, say=say), tpu)
    k = budget.chosen(seconds, hours)
    say(
      f'All rows as published would take {seconds / 3600:,.1f} hours on {tpu or "this machine"}: '
      f'the tokens are divided by k={k:.4g}.'
    )
    divided = budget.divided(config, k)
    plan.check_same(divided, workdir)
    return divided


def _texts(asked, config, workdir, source, say) -> dict[str, str]:
  """{plan.text_of: folder of the corpus}; prepares missing ones."""
  source = list(source) or [str(_SAMPLE / name) for name in config.table.sample]
  if not source:
    raise errors.UserError(
      f'The scale {config.table.scale} has no text of its own: give --source FILE, as prepare '
      'takes it.'
    )
  out = {}
  for job in asked:
    name = plan.text_of(job.experiment)
    if name in out:
      continue
    folder = storage.path(workdir) / 'text' / name
    out[name] = str(folder / 'corpus')
    manifest = folder / 'corpus' / 'manifest.json'
    if manifest.exists():
      continue
    with jobs.holding(folder, say):
      if not manifest.exists():
        say(f'== text for {config.rows[job.name].title} in {out[name]}')
        with plan.naming(job.experiment, job.name):
          prepare.prepare(job.experiment, source, out[name], say=say)
  return out
