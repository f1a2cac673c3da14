"""DeBERTa v1, v2 and V3 in torch, written from the papers' equations: the reference of the tests.

It reads our parameters by their paths, has no dropout, and is as plain as the equations: one row of
a table per pair of tokens, the decoder at all places. Legend: B batch, L length, P predictions, D
width, H heads, K head width, V vocabulary.
"""

import math

import torch
from torch.nn import functional as F

ACTIVATIONS = {'gelu': F.gelu, 'gelu_tanh': lambda x: F.gelu(x, approximate='tanh')}


class Deberta:
  """An encoder and its heads. p: {path: tensor} of the network. e: our encoder, for its sizes."""

  def __init__(self, p, e):
    self.p, self.e = p, e
    self.activation = ACTIVATIONS[e.activation]

  def norm(self, x, path):
    p, shape = self.p, x.shape[-1:]
    return F.layer_norm(x, shape, p[f'{path}/scale'], p[f'{path}/bias'], self.e.norm_eps)

  def dense(self, x, path, number=None):
    """x · kernel + bias, of layer `number`; a bias where there is one."""
    of = lambda name: (
      self.p[f'{path}/{name}'] if number is None else self.p[f'{path}/{name}'][number]
    )
    kernel = of('kernel')
    out = x @ kernel.reshape(x.shape[-1], -1)
    return out + of('bias').reshape(-1) if f'{path}/bias' in self.p else out

  def embedded(self, ids_BL, real_BL):
    x = self.p['encoder/embeddings/word/embedding'][ids_BL]
    return self.norm(x, 'encoder/embeddings/norm') * real_BL[..., None]

  def relative_rows(self, length):
    """[L, L]: row of the table for query i and key j, by δ(i, j) (§3.1 and v2's buckets)."""
    half = self.e.buckets or self.e.max_distance
    distance = lambda r: _bucket(r, half, self.e.max_distance) if self.e.buckets else r
    row = lambda i, j: min(max(distance(i - j) + half, 0), 2 * half - 1)
    return torch.tensor([[row(i, j) for j in range(length)] for i in range(length)])

  def layer(self, number, h, z, real_BL):
    """Layer `number` with keys and values of h, and queries and residual connection of z."""
    e, at = self.e, 'encoder/layers/attention'
    heads = lambda x: x.reshape(*x.shape[:-1], e.num_heads, -1)
    given = (z, 'query'), (h, 'key'), (h, 'value')
    q, k, v = (heads(self.dense(x, f'{at}/{name}', number)) for x, name in given)
    table = self.p['encoder/relative/embedding']
    if e.norm_relative:
      table = self.norm(table, 'encoder/relative_norm')
    of_query, of_key = 'query', 'key'
    if not e.shared_projections:
      of_query, of_key = 'position_query', 'position_key'
    rows = self.relative_rows(h.shape[1])
    k_rel = heads(self.dense(table, f'{at}/{of_key}', number))[rows]
    q_rel = heads(self.dense(table, f'{at}/{of_query}', number))[rows]
    scores = torch.einsum('blhk,bmhk->bhlm', q, k)
    scores = scores + torch.einsum('blhk,lmhk->bhlm', q, k_rel)
    scores = scores + torch.einsum('lmhk,bmhk->bhlm', q_rel, k)
    scores = scores / math.sqrt(3 * q.shape[-1])
    scores = scores.masked_fill(~real_BL[:, None, None], -1e30)
    mixed = torch.einsum('bhlm,bmhk->blhk', scores.softmax(-1), v).flatten(2)
    layers = 'encoder/layers'
    y = self.dense(mixed, f'{at}/output', number)
    x = self._norm_of(number, z + y, f'{layers}/attention_norm')
    y = self.activation(self.dense(x, f'{layers}/feed_forward/in', number))
    y = self.dense(y, f'{layers}/feed_forward/out', number)
    return self._norm_of(number, x + y, f'{layers}/feed_forward_norm')

  def _norm_of(self, number, x, path):
    scale, bias = self.p[f'{path}/scale'][number], self.p[f'{path}/bias'][number]
    return F.layer_norm(x, x.shape[-1:], scale, bias, self.e.norm_eps)

  def hidden(self, ids_BL, real_BL, layers=None):
    """Vectors after some layers, or all."""
    x = self.embedded(ids_BL, real_BL)
    for number in range(self.e.num_layers if layers is None else layers):
      x = self.layer(number, x, x, real_BL)
    return x

  def decoded(self, ids_BL, real_BL):
    """The enhanced mask decoder at all places (§3.2, A.8)."""
    last = self.e.num_layers - 1
    h = self.hidden(ids_BL, real_BL, last)
    z = h + self.p['encoder/embeddings/position/embedding'][: ids_BL.shape[1]]
    for _ in range(2):
      z = self.layer(last, h, z, real_BL)
    return z

  def vocabulary(self, x):
    """Logits of the tied head."""
    x = self.norm(self.activation(self.dense(x, 'mlm_head/transform')), 'mlm_head/norm')
    return x @ self.p['encoder/embeddings/word/embedding'].T + self.p['mlm_head/bias']

  def replaced(self, h):
    """V3's logits that tokens are replaced, by the sum of each vector and the first one."""
    x = self.norm(h[:, :1] + h, 'replaced_head/norm')
    x = self.activation(self.dense(x, 'replaced_head/dense'))
    return self.dense(x, 'replaced_head/score/classifier')[..., 0]

  def mlm_loss(self, t):
    """Mean over the predictions. t: the batch as tensors."""
    states = self.decoded(t['input_ids'].long(), t['segment_ids'] > 0)
    rows = torch.arange(len(states))[:, None]
    logits = self.vocabulary(states[rows, t['masked_positions'].long()])
    nll = F.cross_entropy(logits.transpose(1, 2), t['masked_targets'].long(), reduction='none')
    return (nll * t['masked_weights']).sum() / t['masked_weights'].sum()

  def replaced_loss(self, t):
    """Mean over all tokens, with `sampled_ids` in place of the masks."""
    original, filled = original_and_filled(t)
    real = t['segment_ids'] > 0
    logits = self.replaced(self.hidden(filled, real))
    wrong = (filled != original).float()
    return F.binary_cross_entropy_with_logits(logits, wrong, reduction='none')[real].mean()


def original_and_filled(t):
  """Ids before masking, and with `sampled_ids` in place of the masks."""
  original, filled = t['input_ids'].long().clone(), t['input_ids'].long().clone()
  for row, place in torch.nonzero(t['masked_weights']):
    at = t['masked_positions'][row, place]
    original[row, at] = t['masked_targets'][row, place].long()
    filled[row, at] = t['sampled_ids'][row, place].long()
  return original, filled


def _bucket(distance, half, far):
  """v2's logarithmic buckets: exact up to half of them, then in steps up to the distance `far`."""
  exact, size = half // 2, abs(distance)
  if size <= exact:
    return distance
  steps = math.log(size / exact) / math.log((far - 1) / exact) * (exact - 1)
  return int(math.copysign(math.ceil(steps) + exact, distance))
