"""Twenty steps on tags and on choices beside torch, as in test_trajectory_rows.py."""

import functools
import json
import math

import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import objectives
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import heads as hf_heads
from bertzoo_jax.hf import weights
from tests import test_trajectory_rows as rows
from tests.hf import test_heads as heads

torch = pytest.importorskip('torch', reason='the comparison needs torch')
transformers = pytest.importorskip('transformers', reason='the comparison needs transformers')

LABELS, OPTIONS = ('O', 'B-X', 'I-X'), 3
CLASSES = {'tagging': 'ForTokenClassification', 'choice': 'ForMultipleChoice'}
FAST = [('tagging', 'bert'), ('tagging', 'xlnet'), ('choice', 'bert'), ('choice', 'electra')]
CASES = [
  (kind, case)
  for kind in CLASSES
  for case in rows.CLASSES
  if (kind, case)
  != (
    'choice',
    'deberta',
  )
]


@functools.lru_cache
def start(kind, case):
  """(objective, perturbed weights): dropout off."""
  encoder = small.encoder(section=heads.CASES[case][1], dropout=0.0, attention_dropout=0.0)
  own = (
    dict(labels=LABELS) if kind == 'tagging' else dict(head=rows.CLASSES[case], input_dropout=0.0)
  )
  objective = objectives.BY_NAME[kind](encoder, dropout=0.0, **own)
  return objective, small.parameters(objective, seed=1, scale=0.05)


def batches(kind, case):
  """Those of rows, with tags of tokens or as three options a unit; the last unit has two."""
  out = []
  for number, batch in enumerate(rows.batches(case, 'classification')):
    ids, real = batch['input_ids'], batch['pack_ids'] > 0
    if kind == 'tagging':
      first = real & (np.random.default_rng(number).random(real.shape) < 0.6)
      labels = np.where(first, ids % 3, 0).astype(np.int32)
      out.append({**batch, 'labels': labels, 'label_weights': first.astype(np.float32)})
      continue
    units = {
      name: np.stack([np.roll(x, c, axis=0) for c in range(OPTIONS)], axis=1)
      for name, x in batch.items()
      if x.ndim == 2
    }
    there = np.ones((len(ids), OPTIONS), np.float32)
    there[-1, -1] = 0
    labels = units['input_ids'].sum(axis=2)[:, :2].argmax(axis=1).astype(np.int32)
    weights_B = np.where(np.arange(len(ids)) == 1, 0, 1).astype(np.float32)
    more = dict(labels=labels, label_weights=weights_B, option_weights=there)
    out.append({**units, **more})
  return out


def loss_of(kind, logits, t):
  """The mean over scored tokens, or over units of the options that there are."""
  if kind == 'tagging':
    each = torch.nn.functional.cross_entropy(
      logits.reshape(-1, len(LABELS)), t['labels'].long().reshape(-1), reduction='none'
    )
  else:
    logits = logits.masked_fill(t['option_weights'] == 0, -math.inf)
    each = torch.nn.functional.cross_entropy(logits, t['labels'].long(), reduction='none')
  weight = t['label_weights'].reshape(-1)
  return (each * weight).sum() / weight.sum()


@pytest.mark.parametrize(
  'kind, case',
  [pytest.param(*own, marks=[] if own in FAST else [pytest.mark.slow]) for own in CASES],
)
def test_twenty_steps_on_tags_and_choices_have_torch_s_losses_one_by_one(kind, case, tmp_path):
  objective, params = start(kind, case)
  a = architectures.choose(heads.CASES[case][0] + CLASSES[kind])
  task = hf_heads.Task(None, LABELS if kind == 'tagging' else ())
  encoder = objective.networks[0].encoder
  tensors, config = export.convert(a, weights.flatten(params), encoder, heads.CASES[case][3], task)
  weights.save(tmp_path / 'model.safetensors', tensors)
  (tmp_path / 'config.json').write_text(json.dumps(config))
  network = getattr(transformers, a.name).from_pretrained(tmp_path)
  given = batches(kind, case)
  theirs = rows.torch_losses_of(network, given, functools.partial(loss_of, kind))
  ours = rows.losses_of(objective, params, given)
  assert math.isfinite(theirs.sum())
  assert theirs[-3:].mean() < 0.95 * theirs[:3].mean()  # so the rates show in the loss
  assert np.abs(ours / theirs - 1).max() < rows.TOLERANCE, list(zip(ours, theirs))
