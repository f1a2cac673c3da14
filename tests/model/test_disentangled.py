import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small
from flax import traverse_util

from bertzoo_jax import export
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import weights
from bertzoo_jax.model import disentangled
from bertzoo_jax.model import disentangled_attention
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import networks

FAR, LONGEST = 20, 40  # distances and rows of the small encoders
V1 = dict(buckets=0, norm_relative=False, shared_projections=False, key_bias=False)
V2 = dict(buckets=8)
SIZES = dict(num_layers=3, hidden_size=48, num_heads=4, intermediate_size=80)
LIMITS = dict(max_positions=LONGEST, max_distance=FAR)
TOLERANCE = 1e-5

# name: what differs from the encoder of v1 or v2, and the length of the rows
CASES = {
  'v1, rows below the greatest distance': (V1, 16),
  'v1, rows beyond it': (V1, LONGEST),
  'v2, rows below the greatest distance': (V2, 16),
  'v2, rows beyond it': (V2, LONGEST),
  'v2 with the convolution': ({**V2, 'convolution_size': 3}, 24),
  'v1 with content to position alone': ({**V1, 'position_to_content': False}, 24),
  'v1 with position to content alone': ({**V1, 'content_to_position': False}, 24),
  'no relative term': ({**V2, 'content_to_position': False, 'position_to_content': False}, 24),
  'narrow tables': ({**V2, 'embedding_size': 24}, 24),
  'positions at the input': ({**V2, 'absolute_positions': 'input'}, 24),
  'two segments': ({**V2, 'type_vocab_size': 2}, 24),
  'all layers alike': ({**V2, 'sharing': 'all'}, 24),
  'one layer': ({**V2, 'num_layers': 1}, 24),
}


def encoder(*, dtype=jnp.float32, **changes):
  rates = dict(dropout=0.0, attention_dropout=0.0)
  fields = {**parts.disentangled(**{**SIZES, **LIMITS, **rates, **changes})}
  fields.pop('name')
  return disentangled.Disentangled(vocab_size=small.VOCAB, dtype=dtype, **fields)


@functools.cache
def params_of(e, scale=0.15):
  """Every leaf moved off its initial value; also what only `predictions` reads."""
  made = types.SimpleNamespace(init=functools.partial(networks.init_encoder, e))
  return small.parameters(made, scale=scale)


@functools.partial(jax.jit, static_argnames=('e', 'ops'))
def predict(e, params, batch, ops=operations.PLAIN):
  return networks.predictions(e, params, batch, None, ops)[:2]


def everywhere(batch):
  rows, length = batch['input_ids'].shape
  return {**batch, 'masked_positions': np.tile(np.arange(length, dtype=np.int32), (rows, 1))}


def batch_of(length):
  """Predictions at some places, some of them twice, and fillers; then one at each place."""
  batch = small.batch(length=length, rows=3)
  batch['masked_positions'][0, 2] = batch['masked_positions'][0, 1]
  assert (batch['masked_weights'] == 0).any()
  places = [x['masked_positions'] for x in (batch, everywhere(batch))]
  return {**batch, 'masked_positions': np.concatenate(places, axis=1)}


def assert_states(found_BPD, wanted_BLD, batch):
  """Asserts that the vectors of all predictions that are not on padding are the wanted ones."""
  at_BP = batch['masked_positions']
  real_BP = np.take_along_axis(batch['segment_ids'], at_BP, axis=1) > 0
  wanted_BPD = np.take_along_axis(wanted_BLD, at_BP[:, :, None], axis=1)
  assert small.worst(found_BPD[real_BP], wanted_BPD[real_BP]) < TOLERANCE


def theirs(e, params):
  """The network of transformers with these parameters, written as `export` writes them."""
  transformers = pytest.importorskip('transformers', reason='the comparison needs transformers')
  torch = pytest.importorskip('torch', reason='the comparison needs torch')
  a = architectures.choose('DebertaV2Model' if e.buckets else 'DebertaModel')
  flat = weights.flatten({'encoder': params})
  if e.absolute_positions != 'input':  # it has no place for the table of the decoder
    flat = {path: x for path, x in flat.items() if 'embeddings/position' not in path}
  tensors, config = export.convert(a, flat, e, small.BERT_IDS)
  made = getattr(transformers, a.name)
  network = made(made.config_class(**config)).eval()
  prefix = f'{made.base_model_prefix}.'
  own = {n.removeprefix(prefix): torch.tensor(np.ascontiguousarray(x)) for n, x in tensors.items()}
  found = network.load_state_dict(own, strict=False)
  assert not found.unexpected_keys and set(found.missing_keys) <= {'embeddings.position_ids'}
  return network


def their_vectors(network, batch):
  """(vectors after each layer, of the embeddings first)."""
  import torch

  ids, real = (torch.tensor(batch[name]).long() for name in ('input_ids', 'segment_ids'))
  segments = torch.tensor(batch['token_type_ids']).long()
  with torch.no_grad():
    out = network(ids, attention_mask=real, token_type_ids=segments, output_hidden_states=True)
  return out.hidden_states


def their_decoder(network, batch, positions):
  """The last layer twice, called with `query_states` (v2's takes them, v1's does not)."""
  import torch

  h = their_vectors(network, batch)[-2]
  of = network.encoder
  how = dict(relative_pos=of.get_rel_pos(h), rel_embeddings=of.get_rel_embedding())
  mask = of.get_attention_mask(torch.tensor(batch['segment_ids']).long())
  z = torch.tensor(positions[: h.shape[1]])[None] + h
  with torch.no_grad():
    for _ in range(2):
      z = of.layer[-1](h, mask, query_states=z, **how)[0]
  return z.numpy()


# What no other case has, beside something else.
QUICK = (
  'v1, rows below the greatest distance',
  'v2, rows beyond it',
  'v2 with the convolution',
  'narrow tables',
  'positions at the input',
)


@pytest.mark.parametrize(
  'name', [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in CASES]
)
def test_vectors_and_the_decoder_equal_those_of_transformers(name):
  changes, length = CASES[name]
  e, batch = encoder(**changes), batch_of(length)
  params = params_of(e)
  network, real_BL = theirs(e, params), batch['segment_ids'] > 0
  wanted, (states_BPD, hidden_BLD) = their_vectors(network, batch)[-1], predict(e, params, batch)
  assert small.worst(hidden_BLD[real_BL], wanted.numpy()[real_BL]) < TOLERANCE
  if e.absolute_positions != 'decoder':
    assert_states(states_BPD, wanted.numpy(), batch)
  elif e.buckets:
    table = params['embeddings']['position']['embedding']
    assert_states(states_BPD, their_decoder(network, batch, table), batch)


@pytest.mark.parametrize(
  'version, length', [(V1, 130), (V1, 520), ({}, 520)], ids=['v1-130', 'v1-520', 'v2-520']
)
def test_the_papers_512_distances_in_256_buckets_are_those_of_transformers(version, length):
  sizes = dict(num_layers=1, hidden_size=32, num_heads=2, intermediate_size=32)
  e = encoder(**{'buckets': 256, **sizes, **version}, max_positions=520, max_distance=512)
  batch, params = small.batch(length=length, rows=1), params_of(e)
  wanted = their_vectors(theirs(e, params), batch)[-1].numpy()
  assert small.worst(predict(e, params, batch)[1], wanted) < TOLERANCE


@pytest.mark.parametrize('changes', [V1, V2], ids=['v1', 'v2'])
def test_the_decoder_equals_a_reference_written_from_the_papers(changes):
  torch = pytest.importorskip('torch', reason='the reference needs torch')
  import torch_deberta

  e, batch = encoder(**changes), batch_of(24)
  params, real_BL = params_of(e), batch['segment_ids'] > 0
  flat = traverse_util.flatten_dict({'encoder': params}, sep='/')
  reference = torch_deberta.Deberta({path: torch.tensor(x) for path, x in flat.items()}, e)
  ids_BL, real = torch.tensor(batch['input_ids']).long(), torch.tensor(real_BL)
  states_BPD, hidden_BLD = predict(e, params, batch)
  assert small.worst(hidden_BLD[real_BL], reference.hidden(ids_BL, real)[real]) < TOLERANCE
  assert_states(states_BPD, reference.decoded(ids_BL, real).numpy(), batch)


def test_the_decoder_of_a_pack_is_that_of_the_same_text_in_a_row_of_its_own():
  e, lengths = encoder(**V2, convolution_size=3), (9, 15)
  params, row = params_of(e), small.batch(rows=1)
  ends = np.cumsum([0, *lengths])
  packs = np.repeat([1, 2], lengths)[None].astype(np.int32)
  places = np.concatenate([np.arange(n) for n in lengths])[None].astype(np.int32)
  packed = {**everywhere(row), 'segment_ids': packs, 'position_ids': places}
  names = 'input_ids', 'token_type_ids', 'segment_ids'
  own = [{k: row[k][:, a:b] for k in names} for a, b in zip(ends, ends[1:])]
  alone = np.concatenate([predict(e, params, everywhere(one))[0][0] for one in own])
  assert small.worst(predict(e, params, packed)[0][0], alone) < TOLERANCE
  unplaced = {k: x for k, x in packed.items() if k != 'position_ids'}
  assert small.worst(predict(e, params, unplaced)[0][0], alone) > 1e-2, 'positions are not read'


def test_the_relative_table_is_dropped_anew_in_each_layer_and_pass_and_not_by_keys_of_rows(
  monkeypatch,
):
  e, seen, dropped = encoder(**V2, dropout=0.1), [], disentangled_attention.Relation.dropped

  def call(relation):
    if relation.key_2 is not None:  # parameters are initialised without
      jax.debug.callback(lambda key: seen.append(tuple(key.tolist())), relation.key_2)
    return dropped(relation)

  monkeypatch.setattr(disentangled_attention.Relation, 'dropped', call)

  @functools.partial(jax.jit, static_argnums=0)
  def apply(method, common_2, keys_B2):
    batch = {**small.batch(rows=2, length=8), 'common_key': common_2}
    return e.apply({'params': params_of(e)}, batch, keys_B2, method=method)

  def keys_of(method, common, rows):
    seen.clear()
    keys_B2 = row_keys.batch_keys(jax.random.key(rows), 2)
    jax.block_until_ready(apply(method, np.array([3, common], np.uint32), keys_B2))
    jax.effects_barrier()
    return sorted(seen)

  first = keys_of('predictions', 4, 0)
  # Three layers, the last of them for hidden_BLD, and two passes of the decoder.
  assert len(first) == len(set(first)) == 5
  assert keys_of('predictions', 4, 1) == first
  assert not set(keys_of('predictions', 5, 0)) & set(first)
  layers_alone = keys_of('__call__', 4, 0)
  assert len(layers_alone) == 3 and set(layers_alone) < set(first)


def test_dropout_without_a_common_key_is_refused():
  batch, keys_B2 = small.batch(rows=2), row_keys.batch_keys(jax.random.key(0), 2)
  apply = lambda e: jax.eval_shape(lambda: e.apply({'params': params_of(e)}, batch, keys_B2))
  with pytest.raises(ValueError, match=r'common_key, uint32 \[2\], into the batch'):
    apply(encoder(**V2, dropout=0.1))
  apply(encoder(**V2, attention_dropout=0.1))


def test_dropout_has_the_sites_of_the_release(monkeypatch):
  rates = dict(dropout=0.1, attention_dropout=0.1)
  e, drawn = encoder(**V2, **rates, num_layers=2, convolution_size=3), []
  monkeypatch.setattr(layers, '_dropped', lambda rate, x, *_: drawn.append(x.shape) or x)
  batch = {**small.batch(rows=2), 'common_key': np.zeros(2, np.uint32)}
  keys_B2 = row_keys.batch_keys(jax.random.key(0), 2)
  jax.eval_shape(lambda: e.apply({'params': params_of(e)}, batch, keys_B2))
  hidden, table, shares = (2, 24, 48), (16, 48), (2, 4, 24, 24)
  layer = [table, shares, hidden, hidden]
  # Embeddings; of each layer its table, its shares, its two sublayers; of the convolution.
  assert drawn == [hidden, *layer, hidden, *layer]


def test_an_impossible_encoder_is_refused_with_a_remedy():
  for changes, words in (
    (dict(buckets=7), 'give an even number of at most 36'),
    (dict(buckets=38), 'at most 36'),
    (dict(convolution_size=2), 'odd number'),
    (dict(num_heads=5), 'does not divide'),
  ):
    with pytest.raises(errors.UserError, match=words):
      encoder(**{**V2, **changes})
  e = encoder(**V2)
  with pytest.raises(errors.UserError, match='max_positions=41'):
    jax.eval_shape(lambda: predict(e, params_of(e), small.batch(length=41)))
