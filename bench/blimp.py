"""Minimal pairs over the words that runs have seen, beside an n-gram model of the same words.

PYTHONPATH=. python bench/blimp.py RUN CORPUS PAIRS NGRAMS OUT [--of=4020] [--by=WAY]

RUN is a workdir of `pretrain`, CORPUS its text, PAIRS the folder of BLiMP's files, NGRAMS the file
of `bench/ngrams.py --json`. The newest checkpoint of RUN is scored on all pairs. Then each one is
scored on `--of` pairs, as many of each paradigm and evenly spread over its file. OUT gets table.md,
curve.svg and scores.json. Scores are kept, so the same line resumes. The line with
another RUN adds it: one curve and one column per run, by the names of their folders.

python bench/blimp.py --page OUT   writes table.md and curve.svg anew from scores.json.
"""

import argparse
import io
import json
import pathlib
import tempfile
import time

SCORES, TABLE, CURVE = 'scores.json', 'table.md', 'curve.svg'
_STYLE = {'svg.hashsalt': 'bertzoo_jax', 'svg.fonttype': 'none', 'font.size': 9}


def _pairs(folder):
  """{file: its lines}, and {paradigm: phenomenon}."""
  files = {f.name: f.read_text().splitlines() for f in sorted(pathlib.Path(folder).glob('*.jsonl'))}
  first = [json.loads(lines[0]) for lines in files.values()]
  return files, {x['UID']: x['linguistics_term'] for x in first}


def _scored(run, step, folder, by) -> dict:
  """Accuracy of each paradigm and of all, and the seconds that it took."""
  from bertzoo_jax.evaluate import minimal_pairs

  begin = time.monotonic()
  found = minimal_pairs.evaluate(f'{run}@{step}', folder, by=by)
  return dict(
    step=step,
    pairs=found.total.pairs,
    accuracy=found.total.accuracy,
    standard_error=found.total.standard_error,
    how=found.how,
    seconds=round(time.monotonic() - begin, 1),
    groups={group.group: group.accuracy for group in found.groups},
  )


def main(run, corpus, pairs, ngrams, out, of, by, end_alone):
  run, out = pathlib.Path(run), pathlib.Path(out)
  out.mkdir(parents=True, exist_ok=True)
  files, phenomena = _pairs(pairs)
  rows = [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]
  own = json.loads((run / 'corpus.json').read_text())
  words = json.loads((pathlib.Path(corpus) / 'manifest.json').read_text())['words']['train']
  epochs = {row['step']: row['epoch'] for row in rows if 'epoch' in row}
  losses = {row['step']: row for row in rows if row.get('held_out_loss') is not None}
  record = out / SCORES
  found = json.loads(record.read_text()) if record.exists() else {'runs': {}}
  found |= dict(phenomena=phenomena, ngrams=json.loads(pathlib.Path(ngrams).read_text()))
  mine = found['runs'].setdefault(run.name, {'checkpoints': {}})
  made = dict(corpus=own['hash'], of=of, by=by)
  if strange := [k for k in made if k in mine and mine[k] != made[k]]:
    raise SystemExit(f'{record} has {run.name} with another {strange[0]}: give another OUT.')
  mine |= dict(made, words=words, tokens=own['tokens'], epochs=epochs[max(epochs)])
  steps = sorted(int(path.name) for path in (run / 'checkpoints').iterdir() if path.name.isdigit())
  if mine.get('whole', {}).get('step') != steps[-1]:
    mine['whole'] = _scored(run, steps[-1], pairs, by)
    record.write_text(json.dumps(found, indent=1) + '\n')
  with tempfile.TemporaryDirectory() as some:
    for name, lines in files.items():
      each = max(1, of // len(files))
      few = lines[:: max(1, len(lines) // each)][:each]
      (pathlib.Path(some) / name).write_text('\n'.join(few) + '\n')
    for step in [] if end_alone else reversed(steps):
      if str(step) not in mine['checkpoints']:
        mine['checkpoints'][str(step)] = _scored(run, step, some, by) | dict(
          words=round(_between(epochs, step) * words),
          bits_per_byte=losses.get(step, {}).get('held_out_bits_per_byte'),
        )
        record.write_text(json.dumps(found, indent=1) + '\n')
  page(out)


def _between(epochs, step) -> float:
  """Epochs at a step; they grow evenly with the steps."""
  last = max(epochs)
  return epochs.get(step, epochs[last] * step / last)


def _mean(of_groups, names) -> float:
  return sum(of_groups[name] for name in names) / len(names)


def table(found) -> str:
  """Accuracy by phenomenon, of each network at its end and of the n-gram model, in per cent."""
  columns = {name: run['whole']['groups'] for name, run in found['runs'].items() if 'whole' in run}
  columns[f'{found["ngrams"]["order"]}-gram'] = found['ngrams']['accuracy']
  lines = [
    ' | '.join(('| phenomenon | paradigms', *columns)) + ' |',
    '|---' * (2 + len(columns)) + '|',
  ]
  by_phenomenon = {}
  for name, phenomenon in found['phenomena'].items():
    by_phenomenon.setdefault(phenomenon, []).append(name)
  first = next(iter(columns.values()))
  by_phenomenon = sorted(by_phenomenon.items(), key=lambda item: -_mean(first, item[1]))
  for phenomenon, names in [*by_phenomenon, ('**all pairs**', list(found['phenomena']))]:
    values = (f'{100 * _mean(x, names):.1f}' for x in columns.values())
    lines.append(' | '.join((f'| {phenomenon.replace("_", " ")} | {len(names)}', *values)) + ' |')
  return '\n'.join(lines) + '\n'


def curve(found) -> str:
  """Accuracy over words seen, as SVG; the same scores give the same bytes."""
  import matplotlib
  from matplotlib import figure as figures

  theirs = 100 * _mean(found['ngrams']['accuracy'], list(found['phenomena']))
  with matplotlib.rc_context(_STYLE):
    figure = figures.Figure(figsize=(7, 3.2), layout='constrained')
    axes = figure.subplots()
    for name, run in found['runs'].items():
      points = sorted(run['checkpoints'].values(), key=lambda x: x['words'])
      words = [x['words'] / 1e6 for x in points]
      accuracy, error = ([100 * x[of] for x in points] for of in ('accuracy', 'standard_error'))
      axes.errorbar(words, accuracy, yerr=error, marker='o', markersize=4, label=name)
    axes.axhline(
      theirs,
      color='black',
      linestyle='--',
      label=f'{found["ngrams"]["order"]}-gram of the same words',
    )
    axes.axhline(50, color='grey', linestyle=':', label='chance')
    axes.set_xlabel('million words seen')
    axes.set_ylabel('BLiMP, % of pairs right')
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    out = io.StringIO()
    figure.savefig(out, format='svg', metadata=dict.fromkeys(('Date', 'Creator', 'Format', 'Type')))
  text = out.getvalue()
  return text[text.index('<svg') :]


def page(out):
  out = pathlib.Path(out)
  found = json.loads((out / SCORES).read_text())
  (out / TABLE).write_text(table(found))
  (out / CURVE).write_text(curve(found))


if __name__ == '__main__':
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('places', nargs='*', metavar='RUN CORPUS PAIRS NGRAMS OUT')
  parser.add_argument('--page', default='', metavar='OUT')
  parser.add_argument('--of', type=int, default=4020)
  parser.add_argument('--by', default=None)
  parser.add_argument('--end_alone', action='store_true', help='score the newest checkpoint alone')
  args = parser.parse_args()
  if args.page:
    page(args.page)
  elif len(args.places) != 5:
    parser.error('give RUN CORPUS PAIRS NGRAMS OUT, or --page OUT.')
  else:
    main(*args.places, args.of, args.by and args.by.replace('_', ' '), args.end_alone)
