"""Optimizers and rates of the papers' codes, written out in torch and not taken from ours.

A rate is a function of the step. An optimizer changes a parameter in place.
"""

import math
import re

import torch

from tests.trajectories import driver

STEPS = driver.STEPS


def google_rate(s, *, peak, warmup):
  """Linear warmup, then what a line from the first step would be (BERT, DeBERTa)."""
  return peak * s / warmup if s < warmup else peak * (1 - s / STEPS)


def electra_rate(s, *, peak, warmup):
  """The product of decay and warmup (google-research/electra)."""
  return peak * (1 - s / STEPS) * min(1.0, s / warmup)


def fairseq_rate(s, *, peak, warmup):
  return peak * max(s, 1) / warmup if s < warmup else peak * (STEPS - s) / (STEPS - warmup)


def old_fairseq_rate(s, *, peak, warmup):
  return peak * max(s, 1) / warmup if s < warmup else peak * (1 - s / STEPS)


def xlnet_rate(s, *, peak, warmup, floor=0.001):
  """Linear warmup, then linear to a thousandth of the peak."""
  if s < warmup:
    return peak * s / warmup
  return peak * (floor + (1 - floor) * (STEPS - s) / (STEPS - warmup))


def decays(name):
  """All but norms and biases; XLNet's query biases decay in the release."""
  if re.search(r'r_[wrs]_bias$', name):
    return True
  return not re.search(r'LayerNorm|layer_norm|norm\.weight|(bias|scale)$', name)


def _moments(p, name, gradient, state, b2):
  m, v = state.setdefault(name, (torch.zeros_like(p), torch.zeros_like(p)))
  m.mul_(0.9).add_(0.1 * gradient)
  v.mul_(b2).add_((1 - b2) * gradient**2)
  return m, v


def google_adam(p, name, gradient, state, s, *, rate, b2=0.999, decay=0.01):
  """optimization.py of google-research/bert: no bias correction; eps outside the root; decoupled
  decay. ELECTRA, DeBERTa and XLNet have it too.
  """
  m, v = _moments(p, name, gradient, state, b2)
  update = m / (v.sqrt() + 1e-6)
  if decays(name):
    update = update + decay * p
  p.sub_(rate(s) * update)


def google_lamb(p, name, gradient, state, s, *, rate):
  """lamb_optimizer.py of google-research/albert: as Adam there, then scaled by |p| / |update|, but
  for norms and biases.
  """
  m, v = _moments(p, name, gradient, state, 0.999)
  update, ratio = m / (v.sqrt() + 1e-6), 1.0
  if decays(name):
    update = update + 0.01 * p
    norms = p.norm(), update.norm()
    ratio = norms[0] / norms[1] if min(norms) > 0 else 1.0
  p.sub_(rate(s) * ratio * update)


def fairseq_adam(
  p,
  name,
  gradient,
  state,
  s,
  *,
  rate,
  b2=0.98,
  eps=1e-6,
  decay=0.01,
  decayed=lambda name: True,
  share=lambda name: 1.0,
):
  """optim/adam.py of fairseq: corrected through the step size, so eps stands beside the uncorrected
  root; everything decays. share: of the rate, by name.
  """
  m, v = _moments(p, name, gradient, state, b2)
  rate_s = rate(s) * share(name)
  step_size = rate_s * math.sqrt(1 - b2 ** (s + 1)) / (1 - 0.9 ** (s + 1))
  if decayed(name):
    p.sub_(rate_s * decay * p)
  p.sub_(step_size * m / (v.sqrt() + eps))


def paddle_adam(p, name, gradient, state, s, *, rate):
  """AdamOptimizer of Paddle: corrected through the step size, so eps stands beside the uncorrected
  root. ERNIE's decay: for all but norms and biases, at the rate of the step.
  """
  m, v = _moments(p, name, gradient, state, 0.999)
  decayed = rate(s) * 0.01 * p if decays(name) else 0.0
  step_size = rate(s) * math.sqrt(1 - 0.999 ** (s + 1)) / (1 - 0.9 ** (s + 1))
  p.sub_(step_size * m / (v.sqrt() + 1e-8) + decayed)


# Tensors of ModernBERT's class that hold several parameters of ours.
_JOINED = {'Wqkv': 3, 'Wi': 2}


def stable_adamw(p, name, gradient, state, s, *, rate, b2=0.98, decay=0.01):
  """Algorithm 2 of Wortsman et al. 2023; each parameter has its own bound."""
  pieces = next((n for part, n in _JOINED.items() if f'.{part}.' in name), 1)
  m, v = _moments(p, name, gradient, state, b2)
  m_hat, v_hat = m / (1 - 0.9 ** (s + 1)), v / (1 - b2 ** (s + 1))
  for part, g, m, v in zip(*(x.chunk(pieces) for x in (p, gradient, m_hat, v_hat))):
    rms = (g**2 / v.clamp(min=1e-12)).mean().sqrt()
    update = m / (v.sqrt() + 1e-6) + (decay * part if decays(name) else 0.0)
    part.sub_(rate(s) / max(1.0, rms.item()) * update)


def stable_rate(s, *, peak, warmup):
  """Linear warmup, then the peak."""
  return peak * min(1.0, s / warmup)
