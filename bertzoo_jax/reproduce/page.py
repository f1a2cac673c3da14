"""The table of what is finished: table.md, table.json, curves.svg, and table.html with all of it.

The same scores give the same bytes. Every process writes the whole table whenever a row ends.
"""

import html
import math
import re

from bertzoo_jax.common import storage
from bertzoo_jax.reproduce import curves
from bertzoo_jax.reproduce import plan

MARKDOWN, JSON, HTML, CURVES = 'table.md', 'table.json', 'table.html', 'curves.svg'
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


def write(config, workdir) -> None:
  """Writes the four files; no curves while no row has begun."""
  folder = storage.path(workdir)
  found = collected(config, workdir)
  drawn = plots(config, workdir)
  storage.write_text(folder / MARKDOWN, markdown(config, workdir))
  storage.write_json(folder / JSON, found)
  storage.write_text(folder / HTML, page(config, workdir, drawn))
  if drawn:
    storage.write_text(folder / CURVES, drawn)


def collected(config, workdir) -> dict:
  """The table as plain values.

  {'table': …, 'columns': [titles], 'rows': [{'row', 'title', 'note', 'seeds', 'diverged', 'steps',
  'flops', 'devices', 'commits', 'cells': [{'column', 'printed', 'paper', 'mark', 'ours', 'spread',
  'task_seeds', 'task_spread', 'deltas', 'why'}]}]}.
  Scores are in the paper's units. seeds, diverged: of pretraining, those that ended and those that
  diverged. ours: means over the seeds; spread: lowest and highest of the first number. task_seeds:
  of fine-tuning, for each seed of pretraining, whose median counts; task_spread: lowest and highest
  of them all. deltas: at the scale `paper`, ours − paper; at `budget`, the difference to the first
  row that has both numbers, in the paper and here.
  """
  done = _finished(config, workdir)
  rows = []
  for row in config.table.rows:
    one, found = config.rows[row], done.get(row, [])
    ended = [f for f in found if f['steps']]
    cells = [
      _cell(config, column, one.printed.get(column, ''), found) for column in _columns(config)
    ]
    rows.append(
      {
        'row': row,
        'title': one.title,
        'note': one.note,
        'run': one.experiment is not None,
        'seeds': len(ended),
        'diverged': len(found) - len(ended),
        'steps': ended[0]['steps'] if ended else None,
        'flops': ended[0]['flops'] if ended else None,
        'devices': sorted({f['devices'] for f in found if f['devices']}),
        'commits': sorted({f['commit'] or 'unknown' for f in found}),
        'cells': cells,
      }
    )
  _relate_speeds(config, rows)
  if config.table.scale == 'budget':
    _compare_rows(rows)
  about = config.table.to_dict()
  return {
    'table': {k: list(v) if isinstance(v, tuple) else v for k, v in about.items()},
    'columns': [config.columns[c].title for c in _columns(config)],
    'varies': [list(pair) for pair in config.varies],
    'rows': rows,
  }


def markdown(config, workdir) -> str:
  """The table with a heading: paper, ours and their difference in every cell."""
  found = collected(config, workdir)
  head = ['', *found['columns'], 'seeds', 'steps']
  lines = []
  for row in found['rows']:
    cells = [_text(cell) for cell in row['cells']]
    lines.append([row['title'], *cells, _seeds(row), _steps(row)])
  widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
  drawn = ['| ' + ' | '.join(c.ljust(w) for c, w in zip(x, widths)) + ' |' for x in [head, *lines]]
  rule = '|' + '|'.join('-' * (w + 2) for w in widths) + '|'
  notes = [f'* {row["title"]}: {row["note"]}' for row in found['rows'] if row['note']]
  notes += [_FEW] if any('*' in line[-2] for line in lines) else []
  notes += [f'* {line}' for line in _fine_tunings(found)]
  parts = [*_heading(config), '', drawn[0], rule, *drawn[1:], '', *notes, *([''] if notes else [])]
  return '\n'.join([*parts, _made(found)]) + '\n'


def page(config, workdir, drawn: str) -> str:
  """The table and the plots of its rows (`drawn`) as one HTML file that needs nothing else."""
  found = collected(config, workdir)
  title, *about = _heading(config)
  ours, *kinds = _HEADS[config.table.scale]
  out = [
    '<!doctype html><html lang="en"><meta charset="utf-8">',
    f'<title>{html.escape(title.strip("# "))}</title><style>{_STYLE}</style>',
    f'<h1>{html.escape(title.strip("# "))}</h1>',
    *(f'<p>{html.escape(line)}</p>' for line in about if line),
    '<div class="wide"><table><thead><tr><th rowspan="2" class="row">row</th>',
    *(f'<th colspan="{2 + len(kinds)}">{html.escape(c)}</th>' for c in found['columns']),
    '<th rowspan="2">seeds</th><th rowspan="2">steps</th><th rowspan="2">train FLOPs</th></tr><tr>',
    *(''.join(f'<th>{name}</th>' for name in ('paper', ours, *kinds)) for _ in found['columns']),
    '</tr></thead><tbody>',
  ]
  for row in found['rows']:
    out.append(f'<tr><td class="name">{html.escape(row["title"])}</td>')
    for cell in row['cells']:
      out += _html_cell(cell, len(kinds))
    flops = f'{row["flops"]:.2e}' if row['flops'] else '–'
    out.append(f'<td>{_seeds(row)}</td><td>{_steps(row)}</td><td>{flops}</td></tr>')
  out.append('</tbody></table></div>')
  notes = [(row['title'], row['note']) for row in found['rows'] if row['note']]
  out += [f'<p>{html.escape(name)}: {html.escape(note)}</p>' for name, note in notes]
  if any('*' in _seeds(row) for row in found['rows']):
    out.append(f'<p class="small">{_FEW}</p>')
  out += [f'<p class="small">{html.escape(line)}</p>' for line in _fine_tunings(found)]
  if drawn:
    out += ['<h2>Held-out loss of pretraining</h2>', f'<p>{_LOSSES}</p>', drawn]
  out += [
    f'<p class="small">{html.escape(_made(found))}</p>',
    '<h2>What the rows vary</h2><ul>',
    *(f'<li><code>{html.escape(k)}</code>: {html.escape(v)}</li>' for k, v in found['varies']),
    '</ul></html>\n',
  ]
  return '\n'.join(out)


def plots(config, workdir) -> str:
  """Held-out losses as an SVG; '' while no row has begun."""
  flops = {row: found[0]['flops'] for row, found in _finished(config, workdir).items()}
  rows = curves.of_rows(config, workdir, flops)
  return curves.svg(rows) if rows else ''


def _seeds(row) -> str:
  """How many seeds of pretraining a row has."""
  if not row['run']:
    return '–'
  few = ' *' if 0 < row['seeds'] < _ENOUGH else ''
  return f'{row["seeds"]}{few}' + (f', {row["diverged"]} diverged' if row['diverged'] else '')


def _steps(row) -> str:
  return f'{row["steps"]:,}' if row['steps'] else '–'


def _fine_tunings(found) -> list[str]:
  """Sentences about the seeds of fine-tuning."""
  by_count = {}
  for n, column in enumerate(found['columns']):
    for count in {row['cells'][n]['task_seeds'] for row in found['rows']} - {0}:
      by_count.setdefault(count, []).append(column)
  return [
    f'Seeds of fine-tuning, whose median counts: {count} for {", ".join(columns)}'
    for count, columns in sorted(by_count.items())
  ]


def _made(found) -> str:
  """The hardware and the commits of all rows."""
  machines = sorted({d for row in found['rows'] for d in row['devices']})
  commits = sorted({c[:12] for row in found['rows'] for c in row['commits']})
  return f'Run on {", ".join(machines) or "nothing yet"}; commits: {", ".join(commits) or "none"}.'


def _heading(config) -> list[str]:
  t = config.table
  said = {
    'paper': 'The systems as published. Δ is ours − paper.',
    'budget': (
      f'BUDGET: {_networks(t)}. Compare the rows with each other: Δ is the difference from the '
      "first row that has both numbers of the column, the paper's → ours."
    ),
    'tiny': (
      'TINY: networks of minutes, to see that every row runs. These numbers say nothing about the '
      "paper's."
    ),
  }[t.scale]
  if t.change:
    said += f' Every row has {t.change}.'
  return [f'# {t.paper}, {t.name}: {t.title}', '', f'{t.source}. {said}', t.note]


def _networks(t) -> str:
  if t.steps:
    return f"networks of each system's size tiny, {t.steps:,} steps"
  return f'the same networks on 1/{t.tokens_divided_by:g} of the tokens'


def _columns(config):
  return config.table.columns


def _finished(config, workdir) -> dict[str, list[dict]]:
  """{row: scores of its finished seeds}."""
  out = {}
  for job in plan.jobs(config, workdir):
    if job.finished:
      out.setdefault(job.row, []).append(storage.read_json(job.folder / plan.SCORES))
  return out


def _cell(config, column, printed, found) -> dict:
  mark = next((m for m in ('mem', '3rd') if printed.startswith(f'[{m}]')), '')
  numbers = printed.removeprefix(f'[{mark}]').strip() if mark else printed
  paper = [float(x) for x in numbers.split('/') if x not in ('', '–')] if _numeric(numbers) else []
  kind, scale = config.columns[column], config.table.scale
  each = [f['columns'][column] for f in found if column in f['columns']]
  values = [e['values'] for e in each if e['values'] and None not in e['values']]
  factor = 100.0 if kind.kind in ('task', 'average') or kind.get('unit', '') == '%' else 1.0
  ours = [factor * sum(v) / len(v) for v in zip(*values)]
  first = [factor * v[0] for v in values]
  task = [factor * x for e in each if 'spread' in e for x in e['spread']]
  compared = scale == 'paper' and not mark and len(paper) == len(ours) > 0
  why = next((e['why'] for e in each if e['why']), '')
  if not found:
    why = f'not supported: {kind.why}' if kind.kind == 'not_supported' else 'not run'
  return {
    'column': column,
    'printed': numbers,
    'paper': paper,
    'mark': mark,
    'ours': [round(x, 4) for x in ours],
    'spread': [round(min(first), 4), round(max(first), 4)] if len(first) > 1 else [],
    'task_seeds': max((e['seeds'] for e in each if 'seeds' in e), default=0),
    'task_spread': [round(f(task), 4) for f in (min, max)] if task else [],
    'deltas': [[round(a - b, 4) for a, b in zip(ours, paper)]] if compared else [],
    'why': why,
  }


def _relate_speeds(config, rows):
  """Makes speeds multiples of that of the row that their column names, and their deltas too."""
  for n, column in enumerate(_columns(config)):
    if config.columns[column].kind != 'speed':
      continue
    base = [row['cells'][n]['ours'] for row in rows if row['title'] == config.columns[column].over]
    for cell in (row['cells'][n] for row in rows):
      usable = bool(base and base[0])
      cell['ours'] = [round(x / base[0][0], 4) for x in cell['ours']] if usable else []
      cell['spread'] = []
      # what was compared so far are tokens per second
      compared = cell['deltas'] and cell['ours']
      pairs = zip(cell['ours'], cell['paper'])
      cell['deltas'] = [[round(a - b, 4) for a, b in pairs]] if compared else []
      cell['why'] = cell['why'] if usable else f'{config.columns[column].over} was not run'


def _compare_rows(rows):
  """Sets the deltas of all cells to differences from the first row that has both numbers."""
  for n in range(len(rows[0]['cells']) if rows else 0):
    cells = [row['cells'][n] for row in rows]
    usable = [c for c in cells if c['ours'] and len(c['ours']) == len(c['paper']) and not c['mark']]
    for cell in usable[1:]:
      cell['deltas'] = [
        [round(a - b, 4) for a, b in zip(cell[key], usable[0][key])] for key in ('paper', 'ours')
      ]


def _numeric(text) -> bool:
  try:
    return all(x in ('', '–') or math.isfinite(float(x)) for x in text.split('/'))
  except ValueError:
    return False


def _shown(values, like='', signed=False) -> str:
  """Numbers with as many decimals as the paper prints; two where it prints none."""
  printed = [x for x in like.split('/') if x not in ('', '–') and _numeric(x)]
  places = max((len(x.partition('.')[2]) for x in printed), default=2)
  form = ('+' if signed else '') + ('.1e' if re.search(r'\de\d', like) else f'.{places}f')
  return '/'.join(f'{v:{form}}' for v in values)


def _printed(cell) -> str:
  if not cell['printed']:
    return '–'
  return f'({cell["printed"]} [{cell["mark"]}])' if cell['mark'] else cell['printed']


def _ours(cell) -> str:
  if cell['ours']:
    spread = f' ({_shown(cell["spread"], cell["printed"])})' if cell['spread'] else ''
    return _shown(cell['ours'], cell['printed']) + spread.replace('/', '–')
  return cell['why'].partition(':')[0] or 'not run'


def _text(cell) -> str:
  deltas = ' → '.join(_shown(delta, cell['printed'], signed=True) for delta in cell['deltas'])
  delta = f' | Δ {deltas}' if deltas else ''
  return f'{_printed(cell)} → {_ours(cell)}{delta}'.replace('|', '·')


def _html_cell(cell, deltas) -> list[str]:
  ours, why = _ours(cell), html.escape(cell['why'])
  if cell['task_spread'] and cell['task_seeds'] > 1:
    why = f'{cell["task_seeds"]} seeds of fine-tuning: ' + _shown(
      cell['task_spread'], cell['printed']
    ).replace('/', ' to ')
  empty = '' if cell['ours'] else ' class="none"'
  return [
    f'<td class="paper">{html.escape(_printed(cell))}</td>',
    f'<td{empty} title="{why}">{html.escape(ours)}</td>',
    *(
      f'<td>{_shown(cell["deltas"][i], cell["printed"], signed=True)}</td>'
      if cell['deltas']
      else '<td>–</td>'
      for i in range(deltas)
    ),
  ]


_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#222;
  margin:2rem auto;max-width:1200px;padding:0 1rem}
h1{font-size:1.4rem} h2{font-size:1.1rem;margin-top:2rem}
.wide{overflow-x:auto} table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
th{background:#f4f4f4;font-weight:600;text-align:center}
td.name,th.row{position:sticky;left:0;background:#fff;text-align:left;font-weight:600}
td.paper{color:#666;border-left:2px solid #ccc} td.none{color:#999;font-style:italic}
svg{width:100%;height:auto}
.small{color:#666;font-size:.9em}
"""
