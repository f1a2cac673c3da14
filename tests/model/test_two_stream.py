import functools

import jax
import numpy as np
import pytest
import small_networks as small
import torch
import transformers

from bertzoo_jax import export
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import weights
from bertzoo_jax.objectives import networks

REUSE, MEMORY = small.TWO_STREAM['reuse_length'], small.TWO_STREAM['memory_length']
LENGTH, PREDICTIONS = small.LANE_LENGTH, small.LANE_PREDICTIONS


def converted(encoder, params):
  """(tensors by transformers' name, content of config.json) of parameters, or of gradients."""
  a = architectures.choose('XLNetLMHeadModel')
  return export.convert(a, weights.flatten(params), encoder, small.BERT_IDS)


def torch_twin(encoder, params):
  tensors, config = converted(encoder, params)
  memory = dict(mem_len=MEMORY, reuse_len=REUSE, bi_data=True)
  uses = dict(use_mems_train=True, use_mems_eval=True)
  model = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**{**config, **memory, **uses}))
  tensors = {name: torch.tensor(np.ascontiguousarray(x)) for name, x in tensors.items()}
  missing, extra = model.load_state_dict(tensors, strict=False)
  assert not extra and set(missing) <= {'lm_loss.weight'}
  return model.eval()


def torch_logits(model, batch, memory):
  """(logits [B, P, V], memory [B, n, M, D]) of XLNetLMHeadModel, by its own masks."""
  order, places = batch['order'], batch['masked_positions']
  target = np.zeros(order.shape, bool)
  np.put_along_axis(target, places, True, 1)
  hidden = ~(order[:, None] < order[:, :, None] + ~target[:, :, None])
  out = model(
    torch.tensor(batch['input_ids']),
    mems=[torch.tensor(x).transpose(0, 1) for x in np.moveaxis(memory, 1, 0)],
    perm_mask=torch.tensor(hidden).float(),
    target_mapping=torch.tensor(np.eye(LENGTH)[places]).float(),
    token_type_ids=torch.tensor(batch['token_type_ids']),
    use_mems=True,
  )
  return out.logits, np.stack([x.numpy().swapaxes(0, 1) for x in out.mems], 1)


@pytest.mark.parametrize('changes', [{}, dict(clamp_length=6, activation='relu')], ids=str)
def test_three_chained_steps_equal_transformers_in_loss_memory_and_gradient(changes):
  objective = small.objective('permutation_lm', **changes)
  params = small.parameters(objective)
  encoder = objective.networks[0].encoder
  model, carry = torch_twin(encoder, params), objective.carry(4)
  memory = np.zeros(carry.shape, np.float32)
  for batch in small.lane_batches():
    (loss, (carry, _)), gradients = small.evaluate(objective, params, batch, carry=carry)
    logits, memory = torch_logits(model, batch, memory)
    model.zero_grad()
    theirs = torch.nn.functional.cross_entropy(
      logits.flatten(0, 1), torch.tensor(batch['masked_targets']).flatten().long()
    )
    theirs.backward()
    assert abs(float(loss) - theirs.item()) < 1e-5
    assert small.worst(carry, memory) < 1e-5
    ours, _ = converted(encoder, gradients)
    for name, x in model.named_parameters():
      assert np.abs(ours[name]).max() > 1e-5, name
      assert small.worst(ours[name], x.grad.numpy()) < 1e-5, name


@pytest.fixture(scope='module')
def learned():
  """(objective, parameters off their initial values, a memory that is not 0)."""
  objective = small.objective('permutation_lm')
  memory = np.random.default_rng(1).normal(size=objective.carry(4).shape).astype(np.float32)
  return objective, small.parameters(objective), memory


def test_nothing_flows_into_the_memory_and_it_is_read(learned):
  objective, params, memory = learned
  batch = [*small.lane_batches(2)][1]

  def loss(memory):
    return objective.loss(params, batch, objective.normalizers(batch), memory, None, False)

  of = jax.jit(jax.value_and_grad(loss, has_aux=True))
  (value, (carry, _)), gradient = of(memory)
  assert not np.asarray(gradient).any()
  assert abs(of(0 * memory)[0][0] - value) > 1e-3
  kept = memory[:, :, REUSE:]
  assert small.worst(carry[:, :, : MEMORY - REUSE], kept) == 0
  words = params['encoder']['embeddings']['word']['embedding'][batch['input_ids'][:, :REUSE]]
  assert small.worst(carry[:, 0, MEMORY - REUSE :], words) == 0


def test_a_row_that_resets_is_as_with_the_first_memory_and_no_other_is(learned):
  objective, params, memory = learned
  encoder, batch = objective.networks[0].encoder, [*small.lane_batches(2)][1]
  of = lambda p, batch, memory: networks.predictions(encoder, p, batch, None, memory=memory)
  predict = functools.partial(jax.jit(of), params['encoder'])
  resets = {**batch, 'resets': np.array([0, 1, 0, 1], np.int32)}
  given = (resets, memory), (batch, memory), (batch, objective.carry(4))
  mixed, kept, cold = (predict(*of) for of in given)
  for row, same, other in ((0, kept, cold), (1, cold, kept), (2, kept, cold), (3, cold, kept)):
    assert small.worst(mixed.states_BPD[row], same.states_BPD[row]) < 1e-6
    assert small.worst(mixed.memory[row], same.memory[row]) < 1e-6
    assert small.worst(mixed.states_BPD[row], other.states_BPD[row]) > 1e-3
