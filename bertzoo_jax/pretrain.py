"""Trains an encoder on a corpus. Run the same command again to resume.

    python -m bertzoo_jax.pretrain --config configs/bert.py:base --corpus CORPUS --workdir W
                                   [--init W2[@STEP|@best] | hf:DIR | hf:ID] [--corpus CORPUS2 …]
                                   [--resume_moments]

The workdir gets the resolved config, checkpoints, metrics.jsonl, loss.png and the command lines of
all attempts. Exit codes:

    0    done, or stopped by SIGTERM or Ctrl-C and saved
    2    a mistake in the command; nothing is overwritten
    3    numbers that are not finite, a spike (run.on_spike), devices that disagree or have too
         little memory, a full disk, or a workdir that is gone; the last good checkpoint is kept
    75   run the same command again: a host was late or lost, nothing finished for
         run.hang_minutes, a bucket or the network failed, the port or the workdir is in use, or
         another job took the workdir over
    130  a second Ctrl-C, which does not wait for the save
    134  jax aborted this host, because a peer was lost

On several hosts send the signal to any one: all stop at the same step.

With the same mesh, a resumed run is bitwise equal to the uninterrupted one. This is tested on CPUs;
no TPU has run it yet. A GPU needs XLA_FLAGS=--xla_gpu_deterministic_ops=true.
"""

import functools
import os
import warnings

from absl import flags

from bertzoo_jax import cli
from bertzoo_jax.batches import ahead
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import amounts
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.corpus import opening
from bertzoo_jax.corpus import report
from bertzoo_jax.training import data as training_data


def pretrain(
  config,
  workdir: str,
  *,
  corpus: str | list[str],
  cache_dir: str | None = None,
  init: str | None = None,
  resume_moments: bool = False,
  init_layers: str = '',
  vocabulary: str = 'same',
  positions: str = 'copied',
) -> dict:
  """Trains; returns {'step', 'end', 'interrupted', 'held_out': metrics, 'entropy': nats, 'flops':
  of the whole run}.

  config: an experiment. workdir: of the run; one that holds this run is resumed. corpus: one or
  several. cache_dir: local folder for the mirror of a corpus in an object store. init: address of
  weights to begin with, or one per network, separated by commas; init_layers: its layers to take
  (initial_weights.layers_of), '' for all; resume_moments: begin at the step of `init`, with its
  optimizer's state; vocabulary: carry maps the word tables to the vocabulary of the corpus;
  positions: see hf.merge. None of these five is used when the run is resumed.

  Raises UserError for a mistake, before anything is written; TransientError for storage that may
  answer the next time, or another job in the workdir; Stopped for a run that must not go on, such
  as one with numbers that are not finite.
  """
  from bertzoo_jax.experiment import build  # these import jax, and --help does not wait for it
  from bertzoo_jax.experiment import check
  from bertzoo_jax.experiment import machinery
  from bertzoo_jax.experiment import resolve
  from bertzoo_jax.experiment import start
  from bertzoo_jax.experiment import train
  from bertzoo_jax.runs import distributed
  from bertzoo_jax.runs import preemption
  from bertzoo_jax.training import sharding

  distributed.join()
  first = start.First(init and os.fspath(init), init_layers, resume_moments, vocabulary, positions)
  with preemption.Preemption().listening() as notice:
    run = resolve.run(config)
    if not config.epochs:  # else the steps are known once the rows are counted
      check.config(run)
    train.start_devices(config)
    with train.holding(workdir, config) as held:
      data = open_data(run, corpus, cache_dir)
      if config.epochs:
        reads = {index: rows.train.read for index, rows in data.phases.items()}
        run = check.config(resolve.run(amounts.with_epoch_steps(config, run.phases, reads)))
      mesh = sharding.mesh(config.run.mesh)
      begins = start.find(run, data, held.workdir, first, mesh.devices.flat[0])
      chosen = machinery.resolved(run, data.vocab_size, mesh, begins.machinery)
      built = check.built(build.phases(chosen, data, mesh, begins.step))
      built = machinery.fitted(built, config, begins.machinery, show=train.first_process())
      state, lines = start.state(begins, built)
      result = train.train(built, begins, state, held, notice, lines)
  if train.first_process():
    _report(result, data.entropy, workdir)
  return {**result, 'entropy': data.entropy}


def open_data(run, paths, cache_dir=None) -> training_data.Data:
  """The Data of a run: verified corpora, and the rows of each phase, whose format and masking are
  built only here.
  """
  import jax

  cli.quiet_tensorflow()
  config, host = run.config, (jax.process_index(), jax.process_count())
  corpus = opening.open(paths, config, cache_dir)
  for member in corpus.members:
    corpora.verify(member.path)
    for sentence in report.unlike_words(member.manifest) if config.run.keep_words else ():
      warnings.warn(f'Corpus {member.path}: {sentence}', stacklevel=2)
  phases = {}
  for phase in run.phases:
    learned, held_out = pipeline.for_phase(corpus, phase, host=host), {}
    if corpus.splits['held_out'].num_tokens:
      held_out = pipeline.held_out(corpus, phase, learned.mask, host=host)
    phases[phase.index] = training_data.PhaseData(
      learned.features, learned, held_out, config.run.eval_batches
    )
  train_split = corpus.manifest['splits']['train']
  held_out_splits = {m.name: m.manifest['splits']['held_out'] for m in corpus.members}
  sizes = {key: train_split[key] for key in ('documents', 'sentences', 'tokens', 'bytes')}
  members = {m.name: m.hash for m in corpus.members if m.name}
  members_entry = {'corpora': members} if members else {}
  return training_data.Data(
    corpus={'hash': corpus.hash, **sizes, **corpora.origin(corpus.manifest), **members_entry},
    vocab_size=corpus.vocab_size,
    phases=phases,
    entropy=training_data.entropy(corpus.unigrams),
    held_out_sizes={n: (e['tokens'], e['bytes']) for n, e in held_out_splits.items() if e['bytes']},
    save_tokenizer=functools.partial(corpora.save_tokenizer, corpus),
    tokenizer=corpus.path / 'tokenizer',
    driver=ahead.driver(),
  )


def _report(result, entropy, workdir) -> None:
  """Prints how the run ended. entropy: of the unigrams, nats."""
  held_out, flops, step, end = (result[k] for k in ('held_out', 'flops', 'step', 'end'))
  if result['interrupted'] and step < end:
    saved = f'at step {step:,} of {end:,} and saved' if step else 'before the first step'
    print(f'stopped {saved}: run the same command to resume', flush=True)
  else:
    print(f'done: {step:,} steps in {workdir} · {flops:.3e} FLOPs', flush=True)
  if (loss := held_out.get('held_out_mlm_loss')) is not None:
    below = entropy - loss
    where = 'above it: not yet better than word counts (see docs/settings.md)'
    print(
      f'held-out MLM loss {loss:.3f} nats · unigram entropy {entropy:.3f} nats · '
      f'{abs(below):.3f} {where if below < 0 else "below it"}',
      flush=True,
    )
  if (accuracy := held_out.get('held_out_rtd_accuracy')) is not None:
    print(
      f'held-out replaced tokens: accuracy {100 * accuracy:.2f} % · calling all original '
      f'{100 * held_out["held_out_rtd_base_rate"]:.2f} % · '
      f'area under the curve {held_out["held_out_rtd_auc"]:.3f}',
      flush=True,
    )


def main(asked):
  pretrain(**vars(asked))


if __name__ == '__main__':
  cli.define_config()
  flags.DEFINE_multi_string('corpus', None, cli.CORPUS_HELP, required=True)
  cli.required(workdir='Folder of the run, local or gs://.')
  cli.texts(
    cache_dir=cli.CACHE_DIR_HELP,
    init='Weights to begin with: WORKDIR[@STEP|@best|@ema|@average:K], hf:DIR or hf:ID[@revision]; '
    'two by comma for a discriminator and its generator. Optimizer and step are fresh.',
  )
  flags.DEFINE_bool(
    'resume_moments',
    False,
    "Resumes --init WORKDIR[@STEP] at its step with its optimizer's moments: phases, schedule and "
    'batches count from its start.',
  )
  flags.DEFINE_string(
    'init_layers',
    '',
    'Layers of --init that make a shallower network: first:N, every:K, or numbers from 0 by comma.',
  )
  flags.DEFINE_enum(
    'vocabulary',
    'same',
    ['same', 'carry'],
    'Vocabulary of --init: same (as that of the corpus), or carry (another one: each piece of the '
    'corpus takes the row of the same old piece, else the mean row of its old tokens).',
  )
  flags.DEFINE_enum(
    'positions',
    'copied',
    ['copied', 'interpolated'],
    'How a longer position table begins: with copies of the rows of --init, or between them.',
  )
  cli.run(main, cli.exit_process)
