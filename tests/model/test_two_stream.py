"""Two streams with a memory, against transformers' XLNet."""

import jax
import numpy as np
import pytest
import small_networks as small
import torch
import transformers

from bertzoo_jax.objectives import networks

REUSE, MEMORY = small.TWO_STREAM['reuse_length'], small.TWO_STREAM['memory_length']
LENGTH, PREDICTIONS = small.LANE_LENGTH, small.LANE_PREDICTIONS


def torch_twin(encoder, params):
  """XLNetLMHeadModel with these parameters."""
  config = transformers.XLNetConfig(
    vocab_size=small.VOCAB,
    d_model=encoder.hidden_size,
    n_layer=encoder.num_layers,
    n_head=encoder.num_heads,
    d_inner=encoder.intermediate_size,
    ff_activation=encoder.activation,
    mem_len=MEMORY,
    reuse_len=REUSE,
    clamp_len=encoder.clamp_length or -1,
    bi_data=True,
    use_mems_train=True,
    use_mems_eval=True,
  )
  model = transformers.XLNetLMHeadModel(config).eval()
  model.load_state_dict({k: torch.tensor(x) for k, x in named(params).items()})
  return model


def named(params):
  """{transformers' name: array} of parameters, or of their gradients."""
  e, layers, out = params['encoder'], params['encoder']['layers'], {}
  out['transformer.word_embedding.weight'] = e['embeddings']['word']['embedding']
  out['lm_loss.weight'] = out['transformer.word_embedding.weight']
  out['lm_loss.bias'] = params['mlm_head']['bias']
  out['transformer.mask_emb'] = e['embeddings']['query']['embedding'][None]
  a = layers['attention']
  for i in range(len(a['segment'])):
    own = {
      'rel_attn.q': a['query']['kernel'],
      'rel_attn.k': a['key']['kernel'],
      'rel_attn.v': a['value']['kernel'],
      'rel_attn.r': a['position']['kernel'],
      'rel_attn.o': np.moveaxis(a['output']['kernel'], -1, 1),
      'rel_attn.r_w_bias': a['content_query'],
      'rel_attn.r_r_bias': a['position_query'],
      'rel_attn.r_s_bias': a['segment_query'],
      'rel_attn.seg_embed': a['segment'],
      'rel_attn.layer_norm.weight': layers['attention_norm']['scale'],
      'rel_attn.layer_norm.bias': layers['attention_norm']['bias'],
      'ff.layer_1.weight': layers['feed_forward']['in']['kernel'].mT,
      'ff.layer_1.bias': layers['feed_forward']['in']['bias'],
      'ff.layer_2.weight': layers['feed_forward']['out']['kernel'].mT,
      'ff.layer_2.bias': layers['feed_forward']['out']['bias'],
      'ff.layer_norm.weight': layers['feed_forward_norm']['scale'],
      'ff.layer_norm.bias': layers['feed_forward_norm']['bias'],
    }
    out |= {f'transformer.layer.{i}.{name}': np.asarray(x[i]) for name, x in own.items()}
  return {name: np.asarray(x) for name, x in out.items()}


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


@pytest.mark.parametrize(
  'changes',
  [pytest.param({}, marks=pytest.mark.slow), dict(clamp_length=6, activation='relu')],
  ids=str,
)
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
    found = named(gradients)
    for name, x in model.named_parameters():
      assert np.abs(found[name]).max() > 1e-5, name
      assert small.worst(found[name], x.grad.numpy()) < 1e-5, name


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
  predict = jax.jit(
    lambda batch, memory: networks.predictions(
      encoder, params['encoder'], batch, None, memory=memory
    )
  )
  resets = {**batch, 'resets': np.array([0, 1, 0, 1], np.int32)}
  mixed, kept, cold = (
    predict(*of) for of in ((resets, memory), (batch, memory), (batch, objective.carry(4)))
  )
  for row, same, other in ((0, kept, cold), (1, cold, kept), (2, kept, cold), (3, cold, kept)):
    assert small.worst(mixed.states_BPD[row], same.states_BPD[row]) < 1e-6
    assert small.worst(mixed.memory[row], same.memory[row]) < 1e-6
    assert small.worst(mixed.states_BPD[row], other.states_BPD[row]) > 1e-3
