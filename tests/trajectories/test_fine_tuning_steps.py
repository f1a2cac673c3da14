"""Twenty steps of fine-tuning beside torch, with layer-wise decay.

The rates of the reference are written out from ELECTRA's optimization.py by the number of the layer
in a tensor's name. The conditional heads of answers have XLNet's class of transformers for their
modules, or a reference of a few lines. Both take the mean of the starts for the score of no answer,
as the releases do.
"""

import functools
import re

import numpy as np
import pytest

from bertzoo_jax import objectives
from bertzoo_jax.common import trees
from bertzoo_jax.training import layer_decay
from tests.found import call_part

torch = pytest.importorskip('torch', reason='the comparison needs torch')
transformers = pytest.importorskip('transformers', reason='the comparison needs transformers')

import small_networks as small  # noqa: E402

from bertzoo_jax.hf import weights  # noqa: E402
from tests.hf import test_heads as heads  # noqa: E402  it needs torch
from tests.trajectories import driver  # noqa: E402
from tests.trajectories import tuning  # noqa: E402

DECAY = 0.8
HEADS = r'classifier|pooler|sequence_summary|logits_proj|^(qa_outputs|start_logits|end_logits)'
HEADS += r'|^(answer_class|span_head|head)\b'
# Where the number of a layer stands in a tensor's name; ALBERT's one layer is the top one.
NUMBER = re.compile(
  r'(?:encoder\.layer|transformer\.layer|model\.layers)\.(\d+)\.|albert_layers\.(0)\.'
)


def multiplier(name, num_layers):
  """The factor of a tensor's rate: 1 for the head, decay for the top layer, then a power per
  layer.
  """
  if found := NUMBER.search(name):
    number = num_layers - 1 if found[2] else int(found[1])
    return DECAY ** (num_layers - number)
  if 'final_norm' in name:
    return DECAY
  return 1.0 if re.search(HEADS, name) else DECAY ** (num_layers + 1)


def trajectory(objective, params, batches, network, loss, names, share=0.95):
  """loss: (network, tensors of a batch) → loss. share: of the first losses that the last are less
  than.
  """
  number = objective.networks[0].encoder.num_layers
  rates = layer_decay.rates(trees.paths_of(params), number, DECAY, 'corrected')
  of_layer = lambda name: multiplier(name, network.config.num_hidden_layers)
  update = functools.partial(tuning.update, share=of_layer)
  reference = driver.Reference(names, lambda t, _: loss(network, t), update)
  ours = objective, params, batches, dict(tuning.ADAMW, rates=rates), tuning.SCHEDULE
  learned = lambda last, first: last < share * first
  return driver.Trajectory(*ours, reference, period=3, learned=learned)


def of_kind(kind, case, folder):
  of, (objective, params) = tuning.KINDS[kind], tuning.start(kind, case)
  network = tuning.network(folder, kind, case, objective, params)
  loss = lambda network, t: of.loss(*of.read(network(**tuning.inputs(t)), t), t)
  share = 0.9 if kind == 'span' else 0.95
  names = tuning.trained(network)
  return trajectory(objective, params, tuning.batches(kind, case), network, loss, names, share)


# Conditional heads of answers.


def conditional(case, **fields):
  """(objective, perturbed weights)"""
  encoder = small.encoder(section=heads.CASES[case][1])
  objective = call_part(objectives, 'span_conditional', encoder, dropout=0.0, **fields)
  return objective, small.parameters(objective, seed=1, scale=0.05)


def xlnet_loss(network, t):
  hidden = network.transformer(**tuning.inputs(t))[0]
  forbidden, starts = 1.0 - t['answer_mask'].float(), t['labels'][:, 0].long()
  start = network.start_logits(hidden, p_mask=forbidden)
  end = network.end_logits(hidden, start_positions=starts, p_mask=forbidden)
  mean = torch.einsum('bl,bld->bd', start.softmax(dim=-1), hidden)
  none = network.answer_class(hidden, start_states=mean)
  return tuning.span_loss(start, end, t) + 0.5 * tuning.answerable_loss(none, t)


def of_xlnet_s_head(folder):
  objective, params = conditional('xlnet', head='tanh', hidden_size=0, answerable_weight=0.5)
  a, special = heads.architectures.choose(heads.BEAMS), heads.CASES['xlnet'][3]
  heads.save(folder, a, params, objective.networks[0].encoder, special)
  network = getattr(transformers, a.name).from_pretrained(folder).eval()
  batches, names = tuning.batches('span', 'xlnet'), tuning.trained(network)
  return trajectory(objective, params, batches, network, xlnet_loss, names, 0.9)


def of_electra_s_head(folder):
  """The modules of ELECTRA's head in a few lines, on BERT."""
  objective, params = conditional('bert', head='gelu', hidden_size=16, answerable_weight=0.3)
  simple, own = tuning.start('span', 'bert')
  body = {'encoder': params['encoder'], 'span_head': own['span_head']}
  network = tuning.network(folder, 'span', 'bert', simple, body)
  flat = weights.flatten(params['span_head'])
  head = {path: torch.tensor(np.asarray(x), requires_grad=True) for path, x in flat.items()}

  def dense(name, x):
    y = x @ head[f'{name}/kernel']
    return y + head[f'{name}/bias'] if f'{name}/bias' in head else y

  def loss(network, t):
    hidden, gelu = network.bert(**tuning.inputs(t))[0], torch.nn.functional.gelu
    allowed, rows = t['answer_mask'] > 0, torch.arange(len(hidden))
    start = dense('start', hidden)[..., 0].masked_fill(~allowed, tuning.FORBIDDEN)
    state = hidden[rows, t['labels'][:, 0].long()]
    of_both = dense('end_token', hidden) + dense('end_start', state)[:, None]
    end = dense('end', gelu(of_both))[..., 0].masked_fill(~allowed, tuning.FORBIDDEN)
    mean = (start.softmax(dim=-1)[..., None] * hidden).sum(dim=1)
    of_row = dense('answer_start', mean) + dense('answer_row', hidden[:, 0])
    none = dense('answer', gelu(of_row))[..., 0]
    return tuning.span_loss(start, end, t) + 0.3 * tuning.answerable_loss(none, t)

  names = tuning.trained(network, 'qa_outputs')
  names |= {f'span_head.{path.replace("/", ".")}': x for path, x in head.items()}
  return trajectory(objective, params, tuning.batches('span', 'bert'), network, loss, names, 0.9)


def of_weighted_classes(folder):
  """CrossEntropyLoss with weights and smoothing; a row of the batch does not count."""
  weights_C = torch.tensor([0.05, 0.2, 0.7])
  how = dict(class_weights=tuple(weights_C.tolist()), label_smoothing=0.1)
  objective, params = tuning.start('classification', 'bert', **how)
  network = tuning.network(folder, 'classification', 'bert', objective, params)
  reference = torch.nn.CrossEntropyLoss(weights_C, label_smoothing=0.1)

  def loss(network, t):
    counted = t['label_weights'] > 0
    return reference(network(**tuning.inputs(t)).logits[counted], t['labels'].long()[counted])

  batches = tuning.batches('classification', 'bert')
  return trajectory(objective, params, batches, network, loss, tuning.trained(network))


CASES = {
  (kind, case): functools.partial(of_kind, kind, case)
  for kind in tuning.KINDS
  for case in tuning.CLASSES
  if (kind, case) != ('choice', 'deberta')  # transformers has no such class
}
CASES['conditional span', 'xlnet'] = of_xlnet_s_head
CASES['conditional span', 'bert'] = of_electra_s_head
CASES['weighted classes', 'bert'] = of_weighted_classes
# Others have BERT's network with another activation, or DeBERTa's with another table.
FAST = {
  'classification': ('bert', 'electra', 'deberta', 'xlnet'),
  'weighted classes': ('bert',),
  'regression': ('bert',),
  'multilabel': ('bert',),
  'tagging': ('bert', 'xlnet', 'modern'),
  'choice': ('bert', 'electra'),
  'span': ('bert', 'xlnet'),
  'conditional span': ('bert', 'xlnet'),
}


@pytest.mark.parametrize(
  'kind, case',
  [pytest.param(*x, marks=[pytest.mark.slow] * (x[1] not in FAST[x[0]])) for x in CASES],
)
def test_twenty_steps_of_fine_tuning_have_torch_s_losses_one_by_one(kind, case, tmp_path):
  driver.check(CASES[kind, case](tmp_path))
