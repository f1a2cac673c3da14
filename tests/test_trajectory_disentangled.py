"""Twenty training steps of DeBERTa and of DeBERTaV3 beside torch: same weights, batches and
optimizer, dropout off; the loss of every step is compared.

The reference is tests/torch_deberta.py, and the optimizer is written out here from the release.
"""

import math

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax.common import trees
from bertzoo_jax.hf import weights
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import schedules
from bertzoo_jax.training import step as steps
from configs import parts

torch = pytest.importorskip('torch', reason='the comparison needs torch')

import torch_deberta  # noqa: E402  needs torch

STEPS, WARMUP, PEAK = 20, 6, 2e-3
# Both such that a table of words that does not decay shows.
DECAY, TOLERANCE = 0.5, 1e-5
WORD = 'encoder/embeddings/word/embedding'
DROPPED = dict(dropout=0.0, attention_dropout=0.0)
SIZES = dict(num_layers=2, hidden_size=48, num_heads=4, intermediate_size=80, max_positions=40)
V1 = parts.disentangled(
  **SIZES,
  **DROPPED,
  max_distance=20,
  buckets=0,
  norm_relative=False,
  shared_projections=False,
  key_bias=False,
)
V3 = parts.disentangled(**SIZES, **DROPPED, max_distance=20, buckets=8)
# The generator has half of the layers; the release clips each network by its own norm.
RELEASED = (
  dict(width=1.0, depth=0.5, shared='added', head='token_and_row', discriminator_weight=50.0),
  parts.adamw_uncorrected(b2=0.98, weight_decay=DECAY, clip_groups=('^generator/',)),
)
CASES = {
  'v1': ('mlm', V1, {}, parts.adamw_uncorrected(weight_decay=DECAY)),
  'v3': ('replaced_token', V3, *RELEASED),
  'v3 with a generator of two layers': ('replaced_token', {**V3, 'num_layers': 4}, *RELEASED),
}


def rate(s):
  """Linear warmup, then what a line from the first step would be (optims of the release)."""
  return PEAK * s / WARMUP if s < WARMUP else PEAK * (1 - s / STEPS)


def update(p, path, gradient, state, s, b2):
  """Adam of the release: no bias correction, eps outside the root, decoupled decay of all but norms
  and biases.
  """
  m, v = state.setdefault(path, (torch.zeros_like(p), torch.zeros_like(p)))
  m.mul_(0.9).add_(0.1 * gradient)
  v.mul_(b2).add_((1 - b2) * gradient**2)
  change = m / (v.sqrt() + 1e-6)
  if not path.endswith(('scale', 'bias')):
    change = change + DECAY * p
  p.sub_(rate(s) * change)


def v1_loss(p, objective, batch):
  return torch_deberta.Deberta(p, objective.networks[0].encoder).mlm_loss(batch)


def v3_loss(p, objective, batch):
  """The generator's loss + 50 · the discriminator's, whose words are E_G without gradient + Δ (He
  et al. 2021 §3.3). Both networks learn at once.
  """
  main, generator = objective.networks
  prefix = 'generator/'
  of_generator = {k.removeprefix(prefix): x for k, x in p.items() if k.startswith(prefix)}
  of_main = {**p, WORD: of_generator[WORD].detach() + p[WORD]}
  mlm = torch_deberta.Deberta(of_generator, generator.encoder).mlm_loss(batch)
  return mlm + 50.0 * torch_deberta.Deberta(of_main, main.encoder).replaced_loss(batch)


def groups_of(system, paths):
  """Parameters that are clipped together."""
  if system == 'v1':
    return [list(paths)]
  own = [path for path in paths if path.startswith('generator/')]
  return [own, [path for path in paths if path not in own]]


def torch_losses(system, objective, params, batches):
  loss_of = {'v1': v1_loss, 'v3': v3_loss}[system]
  b2 = {'v1': 0.999, 'v3': 0.98}[system]
  p = {k: torch.tensor(x, requires_grad=True) for k, x in weights.flatten(params).items()}
  state, losses = {}, []
  for s, batch in enumerate(batches):
    loss = loss_of(p, objective, {k: torch.as_tensor(x) for k, x in batch.items()})
    found = torch.autograd.grad(loss, list(p.values()))
    gradients = dict(zip(p, found))
    with torch.no_grad():
      for group in groups_of(system, p):
        norm = math.sqrt(sum(float((gradients[path] ** 2).sum()) for path in group))
        for path in group:
          update(p[path], path, gradients[path] * min(1.0, 1.0 / norm), state, s, b2)
    losses.append(loss.item())
  return np.asarray(losses)


def our_losses(objective, params, optimizer, batches):
  fields = {k: v for k, v in optimizer.items() if k != 'name'}
  schedule = schedules.linear_from_start(STEPS, learning_rate=PEAK, warmup=WARMUP)
  tx = optimizers.BY_NAME[optimizer.name](schedule, trees.paths_of(params), **fields)
  state = small.state(objective, tx, params, 8)
  step = jax.jit(steps.make_train_step(objective, tx, schedule, seed=0))
  losses = []
  for batch in batches:
    state, metrics = step(state, batch)
    losses.append(float(metrics['loss']))
  return np.asarray(losses)


def batches_of(system):
  """Few batches, so that something is learned; of V3 with the tokens that are put in."""
  for seed in range(STEPS):
    batch = small.batch(rows=8, seed=seed % 4)
    del batch['pair_labels']
    if system == 'v3':
      draw = np.random.default_rng(seed)
      shape = batch['masked_targets'].shape
      batch['sampled_ids'] = draw.integers(5, small.VOCAB, shape).astype(np.int32)
    yield batch


@pytest.mark.parametrize(
  'case', [pytest.param(c, marks=[pytest.mark.slow] * ('two layers' in c)) for c in CASES]
)
def test_twenty_steps_have_torch_s_losses_one_by_one(case):
  system, (kind, encoder, changes, optimizer) = case.split()[0], CASES[case]
  objective = small.objective(kind, **encoder, **changes)
  params, batches = small.parameters(objective, seed=1, scale=0.03), list(batches_of(system))
  theirs = torch_losses(system, objective, params, batches)
  ours = our_losses(objective, params, optimizer, batches)
  # It does learn, so the optimizer shows in the loss.
  assert theirs[-4:].mean() < 0.95 * theirs[:4].mean()
  assert np.abs(ours / theirs - 1).max() < TOLERANCE, list(zip(ours, theirs))
