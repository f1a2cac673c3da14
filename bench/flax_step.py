"""transformers' Flax train step compiled for one TPU chip, for bench/tpu_step.py.

Run by bench/tpu_step.py in an environment of its own, since transformers dropped Flax in version 5:

    python -m venv flax
    flax/bin/pip install 'jax[tpu]==0.12.0.1' flax==0.12.12 optax transformers==4.57.6

The step is that of the project's example script for masked language modelling in Flax (scores of
the vocabulary at all positions, one-hot cross-entropy, AdamW with decay masked), jitted on one
device with the state donated. There is no such script for ELECTRA: its two Flax models are put
together in the same manner, with embeddings in common, and a sample at each position that is
masked. With --predictions the heads of the vocabulary are given so many positions of a row, as ours
are, and not all. Writes the optimized program to --text and prints one JSON object.
"""

import argparse
import json
import logging
import os
import time
import warnings

os.environ.update(JAX_PLATFORMS='cpu', ALLOW_MULTIPLE_LIBTPU_LOAD='1', TPU_SKIP_MDS_QUERY='1')
warnings.filterwarnings('ignore')
logging.disable(logging.WARNING)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
import transformers  # noqa: E402
from flax import linen as nn  # noqa: E402
from flax import traverse_util  # noqa: E402
from flax.training import train_state  # noqa: E402
from jax.experimental import topologies  # noqa: E402

MODELS = {
  'bert-base': (transformers.BertConfig, transformers.FlaxBertForMaskedLM, {}),
  'bert-large': (
    transformers.BertConfig,
    transformers.FlaxBertForMaskedLM,
    dict(hidden_size=1024, num_attention_heads=16, intermediate_size=4096),
  ),
  'albert-base': (
    transformers.AlbertConfig,
    transformers.FlaxAlbertForMaskedLM,
    dict(
      hidden_size=768,
      num_attention_heads=12,
      intermediate_size=3072,
      hidden_dropout_prob=0.1,
      attention_probs_dropout_prob=0.1,
    ),
  ),
}


# Modules that are given the states of positions, and lead to the vocabulary.
HEADS = ('FlaxBertOnlyMLMHead', 'FlaxAlbertOnlyMLMHead', 'FlaxElectraGeneratorPredictions')
ELECTRA = {
  'disc': dict(embedding_size=128, hidden_size=256, num_attention_heads=4, intermediate_size=1024),
  'gen': dict(embedding_size=128, hidden_size=64, num_attention_heads=1, intermediate_size=256),
}


def _built(kind, config):
  model = kind(config, seed=0, dtype=jnp.bfloat16, _do_init=False, input_shape=(1, 8))
  return model, jax.eval_shape(lambda key: model.init_weights(key, (1, 8)), jax.random.PRNGKey(0))


def _with_heads_on(positions):
  """Inside a `with`: heads of the vocabulary are given these positions [B, P]; None: all."""

  def gathered(call, args, kwargs, context):
    of_head = type(context.module).__name__ in HEADS and context.method_name == '__call__'
    if positions is not None and of_head:
      args = (jnp.take_along_axis(args[0], positions[..., None], axis=1), *args[1:])
    return call(*args, **kwargs)

  return nn.intercept_methods(gathered)


def _inputs(batch):
  return {k: batch[k] for k in ('input_ids', 'attention_mask', 'token_type_ids')}


def _masked_nll(logits, labels):
  masked = jnp.where(labels > 0, 1.0, 0.0)
  nll = optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, logits.shape[-1])) * masked
  return nll.sum() / masked.sum()


def _masked_lm(name, layers):
  """(shapes of the parameters, (params, batch, key) → loss)."""
  config, kind, fields = MODELS[name]
  model, shapes = _built(kind, config(num_hidden_layers=layers, **fields))

  def loss(params, batch, key):
    with _with_heads_on(batch.get('positions')):
      logits = model(**_inputs(batch), params=params, dropout_rng=key, train=True)[0]
    return _masked_nll(logits, batch['labels'])

  return shapes, loss


def _electra(_, layers):
  """Likewise; the generator's embeddings are the discriminator's."""
  config = lambda part: transformers.ElectraConfig(num_hidden_layers=layers, **ELECTRA[part])
  generator, gen_shapes = _built(transformers.FlaxElectraForMaskedLM, config('gen'))
  discriminator, disc_shapes = _built(transformers.FlaxElectraForPreTraining, config('disc'))
  del gen_shapes['electra']['embeddings']

  def loss(params, batch, key):
    gen_key, sample_key, disc_key = jax.random.split(key, 3)
    inputs, positions = _inputs(batch), batch.get('positions')

    def filled(new):
      if positions is not None:
        return batch['input_ids'].at[jnp.arange(len(new))[:, None], positions].set(new)
      return jnp.where(batch['labels'] > 0, new, batch['input_ids'])

    shared = dict(params['gen']['electra'], embeddings=params['disc']['electra']['embeddings'])
    with _with_heads_on(positions):
      logits = generator(
        **inputs, params=dict(params['gen'], electra=shared), dropout_rng=gen_key, train=True
      )[0]
    sampled = jax.random.categorical(sample_key, jax.lax.stop_gradient(logits))
    ids, truth = filled(sampled), filled(batch['labels'])
    scores = discriminator(
      **dict(inputs, input_ids=ids), params=params['disc'], dropout_rng=disc_key, train=True
    )[0]
    told = (
      optax.sigmoid_binary_cross_entropy(scores, (ids != truth).astype(jnp.float32))
      * batch['attention_mask']
    )
    return _masked_nll(logits, batch['labels']) + 50.0 * told.sum() / batch['attention_mask'].sum()

  return {'gen': gen_shapes, 'disc': disc_shapes}, loss


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--topology', required=True)
  parser.add_argument('--megacore', action='store_true')
  parser.add_argument('--model', choices=[*MODELS, 'electra-small'], required=True)
  parser.add_argument('--layers', type=int, required=True)
  parser.add_argument('--rows', type=int, default=32)
  parser.add_argument('--length', type=int, default=512)
  parser.add_argument('--predictions', type=int, default=0, help='a row; 0: all positions')
  parser.add_argument('--prng', default='threefry2x32')
  parser.add_argument('--text', required=True)
  args = parser.parse_args()
  jax.config.update('jax_default_prng_impl', args.prng)
  options = {'chip_config_name': 'megacore'} if args.megacore else {}
  device = topologies.get_topology_desc(
    platform='tpu', topology_name=args.topology, **options
  ).devices[0]
  place = jax.sharding.SingleDeviceSharding(device)

  shapes, losses = (_electra if args.model == 'electra-small' else _masked_lm)(
    args.model, args.layers
  )

  def decays(params):
    flat = traverse_util.flatten_dict(params)
    return traverse_util.unflatten_dict(
      {p: p[-1] != 'bias' and p[-2:] != ('LayerNorm', 'scale') for p in flat}
    )

  tx = optax.adamw(
    optax.linear_schedule(1e-4, 0.0, 1_000_000),
    b1=0.9,
    b2=0.999,
    eps=1e-8,
    weight_decay=0.01,
    mask=decays,
  )

  def step(state, batch, key):
    key, next_key = jax.random.split(key)

    value, grads = jax.value_and_grad(lambda params: losses(params, batch, key))(state.params)
    return state.apply_gradients(grads=grads), value, next_key

  placed = lambda tree: jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree
  )
  state = placed(
    jax.eval_shape(lambda p: train_state.TrainState.create(apply_fn=None, params=p, tx=tx), shapes)
  )
  ids = jax.ShapeDtypeStruct((args.rows, args.length), jnp.int32, sharding=place)
  batch = dict.fromkeys(('input_ids', 'attention_mask', 'token_type_ids', 'labels'), ids)
  if args.predictions:
    some = jax.ShapeDtypeStruct((args.rows, args.predictions), jnp.int32, sharding=place)
    batch.update(labels=some, positions=some)
  key = placed(jax.eval_shape(lambda: jax.random.PRNGKey(0)))
  began = time.monotonic()
  program = (
    jax.jit(step, donate_argnums=0)
    .trace(state, batch, key)
    .lower(lowering_platforms=('tpu',))
    .compile()
  )
  with open(args.text, 'w', encoding='utf-8') as f:
    f.write(program.as_text())
  memory = program.memory_analysis()
  print(
    json.dumps(
      dict(
        seconds=time.monotonic() - began,
        optimal_seconds=program.cost_analysis()['optimal_seconds'],
        memory={name: getattr(memory, name) for name in dir(memory) if name.endswith('_in_bytes')},
      )
    )
  )


if __name__ == '__main__':
  main()
