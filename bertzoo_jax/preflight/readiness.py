"""Checks for every error that a run would hit later: text, workdir, disk, recipe. Each problem has
a code and a remedy.

    P00 command line, or Ctrl-C (with --json only)
    P01 config             P02 the chips asked for   P03 no TPU compiler
    P04 mesh, batch, hosts P05 LIBTPU_INIT_ARGS      P06 corpus
    P07 rows of a phase    P08 network of a phase    P09 memory
    P10 compilation        P11 workdir               P12 another run in it
    P13 room on the disk   P14 the object store
    W01 recipe left        W02 epochs                W03 of the text
    W04 not split          W05 gaps in the estimate
"""

import contextlib
import os
import pathlib
import shutil
import warnings
from typing import NamedTuple

from bertzoo_jax import tokenizers
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import amounts
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.corpus import opening
from bertzoo_jax.runs import workdir as workdirs
from bertzoo_jax.training import data as training_data

_FAR = 2.0  # a batch or token count this many times the recipe's is a warning
_MANY = 200  # epochs; no paper reads nearly as many


class Finding(NamedTuple):
  """A problem (P…: the run would fail) or a warning (W…), with its remedy in the sentence."""

  code: str
  sentence: str


class Findings(list):
  """The findings so far; `collecting` turns a UserError into a problem and goes on."""

  def add(self, code, sentence):
    if all(f.sentence != sentence for f in self):  # the same may be met from two sides
      self.append(Finding(code, sentence))

  @contextlib.contextmanager
  def collecting(self, code):
    try:
      yield
    except errors.UserError as e:
      self.add(code, str(e))

  @property
  def problems(self):
    return [f for f in self if f.code.startswith('P')]

  @property
  def warnings(self):
    return [f for f in self if f.code.startswith('W')]


class Text(NamedTuple):
  data: training_data.Data  # with the features of the phases that could be built
  rows: dict  # {phase index: rows per epoch}; empty without a corpus
  tokens: int | None  # tokens of the train split; None without a corpus
  hash: str  # hash of the corpus; '' without one
  read: dict = {}  # {phase index: [Reading] of the corpora of a mixture}
  kept: int = 0  # checkpoints of run.keep_words; without a corpus, at most


def with_epochs(findings: Findings, config, paths):
  """The config with the steps of config.epochs; unchanged, with W02, if a corpus is remote."""
  if any(map(storage.is_remote, opening.listed(paths))):
    steps = sum(phase.steps for phase in configuration.phases(config))
    findings.add(
      'W02',
      f'The steps of config.epochs={config.epochs:g} are only known for a local corpus: give '
      f'--corpus a local copy. Time and cost are of the {steps:,} steps of config.phases.',
    )
    return config
  return pipeline.with_epoch_steps(config, opening.open(paths, config))


def text(findings: Findings, run, paths, hosts: int) -> Text:
  """The text of a run: the corpora at `paths`, or stand-in text without any.

  If a corpus is in an object store, only manifests are read. Adds P06, P07, W02 and W03. hosts: how
  many share a batch.
  """
  config, corpus, manifests, paths = run.config, None, {}, opening.listed(paths)
  with findings.collecting('P06'):
    opening.names(paths)  # raises if one is given twice
  for path in paths:
    with findings.collecting('P06'), _answering(findings, path):
      manifests[path] = corpora.read_manifest(path)
  manifest = manifests[paths[0]] if manifests and len(manifests) == len(paths) else None
  if manifest is not None:
    with findings.collecting('P06'):
      opening.check(manifests, config)
      if not any(map(storage.is_remote, paths)):
        corpus = opening.open(paths, config)
        for member in corpus.members:
          corpora.verify(member.path)
  imagined = None if corpus else _imagined(config, manifest)
  phases, rows, read, reads = {}, {}, {}, {}
  for phase in run.phases:
    with findings.collecting('P07'), warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter('always')
      batch_rows, length = phase.config.batch_size, phase.config.length
      # text enough to build a pipeline in no time
      phase_text = corpus or corpora.stand_in(imagined, documents=2 * batch_rows, length=length)
      train_pipe = pipeline.for_phase(phase_text, phase, host=(0, hosts))
      phases[phase.index] = training_data.PhaseData(train_pipe.features)
      if corpus is None:
        continue
      if corpus.splits['held_out'].num_tokens:
        for pipe in pipeline.held_out(corpus, phase, train_pipe.mask, host=(0, hosts)).values():
          pipe.count()
      rows[phase.index] = train_pipe.rows_per_epoch
      reads[phase.index], read[phase.index] = train_pipe.read, train_pipe.read(phase.steps)
    for sentence in dict.fromkeys(str(w.message) for w in caught):
      findings.add('W03', f'Phase {phase.index}: {sentence}')
    for name, epochs in ((r.name, float(r.epochs)) for r in read.get(phase.index, ())):
      if epochs > _MANY:
        findings.add(
          'W02',
          f'Phase {phase.index} reads the text {name + " " * bool(name)}{epochs:,.0f} times: bring '
          'more text, or fewer steps (--config FILE.py:SIZE,steps=N).',
        )
  kept = amounts.numbers(config.run.keep_words) or ()
  if len(reads) == len(run.phases):
    with findings.collecting('P06'):
      kept = amounts.kept(config.run.keep_words, run.phases, reads, run.end_step)
  model = corpus or imagined
  data = training_data.Data({'hash': model.hash}, model.vocab_size, phases)
  return Text(
    data,
    rows,
    manifest and sum(m['splits']['train']['tokens'] for m in manifests.values()),
    opening.hash_of([m['hash'] for m in manifests.values()]) if manifest else '',
    read,
    len(kept),
  )


def _imagined(config, manifest=None):
  """A corpus of no text, with all that the config may ask for and the facts of a manifest."""
  special = manifest['special'] if manifest else dict(pad=0, unk=1, cls=2, sep=3, mask=4)
  vocab_size = manifest['vocab_size'] if manifest else tokenizers.vocab_size_of(config.tokenizer)
  if vocab_size == configuration.AUTO:
    raise errors.UserError(
      "config.tokenizer.vocab_size is 'auto', which is the corpus's: give --corpus, or a number."
    )
  # `similar` is only tested for being there
  corpus = corpora.in_memory([], [0], [0], vocab_size, special, similar=object())
  corpus.manifest['splitter'] = config.corpus.splitter
  if manifest:
    corpus.hash = manifest['hash']
  return corpus


def check_workdir(
  findings: Findings, config, workdir: str, text: Text, state_bytes: int | None
) -> None:
  """Checks that a run may write to the workdir (P11), is the run in it (P12), has room (P13), and
  that a bucket answers (P14). Leaves no files. state_bytes: of a checkpoint; None if unknown.
  """
  path = storage.path(workdir)
  with findings.collecting('P11'), _answering(findings, workdir):
    _workdir(findings, config, path, text)
    if state_bytes is not None and not storage.is_remote(path):
      every = config.run.keep_every
      for_good = (configuration.total_steps(config) // every if every else 0) + text.kept
      check_room(findings, path, state_bytes, config.run.keep, for_good)


def machinery(workdir: str | None, device_kind: str) -> dict:
  """workdirs.machinery; {} without a workdir, or if it cannot be read: `check_workdir` says so."""
  with contextlib.suppress(Exception):  # any error of an object store
    return workdirs.machinery(workdir, device_kind) if workdir else {}
  return {}


@contextlib.contextmanager
def _answering(findings, address):
  """Turns the errors of an object store (each kind has its own) into a problem."""
  try:
    yield
  except errors.UserError:
    raise
  except Exception as e:
    if not storage.is_remote(address):
      raise
    findings.add(
      'P14',
      f'{address} cannot be reached ({errors.named(e, 160)}): check its name, your login (gcloud '
      'auth application-default login) and the network.',
    )


def _workdir(findings, config, path, text):
  with findings.collecting('P11'):
    workdirs.check_unlike(path, workdirs.A_CORPUS)
  if storage.is_remote(path) or path.exists():
    workdirs.check_writable(path)
    with findings.collecting('P12'):
      corpus = text.hash or workdirs.corpus_record(path).get('hash', '')
      workdirs.check_same_run(path, config, corpus)
  else:
    above = _existing(path)
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
      findings.add(
        'P11',
        f'--workdir {path} cannot be made: {above} is no folder you may write to. Give a folder '
        'you own.',
      )


def check_room(findings: Findings, path, state_bytes: int, keep: int, for_good: int) -> None:
  """Room for the newest checkpoints, the best, those kept for good and the one written (P13)."""
  needed, free = (keep + 2 + for_good) * state_bytes, shutil.disk_usage(_existing(path)).free
  if needed > free:
    findings.add(
      'P13',
      f'--workdir {path} has {free / 1e9:.1f} GB free, its {keep + 2 + for_good} checkpoints of '
      f'{state_bytes / 1e9:.2f} GB take {needed / 1e9:.1f} GB: give another disk or a gs:// '
      'folder, or lower run.keep (or raise run.keep_every).',
    )


def bucket_location(path: str) -> str | None:
  """The region of a gs:// address; None if it is not known."""
  if not str(path).startswith('gs://'):
    return None
  try:
    from google.cloud import storage as buckets

    return buckets.Client().get_bucket(str(path)[5:].split('/')[0]).location.lower()
  except Exception:  # no library, login, network or permission: unknown
    return None


def check_recipe(findings: Findings, phases, recipe) -> None:
  """Warns if the batch (rows per step, on average over the phases) or the number of tokens is far
  from that of the config file's own phases, `recipe` (W01): its learning rate was chosen for these.
  """
  rows = lambda plan: round(sum(p.steps * p.config.batch_size for p in plan) / plan[-1].end_step)
  tokens = lambda plan: sum(p.steps * p.config.batch_size * p.config.length for p in plan)
  for what, ours, theirs in (
    ('batch_size', rows(phases), rows(recipe)),
    ('tokens of the whole run', tokens(phases), tokens(recipe)),
  ):
    share = ours / theirs
    if not 1 / _FAR <= share <= _FAR:
      factor = f'{share:,.0f}' if share >= 100 else f'{share:.3g}'
      advice = (
        'schedule.learning_rate and warmup were chosen for it: scale them, or reach it with '
        'run.accumulation'
        if what == 'batch_size'
        else "results will differ from the recipe's"
      )
      findings.add('W01', f"{what} {ours:,} is {factor} times the recipe's {theirs:,}: {advice}.")


def _existing(path) -> pathlib.Path:
  """The path, or the nearest folder above it that is there."""
  path = pathlib.Path(os.path.abspath(os.fspath(path)))
  while not path.exists():
    path = path.parent
  return path
