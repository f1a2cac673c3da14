"""The span boundary objective in torch, written from the equations of Joshi et al. 2020 §3.2: the
reference of the tests. One prediction after the other, parameters by our paths.
"""

import torch
from torch.nn import functional as F

HEAD = 'boundary_head'


def told(batch, num_offsets):
  """(row, prediction) of each token that the tokens beside its span tell."""
  for row, n in torch.nonzero(batch['masked_weights']).tolist():
    if batch['span_right'][row, n] > 0 and batch['span_offset'][row, n] < num_offsets:
      yield row, n


def loss(p, hidden_BLD, words_VD, batch, num_offsets, eps):
  """The summed negative log-likelihood of the tokens, with the exact gelu. p: {path: tensor}."""
  total = 0.0
  for row, n in told(batch, num_offsets):
    at = lambda name: int(batch[name][row, n])  # noqa: B023  used at once
    left, right = hidden_BLD[row, at('span_left')], hidden_BLD[row, at('span_right')]
    h = torch.cat([left, right, p[f'{HEAD}/offset/embedding'][at('span_offset')]])
    for name in ('first', 'second'):
      h = F.gelu(h @ p[f'{HEAD}/{name}/kernel'] + p[f'{HEAD}/{name}/bias'])
      scale, shift = p[f'{HEAD}/{name}_norm/scale'], p[f'{HEAD}/{name}_norm/bias']
      h = F.layer_norm(h, h.shape, scale, shift, eps)
    logits = words_VD @ h + p[f'{HEAD}/bias']
    total = total + F.cross_entropy(logits, batch['masked_targets'][row, n].long())
  return total
