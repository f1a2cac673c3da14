"""The held-out text that a run is scored on: the corpus, and rows of it."""

import warnings

from bertzoo_jax import pretrained
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.common import vocabulary
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.corpus import opening
from bertzoo_jax.runs import workdir as workdirs

FIT_ROWS = 1 << 15  # rows that a probe is fitted on, at most


def opened(address: str, path: str, cache_dir: str | None = None):
  """(pretrained.Run, open corpus of its vocabulary with held-out text); see `scores.evaluate`."""
  run = pretrained.open_run(address)
  return run, corpus_of(run.workdir, run.config, path, cache_dir)


def corpus_of(workdir, config, path: str, cache_dir: str | None = None) -> corpora.Corpus:
  """The corpus for a run. Arguments and errors: see `scores.evaluate`."""
  if 'corpus' not in config:
    raise errors.UserError(
      f'{workdir} is a fine-tuned run, which fills no masks: give a run of pretraining. The scores '
      'of a fine-tuned run are in its result.json.'
    )
  trained = workdirs.corpus_record(workdir).get('corpora', {}).values()
  corpus = opening.open(path, config, cache_dir, trained)
  corpora.verify(corpus.path)
  _check_vocabulary(workdir, corpus)
  if not corpus.splits['held_out'].num_tokens:
    raise errors.UserError(
      f'{corpus.path} has no held-out text to score: prepare one with more text or a larger '
      '--config.corpus.held_out.'
    )
  return corpus


def masked_as(config, workdir: str):
  """The config with the masking of another run's last phase, so that runs with different maskings
  are scored on the same rows.

  Raises UserError: no such run, or a fine-tuned one.
  """
  other = configuration.phases(workdirs.run_config(workdir))[-1].config
  if 'masking' not in other:
    raise errors.UserError(
      f'{workdir} is a fine-tuned run, which masks nothing: give --masking_of a run of pretraining.'
    )
  out = config.copy_and_resolve_references()
  with out.unlocked(), out.ignore_type():
    out.masking = other.masking
  return out


def segment_pairs(pairs: str) -> dict:
  """The format section of pairs; skipping chunks of one sentence makes both labels as likely."""
  rates = dict(short_rate=0.1, negative_rate=0.5, negatives='documents', lone_sentences='skip')
  return dict(name='segment_pairs', pairs=pairs, **rates)


def rows_of(corpus, config, format, split: str, batches: int, notes=None) -> list[dict]:
  """At most `batches` batches of config.batch_size rows, each row once; smaller ones if the split
  has fewer rows.

  'held_out' gives the rows of pretraining's evaluation, spread over the split. 'train' gives the
  first rows of an epoch, at most FIT_ROWS. config: of the phase; its masking, length, batch_size
  and seed are used. format: section. notes: list to append the pipeline's warnings to, or None.

  Raises UserError: the split has no row of the format, or an error of pipeline.build.
  """
  fields = dict(
    format=format, masking=config.masking, length=config.length, seed=config.seed, split=split
  )
  size = config.batch_size
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    pipe = pipeline.build(corpus, **fields, batch_size=size)
    # labels of rows that fill a batch would count twice
    if 'pair_labels' in pipe.features and pipe.rows_per_epoch < size:
      size = pipe.rows_per_epoch
      pipe = pipeline.build(corpus, **fields, batch_size=size)
  if notes is not None:
    notes += [sentence for sentence in pipe.warnings if sentence not in notes]
  if split == 'held_out':
    return list(pipe.evaluation_batches(batches))
  return [
    pipe.batch(step)
    for step in range(max(1, min(batches, pipe.rows_per_epoch // size, FIT_ROWS // size)))
  ]


def _check_vocabulary(workdir, corpus):
  """Raises UserError if the corpus has another vocabulary: each id would mean another word."""
  folders = storage.path(workdir) / 'tokenizer', corpus.path / 'tokenizer'
  theirs, ours = map(vocabulary.read_folder, folders)
  if theirs and ours and (difference := vocabulary.difference_of(ours, theirs)):
    raise errors.UserError(
      f'{workdir} was trained with another vocabulary than {corpus.path}: {difference} '
      f'Prepare the text with --tokenizer {folders[0]}.'
    )
