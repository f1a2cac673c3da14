"""Twenty steps of fine-tuning beside torch: the same weights, batches and optimizer, dropout off,
layer-wise decay on; the loss of every step is compared.

The rates of the reference are written out from ELECTRA's optimization.py by the number of the layer
in a tensor's name.
"""

import functools
import json
import math
import re

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import objectives
from bertzoo_jax.hf import heads as hf_heads
from bertzoo_jax.hf import weights
from bertzoo_jax.training import layer_decay
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import schedules
from bertzoo_jax.training import step as steps
from tests.hf import test_heads as heads

torch = pytest.importorskip('torch', reason='the comparison needs torch')
transformers = pytest.importorskip('transformers', reason='the comparison needs transformers')

STEPS, WARMUP, PEAK, DECAY, TOLERANCE = 20, 3, 4e-3, 0.8, 1e-4
ROWS, LENGTH = 8, 16
LABELS = ('a', 'b', 'c')
CLASSES = {
  'bert': 'tanh',
  'ernie': 'tanh',
  'roberta': 'tanh',
  'albert': 'tanh',
  'electra': 'gelu',
  'deberta': 'gelu',
  'deberta v2': 'gelu',
  'xlnet': 'tanh',
}
# BERT's network with another activation, or DeBERTa's with another table.
SLOW = ('ernie', 'roberta', 'deberta v2')
# Where the number of a layer stands in a tensor's name; ALBERT's one layer is the top one.
NUMBER = re.compile(r'(?:encoder\.|transformer\.)layer\.(\d+)\.|albert_layers\.(0)\.')


@functools.lru_cache
def start(case, kind):
  """(objective, perturbed weights): dropout off."""
  _, section, _, _ = heads.CASES[case]
  encoder = small.encoder(section=section, dropout=0.0, attention_dropout=0.0)
  labels = {} if kind == 'regression' else dict(labels=LABELS)
  objective = objectives.BY_NAME[kind](
    encoder, head=CLASSES[case], dropout=0.0, input_dropout=0.0, **labels
  )
  return objective, small.parameters(objective, seed=1, scale=0.05)


def batches(case, kind):
  """Few batches, so that something is learned in twenty steps; rows of all lengths, the last of a
  batch without weight.
  """
  _, section, _, special = heads.CASES[case]
  out = []
  for number in range(STEPS):
    draw = np.random.default_rng(number % 3)
    lengths = draw.integers(4, LENGTH + 1, ROWS)
    real = np.arange(LENGTH) < lengths[:, None]
    segments = (np.arange(LENGTH) >= lengths[:, None] // 2) & real
    ids = np.where(real, draw.integers(5, small.VOCAB, real.shape), special['pad'])
    if case == 'xlnet':
      ids, segments, real = ids[:, ::-1], segments[:, ::-1], real[:, ::-1]
    if not ('type_vocab_size' in section and section['type_vocab_size']) and case != 'xlnet':
      segments = np.zeros_like(segments)
    labels = (ids.sum(axis=1) % 3).astype(np.int32)
    out.append(
      {
        'input_ids': ids.astype(np.int32),
        'segment_ids': segments.astype(np.int32),
        'pack_ids': real.astype(np.int32),
        'labels': {
          'classification': labels,
          'regression': (labels - 0.5).astype(np.float32),
          'multilabel': np.stack([labels > 0, labels == 1, labels < 2], axis=1).astype(np.float32),
        }[kind],
        'label_weights': np.asarray([1.0] * (ROWS - 1) + [0.0], np.float32),
      }
    )
  return out


def optimizer(params, num_layers):
  """(tx, schedule) of the parameters of a network."""
  paths = optimizers.paths_of(params)
  schedule = schedules.BY_NAME['linear_from_start'](STEPS, learning_rate=PEAK, warmup=WARMUP)
  tx = optimizers.BY_NAME['adamw'](
    schedule,
    paths,
    b1=0.9,
    b2=0.999,
    eps=1e-6,
    weight_decay=0.01,
    no_decay=(r'norm/', r'bias$'),
    clip_norm=1.0,
    rates=layer_decay.rates(paths, num_layers, DECAY, 'corrected'),
    clip_groups=(),
  )
  return tx, schedule


def our_losses(case, kind):
  return losses_of(*start(case, kind), batches(case, kind))


def losses_of(objective, params, given):
  """The loss of each batch, training on them in turn."""
  tx, schedule = optimizer(params, objective.networks[0].encoder.num_layers)
  state = small.state(objective, tx, params, ROWS)
  step = jax.jit(steps.make_train_step(objective, tx, schedule, seed=0))
  losses = []
  for batch in given:
    state, found = step(state, batch)
    losses.append(float(found['loss']))
  return np.asarray(losses)


def rate_at(s):
  """The rate of a step."""
  return PEAK * s / WARMUP if s < WARMUP else PEAK * (1 - s / STEPS)


def multiplier(name, num_layers):
  """Of a tensor's rate: 1 for the head, decay for the top layer, then a power per layer."""
  if found := NUMBER.search(name):
    number = num_layers - 1 if found[2] else int(found[1])
    return DECAY ** (num_layers - number)
  of_head = re.search(r'classifier|pooler|sequence_summary|logits_proj', name)
  return 1.0 if of_head else DECAY ** (num_layers + 1)


def adam(p, name, state, s, rate):
  """optim/adam.py of fairseq, but that norms and biases do not decay."""
  m, v = state.setdefault(name, (torch.zeros_like(p), torch.zeros_like(p)))
  m.mul_(0.9).add_(0.1 * p.grad)
  v.mul_(0.999).add_(0.001 * p.grad**2)
  if not re.search(r'LayerNorm|layer_norm|bias$', name) or re.search(r'r_[wrs]_bias$', name):
    p.sub_(rate * 0.01 * p)
  p.sub_(rate * math.sqrt(1 - 0.999 ** (s + 1)) / (1 - 0.9 ** (s + 1)) * m / (v.sqrt() + 1e-6))


def torch_losses(folder, case, kind):
  family = heads.CASES[case][0]
  network = getattr(transformers, f'{family}ForSequenceClassification').from_pretrained(folder)

  def loss_of(logits, t):
    weight = t['label_weights']
    if kind == 'classification':
      each = torch.nn.functional.cross_entropy(logits, t['labels'].long(), reduction='none')
    elif kind == 'regression':
      each = (logits[:, 0] - t['labels']) ** 2
    else:
      each = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, t['labels'], reduction='none'
      ).mean(dim=1)
    return (each * weight).sum() / weight.sum()

  return torch_losses_of(network, batches(case, kind), loss_of)


def torch_losses_of(network, given, loss_of):
  """The loss of each batch, training on them in turn. loss_of: (logits, tensors of it) → loss."""
  network.eval()
  num_layers = network.config.num_hidden_layers
  # what the classes have beside our network: XLNet's query vector, the segment that RoBERTa adds
  beside = ('mask_emb', 'roberta.embeddings.token_type_embeddings')
  names = {n: p for n, p in network.named_parameters() if not any(b in n for b in beside)}
  state = {}
  losses = []
  for s, batch in enumerate(given):
    t = {k: torch.as_tensor(np.ascontiguousarray(v)) for k, v in batch.items()}
    inputs = dict(input_ids=t['input_ids'].long(), attention_mask=t['pack_ids'].long())
    if t['segment_ids'].any():
      inputs['token_type_ids'] = t['segment_ids'].long()
    loss = loss_of(network(**inputs).logits, t)
    network.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(names.values(), 1.0)
    rate = rate_at(s)
    with torch.no_grad():
      for name, p in names.items():
        adam(p, name, state, s, rate * multiplier(name, num_layers))
    losses.append(loss.item())
  return np.asarray(losses)


@pytest.mark.parametrize(
  'case, kind',
  [
    *(
      pytest.param(case, 'classification', marks=[pytest.mark.slow] * (case in SLOW))
      for case in CLASSES
    ),
    ('bert', 'regression'),
    ('bert', 'multilabel'),
    *(
      pytest.param(case, kind, marks=pytest.mark.slow)
      for kind in ('regression', 'multilabel')
      for case in CLASSES
      if case != 'bert'
    ),
  ],
)
def test_twenty_steps_of_fine_tuning_have_torch_s_losses_one_by_one(case, kind, tmp_path):
  objective, params = start(case, kind)
  a = heads.of(heads.CASES[case][0])
  task = hf_heads.Task(hf_heads.PROBLEMS[kind], () if kind == 'regression' else LABELS)
  encoder = objective.networks[0].encoder
  tensors, config = export.convert(a, weights.flatten(params), encoder, heads.CASES[case][3], task)
  weights.save(tmp_path / 'model.safetensors', tensors)
  (tmp_path / 'config.json').write_text(json.dumps(config))
  theirs, ours = torch_losses(tmp_path, case, kind), our_losses(case, kind)
  assert math.isfinite(theirs.sum())
  assert theirs[-3:].mean() < 0.95 * theirs[:3].mean()  # so the rates show in the loss
  assert np.abs(ours / theirs - 1).max() < TOLERANCE, list(zip(ours, theirs))
