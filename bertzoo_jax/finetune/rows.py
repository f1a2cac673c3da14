"""The rows of a task as the data of a run."""

import functools

import jax.numpy as jnp
import numpy as np

from bertzoo_jax import hf
from bertzoo_jax import tokenizers
from bertzoo_jax.common import amounts
from bertzoo_jax.common import storage
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import resolve
from bertzoo_jax.hf import tokenizer as hf_tokenizer
from bertzoo_jax.pretrained import predicting
from bertzoo_jax.tasks import batches
from bertzoo_jax.tasks.kinds import kind
from bertzoo_jax.training import data as training_data


class Rows:
  """A split of a task, to learn from or to evaluate on: see training.data.PhaseData."""

  def __init__(self, split, experiment, task):
    self._split, self._size, self._seed = split, experiment.batch_size, experiment.seed
    lengths = batches.buckets(experiment.length)
    self._how = dict(length_buckets=lengths, padding=task.padding, pad=task.pad)
    self.rows_per_epoch = len(split)

  def count(self) -> None:
    """Does nothing: `tasks.open` has counted the rows, and refuses a split without any."""

  def iterate(self, first: int, end: int):
    known = dict(batch_size=self._size, seed=self._seed, **self._how)
    return (batches.train_batch(self._split, step, **known) for step in range(first, end))

  def read(self, steps: int) -> tuple[amounts.Reading, ...]:
    return (amounts.Reading('', steps * self._size, self.rows_per_epoch, None),)

  def evaluation_batches(self, n: int):
    """Batches that cover all rows once, whatever `n` is."""
    del n
    for _, batch in batches.ordered_batches(self._split, self._size, **self._how):
      yield batch


def data_of(run: resolve.Run, task, weights) -> training_data.Data:
  """The rows of a task. weights: the Pretrained that the run begins with."""
  experiment, train, dev = run.config, task.splits['train'], dev_of(task)
  units = np.zeros(experiment.batch_size, np.int64)  # any units: only shapes are taken
  padding = dict(padding=task.padding, pad=task.pad)
  longest = batches.gathered(train, units, length=experiment.length, **padding)
  phase = training_data.PhaseData(
    {name: (x.shape, x.dtype) for name, x in longest.items()},
    Rows(train, experiment, task),
    {} if dev is None else {'': Rows(dev, experiment, task)},
    patience=experiment.patience,
  )
  if experiment.choose == 'best':
    phase = phase._replace(scores=functools.partial(_scores, run, task, dev))
  return training_data.Data(
    corpus={
      'hash': task.hash,
      'documents': len(train),
      'tokens': int(len(train.ids)),
      **({'task': dict(task.facts)} if task.facts else {}),
    },
    vocab_size=weights.vocab_size,
    phases={0: phase},
    save_tokenizer=functools.partial(_save_tokenizer, weights.tokenizer_folder),
    tokenizer=weights.tokenizer_folder,
  )


def dev_of(task):
  """The split whose scores compare runs; None if it has no labels."""
  dev = next((split for name, split in task.splits.items() if name.startswith('dev')), None)
  return None if dev is None or dev.labels is None else dev


def outputs(run: resolve.Run, params, split, task) -> dict[str, np.ndarray]:
  """As `predicting.outputs`, of a run."""
  encoder = build.shared_encoder(run, hf.vocabulary_size(params)).clone(dtype=jnp.float32)
  return predicting.outputs(encoder, params, split, task, run.config.objective)


def _scores(run, task, dev, params) -> tuple[dict[str, float], float]:
  """({'dev_METRIC': score} of `params`, the first score, negated if lower is better)."""
  scores = kind.score(run.config.metrics, task, dev, outputs(run, params, dev, task))
  # in names of curves, / begins the name of a corpus of a mixture
  named = {f'dev_{name}'.replace('/', '_'): value for name, value in scores.items()}
  return named, task.sign * scores[run.config.metrics[0]]


def _save_tokenizer(source, folder) -> None:
  """Copies a tokenizer, made here or published, to a folder."""
  folder.mkdir(parents=True, exist_ok=True)
  source = storage.path(source)
  if hf_tokenizer.made_here(source):
    tokenizers.load(source).save(folder)
    return
  for name, content in hf_tokenizer.published(source).items():
    storage.write_bytes(folder / name, content)
