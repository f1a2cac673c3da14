"""Twenty steps with SiFT beside torch on heads that do not score rows: the span of an answer, tags
of tokens, and options. As in test_trajectory_sift.py, with BERT.
"""

import json

import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import objectives
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import heads as hf_heads
from bertzoo_jax.hf import weights
from bertzoo_jax.objectives import heads as objective_heads
from configs.tasks import parts
from tests import test_trajectory_sift as sift
from tests import test_trajectory_spans as spans
from tests import test_trajectory_tags_choices as tags_choices
from tests.hf import test_heads as heads

torch = pytest.importorskip('torch', reason='the comparison needs torch')
transformers = pytest.importorskip('transformers', reason='the comparison needs transformers')
from tests import torch_sift  # noqa: E402

FORBIDDEN = -1e30
FIELDS = {
  'span': {},
  'tagging': dict(labels=tags_choices.LABELS, dropout=0.0),
  'choice': dict(head='tanh', dropout=0.0, input_dropout=0.0),
}
CLASSES = {'span': 'ForQuestionAnswering', **tags_choices.CLASSES}


def start(kind):
  """(objective, perturbed weights): dropout off."""
  encoder = small.encoder(section=heads.CASES['bert'][1])
  section = parts.sift(**sift.FIELDS, loss='symmetric_kl')
  objective = objectives.BY_NAME[kind](encoder, sift=section, **FIELDS[kind])
  return objective, small.parameters(objective, seed=1, scale=0.05)


def reference(folder, kind, objective, params):
  """torch_sift.Sift around our network in transformers."""
  a, special = architectures.choose(f'Bert{CLASSES[kind]}'), heads.CASES['bert'][3]
  task = hf_heads.Task(None, tags_choices.LABELS if kind == 'tagging' else ())
  encoder = objective.networks[0].encoder
  tensors, config = export.convert(a, weights.flatten(params), encoder, special, task)
  weights.save(folder / 'model.safetensors', tensors)
  (folder / 'config.json').write_text(json.dumps(config))
  network = getattr(transformers, a.name).from_pretrained(folder)
  own = {k: sift.FIELDS[k] for k in ('weight', 'rate')}
  return torch_sift.Sift(network.eval(), 'symmetric_kl', **own)


def torch_loss(kind, reference, batch, first_BLE):
  """The loss of a batch, as a tensor."""
  t = {k: torch.as_tensor(np.ascontiguousarray(v)) for k, v in batch.items()}
  inputs = dict(input_ids=t['input_ids'].long(), attention_mask=t['pack_ids'].long())
  inputs['token_type_ids'] = t['segment_ids'].long()

  def read(out):
    if kind == 'span':
      return tuple(
        x.masked_fill(t['pack_ids'] == 0, FORBIDDEN) for x in (out.start_logits, out.end_logits)
      )
    if kind == 'choice':
      return (out.logits.masked_fill(t['option_weights'] == 0, FORBIDDEN),)
    return (out.logits,)

  def of_task(*logits):
    if kind == 'span':
      return spans.span_loss(*logits, t)
    return tags_choices.loss_of(kind, *logits, t)

  first = torch.as_tensor(np.array(first_BLE))
  return reference.loss(inputs, first, of_task, t['label_weights'], read)


@pytest.mark.parametrize(
  'kind', ['span', *(pytest.param(kind, marks=pytest.mark.slow) for kind in ('tagging', 'choice'))]
)
def test_twenty_steps_with_sift_on_other_heads_have_torch_s_losses_one_by_one(kind, tmp_path):
  objective, params = start(kind)
  torchs = reference(tmp_path, kind, objective, params)

  def value_of(batch, keys_B2):
    keys = objective_heads.rows_of_options({**batch, 'row_keys': keys_B2})['row_keys']
    return torch_loss(kind, torchs, batch, sift.drawn(objective, keys))

  given = spans.batches('bert') if kind == 'span' else tags_choices.batches(kind, 'bert')
  sift.check_trajectory(objective, params, torchs, given, value_of)
