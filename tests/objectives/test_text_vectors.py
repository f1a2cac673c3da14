"""Objectives of vectors of texts beside plain loops over pairs of rows."""

import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import objectives
from bertzoo_jax.objectives import contrastive
from tests.found import call_part

LABELS = np.array([3.0, 5.0, 1.0, 3.0, 4.0, 9.0], np.float32)


def regression(cosines, labels):
  return np.mean((cosines - labels / 5) ** 2)


def ranking(cosines, labels):
  pairs = [(i, j) for i in range(len(labels)) for j in range(len(labels)) if labels[i] > labels[j]]
  return np.log1p(sum(np.exp(7.0 * (cosines[j] - cosines[i])) for i, j in pairs))


FORMS = {'cosine_regression': (regression, dict(highest=5.0)), 'cosent': (ranking, dict(scale=7.0))}


@pytest.mark.parametrize('name', FORMS)
@pytest.mark.parametrize('pooling', ['mean', 'first'])
def test_losses_are_those_of_their_definitions(name, pooling):
  plain, fields = FORMS[name]
  encoder = small.encoder()
  wide = dict(widths=(8, 4), width_weights=(0.5, 2.0))
  objective = call_part(objectives, name, encoder, pooling=pooling, **wide, **fields)
  params = small.parameters(objective, scale=0.3)
  rng, shape = np.random.default_rng(0), (len(LABELS), 2, 9)
  batch = {'input_ids': rng.integers(5, small.VOCAB, shape), 'token_type_ids': np.zeros(shape, int)}
  batch['segment_ids'] = (np.arange(9) < rng.integers(2, 10, (*shape[:2], 1))).astype(int)
  # the last unit fills the batch
  batch |= dict(labels=LABELS, label_weights=np.array([1, 1, 1, 1, 1, 0], np.float32))
  batch['row_keys'] = np.zeros((len(LABELS), 2), np.uint32)
  vectors = np.asarray(contrastive.unit_vectors(encoder, params, batch, pooling), np.float64)
  rows = {k: x.reshape(-1, x.shape[-1]) for k, x in batch.items() if x.ndim == 3}
  hidden = np.asarray(encoder.apply({'params': params['encoder']}, rows), np.float64)
  real = rows['segment_ids'][..., None] > 0
  pooled = hidden[:, 0] if pooling == 'first' else (hidden * real).sum(1) / real.sum(1)
  np.testing.assert_allclose(vectors.reshape(pooled.shape), pooled, atol=1e-5)

  def wanted(width, weight):
    x = vectors[:-1, :, :width] / np.linalg.norm(vectors[:-1, :, :width], axis=-1, keepdims=True)
    return weight * plain((x[:, 0] * x[:, 1]).sum(-1), LABELS[:-1])

  loss, _ = objective.loss(params, batch, objective.normalizers(batch), (), None, False)
  total = wanted(None, 1.0) + wanted(8, 0.5) + wanted(4, 2.0)
  assert float(loss) == pytest.approx(total, rel=1e-5)
