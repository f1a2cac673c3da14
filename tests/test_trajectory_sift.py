"""SiFT beside torch (torch_sift.py): the perturbation and its step, the loss, the gradient of every
leaf, and twenty steps of training.
"""

import functools
import json
import math

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import objectives
from bertzoo_jax.common import row_keys
from bertzoo_jax.hf import heads as hf_heads
from bertzoo_jax.hf import weights
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import sift
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import schedules
from bertzoo_jax.training import step as steps
from configs.tasks import parts
from tests import test_trajectory_rows as rows
from tests.hf import test_heads as heads

torch = pytest.importorskip('torch', reason='the comparison needs torch')
transformers = pytest.importorskip('transformers', reason='the comparison needs transformers')
from tests import torch_sift  # noqa: E402

# Larger than the release's, so that a wrong step shows.
FIELDS = dict(weight=5.0, rate=0.05, init=0.1)
OUTPUTS = {'classification': 'classes', 'regression': 'number', 'multilabel': 'labels'}


@functools.lru_cache
def start(case, kind, loss, scale=0.05):
  """(objective, perturbed weights): dropout off."""
  _, section, _, _ = heads.CASES[case]
  encoder = small.encoder(section=section)
  labels = {} if kind == 'regression' else dict(labels=rows.LABELS)
  objective = objectives.BY_NAME[kind](
    encoder,
    head=rows.CLASSES[case],
    dropout=0.0,
    input_dropout=0.0,
    sift=parts.sift(**FIELDS, loss=loss),
    **labels,
  )
  return objective, small.parameters(objective, seed=1, scale=scale)


def exported(case, kind, objective, params):
  """(tensors, config) of the class of transformers. params: or gradients by them."""
  a = heads.of(heads.CASES[case][0])
  task = hf_heads.Task(hf_heads.PROBLEMS[kind], () if kind == 'regression' else rows.LABELS)
  encoder = objective.networks[0].encoder
  return export.convert(a, weights.flatten(params), encoder, heads.CASES[case][3], task)


def reference(folder, case, kind, loss, objective, params):
  """torch_sift.Sift around our network in transformers."""
  tensors, config = exported(case, kind, objective, params)
  weights.save(folder / 'model.safetensors', tensors)
  (folder / 'config.json').write_text(json.dumps(config))
  family = heads.CASES[case][0]
  network = getattr(transformers, f'{family}ForSequenceClassification').from_pretrained(folder)
  divergence = 'labels' if kind == 'multilabel' and loss != 'mse' else loss
  own = {k: FIELDS[k] for k in ('weight', 'rate')}
  return torch_sift.Sift(network.eval(), divergence, **own)


def torch_loss(reference, batch, first_BLE, kind):
  """The loss of a batch, as a tensor. first_BLE: the first perturbation."""
  t = {k: torch.as_tensor(np.array(v)) for k, v in batch.items() if k != 'row_keys'}
  inputs = dict(input_ids=t['input_ids'].long(), attention_mask=t['pack_ids'].long())
  if t['segment_ids'].any():
    inputs['token_type_ids'] = t['segment_ids'].long()
  units = t['label_weights']

  def of_task(logits):
    if kind == 'classification':
      each = torch.nn.functional.cross_entropy(logits, t['labels'].long(), reduction='none')
    elif kind == 'regression':
      each = (logits[:, 0] - t['labels']) ** 2
    else:
      each = torch.nn.functional.binary_cross_entropy_with_logits
      each = each(logits, t['labels'], reduction='none').mean(dim=1)
    return (each * units).sum() / units.sum()

  return reference.loss(inputs, torch.as_tensor(np.array(first_BLE)), of_task, units)


def drawn(objective, keys_B2):
  """The first perturbation of a batch."""
  size = rows.LENGTH, objective.networks[0].encoder.table_width
  return sift.drawn(keys_B2, size, FIELDS['init'])


@pytest.mark.parametrize(
  'case, kind, loss',
  [
    ('bert', 'classification', 'symmetric_kl'),
    ('albert', 'classification', 'symmetric_kl'),
    pytest.param('deberta', 'classification', 'symmetric_kl', marks=pytest.mark.slow),
    ('deberta v2', 'classification', 'kl'),
    ('electra', 'multilabel', 'symmetric_kl'),
    pytest.param('bert', 'multilabel', 'mse', marks=pytest.mark.slow),
    ('bert', 'regression', 'mse'),
  ],
)
def test_perturbation_loss_and_the_gradient_of_every_leaf_equal_torch_s(
  case, kind, loss, tmp_path, monkeypatch
):
  # weights of this scale give gradients far above 1e-6, which is added to their size
  objective, params = start(case, kind, loss, scale=0.15)
  batch = rows.batches(case, kind)[1]
  batch['row_keys'] = row_keys.of_batch(jax.random.key(3), rows.ROWS)
  totals = objective.normalizers(batch)

  def ours(params):
    return objective.loss(params, batch, totals, (), jax.random.key(5), True)

  (value, _), gradients = jax.jit(jax.value_and_grad(ours, has_aux=True))(params)

  torchs = reference(tmp_path, case, kind, loss, objective, params)
  theirs = torch_loss(torchs, batch, drawn(objective, batch['row_keys']), kind)
  theirs.backward()
  assert abs(float(value) / theirs.item() - 1) < 1e-5

  begun, encode = [], networks.encode
  monkeypatch.setattr(networks, 'encode', lambda *a: (begun.append(a[-1]), encode(*a))[1])
  ours(params)
  assert len(begun) == 3
  assert small.worst(begun[0], torchs.clean_BLE.detach().numpy()) < 1e-5
  last_BLE, first_BLE = torchs.last.numpy(), torchs.first.detach().numpy()
  real_BL = (batch['pack_ids'] > 0) & (batch['label_weights'] > 0)[:, None]
  # the largest part of a token's step is the rate; padding has none
  grown = np.abs(last_BLE - first_BLE).max(axis=-1)
  assert np.abs(grown[real_BL] / FIELDS['rate'] - 1).max() < 0.1 and not grown[~real_BL].any()
  # the step divides by a token's largest gradient, which enlarges rounding: 1.5e-5 on an AMD EPYC
  assert small.worst(begun[2] - begun[0], last_BLE) < 1e-4

  tensors, _ = exported(case, kind, objective, jax.tree.map(np.asarray, gradients))
  compared = 0
  for name, p in torchs.network.named_parameters():
    if p.grad is None or name not in tensors:
      assert name not in tensors or not np.any(tensors[name]), name
      continue
    given = p.grad.numpy()
    worst = np.abs(given - np.asarray(tensors[name])).max()
    assert worst < 1e-5 * max(1.0, np.abs(given).max()), (name, worst)
    compared += 1
  assert compared > 20


@pytest.mark.parametrize(
  'case, kind',
  [
    ('bert', 'classification'),
    pytest.param('deberta v2', 'classification', marks=pytest.mark.slow),
    pytest.param('albert', 'regression', marks=pytest.mark.slow),
  ],
)
def test_twenty_steps_with_sift_have_torch_s_losses_one_by_one(case, kind, tmp_path):
  loss = 'mse' if kind == 'regression' else 'symmetric_kl'
  objective, params = start(case, kind, loss)
  torchs = reference(tmp_path, case, kind, loss, objective, params)

  def value_of(batch, keys_B2):
    return torch_loss(torchs, batch, drawn(objective, keys_B2), kind)

  check_trajectory(objective, params, torchs, rows.batches(case, kind), value_of)


def check_trajectory(objective, params, torchs, given, value_of):
  """Asserts that our losses of the batches, training on them in turn, are torch's.

  Args:
    torchs: torch_sift.Sift.
    given: batches.
    value_of: (batch, row_keys [B, 2]) → torch's loss, a tensor.
  """
  paths = optimizers.paths_of(params)
  schedule = schedules.BY_NAME['linear_from_start'](
    rows.STEPS, learning_rate=rows.PEAK, warmup=rows.WARMUP
  )
  tx = optimizers.BY_NAME['adamw'](
    schedule,
    paths,
    b1=0.9,
    b2=0.999,
    eps=1e-6,
    weight_decay=0.01,
    no_decay=(r'norm/', r'bias$'),
    clip_norm=1.0,
    rates=(),
    clip_groups=(),
  )
  state = small.state(objective, tx, params, rows.ROWS)
  step = jax.jit(steps.make_train_step(objective, tx, schedule, seed=0))
  optimizer = {}
  beside = ('roberta.embeddings.token_type_embeddings',)
  names = {n: p for n, p in torchs.network.named_parameters() if not any(b in n for b in beside)}
  ours, theirs = [], []
  for s, batch in enumerate(given):
    state, found = step(state, batch)
    ours.append(float(found['loss']))
    key = jax.random.fold_in(jax.random.key(0, impl='threefry2x32'), s)
    value = value_of(batch, row_keys.of_batch(key, rows.ROWS))
    torchs.network.zero_grad()
    value.backward()
    torch.nn.utils.clip_grad_norm_(names.values(), 1.0)
    rate = rows.PEAK * (s / rows.WARMUP if s < rows.WARMUP else 1 - s / rows.STEPS)
    with torch.no_grad():
      for name, p in names.items():
        rows.adam(p, name, optimizer, s, rate)
    theirs.append(value.item())
  ours, theirs = np.asarray(ours), np.asarray(theirs)
  assert math.isfinite(theirs.sum())
  assert np.abs(theirs[-3:].mean() / theirs[:3].mean() - 1) > 0.01
  assert np.abs(ours / theirs - 1).max() < rows.TOLERANCE, list(zip(ours, theirs))
