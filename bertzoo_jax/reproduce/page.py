"""The table of the finished rows: table.md, table.json, curves.svg; table.html has all of them.

The same scores give the same bytes. Every process writes the whole table whenever a row ends.
"""

import html
import math
import pathlib
import re
import string
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.common import tables
from bertzoo_jax.reproduce import curves
from bertzoo_jax.reproduce import plan

MARKDOWN, JSON, HTML, CURVES = 'table.md', 'table.json', 'table.html', 'curves.svg'
_TEMPLATE = pathlib.Path(__file__).parent / 'table.html'
_ENOUGH = 3  # seeds
_FEW = '* fewer than three seeds of pretraining: a difference may be chance'
_LOSSES = (
  'A line for each seed. Losses of rows that mask, replace or predict in other ways are no measure '
  'of each other.'
)
# Of the columns beside the paper's number.
_HEADS = {
  'paper': ('ours', 'Δ'),
  'budget': ('ours, budget', 'Δ paper', 'Δ ours'),
  'tiny': ('tiny run',),
}


class Cell(NamedTuple):
  """One measure of one row. Scores are in the paper's units."""

  column: str  # name of its column
  # printed, paper: the paper's text and its numbers
  printed: str
  paper: list
  mark: str  # 'mem' or '3rd' if it is not printed
  ours: list  # means over the seeds
  spread: list  # lowest and highest of the first number
  task_seeds: int  # fine-tuning seeds per pretraining seed; their median counts
  task_spread: list  # lowest and highest of them all
  # at the scale `paper`, ours − paper; at `budget`, the difference to the first row that has both
  # numbers, in the paper and here
  deltas: list
  why: str  # a sentence if there are no numbers


class Row(NamedTuple):
  row: str
  title: str
  note: str
  run: bool  # whether it has a config
  seeds: int  # pretraining seeds that ended
  diverged: int  # the others
  steps: int | None
  flops: float | None
  devices: list
  commits: list
  cells: list[Cell]

  @property
  def ended(self) -> tuple[str, str]:
    """How many seeds of pretraining it has, and their steps, as text."""
    few = ' *' if 0 < self.seeds < _ENOUGH else ''
    seeds = f'{self.seeds}{few}' + (f', {self.diverged} diverged' if self.diverged else '')
    return seeds if self.run else '–', f'{self.steps:,}' if self.steps else '–'


class Table(NamedTuple):
  table: dict  # config.table as plain values
  columns: list  # their titles
  varies: list  # the fields that its rows vary
  rows: list[Row]


def write(config, workdir) -> Table:
  """Writes the four files; no curves while no row has begun. Returns the table."""
  folder, table, drawn = storage.path(workdir), collected(config, workdir), plots(config, workdir)
  storage.write_text(folder / MARKDOWN, markdown(table))
  storage.write_json(folder / JSON, tables.plain(table))
  storage.write_text(folder / HTML, page(table, drawn))
  if drawn:
    storage.write_text(folder / CURVES, drawn)
  return table


def collected(config, workdir) -> Table:
  """The table of the scores in a workdir."""
  done = _finished(config, workdir)
  by_column = []
  for column in config.table.columns:
    kind = config.columns[column]
    cells = [
      measured(column, kind, config.rows[row].printed.get(column, ''), done.get(row, []))
      for row in config.table.rows
    ]
    if kind.kind == 'speed':
      titles = [config.rows[row].title for row in config.table.rows]
      cells = scaled(cells, kind.over, dict(zip(titles, cells)).get(kind.over))
    by_column.append(compared(cells, config.table.scale))
  rows = []
  for row, cells in zip(config.table.rows, zip(*by_column)):
    one, scores = config.rows[row], done.get(row, [])
    ended = [f for f in scores if f['steps']]
    rows.append(
      Row(
        row,
        one.title,
        one.note,
        run=one.experiment is not None,
        seeds=len(ended),
        diverged=len(scores) - len(ended),
        steps=ended[0]['steps'] if ended else None,
        flops=ended[0]['flops'] if ended else None,
        devices=sorted({f['devices'] for f in scores if f['devices']}),
        commits=sorted({f['commit'] or 'unknown' for f in scores}),
        cells=list(cells),
      )
    )
  titles = [config.columns[c].title for c in config.table.columns]
  return Table(config.table.to_dict(), titles, [list(pair) for pair in config.varies], rows)


def measured(column: str, kind, printed: str, scores: list[dict]) -> Cell:
  """The Cell of a row, without deltas. kind: of the column; found: scores of its seeds."""
  mark = next((m for m in ('mem', '3rd') if printed.startswith(f'[{m}]')), '')
  numbers = printed.removeprefix(f'[{mark}]').strip() if mark else printed
  each = [f['columns'][column] for f in scores if column in f['columns']]
  values = [e['values'] for e in each if e['values'] and None not in e['values']]
  factor = 100.0 if kind.kind in ('task', 'average') or kind.get('unit', '') == '%' else 1.0
  first = [factor * v[0] for v in values]
  task = [factor * x for e in each if 'spread' in e for x in e['spread']]
  why = next((e['why'] for e in each if e['why']), '')
  if not scores:
    why = f'not supported: {kind.why}' if kind.kind == 'not_supported' else 'not run'
  return Cell(
    column,
    numbers,
    [float(x) for x in _numbers(numbers)] if _numeric(numbers) else [],
    mark,
    ours=[round(factor * sum(v) / len(v), 4) for v in zip(*values)],
    spread=_ends(first) if len(first) > 1 else [],
    task_seeds=max((e['seeds'] for e in each if 'seeds' in e), default=0),
    task_spread=_ends(task) if task else [],
    deltas=[],
    why=why,
  )


def scaled(cells: list[Cell], over: str, base: Cell | None) -> list[Cell]:
  """Speeds as multiples of the speed of the row `over`, whose cell is `base`."""
  if base is None or not base.ours:
    return [cell._replace(ours=[], spread=[], why=f'{over} was not run') for cell in cells]
  multiples = lambda cell: [round(x / base.ours[0], 4) for x in cell.ours]
  return [cell._replace(ours=multiples(cell), spread=[]) for cell in cells]


def compared(cells: list[Cell], scale: str) -> list[Cell]:
  """The cells of a column with their deltas; without at the scale `tiny`."""
  usable = [c for c in cells if c.ours and len(c.ours) == len(c.paper) and not c.mark]
  difference = lambda a, b: [round(x - y, 4) for x, y in zip(a, b)]

  def deltas(cell):
    if scale == 'paper':
      return [difference(cell.ours, cell.paper)]
    first = usable[0]
    return [difference(cell.paper, first.paper), difference(cell.ours, first.ours)]

  compared_cells = {'paper': usable, 'budget': usable[1:], 'tiny': []}[scale]
  return [c._replace(deltas=deltas(c)) if any(c is t for t in compared_cells) else c for c in cells]


def markdown(table: Table) -> str:
  """The table with a heading: paper, ours and their difference in every cell."""
  lines = [[row.title, *map(_text, row.cells), *row.ended] for row in table.rows]
  drawn = tables.aligned([['', *table.columns, 'seeds', 'steps'], *lines], markdown=True)
  notes = [f'* {row.title}: {row.note}' for row in table.rows if row.note]
  notes += [_FEW] if any('*' in row.ended[0] for row in table.rows) else []
  notes += [f'* {line}' for line in _fine_tunings(table)]
  parts = [*_heading(table), '', drawn, '', *notes, *([''] if notes else [])]
  return '\n'.join([*parts, tables.plain_markdown(_provenance(table))]) + '\n'


def page(table: Table, drawn: str) -> str:
  """The table and the plots of its rows (`drawn`) as one HTML file that needs nothing else."""
  title, *about = map(html.escape, _heading(table))
  heads = ('paper', *_HEADS[table.table['scale']])
  notes = [f'<p>{html.escape(f"{row.title}: {row.note}")}</p>' for row in table.rows if row.note]
  if any('*' in row.ended[0] for row in table.rows):
    notes.append(f'<p class="small">{_FEW}</p>')
  notes += [f'<p class="small">{html.escape(line)}</p>' for line in _fine_tunings(table)]
  plots = ['<h2>Held-out loss of pretraining</h2>', f'<p>{_LOSSES}</p>', drawn] if drawn else []
  lines = dict(
    about=[f'<p>{line}</p>' for line in about if line],
    columns=[f'<th colspan="{len(heads)}">{html.escape(c)}</th>' for c in table.columns],
    heads=[''.join(f'<th>{name}</th>' for name in heads)] * len(table.columns),
    rows=[line for row in table.rows for line in _html_row(row, len(heads) - 2)],
    notes=notes,
    curves=plots,
    varies=[f'<li><code>{html.escape(k)}</code>: {html.escape(v)}</li>' for k, v in table.varies],
  )
  return string.Template(_TEMPLATE.read_text(encoding='utf-8')).substitute(
    {name: ''.join(f'{line}\n' for line in those) for name, those in lines.items()},
    title=title.strip('# '),
    made=html.escape(_provenance(table)),
  )


def plots(config, workdir) -> str:
  """Held-out losses as an SVG; '' while no row has begun."""
  flops = {row: scores[0]['flops'] for row, scores in _finished(config, workdir).items()}
  rows = curves.held_out_losses(config, workdir, flops)
  return curves.svg(rows) if rows else ''


def _finished(config, workdir) -> dict[str, list[dict]]:
  """{row: scores of its finished seeds}."""
  out = {}
  for job in plan.jobs(config, workdir):
    if job.done:
      out.setdefault(job.name, []).append(_read(job.folder / job.record))
  return out


def _read(file) -> dict:
  """The scores of a job. Raises UserError for a file that reproduce did not write."""
  with errors.unreadable(f'{file} is not what reproduce wrote: delete it and run the same command'):
    scores = storage.read_json(file)
    cells = [*scores['columns'].values()]
    numbers = [scores['steps'], scores['flops'], *(cell.get('seeds', 0) for cell in cells)]
    numbers += [x for cell in cells for x in (*cell['values'], *cell.get('spread', ()))]
    texts = [scores['devices'], scores['commit'] or '', *(cell['why'] for cell in cells)]
    draws = any(x != errors.printable(x) for x in texts)
    if draws or not all(math.isfinite(x or 0) for x in numbers):
      raise ValueError('control characters, or numbers that are not finite')
  return scores


def _fine_tunings(table) -> list[str]:
  """Sentences about the seeds of fine-tuning."""
  by_count = {}
  for n, column in enumerate(table.columns):
    for count in {row.cells[n].task_seeds for row in table.rows} - {0}:
      by_count.setdefault(count, []).append(column)
  return [
    f'Seeds of fine-tuning, whose median counts: {count} for {", ".join(columns)}'
    for count, columns in sorted(by_count.items())
  ]


def _provenance(table) -> str:
  """The hardware and the commits of all rows."""
  machines = sorted({d for row in table.rows for d in row.devices})
  commits = sorted({c[:12] for row in table.rows for c in row.commits})
  return f'Run on {", ".join(machines) or "nothing yet"}; commits: {", ".join(commits) or "none"}.'


def _heading(table) -> list[str]:
  t = table.table
  networks = f'the same networks on 1/{t["tokens_divided_by"]:g} of the tokens'
  if t['steps']:
    networks = f"networks of each system's size tiny, {t['steps']:,} steps"
  summary = {
    'paper': 'The systems as published. Δ is ours − paper.',
    'budget': (
      f'BUDGET: {networks}. Compare the rows with each other: Δ is the difference from the first '
      "row that has both numbers of the column, the paper's → ours."
    ),
    'tiny': (
      'TINY: networks of minutes, to see that every row runs. These numbers say nothing about the '
      "paper's."
    ),
  }[t['scale']]
  if t['change']:
    summary += f' Every row has {t["change"]}.'
  return [f'# {t["paper"]}, {t["name"]}: {t["title"]}', '', f'{t["source"]}. {summary}', t['note']]


def _numbers(text) -> list[str]:
  """The numbers of a cell of the paper, as it prints them."""
  return [x for x in text.split('/') if x not in ('', '–')]


def _numeric(text) -> bool:
  try:
    return all(math.isfinite(float(x)) for x in _numbers(text))
  except ValueError:
    return False


def _ends(values) -> list:
  return [round(min(values), 4), round(max(values), 4)]


def _shown(values, like='', signed=False) -> str:
  """Numbers with as many decimals as the paper prints, or two."""
  printed = [x for x in _numbers(like) if _numeric(x)]
  places = max((len(x.partition('.')[2]) for x in printed), default=2)
  form = ('+' if signed else '') + ('.1e' if re.search(r'\de\d', like) else f'.{places}f')
  return '/'.join(f'{v:{form}}' for v in values)


def _printed(cell) -> str:
  if not cell.printed:
    return '–'
  return f'({cell.printed} [{cell.mark}])' if cell.mark else cell.printed


def _ours(cell) -> str:
  if cell.ours:
    spread = f' ({_shown(cell.spread, cell.printed)})' if cell.spread else ''
    return _shown(cell.ours, cell.printed) + spread.replace('/', '–')
  return cell.why.partition(':')[0] or 'not run'


def _deltas(cell) -> list[str]:
  return [_shown(delta, cell.printed, signed=True) for delta in cell.deltas]


def _text(cell) -> str:
  """A cell of table.md, with dots in place of bars; '–' where neither side has a number."""
  if not cell.ours and _printed(cell) == '–':
    return '–'
  delta = f' | Δ {" → ".join(_deltas(cell))}' if cell.deltas else ''
  return f'{_printed(cell)} → {_ours(cell)}{delta}'.replace('|', '·')


def _html_row(row, deltas: int):
  """Lines of table.html. deltas: how many columns of each cell are deltas."""
  yield f'<tr><td class="name">{html.escape(row.title)}</td>'
  for cell in row.cells:
    why = html.escape(cell.why)
    if cell.task_spread and cell.task_seeds > 1:
      ends = _shown(cell.task_spread, cell.printed).replace('/', ' to ')
      why = f'{cell.task_seeds} seeds of fine-tuning: {ends}'
    empty = '' if cell.ours else ' class="none"'
    yield f'<td class="paper">{html.escape(_printed(cell))}</td>'
    yield f'<td{empty} title="{why}">{html.escape(_ours(cell))}</td>'
    yield from (f'<td>{delta}</td>' for delta in _deltas(cell) or ['–'] * deltas)
  flops = f'{row.flops:.2e}' if row.flops else '–'
  yield ''.join(f'<td>{x}</td>' for x in (*row.ended, flops)) + '</tr>'
