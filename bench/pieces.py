"""Experiments in pieces that resume: what bench/continued.py and bench/small_networks.py share."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
_stop = []  # signals received: a command that saves upon SIGTERM ends with code 0


def run(pieces, functions, table, work, minutes=1e9, needs=lambda piece: ()) -> None:
  """Runs the pieces that `table` lacks, in their order, and adds what they return.

  Args:
    pieces: 'NAME ARGUMENT …' each.
    functions: {NAME: function(work, *arguments)}.
    table: JSON file of {piece: result}, written after each piece.
    work: folder of the runs.
    minutes: after them no piece begins.
    needs: piece → the pieces whose folders it reads, also pieces of another script. In a new
      `work` they run again, and the table keeps their first results.
  """
  end, work = time.monotonic() + 60 * minutes, work.absolute()
  (work / 'made').mkdir(exist_ok=True)
  made = lambda piece: work / 'made' / piece.replace(' ', '-')

  def perform(piece):
    for other in needs(piece):
      if not made(other).exists():
        perform(other)
    name, *args = piece.split()
    result = functions[name](work, *args)
    made(piece).touch()
    if piece in pieces and piece not in (done := read(table)):
      done[piece] = result
      lines = (f'"{k}": {json.dumps(v)}' for k, v in done.items())
      new = table.with_suffix('.new')
      new.write_text('{\n' + ',\n'.join(lines) + '\n}\n')
      new.replace(table)
    print(piece, result, flush=True)

  for piece in pieces:
    if piece not in read(table) and time.monotonic() < end:
      perform(piece)


def main(doc, table, functions, names, needs, page, of_page, text=None) -> None:
  """The command line of an experiment: text PLACE … | run WORK [--minutes=M] | page.

  functions, names, needs: see `run`. page: file that `page` writes, of_page: results → its text.
  text: function of the places, for an experiment that writes its texts.
  """
  parser = argparse.ArgumentParser(
    description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('what', choices=(*(('text',) if text else ()), 'run', 'page'))
  parser.add_argument('places', nargs='*', type=pathlib.Path, metavar='PLACE')
  parser.add_argument('--minutes', type=float, default=1e9)
  args = parser.parse_args()
  if args.what == 'run':
    run(names(), functions, table, *args.places, args.minutes, needs)
  elif args.what == 'text':
    text(*args.places)
  else:
    page.write_text(of_page(read(table)))


def read(table) -> dict:
  return json.loads(table.read_text()) if table.exists() else {}


def command(work, name, *line) -> float:
  """Runs a command of the package in `work` and returns its seconds. It gets SIGTERM, too.

  Raises:
    SystemExit: if it failed or was stopped.
  """
  env = {**os.environ, 'PYTHONPATH': str(ROOT)}
  print(name, *line, flush=True)
  begin = time.monotonic()
  child = subprocess.Popen([sys.executable, '-m', f'bertzoo_jax.{name}', *line], cwd=work, env=env)
  before = signal.signal(signal.SIGTERM, lambda *_: (child.terminate(), _stop.append(1)))
  code = child.wait()
  signal.signal(signal.SIGTERM, before)
  if code or _stop:
    raise SystemExit(code or 0)
  return time.monotonic() - begin


def mean(values) -> float:
  return sum(values) / len(values)


def interval(differences) -> tuple[float, float] | None:
  """(mean, half width) of the 95 % interval, Student's t; None for fewer than two differences."""
  from scipy import stats

  if (n := len(differences)) < 2:
    return None
  middle = mean(differences)
  deviation = (sum((x - middle) ** 2 for x in differences) / (n - 1)) ** 0.5
  return middle, stats.t.ppf(0.975, n - 1) * deviation / n**0.5
