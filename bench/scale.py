"""A corpus of any size, and the time to reach a step of it: python bench/scale.py
--folder=/tmp/scale [--shards=3000] [--formats=a,b] [--keep]

Eight real shards of 16.7 M tokens (0.3 GB) are linked into a corpus of so many shards (3000: 50 G
tokens, 2 G sentences, 80 M documents), marks of words included. Each format then starts anew in a
process of its own, as a run does after a restart: opens the corpus, builds the pipeline, and asks
for one batch in the third epoch. Printed: seconds of the three, of a batch in another part of the
text, tokens per second of the batches after that, and the peak of resident memory. At the end,
tokens per second that `Split.gather` reads for rows from everywhere.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time
import warnings

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import numpy as np  # noqa: E402

from bertzoo_jax import parts  # noqa: E402
from bertzoo_jax.common import storage  # noqa: E402
from bertzoo_jax.corpus import corpus as corpora  # noqa: E402

V, SPECIAL = 30522, dict(pad=0, unk=100, cls=101, sep=102, mask=103)
FORMATS = parts.SECTIONS['format']
DISTINCT = 8  # shards that are written; the others are links to these


def make(folder, shards, sentences):
  """Writes a corpus of `shards` shards of `sentences` sentences each, 25 tokens a sentence and 25
  sentences per document on average.
  """
  for split in corpora.SPLITS:
    (folder / split).mkdir(parents=True)
  written = [
    _write(folder / 'train', f'{i:05d}', sentences, seed=i) for i in range(min(DISTINCT, shards))
  ]
  entries = []
  for i in range(shards):
    like = written[i % DISTINCT]
    entries.append(
      {
        **like,
        'name': f'{i:05d}',
        'sha256': {f'{i:05d}{file[5:]}': digest for file, digest in like['sha256'].items()},
      }
    )
    if i >= DISTINCT:
      for file, original in zip(entries[-1]['sha256'], like['sha256']):
        os.link(folder / 'train' / original, folder / 'train' / file)
  held_out = [_write(folder / 'held_out', '00000', 1000, seed=-1)]
  split = lambda shards: dict(shards=shards, bytes=0)
  manifest = dict(
    format_version=corpora.FORMAT_VERSION,
    tokenizer={},
    corpus={},
    vocab_size=V,
    special=SPECIAL,
    tokenizer_hash='',
    dtype=corpora.token_dtype(V),
    splits=dict(train=split(entries), held_out=split(held_out)),
    splitter='lines',
    units=dict(words='synthetic'),
    similar=None,
    report={},
    tokenizer_sha256={},
    unigrams_sha256=storage.write_array(folder / 'unigrams.npy', np.ones(V, np.int64)),
    pieces_sha256=storage.write_array(folder / 'pieces.npy', np.ones(V, np.uint8)),
  )
  manifest['hash'] = corpora.identity(manifest)
  (folder / 'manifest.json').write_text(json.dumps(manifest))


def _write(folder, name, sentences, seed):
  draw = np.random.default_rng(seed + 1)
  starts = np.append(0, np.cumsum(draw.integers(3, 48, sentences)))
  borders = np.cumsum(draw.integers(1, 50, sentences // 25))
  documents = np.unique(np.append(borders[borders < sentences], (0, sentences)))
  tokens = draw.integers(104, V, starts[-1])
  return corpora.write_shard(
    folder, name, tokens, starts, documents, V, units=draw.integers(0, 4, len(tokens)) == 0
  )


def measure(folder, name, length, rows):
  """Seconds and memory of a restart in a fresh process: a dict."""
  # the import of TensorFlow is not measured
  from bertzoo_jax.batches import pipeline

  warnings.simplefilter('ignore')
  times, began = {}, time.perf_counter()

  def lap(what):
    nonlocal began
    times[what], began = round(time.perf_counter() - began, 2), time.perf_counter()

  corpus = corpora.open(folder)
  lap('open')
  pipe = pipeline.build(
    corpus,
    format=parts.section(FORMATS[name]),
    masking=parts.whole_word(),
    length=length,
    batch_size=rows,
    seed=1,
  )
  lap('build')
  epoch = pipe.rows_per_epoch / rows
  pipe.batch(int(2.37 * epoch))
  lap('batch')
  pipe.batch(int(7.77 * epoch))
  lap('elsewhere')
  first = int(7.77 * epoch) + 1
  for i, _ in enumerate(pipe.iterate(first, first + 120)):
    if i == 19:
      began = time.perf_counter()
  times['M tokens/s'] = round(100 * rows * length / (time.perf_counter() - began) / 1e6, 1)
  return dict(
    format=name,
    rows=pipe.rows_per_epoch,
    **times,
    peak_GB=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
  )


def gather(folder, length, rows):
  """Tokens a second of rows from random places of the split, in its parts as training visits
  them.
  """
  split = corpora.open(folder).splits['train'].part(0)
  draw, seconds = np.random.default_rng(0), []
  for _ in range(20):
    positions = draw.integers(0, split.num_tokens - length, rows)[:, None] + np.arange(length)
    began = time.perf_counter()
    split.gather(positions)
    seconds.append(time.perf_counter() - began)
  return rows * length / np.median(seconds[5:])


def main(arguments=None):
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--folder',
    type=pathlib.Path,
    required=True,
    help='made anew, and removed at the end unless --keep',
  )
  parser.add_argument('--shards', type=int, default=3000)
  parser.add_argument('--sentences', type=int, default=670_000, help='of each shard')
  parser.add_argument('--formats', default=','.join(FORMATS))
  parser.add_argument('--length', type=int, default=512)
  parser.add_argument('--rows', type=int, default=256, help='of a batch')
  parser.add_argument(
    '--keep', action='store_true', help='leave the corpus, or use the one that is there'
  )
  parser.add_argument('--measure', help='one format, in this process')
  args = parser.parse_args(arguments)
  if args.measure:
    print(json.dumps(measure(args.folder, args.measure, args.length, args.rows)))
    return []
  if not args.folder.exists():
    make(args.folder, args.shards, args.sentences)
  elif not args.keep:
    parser.error(f'{args.folder} exists: give another name, or --keep to use it.')
  results = []
  try:
    for name in args.formats.split(','):
      line = [
        sys.executable,
        __file__,
        f'--folder={args.folder}',
        f'--measure={name}',
        f'--length={args.length}',
        f'--rows={args.rows}',
      ]
      done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
      results.append(json.loads(done.stdout.splitlines()[-1]))
      print(results[-1], flush=True)
    print(f'gather: {gather(args.folder, args.length, args.rows) / 1e6:.0f} M tokens/s')
  finally:
    if not args.keep:
      shutil.rmtree(args.folder)
  return results


if __name__ == '__main__':
  main()
