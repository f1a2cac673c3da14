import functools

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax.hf import weights
from bertzoo_jax.model import layers
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import span_boundary

OFFSETS, WORD = 2, 'encoder/embeddings/word/embedding'
HEAD = dict(num_offsets=OFFSETS, offset_size=6)


@functools.cache
def objective_of(**changes):
  own = dict(activation='gelu', boundary_weight=0.3)
  return small.objective('mlm_span_boundary', **own, **HEAD, **changes)


def batch_of():
  """Predictions of every kind: with a boundary loss, behind the places that are told apart, without
  a token beside the span, and fillers.
  """
  batch = small.rows(rows=8)
  real, beside = batch['masked_weights'] > 0, batch['span_right'] > 0
  told = beside & (batch['span_offset'] < OFFSETS)
  assert told.any() and (beside & ~told).any() and (real & ~beside).any() and (~real).any()
  return batch


def test_sums_and_gradients_are_those_of_torch():
  torch = pytest.importorskip('torch', reason='the comparison needs torch')
  import torch_boundary

  encoder, batch = small.encoder(activation='gelu', embedding_size=16), batch_of()
  params = small.parameters(objective_of(embedding_size=16))
  head = heads.boundary(*HEAD.values())
  hidden_BLD = np.random.default_rng(0).normal(size=(8, 24, 48)).astype(np.float32)

  def ours(params, hidden_BLD):
    how = params, hidden_BLD, batch, layers.unconstrained
    return span_boundary.boundary_sums(head, encoder, *how)['boundary_loss']

  value, (of_params, of_hidden) = jax.jit(jax.value_and_grad(ours, (0, 1)))(params, hidden_BLD)
  leaf = lambda x: torch.tensor(x, requires_grad=True)
  p, x = {k: leaf(v) for k, v in weights.flatten(params).items()}, leaf(hidden_BLD)
  t = {k: torch.as_tensor(v) for k, v in batch.items() if k != 'row_keys'}
  theirs = torch_boundary.loss(p, x, p[WORD], t, OFFSETS, encoder.norm_eps)
  theirs.backward()
  assert abs(float(value) / theirs.item() - 1) < 1e-5
  assert small.worst(of_hidden, x.grad.numpy()) < 1e-4
  gradients = weights.flatten(of_params)
  read = [path for path, leaf in p.items() if leaf.grad is not None]
  assert {WORD, *(k for k in p if k.startswith('boundary_head'))} == set(read)
  for path, gradient in gradients.items():
    wanted = p[path].grad.numpy() if path in read else 0 * gradient
    assert small.worst(gradient, wanted) < 1e-4, path


def test_each_loss_is_the_mean_over_its_own_predictions():
  objective, batch = objective_of(), batch_of()
  params, totals = small.parameters(objective), objective.normalizers(batch)
  told = (batch['span_right'] > 0) & (batch['span_offset'] < OFFSETS)
  assert totals['boundary'] == told.sum() < totals['masked'] == batch['masked_weights'].sum()
  (loss, (_, sums)), _ = small.evaluate(objective, params, batch)
  plain = sums['masked']['mlm_loss'] / totals['masked']
  boundary = sums['boundary']['boundary_loss'] / totals['boundary']
  assert abs(loss - (plain + 0.3 * boundary)) < 1e-5


@pytest.mark.parametrize(
  'name, value', [('masked_weights', 0.0), ('span_right', 0), ('span_offset', OFFSETS)]
)
def test_no_gradient_of_the_boundary_loss_comes_from_fillers_and_what_is_not_told_apart(
  name, value
):
  objective, batch = objective_of(), batch_of()
  batch[name] = np.full_like(batch[name], value)
  assert objective.normalizers(batch)['boundary'] == 0
  (_, (_, sums)), gradients = small.evaluate(objective, small.parameters(objective), batch)
  assert not any(np.asarray(x).any() for x in jax.tree.leaves(gradients['boundary_head']))
  assert sums['boundary'] == {'boundary_loss': 0, 'boundary_accuracy': 0}
