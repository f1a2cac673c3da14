"""Keeps the files of a table for docs/results: scores and metrics of each row, no weights.

PYTHONPATH=. python bench/results.py R docs/results/NAME

R is a workdir of `reproduce`. Only finished seeds are kept. The table is written anew from these
files, with its curves, so that the tests can write it again and compare.
"""

import pathlib
import shutil
import sys

import ml_collections

from bertzoo_jax.common import storage
from bertzoo_jax.reproduce import page
from bertzoo_jax.reproduce import plan

KEPT = ('scores.json', 'pretrained.json', 'pretrain/metrics.jsonl')


def config_of(folder):
  """The config of a table as `reproduce` wrote it down."""
  return ml_collections.ConfigDict(storage.read_json(pathlib.Path(folder) / plan.TABLE))


def main(workdir, target):
  workdir, target = pathlib.Path(workdir), pathlib.Path(target)
  shutil.rmtree(target / 'rows', ignore_errors=True)
  target.mkdir(parents=True, exist_ok=True)
  shutil.copyfile(workdir / plan.TABLE, target / plan.TABLE)
  for scores in sorted(workdir.glob('rows/*/seed=*/scores.json')):
    for name in KEPT:
      to = target / (scores.parent / name).relative_to(workdir)
      to.parent.mkdir(parents=True, exist_ok=True)
      shutil.copyfile(scores.parent / name, to)
      print(to)
  config = config_of(target)
  (target / page.MARKDOWN).write_text(page.markdown(page.collected(config, target)))
  (target / page.CURVES).write_text(page.plots(config, target))


if __name__ == '__main__':
  if len(sys.argv) != 3:
    sys.exit(__doc__)
  main(*sys.argv[1:])
