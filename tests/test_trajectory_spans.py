"""Twenty steps of fine-tuning on questions beside torch: the same weights, batches and optimizer,
dropout off; the loss of every step is compared.

The conditional heads have XLNet's class of transformers for their modules, or a reference of a few
lines. Both take the mean of the starts for the score of no answer, as the releases do.
"""

import math

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import objectives
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf.heads import SPAN
from bertzoo_jax.training import step as steps
from tests import test_trajectory_rows as rows
from tests.hf import test_heads as heads

torch = pytest.importorskip('torch', reason='the comparison needs torch')
transformers = pytest.importorskip('transformers', reason='the comparison needs transformers')

SIMPLE = ('bert', 'xlnet')
SLOW = ('ernie', 'roberta', 'albert', 'electra', 'deberta', 'deberta v2')
FIELDS = {
  'span': {},
  'tanh': dict(head='tanh', hidden_size=0, answerable_weight=0.5, dropout=0.0),
  'gelu': dict(head='gelu', hidden_size=16, answerable_weight=0.3, dropout=0.0),
}


def start(case, kind):
  """(objective, perturbed weights): dropout off."""
  encoder = small.encoder(section=heads.CASES[case][1], dropout=0.0, attention_dropout=0.0)
  name = 'span' if kind == 'span' else 'span_conditional'
  objective = objectives.BY_NAME[name](encoder, **FIELDS[kind])
  return objective, small.parameters(objective, seed=1, scale=0.05)


def batches(case):
  """As those of rows, with places; a third of the rows has no answer."""
  out = []
  for number, batch in enumerate(rows.batches(case, 'classification')):
    real = batch['pack_ids'] > 0
    draw = np.random.default_rng(number % 3)
    first, size = real.argmax(axis=1), real.sum(axis=1)
    cls = first + size - 1 if case == 'xlnet' else first
    at = first + 1 + (batch['labels'] % (size - 2))
    places = np.stack([at, np.minimum(at + draw.integers(0, 2, len(at)), first + size - 2)], axis=1)
    none = np.arange(len(at)) % 3 == 2
    places = np.where(none[:, None], cls[:, None], places).astype(np.int32)
    mask = real & (draw.random(real.shape) < 0.8)
    for k in (0, 1):
      mask[np.arange(len(at)), places[:, k]] = True
    mask[np.arange(len(at)), cls] = True
    out.append(
      {
        **batch,
        'labels': places,
        'impossible': none.astype(np.float32),
        'answer_mask': mask.astype(np.int32),
      }
    )
  return out


def our_losses(case, objective, params):
  tx, schedule = rows.optimizer(params, objective.networks[0].encoder.num_layers)
  state = small.state(objective, tx, params, rows.ROWS)
  step = jax.jit(steps.make_train_step(objective, tx, schedule, seed=0))
  losses = []
  for batch in batches(case):
    read = {name: x for name, x in batch.items() if name in objective.reads or 'ids' in name}
    state, found = step(state, {**batch, **read})
    losses.append(float(found['loss']))
  return np.asarray(losses)


def mean_of(losses, weight):
  return (losses * weight).sum() / weight.sum()


def span_loss(start_BL, end_BL, t):
  cross = lambda x, k: torch.nn.functional.cross_entropy(
    x, t['labels'][:, k].long(), reduction='none'
  )
  return mean_of((cross(start_BL, 0) + cross(end_BL, 1)) / 2, t['label_weights'])


def simple_loss(network, inputs, t):
  out, padding = network(**inputs), t['pack_ids'] == 0
  return span_loss(*(x.masked_fill(padding, -1e30) for x in (out.start_logits, out.end_logits)), t)


def answerable_loss(logits, t):
  each = torch.nn.functional.binary_cross_entropy_with_logits(
    logits, t['impossible'], reduction='none'
  )
  return mean_of(each, t['label_weights'])


def xlnet_loss(network, inputs, t):
  hidden = network.transformer(**inputs)[0]
  forbidden, starts = 1.0 - t['answer_mask'].float(), t['labels'][:, 0].long()
  start = network.start_logits(hidden, p_mask=forbidden)
  end = network.end_logits(hidden, start_positions=starts, p_mask=forbidden)
  mean = torch.einsum('bl,bld->bd', start.softmax(dim=-1), hidden)
  none = network.answer_class(hidden, start_states=mean)
  return span_loss(start, end, t) + 0.5 * answerable_loss(none, t)


def reference_loss(head):
  """A function as `xlnet_loss` of the head of kind gelu with these parameters."""

  def dense(name, x):
    y = x @ head[f'{name}/kernel']
    return y + head[f'{name}/bias'] if f'{name}/bias' in head else y

  def loss(network, inputs, t):
    hidden = network.bert(**inputs)[0]
    allowed, rows_ = t['answer_mask'] > 0, torch.arange(len(hidden))
    gelu = torch.nn.functional.gelu
    start = dense('start', hidden)[..., 0].masked_fill(~allowed, -1e30)
    state = hidden[rows_, t['labels'][:, 0].long()]
    of_both = dense('end_token', hidden) + dense('end_start', state)[:, None]
    end = dense('end', gelu(of_both))[..., 0].masked_fill(~allowed, -1e30)
    mean = (start.softmax(dim=-1)[..., None] * hidden).sum(dim=1)
    of_row = dense('answer_start', mean) + dense('answer_row', hidden[:, 0])
    none = dense('answer', gelu(of_row))[..., 0]
    return span_loss(start, end, t) + 0.3 * answerable_loss(none, t)

  return loss


def torch_losses(case, network, loss_of, more=()):
  """more: (name, tensor) of parameters beside the network's."""
  network.eval()
  beside = ('mask_emb', 'roberta.embeddings.token_type_embeddings', 'qa_outputs' if more else '-')
  names = {n: p for n, p in network.named_parameters() if not any(b in n for b in beside)}
  names |= dict(more)
  state, losses = {}, []
  for s, batch in enumerate(batches(case)):
    t = {k: torch.as_tensor(np.ascontiguousarray(v)) for k, v in batch.items()}
    inputs = dict(input_ids=t['input_ids'].long(), attention_mask=t['pack_ids'].long())
    if t['segment_ids'].any():
      inputs['token_type_ids'] = t['segment_ids'].long()
    loss = loss_of(network, inputs, t)
    for p in names.values():
      p.grad = None
    loss.backward()
    torch.nn.utils.clip_grad_norm_(names.values(), 1.0)
    rate = rows.rate_at(s)
    with torch.no_grad():
      for name, p in names.items():
        rows.adam(p, name, state, s, rate * multiplier(name, network.config.num_hidden_layers))
    losses.append(loss.item())
  return np.asarray(losses)


def multiplier(name, num_layers):
  of_head = ('qa_outputs', 'start_logits', 'end_logits', 'answer_class', 'span_head')
  return 1.0 if name.startswith(of_head) else rows.multiplier(name, num_layers)


def check(ours, theirs):
  assert math.isfinite(theirs.sum())
  assert theirs[-3:].mean() < 0.9 * theirs[:3].mean()  # so the rates show in the loss
  assert np.abs(ours / theirs - 1).max() < rows.TOLERANCE, list(zip(ours, theirs))


@pytest.mark.parametrize(
  'case', [*SIMPLE, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_twenty_steps_of_the_linear_head_have_torch_s_losses(case, tmp_path):
  objective, params = start(case, 'span')
  a, special = heads.of(heads.CASES[case][0], SPAN), heads.CASES[case][3]
  heads.save(tmp_path, a, params, objective.networks[0].encoder, special)
  network = getattr(transformers, a.name).from_pretrained(tmp_path)
  check(our_losses(case, objective, params), torch_losses(case, network, simple_loss))


def test_twenty_steps_of_xlnet_s_conditional_head_have_torch_s_losses(tmp_path):
  objective, params = start('xlnet', 'tanh')
  a = architectures.choose(heads.BEAMS)
  encoder, special = objective.networks[0].encoder, heads.CASES['xlnet'][3]
  heads.save(tmp_path, a, params, encoder, special)
  network = getattr(transformers, a.name).from_pretrained(tmp_path)
  check(our_losses('xlnet', objective, params), torch_losses('xlnet', network, xlnet_loss))


def test_twenty_steps_of_electra_s_conditional_head_have_torch_s_losses(tmp_path):
  objective, params = start('bert', 'gelu')
  encoder, special = objective.networks[0].encoder, heads.CASES['bert'][3]
  _, simple = start('bert', 'span')
  body = {'encoder': params['encoder'], 'span_head': simple['span_head']}
  a = heads.of('Bert', SPAN)
  heads.save(tmp_path, a, body, encoder, special)
  network = getattr(transformers, a.name).from_pretrained(tmp_path)
  head = {
    path: torch.tensor(np.asarray(x), requires_grad=True)
    for path, x in heads.weights.flatten(params['span_head']).items()
  }
  more = [(f'span_head.{path.replace("/", ".")}', x) for path, x in head.items()]
  theirs = torch_losses('bert', network, reference_loss(head), more)
  check(our_losses('bert', objective, params), theirs)
