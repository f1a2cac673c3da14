"""One training, ours and torch's: the same weights, batches and optimizer, dropout off; the loss of
every step is compared.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import small_networks as small
import torch

from bertzoo_jax.common import trees
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import schedules
from bertzoo_jax.training import step as steps
from tests.found import call_part

STEPS = 20


class Reference(NamedTuple):
  """Torch's side.

  Attributes:
    parameters: {name: tensor} that are trained.
    loss: (batch as tensors, step) → loss, a tensor.
    update: (p, name, gradient, state, step), changes p in place (papers.py).
    clip: largest norm of the gradients; None for no clipping.
    group: name → the group of parameters that are clipped together.
  """

  parameters: dict
  loss: Callable
  update: Callable
  clip: float | None = 1.0
  group: Callable = lambda name: None


class Trajectory(NamedTuple):
  """Both sides of a training.

  Attributes:
    objective, params, batches: of our side.
    optimizer, schedule: sections of a config, or fields by name.
    period: how many steps at either end show whether something was learned.
    learned: (mean loss of the last, of the first) → whether the optimizer shows in the losses.
    tolerance: relative.
  """

  objective: object
  params: dict
  batches: list
  optimizer: dict
  schedule: dict
  reference: Reference
  period: int
  tolerance: float = 1e-4
  learned: Callable = lambda last, first: last < 0.95 * first


def check(trajectory):
  """Asserts that our losses are torch's, one by one."""
  t = trajectory
  ours = our_losses(t.objective, t.params, t.optimizer, t.schedule, t.batches)
  theirs = torch_losses(t.reference, t.batches)
  assert math.isfinite(theirs.sum()) and len(ours) == len(theirs) == STEPS
  assert t.learned(theirs[-t.period :].mean(), theirs[: t.period].mean())
  assert np.abs(ours / theirs - 1).max() < t.tolerance, list(zip(ours, theirs))


def our_losses(objective, params, optimizer, schedule, batches):
  optimizer, schedule = dict(optimizer), dict(schedule)
  rate = call_part(schedules, schedule.pop('name'), STEPS, **schedule)
  tx = call_part(optimizers, optimizer.pop('name'), rate, trees.paths_of(params), **optimizer)
  state = small.state(objective, tx, params, len(batches[0]['input_ids']))
  step = jax.jit(steps.make_train_step(objective, tx, rate, seed=0))
  losses = []
  for batch in batches:
    state, metrics = step(state, batch)
    losses.append(float(metrics['loss']))
  return np.asarray(losses)


def torch_losses(reference, batches):
  state, losses, groups = {}, [], {}
  for name, p in reference.parameters.items():
    groups.setdefault(reference.group(name), {})[name] = p
  for s, batch in enumerate(batches):
    for p in reference.parameters.values():
      p.grad = None
    loss = reference.loss(tensors(batch), s)
    loss.backward()
    with torch.no_grad():
      for group in groups.values():
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in group.values()))
        scale = min(1.0, reference.clip / norm) if reference.clip else 1.0
        for name, p in group.items():
          reference.update(p, name, p.grad * scale, state, s)
    losses.append(loss.item())
  return np.asarray(losses)


def tensors(batch):
  return {k: torch.as_tensor(np.ascontiguousarray(v)) for k, v in batch.items()}
