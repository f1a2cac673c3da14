"""SiFT beside torch_sift.py."""

import functools

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import parts
from bertzoo_jax.common import row_keys
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import sift

torch = pytest.importorskip('torch', reason='the comparison needs torch')
pytest.importorskip('transformers', reason='the comparison needs transformers')

import torch_sift  # noqa: E402  they need torch

from tests.trajectories import driver  # noqa: E402
from tests.trajectories import tuning  # noqa: E402

# Larger than the release's, so that a wrong step shows.
FIELDS = dict(weight=5.0, rate=0.05, init=0.1)
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def start(kind, case, loss, scale=0.05):
  """(objective, perturbed weights)"""
  return tuning.start(kind, case, scale, sift=parts.sift(**FIELDS, loss=loss))


def reference(folder, kind, case, loss, objective, params):
  """torch_sift.Sift around our network in transformers."""
  network = tuning.network(folder, kind, case, objective, params)
  divergence = 'labels' if kind == 'multilabel' and loss != 'mse' else loss
  return torch_sift.Sift(network, divergence, weight=FIELDS['weight'], rate=FIELDS['rate'])


def torch_loss(kind, objective, torchs, t, keys_B2):
  """The loss of a batch, a tensor. keys_B2: of its rows, which draw the first perturbation."""
  of, given = tuning.KINDS[kind], {k: np.asarray(x) for k, x in t.items()}
  keys = heads.rows_of_options({**given, 'row_keys': keys_B2})['row_keys']
  size = tuning.LENGTH, objective.networks[0].encoder.embedding_width
  first_BLE = torch.as_tensor(np.array(sift.drawn(keys, size, FIELDS['init'])))
  of_task, read = lambda *logits: of.loss(*logits, t), lambda out: of.read(out, t)
  return torchs.loss(tuning.inputs(t), first_BLE, of_task, t['label_weights'], read)


@pytest.mark.parametrize(
  'case, kind, loss',
  [
    ('bert', 'classification', 'symmetric_kl'),
    ('bert', 'regression', 'mse'),
    *(slow(case, 'classification', 'symmetric_kl') for case in ('albert', 'deberta')),
    slow('deberta v2', 'classification', 'kl'),
    slow('electra', 'multilabel', 'symmetric_kl'),
    slow('bert', 'multilabel', 'mse'),
  ],
)
def test_perturbation_loss_and_the_gradient_of_every_leaf_equal_torch_s(
  case, kind, loss, tmp_path, monkeypatch
):
  # weights of this scale give gradients far above 1e-6, which is added to their size
  objective, params = start(kind, case, loss, scale=0.15)
  given = tuning.batches(kind, case)[1]
  batch = {**given, 'row_keys': row_keys.batch_keys(jax.random.key(3), tuning.ROWS)}
  totals = objective.normalizers(batch)

  def ours(params):
    return objective.loss(params, batch, totals, (), jax.random.key(5), True)

  (value, _), gradients = jax.jit(jax.value_and_grad(ours, has_aux=True))(params)

  torchs = reference(tmp_path, kind, case, loss, objective, params)
  theirs = torch_loss(kind, objective, torchs, driver.tensors(given), batch['row_keys'])
  theirs.backward()
  assert abs(float(value) / theirs.item() - 1) < 1e-5

  begun, encode = [], networks.encode
  monkeypatch.setattr(networks, 'encode', lambda *a: (begun.append(a[-1]), encode(*a))[1])
  ours(params)
  assert len(begun) == 3
  assert small.worst(begun[0], torchs.clean_BLE.detach().numpy()) < 1e-5
  last_BLE, first_BLE = torchs.last.numpy(), torchs.first.detach().numpy()
  real_BL = (batch['segment_ids'] > 0) & (batch['label_weights'] > 0)[:, None]
  # the largest part of a token's step is the rate; padding has none
  grown = np.abs(last_BLE - first_BLE).max(axis=-1)
  assert np.abs(grown[real_BL] / FIELDS['rate'] - 1).max() < 0.1 and not grown[~real_BL].any()
  # the step divides by a token's largest gradient, which enlarges rounding: 1.5e-5 on an AMD EPYC
  assert small.worst(begun[2] - begun[0], last_BLE) < 1e-4

  tensors, _ = tuning.exported(kind, case, objective, jax.tree.map(np.asarray, gradients))
  compared = 0
  for name, p in torchs.network.named_parameters():
    if p.grad is None or name not in tensors:
      assert name not in tensors or not np.any(tensors[name]), name
      continue
    expected = p.grad.numpy()
    worst = np.abs(expected - np.asarray(tensors[name])).max()
    assert worst < 1e-5 * max(1.0, np.abs(expected).max()), (name, worst)
    compared += 1
  assert compared > 20


@pytest.mark.parametrize(
  'case, kind',
  [
    ('bert', 'classification'),
    slow('deberta v2', 'classification'),
    slow('albert', 'regression'),
    *(slow('bert', kind) for kind in ('span', 'tagging', 'choice')),
  ],
)
def test_twenty_steps_with_sift_have_torch_s_losses_one_by_one(case, kind, tmp_path):
  loss = 'mse' if kind == 'regression' else 'symmetric_kl'
  objective, params = start(kind, case, loss)
  torchs = reference(tmp_path, kind, case, loss, objective, params)

  def loss_of(t, s):
    key = jax.random.fold_in(jax.random.key(0, impl='threefry2x32'), s)
    return torch_loss(kind, objective, torchs, t, row_keys.batch_keys(key, tuning.ROWS))

  theirs = driver.Reference(tuning.trained(torchs.network), loss_of, tuning.update)
  ours = objective, params, tuning.batches(kind, case), tuning.ADAMW, tuning.SCHEDULE
  learned = lambda last, first: abs(last / first - 1) > 0.01
  driver.check(driver.Trajectory(*ours, theirs, period=3, learned=learned))
