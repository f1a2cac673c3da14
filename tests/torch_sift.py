"""SiFT in torch, written from He et al. 2020 and the release's description: the reference of tests.

It works on a class of transformers by a hook before the norm of its embeddings. Dropout is off, and
the first perturbation is given. B batch, L length, E width of the tables.
"""

import torch
from torch.nn import functional as F


def _both_ways(a, b):
  p, q = F.softmax(a, -1).detach(), F.softmax(b, -1).detach()
  return -(q * F.log_softmax(a, -1)).sum(-1) - (p * F.log_softmax(b, -1)).sum(-1)


def _binary(a, b):
  each = F.binary_cross_entropy_with_logits
  both = each(a, b.sigmoid().detach(), reduction='none')
  return (both + each(b, a.sigmoid().detach(), reduction='none')).mean(-1)


DIVERGENCES = {'symmetric_kl': _both_ways, 'labels': _binary}
DIVERGENCES['kl'] = lambda a, b: -(F.softmax(b, -1).detach() * F.log_softmax(a, -1)).sum(-1)
DIVERGENCES['mse'] = lambda a, b: ((a - b) ** 2).mean(-1)


class Sift:
  """A network with SiFT. Attributes after `loss`: first and last perturbation [B, L, E]."""

  def __init__(self, network, divergence, *, weight, rate):
    self.network, self.divergence = network, DIVERGENCES[divergence]
    self.weight, self.rate = weight, rate
    self.added, self.clean_BLE = None, None
    norm = network.base_model.embeddings.LayerNorm
    norm.register_forward_pre_hook(self._before_norm)

  def _before_norm(self, module, inputs):
    if self.added is not None:
      return (self.clean_BLE.detach() + self.added,)
    x = inputs[0]
    centred = x - x.mean(-1, keepdim=True)
    self.clean_BLE = centred / (centred.square().mean(-1, keepdim=True) + 1e-7).sqrt()
    return (self.clean_BLE,)

  def loss(self, inputs, start_BLE, of_task, units, read=lambda out: (out.logits,)):
    """of_task: logits → loss. units: weights of the units (rows, tokens), whose sum is the divisor.
    read: the network's result → its logits, compared one by one and averaged.
    """

    def apart_from(targets):
      found = read(self.network(**inputs))
      each = [self.divergence(x, y) for x, y in zip(found, targets, strict=True)]
      return (sum(each) / len(each) * units).sum()

    self.added = None
    clean = read(self.network(**inputs))
    self.first = start_BLE.clone().requires_grad_(True)
    self.added = self.first
    (gradient,) = torch.autograd.grad(apart_from([x.detach() for x in clean]), self.first)
    unit = gradient / (1e-6 + gradient.abs().amax(-1, keepdim=True))
    self.last = self.added = (self.first + self.rate * unit).detach()
    return of_task(*clean) + self.weight * apart_from(clean) / units.sum()
