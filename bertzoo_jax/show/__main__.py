"""Shows rows as the model sees them: python -m bertzoo_jax.show --config C --corpus CORPUS [--steps
0:1] [--stats] [--npz FILE]

Rows come decoded and in colour: masked, replaced, kept and special tokens, and the starts of
segments. --stats measures rates and lengths instead; --npz writes raw batches, to compare other
implementations on them.
"""

import itertools
import json
import os
import shutil
import statistics
import tempfile
import warnings
import zipfile

import numpy as np
import rich.table
from absl import flags

from bertzoo_jax import cli
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import amounts
from bertzoo_jax.common import errors
from bertzoo_jax.common import moving
from bertzoo_jax.common import screen
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.corpus import opening
from bertzoo_jax.parts import ranges
from bertzoo_jax.show import display
from bertzoo_jax.show import measures

STATS_STEPS = 20  # measured by --stats without --steps


def show(
  config,
  path,
  *,
  cache_dir=None,
  steps=None,
  phase=None,
  split='train',
  rows=4,
  stats=False,
  npz=None,
  console=None,
) -> None:
  """Prints rows, or measures, or writes batches.

  Args:
    config: an experiment.
    path: its corpus, or a list of several.
    cache_dir: local folder for the mirror of a corpus in an object store.
    steps: (first, end), global steps of the run; of the held-out split, evaluation batches. None:
      one step (STATS_STEPS with `stats`) from the start of the phase.
    phase: index; None: the phase of the first step.
    split: 'train' or 'held_out'.
    rows: to print per step.
    stats: measure instead of printing rows.
    npz: file to write the batches to; an existing one is refused.
    console: rich console, for tests.

  Raises UserError: whatever the user can mend.
  """
  ranges.check(config)
  console = console or screen.Console(soft_wrap=True)
  if npz is not None:
    storage.check_new(npz)
  corpus = opening.open(path, config, cache_dir)
  phases = ranges.check(pipeline.with_epoch_steps(config, corpus))
  chosen, first, end = _phase(phases, steps, phase, split, STATS_STEPS if stats else 1)
  fields = chosen.config
  units = stats and npz is None
  if split == 'held_out':
    # the batches that `pretrain` evaluates
    pipes = pipeline.held_out(corpus, chosen, keep_units=units).values()
    pipe, rows_of_all = [*pipes][0], (p.evaluation_batches(config.run.eval_batches) for p in pipes)
    batches = itertools.islice(itertools.chain.from_iterable(rows_of_all), first, end)
  else:
    pipe = pipeline.for_phase(corpus, chosen, keep_units=units)
    # One by one: for a few batches, importing TensorFlow takes longer than everything else.
    batches = map(pipe.batch, range(first - chosen.first_step, end - chosen.first_step))
  _check_network(fields, corpus, pipe.features)
  if npz is not None:
    meta = {
      'format_version': 2,  # 1 had segment_ids as pack_ids, and token_type_ids as segment_ids
      **dict(vocab_size=corpus.vocab_size, special=corpus.special, corpus_hash=corpus.hash),
      **{name: corpus.manifest[name] for name in ('tokenizer_hash', 'tokenizer', 'corpus')},
      'steps': [first, end],
      **dict(batch_size=fields.batch_size, length=fields.length, phase=chosen.index),
      **dict(seed=fields.seed, split=split),
    }
    size = write_npz(npz, batches, pipe.features, end - first, meta)
    console.print(
      f'{npz}: steps {first} to {end - 1}, {", ".join(pipe.features)}; {size / 1e6:.1f} MB.'
    )
    return
  meter = measures.Meter(corpus.special)
  tokenizer = None if stats else corpus.tokenizer()
  if tokenizer:
    console.print(display.legend(pipe.features))
  step = first
  for step, batch in zip(range(first, end), batches):
    meter.add(batch)
    for row in range(min(rows, len(batch['input_ids'])) if tokenizer else 0):
      console.print(display.heading(step, row, batch, fields))
      console.print(display.row(batch, row, tokenizer, corpus.special, fields))
      console.print()
  title = (
    f'{fields.format.name}, {fields.masking.name}; steps {first} to {step} of phase '
    f'{chosen.index}, {split}; {pipe.rows_per_epoch:,} rows per epoch, at most '
    f'{pipe.num_predictions} predictions per row'
  )
  if len(corpus.members) > 1 and split == 'train':
    title += f'; the phase reads {amounts.describe(pipe.read(chosen.steps))}'
  moves = moving.get_moves(fields, 'masking') if split == 'train' else ()
  fields = fields.copy_and_resolve_references().unlock()
  for move in moves:  # the average over these steps
    fields.masking[move.field] = statistics.fmean(map(move.at, range(first, step + 1)))
  console.print(_table(meter.measures(fields), title))


def _check_network(fields, corpus, features):
  """Warns where `pretrain` refuses the rows for this encoder and this objective."""
  from bertzoo_jax import objectives  # these import jax, and --help does not wait for it
  from bertzoo_jax.experiment import build
  from bertzoo_jax.experiment import check

  try:
    encoder = build.encoder(fields, corpus.vocab_size)
    check.rows(fields, features, encoder, objectives.build(fields, corpus.vocab_size))
  except errors.UserError as e:
    warnings.warn(f'pretrain refuses this config: {e}', stacklevel=3)


def _table(lines, title):
  runs = (
    'runs: predictions side by side; config: sampled lengths, before adjacent runs merge or the '
    'budget truncates them'
  )
  right = (rich.table.Column(name, justify='right') for name in ('measured', 'config'))
  caption = runs if any(name.startswith('runs') for name, *_ in lines) else None
  table = rich.table.Table('measure', *right, title=title, caption=caption)
  for name, value, unit, says in lines:
    table.add_row(name, _written(value, unit), '' if says is None else _written(says, unit))
  return table


def _written(value, unit):
  if isinstance(value, str):
    return value
  return f'{value:.2%}' if unit else f'{value:,}' if isinstance(value, int) else f'{value:,.2f}'


def _phase(phases, steps, phase, split, count):
  """The phase, and the first and end step."""
  if phase is not None and not 0 <= phase < len(phases):
    raise errors.UserError(f'--phase={phase}: the config has the phases 0 to {len(phases) - 1}.')
  if split == 'held_out':
    return phases[phase or 0], *(steps or (0, count))
  if steps is None:
    chosen = phases[phase or 0]
    return chosen, chosen.first_step, min(chosen.first_step + count, chosen.end_step)
  for chosen in phases if phase is None else [phases[phase]]:
    if chosen.first_step <= steps[0] and steps[1] <= chosen.end_step:
      return chosen, *steps
  spans = ', '.join(f'{s.index}: {s.first_step}:{s.end_step}' for s in phases)
  raise errors.UserError(
    f'--steps={steps[0]}:{steps[1]} is not within one phase; their steps are {spans}.'
  )


# --- raw batches ---


def write_npz(path, batches, features, count, meta) -> int:
  """Writes batches as arrays [count, B, …] by feature, and `meta` as JSON bytes under '__meta__'; a
  batch in memory at a time. The same batches give the same bytes. Returns the file's size in bytes.

  path: file to be, local or gs://. features: {name: (shape, dtype)} of a batch.

  Raises UserError if there are fewer batches than `count`.
  """
  path = storage.path(path)
  if not storage.is_remote(path):
    path.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=None if storage.is_remote(path) else path.parent) as folder:
    arrays = {
      k: np.lib.format.open_memmap(f'{folder}/{k}.npy', 'w+', d, (count, *s))
      for k, (s, d) in features.items()
    }
    written = 0
    for written, batch in enumerate(batches, 1):
      for name, array in arrays.items():
        array[written - 1] = batch[name]
    if written < count:
      raise errors.UserError(
        f'There are only {written} batches, not {count}: ask for fewer --steps.'
      )
    np.save(f'{folder}/__meta__.npy', np.frombuffer(json.dumps(meta).encode(), np.uint8))
    with zipfile.ZipFile(f'{folder}/whole', 'w', zipfile.ZIP_DEFLATED, compresslevel=1) as whole:
      for name in [*arrays, '__meta__']:
        with (
          open(f'{folder}/{name}.npy', 'rb') as source,
          whole.open(f'{name}.npy', 'w', force_zip64=True) as target,
        ):
          shutil.copyfileobj(source, target, 1 << 20)
    size = os.path.getsize(f'{folder}/whole')
    if storage.is_remote(path):
      with open(f'{folder}/whole', 'rb') as source:
        path.write_bytes(source.read())
    else:
      os.replace(f'{folder}/whole', path)
  return size


def _range(text):
  """(first, end) of 'first:end'."""
  if text is None:
    return None
  first, _, end = text.partition(':')
  if not (first.isdigit() and end.isdigit() and int(first) < int(end)):
    raise errors.UserError(
      f'--steps={text}: write first:end, such as 0:20 for the first twenty steps.'
    )
  return int(first), int(end)


def main(asked):
  more = vars(asked) | dict(steps=_range(asked.steps))
  show(more.pop('config'), more.pop('corpus'), **more)


if __name__ == '__main__':
  cli.define_config()
  flags.DEFINE_multi_string('corpus', None, cli.CORPUS_HELP, required=True)
  cli.texts(
    cache_dir=cli.CACHE_DIR_HELP,
    steps='first:end, steps of the run (of the held-out split: evaluation batches).',
    npz='Write the raw batches of --steps to this file.',
  )
  flags.DEFINE_integer('phase', None, 'Index of the phase. Default: the phase of the first step.')
  flags.DEFINE_enum('split', 'train', list(corpora.SPLITS), 'Which documents.')
  flags.DEFINE_integer('rows', 4, 'Rows printed per step.', lower_bound=0)
  flags.DEFINE_bool(
    'stats',
    False,
    f'Measure rates and lengths (over {STATS_STEPS} steps without --steps) instead of printing '
    'rows.',
  )
  cli.run(main)
