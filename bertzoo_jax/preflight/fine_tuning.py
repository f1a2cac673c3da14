"""A fine-tuning, for preflight: which of its runs to compile, and where each runs."""

from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.finetune import jobs
from bertzoo_jax.finetune import plan
from bertzoo_jax.finetune import rows
from bertzoo_jax.finetune import work
from bertzoo_jax.preflight import readiness
from bertzoo_jax.pretrained import loading


class Runs(NamedTuple):
  """The runs of a task.

  Attributes:
    number: of all of them.
    at_once: how many run at the same time, each on its own device; 1: each has all devices.
    rows: that the device with the most work trains on.
  """

  number: int
  at_once: int
  rows: int


def runs(findings, config, init: str, task_dir: str) -> tuple[list[jobs.Job], readiness.Text]:
  """The runs of a fine-tuning, and the text of the one with the largest batch, which is the first.

  ([], None) with a finding, if something does not fit (P01: the config, P06: weights or files).
  """
  with findings.collecting('P01'):
    (name, config), *others = plan.tasks(config).items()
    if others:
      raise errors.UserError(
        f'The config has {1 + len(others)} tasks, and preflight takes one: name it, as in '
        f'FILE.py:{name}.'
      )
    weights = task = None
    with findings.collecting('P06'):
      weights = plan.weights(init)
    if weights is not None:
      plan.check(config, weights[0])
      with findings.collecting('P06'):
        task = work.opened(config, task_dir, loading.tokenizer_of(weights[0]), weights[0])
    if task is not None:
      found = plan.runs(name, config, task, weights, 'runs')
      found.sort(key=lambda run: -run.experiment.batch_size)
      data = rows.data_of(found[0].resolved, task, weights[0])
      text = readiness.Text(data, {0: len(task.splits['train'])}, None, task.hash)
      return found, text
  return [], None


def placed(found: list[jobs.Job], slice_) -> Runs:
  """How the runs go on a slice. Raises UserError if it has several hosts."""
  if slice_.hosts > 1:
    raise errors.UserError(
      f'A fine-tuning runs on one host, and {slice_.accelerator_type} has {slice_.hosts}: take a '
      'smaller slice.'
    )
  at_once = min(work.at_once(found, slice_.devices), len(found))
  rows = [0] * at_once
  for experiment in (run.experiment for run in found):  # each goes where one ends first
    rows[rows.index(min(rows))] += experiment.phases[0][0] * experiment.batch_size
  return Runs(len(found), at_once, max(rows))


def alone(experiment):
  """An experiment for one device."""
  made = experiment.copy_and_resolve_references().unlock()
  made.run.mesh = (1, 1, 1)
  return made.lock()
