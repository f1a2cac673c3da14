"""Trains an encoder on a corpus. Run the same line again to resume.

    python -m bertzoo_jax.pretrain --config configs/bert.py:base --corpus CORPUS --workdir W
                                   [--init W2[@STEP|@best] | hf:DIR | hf:ID] [--corpus CORPUS2 …]
                                   [--resume_moments]

The workdir gets the resolved config, checkpoints, metrics.jsonl, loss.png and the command lines of
all attempts. Exit codes:

    0    done, or stopped by SIGTERM or Ctrl-C and saved
    2    a mistake in the command; nothing is overwritten
    3    numbers that are not finite, a spike (run.on_spike), devices that disagree or have too
         little memory, a full disk, or a workdir that is gone; the last good checkpoint is kept
    75   run the same line again: a host was late or lost, nothing finished for run.hang_minutes, a
         bucket or the network failed, the port or the workdir is in use, or another job took the
         workdir over
    130  a second Ctrl-C, which does not wait for the save
    134  jax aborted this host, because a peer was lost

On several hosts send the signal to any one: all stop at the same step.

With the same mesh, a resumed run is bitwise equal to the uninterrupted one. This is tested on CPUs;
no TPU has run it yet. A GPU needs XLA_FLAGS=--xla_gpu_deterministic_ops=true.
"""

import functools
import importlib
import os
import warnings

from absl import flags

from bertzoo_jax import cli
from bertzoo_jax.batches import ahead
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.corpus import mixture
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
) -> dict:
  """Trains; returns {'step', 'interrupted', 'held_out': metrics, 'entropy': nats, 'flops': of the
  whole run, as `assembly.published_flops` counts}.

  config: an experiment. workdir: of the run; one that holds this run is resumed. corpus: one or
  several. cache_dir: local folder for the mirror of a corpus in an object store. init: address of
  weights to begin with, or one for each network by comma; init_layers: its layers to take
  (initial_weights.layers_of), '' for all; resume_moments: begin at the step of `init`, with its
  optimizer's state. None of these three is used when the run is resumed.

  Raises UserError for anything that does not fit, before anything is written; TryAgain for storage
  that may answer the next time, or another job in the workdir; Stopped for a run that must not go
  on, such as one with numbers that are not finite.
  """
  from bertzoo_jax import assembly  # these import jax, and --help does not wait for it
  from bertzoo_jax.assembly import checks
  from bertzoo_jax.assembly import run as trainings
  from bertzoo_jax.runs import distributed
  from bertzoo_jax.runs import preemption

  distributed.join()
  with preemption.Preemption().listening() as notice:
    run = assembly.resolve(config)
    if config.epochs:
      config = pipeline.of_epochs(config, mixture.open(corpus, config, cache_dir))
      run = assembly.resolve(config)
    checks.of_run(run)
    trainings.start_devices(config)
    open_data = functools.partial(_open, config, corpus, cache_dir)
    init = None if init is None else os.fspath(init)
    begin = dict(init=init, init_layers=init_layers, resume_moments=resume_moments)
    result = trainings.train(run, workdir, open_data, notice=notice, **begin)
    return _report(result, workdir, aloud=trainings.first_process())


def _open(config, path, cache_dir) -> training_data.Data:
  """The text, as plain values."""
  import jax

  cli.quiet_tensorflow()
  host = jax.process_index(), jax.process_count()
  corpus = mixture.open(path, config, cache_dir)
  for member in corpus.members:
    corpora.verify(member.path)
    for sentence in report.unlike_words(member.manifest) if config.run.keep_words else ():
      warnings.warn(f'Corpus {member.path}: {sentence}', stacklevel=2)

  pipes = {}  # of the held-out rows of each phase

  def held_out_of(phase):
    if corpus.splits['held_out'].num_tokens and phase.index not in pipes:
      pipes[phase.index] = pipeline.held_out(corpus, phase, host=host)
    return pipes.get(phase.index, {})

  def phase(phase):
    train = pipeline.of_phase(corpus, phase, host=host)

    def held_out():
      for name, pipe in held_out_of(phase).items():
        for batch in pipe.evaluation_batches(config.run.eval_batches):
          yield name, batch

    return training_data.PhaseData(
      train.features, train.iterate, held_out, train.rows_per_epoch, read=train.read
    )

  def trial(phase):
    held_out_of(phase)
    return training_data.PhaseData(pipeline.features(corpus, phase, host))

  def save_tokenizer(folder):
    source = corpus.path / 'tokenizer'
    # an earlier version listed none
    for name in corpus.manifest.get('tokenizer_sha256') or os.listdir(source):
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      storage.write_bytes(folder / name, (source / name).read_bytes())

  train = corpus.manifest['splits']['train']
  held_out = {m.name: m.manifest['splits']['held_out'] for m in corpus.members}
  known = {name: (own['tokens'], own['bytes']) for name, own in held_out.items() if own['bytes']}
  sizes = {key: train[key] for key in ('documents', 'sentences', 'tokens', 'bytes')}
  members = {m.name: m.hash for m in corpus.members if m.name}
  of_members = {'corpora': members} if members else {}
  return training_data.Data(
    corpus={'hash': corpus.hash, **sizes, **corpora.origin(corpus.manifest), **of_members},
    vocab_size=corpus.vocab_size,
    entropy=training_data.entropy(corpus.unigrams),
    held_out_sizes=known,
    phase=phase,
    trial=trial,
    save_tokenizer=save_tokenizer,
    tokenizer=corpus.path / 'tokenizer',
    driver=ahead.driver(),
  )


def _report(result, workdir, aloud) -> dict:
  """Prints how the run ended, if `aloud`. Returns the result of `pretrain`."""
  data = result.pop('data')
  held_out, flops = result['held_out'], result['flops']
  counted = '' if flops is None else f' · {flops:.3e} FLOPs as Clark et al. 2020 count them'
  if aloud:
    step, end = result['step'], result['end']
    if result['interrupted'] and step < end:
      saved = f'at step {step:,} of {end:,} and saved' if step else 'before the first step'
      print(f'stopped {saved}: run the same line to resume', flush=True)
    else:
      print(f'done: {step:,} steps in {workdir}{counted}', flush=True)
    loss = held_out.get('held_out_mlm_loss')
    if loss is not None and data.entropy is not None:
      below = data.entropy - loss
      where = 'above it: not yet more than word counts (see docs/settings.md)'
      print(
        f'held-out MLM loss {loss:.3f} nats · unigram entropy {data.entropy:.3f} nats · '
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
  return {**result, 'entropy': data.entropy}


def main(_):
  pretrain(
    _CONFIG.value,
    _WORKDIR.value,
    corpus=_CORPUS.value,
    cache_dir=_CACHE_DIR.value,
    init=_INIT.value,
    resume_moments=_RESUME_MOMENTS.value,
    init_layers=_INIT_LAYERS.value,
  )


if __name__ == '__main__':
  _CONFIG = cli.define_config()
  _CORPUS = flags.DEFINE_multi_string('corpus', None, cli.CORPUS_HELP, required=True)
  _CACHE_DIR = flags.DEFINE_string('cache_dir', None, cli.CACHE_DIR_HELP)
  _WORKDIR = flags.DEFINE_string(
    'workdir', None, 'Folder of the run, local or gs://.', required=True
  )
  _INIT = flags.DEFINE_string(
    'init',
    None,
    'Weights to begin with: WORKDIR[@STEP|@best|@ema|@average:K], hf:DIR or hf:ID[@revision]; two '
    'by comma for a discriminator and its generator. Optimizer and step are fresh.',
  )
  _RESUME_MOMENTS = flags.DEFINE_bool(
    'resume_moments',
    False,
    "Goes on from --init WORKDIR[@STEP] at its step with its optimizer's moments: phases, schedule "
    'and batches count from its start.',
  )
  _INIT_LAYERS = flags.DEFINE_string(
    'init_layers',
    '',
    'Layers of --init that make a shallower network: first:N, every:K, or numbers from 0 by comma.',
  )
  cli.run(main, lambda code: importlib.import_module('bertzoo_jax.runs.distributed').leave(code))
