"""The runs of a table."""

import contextlib
import hashlib
import json
import re

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.finetune import jobs as running

FIELDS = ('table', 'columns', 'rows', 'seeds', 'varies')
SCORES = 'scores.json'
TABLE = 'config.table.json'


def check(config) -> None:
  """Raises UserError unless the config is a table with distinct whole numbers as seeds."""
  if lacking := [field for field in FIELDS if field not in config]:
    raise errors.UserError(
      f'The config is no table (it lacks {lacking[0]!r}): give a file of configs/tables/.'
    )
  remedy = 'give whole numbers, one for each pretraining: --config.seeds=0,1,2.'
  if not isinstance(config.seeds, (tuple, list)) or not config.seeds:
    raise errors.UserError(f'config.seeds={config.seeds!r} names no seed: {remedy}')
  for seed in config.seeds:
    if type(seed) is not int or not 0 <= seed < 2**32:
      raise errors.UserError(f'config.seeds has {seed!r}, which is no seed: {remedy}')
    if list(config.seeds).count(seed) > 1:
      raise errors.UserError(f'config.seeds has {seed} twice: name each seed once.')


def jobs(config, workdir, wanted=()) -> list[running.Job]:
  """The jobs of a table, row by row in its order, each after the row that it begins with.

  config: config of a table. workdir: --workdir. wanted: names or titles of rows; () for all. Rows
  that these begin with are added.

  Raises UserError: an unknown row, or rows that begin with each other.
  """
  names = {config.rows[row].title: row for row in config.table.rows}
  chosen = [names.get(name, name) for name in wanted] or list(config.table.rows)
  for row in chosen:
    if row not in config.rows:
      titles = [title for title, name in names.items() if config.rows[name].experiment]
      raise errors.UserError(f'The table has no row {row!r}.{errors.did_you_mean(row, titles)}')
  for row in chosen:  # grows
    if (before := config.rows[row].init) in config.rows and before not in chosen:
      chosen.append(before)
  needs = {row: config.rows[row].init for row in config.table.rows if row in chosen}
  out, folder = [], storage.path(workdir) / 'rows'
  for row in running.in_order(needs, 'The rows '):
    one = config.rows[row]
    after = one.init if one.init in config.rows else ''
    for seed in config.seeds if one.experiment is not None else ():
      title, subdir = f'{one.title}, seed {seed}', f'seed={seed}'
      experiment = one.experiment.copy_and_resolve_references().unlock()
      experiment.seed = seed
      init = str(folder / after / subdir / 'pretrain') if after else one.init
      out.append(
        running.Job(row, title, seed, experiment.lock(), folder / row / subdir, SCORES, init, after)
      )
  return out


def alike(jobs) -> dict[str, str]:
  """{row: an earlier row with the same config and init}; such rows differ only in their text. A row
  that others begin with is left out.
  """
  first, out, needed = {}, {}, {job.needs for job in jobs}
  for job in jobs:
    earlier = first.setdefault((program_of(job.experiment), job.init), job.name)
    if earlier != job.name and job.name not in needed:
      out[job.name] = earlier
  return out


@contextlib.contextmanager
def naming(section, row: str):
  """In messages of errors raised inside the `with`, replaces `--config.length` by the table's name
  for it, `--config.rows.ROW.experiment.length`.
  """
  try:
    yield
  except errors.UserError as e:
    fields = '|'.join(map(re.escape, section))
    named = re.sub(rf'\bconfig\.(?=({fields})\b)', f'config.rows.{row}.experiment.', str(e))
    e.args = (named,)  # its class says how the command ends
    raise


def text_of(experiment) -> str:
  """Identifies the corpus that an experiment needs: by its tokenizer and its section `corpus`."""
  sections = {key: configuration.flatten(experiment[key]) for key in ('tokenizer', 'corpus')}
  return hashlib.sha256(repr(sorted(sections.items())).encode()).hexdigest()[:12]


def rows_of(experiment) -> int:
  return experiment.batch_size or experiment.batch_tokens // experiment.length


def program_of(experiment) -> str:
  """Identifies an experiment by all fields that its text and weights depend on, but the seed."""
  flat = configuration.flatten(experiment)
  return repr(sorted((k, repr(v)) for k, v in flat.items() if k not in ('seed', 'init')))


def check_same(config, workdir):
  """Records the table in the workdir. Returns it with all seeds that the workdir has had: later
  lines may add some. Raises UserError if the workdir is another table's.
  """
  file = storage.path(workdir) / TABLE
  ours, seeds = json.loads(configuration.to_json(config)), list(config.seeds)
  before = _kept(file) if file.exists() else {**ours, 'seeds': []}
  if changed := _first_difference({**before, 'seeds': seeds}, ours):
    raise errors.UserError(
      f'{workdir} holds rows of another table or scale (config.{changed} differs): take another '
      '--workdir.'
    )
  seeds = sorted({*before['seeds'], *seeds})
  if before['seeds'] != seeds:
    storage.path(workdir).mkdir(parents=True, exist_ok=True)
    storage.write_json(file, {**ours, 'seeds': seeds})
  shown = config.copy_and_resolve_references().unlock()
  shown.seeds = tuple(seeds)
  return shown.lock()


def _first_difference(old, new, at='') -> str:
  """The first field in which two tables differ, or ''."""
  if not (isinstance(old, dict) and isinstance(new, dict)):
    return '' if old == new else at
  for key in sorted({*old, *new} - {'varies', 'printed', 'note', 'title'}):
    if below := _first_difference(old.get(key), new.get(key), f'{at}.{key}'.strip('.')):
      return below
  return ''


def recorded(workdir):
  """The k (tokens_divided_by) of the table in a workdir; None if the workdir has no table."""
  file = storage.path(workdir) / TABLE
  return _kept(file)['table']['tokens_divided_by'] if file.exists() else None


def _kept(file) -> dict:
  """The table that a workdir holds. Raises UserError for a file that `check_same` did not write."""
  with errors.unreadable(f'{file} holds no table: take another --workdir'):
    saved = storage.read_json(file)
    if not (saved['table']['tokens_divided_by'] or 0) >= 0 or {*map(type, saved['seeds'])} - {int}:
      raise ValueError('seeds')
  return saved
