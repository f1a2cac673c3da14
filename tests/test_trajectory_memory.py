"""Twenty training steps of XLNet beside transformers' XLNetLMHeadModel, the memory handed on: same
weights, batches and optimizer, dropout off; the loss of every step is compared.

The optimizer and its rate are written out here from the release.
"""

import itertools
import math

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax.common import trees
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import schedules
from bertzoo_jax.training import step as steps
from configs import xlnet

torch = pytest.importorskip('torch', reason='the comparison needs torch')
pytest.importorskip('transformers', reason='the comparison needs transformers')

from tests.model import test_two_stream as network  # noqa: E402  needs torch

# The decay such that it shows whether the three query biases decay, as they do in the release.
STEPS, WARMUP, PEAK, FLOOR, DECAY, TOLERANCE = 20, 6, 2e-3, 0.001, 0.5, 1e-5
PAPER = xlnet.get_config('base')


def rate(s):
  """Of the release: linear warmup, then linear to a thousandth of the peak."""
  if s < WARMUP:
    return PEAK * s / WARMUP
  return PEAK * (FLOOR + (1 - FLOOR) * (STEPS - s) / (STEPS - WARMUP))


def decays(name):
  """All but norms and biases; the query biases of attention do (code of the release)."""
  if name.endswith(('r_w_bias', 'r_r_bias', 'r_s_bias')):
    return True
  return 'layer_norm' not in name and 'bias' not in name


def update(p, name, state, s, scale):
  """Adam of the release: no bias correction, eps outside the root, decoupled decay."""
  m, v = state.setdefault(name, (torch.zeros_like(p), torch.zeros_like(p)))
  gradient = p.grad * scale
  m.mul_(0.9).add_(0.1 * gradient)
  v.mul_(0.999).add_(0.001 * gradient**2)
  change = m / (v.sqrt() + 1e-6)
  p.sub_(rate(s) * (change + DECAY * p if decays(name) else change))


def batches():
  """Few batches, so that something is learned; the memory begins at the first step only."""
  for s, batch in enumerate(itertools.islice(itertools.cycle(small.lane_batches(3)), STEPS)):
    yield {**batch, 'resets': np.full_like(batch['resets'], s == 0)}


def torch_losses(objective, params):
  model = network.torch_twin(objective.networks[0].encoder, params)
  names, state, losses = dict(model.named_parameters()), {}, []
  memory = np.zeros(objective.carry(4).shape, np.float32)
  for s, batch in enumerate(batches()):
    model.zero_grad()
    logits, memory = network.torch_logits(model, batch, memory)
    targets = torch.tensor(batch['masked_targets']).flatten().long()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)
    loss.backward()
    with torch.no_grad():
      norm = math.sqrt(sum(float((p.grad**2).sum()) for p in names.values()))
      for name, p in names.items():
        update(p, name, state, s, min(1.0, 1.0 / norm))
    losses.append(loss.item())
  return np.asarray(losses)


def our_losses(objective, params):
  fields = {k: v for k, v in PAPER.optimizer.items() if k != 'name'} | {'weight_decay': DECAY}
  schedule = schedules.BY_NAME[PAPER.schedule.name](
    STEPS, learning_rate=PEAK, warmup=WARMUP, end_share=PAPER.schedule.end_share
  )
  tx = optimizers.BY_NAME[PAPER.optimizer.name](schedule, trees.paths_of(params), **fields)
  state = small.state(objective, tx, params, 4)
  step = jax.jit(steps.make_train_step(objective, tx, schedule, seed=0))
  losses = []
  for batch in batches():
    state, metrics = step(state, batch)
    losses.append(float(metrics['loss']))
  return np.asarray(losses)


def test_twenty_steps_have_torch_s_losses_one_by_one():
  objective = small.with_memory()
  params = small.parameters(objective, seed=1, scale=0.03)
  attention = params['encoder']['layers']['attention']
  for name in ('content_query', 'position_query', 'segment_query'):
    attention[name] *= 30  # so that their decay shows
  ours, theirs = our_losses(objective, params), torch_losses(objective, params)
  # It does learn, so the optimizer shows in the loss.
  assert theirs[-3:].mean() < 0.95 * theirs[:3].mean()
  assert np.abs(ours / theirs - 1).max() < TOLERANCE, list(zip(ours, theirs))
