"""Losses and gradients of DeBERTaV3 beside pszemraj/deberta (torch): the same weights, rows and
sampled tokens, float32, no dropout.

    PYTHONPATH=. python bench/deberta_oracle.py FOLDER [--model=xsmall|small|base|tiny]
      [--batch=4] [--length=160] [--seed=0]

FOLDER is a checkout of pszemraj/deberta. For each way to share word vectors it prints both losses
of ours, and by how much theirs differ; then the largest difference of the gradients of the two word
tables, divided by the largest gradient. The gradients are those of the sum of both losses, the
discriminator's times 50.

Commit 94cb413 differs in two lines, which later ones have corrected: modeling/rtd.py:504 normalizes
the position vectors of the decoder, modeling/deberta_v2_native.py:407 and 503 read the relative
vectors of p2c by δ(j, i).
"""

import argparse
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import sides as both
import torch
import transformers

from bertzoo_jax import export
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import weights
from bertzoo_jax.model import encoder as encoders

SHARING = {'token': 'es', 'none': 'none', 'added': 'gdes'}  # our name: theirs
WORDS = 'encoder/embeddings/word/embedding'
# Name of a tensor in our export: in their module.
NAMES = {
  'generator': {
    'deberta.': 'generator.',
    'cls.predictions.transform.dense.': 'generator_lm_head.transform.dense.',
    'cls.predictions.transform.LayerNorm.': 'generator_lm_head.transform.norm.',
    'cls.predictions.': 'generator_lm_head.',
  },
  'discriminator': {
    'deberta.': 'discriminator.',
    'mask_predictions.LayerNorm.': 'discriminator_head.norm.',
    'mask_predictions.': 'discriminator_head.',
  },
}
TOTALS = {'mlm': 'masked', 'rtd': 'tokens'}  # of our two losses
CLASSES = {'generator': 'DebertaV2ForMaskedLM', 'discriminator': 'DebertaV2Model'}
IDS = dict(pad=0, cls=1, sep=2, unk=3, mask=both.VOCAB['deberta_v3'] - 1)


def arguments():
  p = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  p.add_argument('folder')
  p.add_argument('--model', choices=both.MODELS['deberta_v3'], default='xsmall')
  p.add_argument('--batch', type=int, default=4)
  p.add_argument('--length', type=int, default=160)
  p.add_argument('--seed', type=int, default=0)
  fixed = dict(system='deberta_v3', dropout=0.0, attention_dropout=0.0)
  a = argparse.Namespace(**vars(p.parse_args()), **fixed)
  a.predictions = round(0.156 * a.length)
  return a


def parameters(objective, seed):
  """Every parameter random: norms around 1, all others around 0."""
  draw = np.random.default_rng(seed)
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  return jax.tree_util.tree_map_with_path(
    lambda path, x: (
      np.float32(path[-1].key == 'scale') + draw.normal(0, 0.05, x.shape).astype(np.float32)
    ),
    shapes,
  )


@functools.partial(jax.jit, static_argnums=0)
def ours(objective, params, batch):
  """([generator's loss, discriminator's], {path of a word table: gradient})"""
  totals = objective.normalizers(batch)
  loss = lambda p: objective.loss(p, batch, totals, (), None, False)
  gradient, (_, sums) = jax.grad(loss, has_aux=True)(params)
  losses = (sums[total][f'{name}_loss'] / totals[total] for name, total in TOTALS.items())
  gradients = {k: x for k, x in weights.flatten(gradient).items() if k.endswith(WORDS)}
  return jnp.stack(list(losses)), gradients


def theirs(folder, objective, params, batch, sharing):
  """The same from their module. The paths are ours."""
  networks = {network.name: network for network in objective.networks}
  made, state = {}, {}
  for name, network in networks.items():
    a, flat = architectures.choose(CLASSES[name]), weights.flatten(network.extract(params))
    tensors, made[name] = export.convert(a, architecture.placed(a, flat), network.encoder, IDS)
    for key, tensor in tensors.items():
      old = next(old for old in NAMES[name] if key.startswith(old))
      state[NAMES[name][old] + key.removeprefix(old)] = torch.as_tensor(tensor)
  configs = (transformers.DebertaV2Config(**made[name]) for name in CLASSES)
  model = both.of_checkout(folder, *configs, SHARING[sharing]).eval()
  tables = {name: f'{name}.embeddings.word_embeddings' for name in CLASSES}
  table = lambda name, leaf: model.get_parameter(f'{tables[name]}.{leaf}')
  state.pop('discriminator.embeddings.position_embeddings.weight', None)  # nothing reads it
  if sharing == 'added':
    state.pop(f'{tables["discriminator"]}.weight')
    state[f'{tables["discriminator"]}.bias'] = torch.as_tensor(weights.flatten(params)[WORDS])
  missing, unexpected = model.load_state_dict(state, strict=False)
  copies = ('base_weight', 'discriminator.embeddings.position_embeddings')
  left = [name for name in missing if not any(part in name for part in copies)]
  if left or unexpected:
    sys.exit(f'without a counterpart: {left} {unexpected}')
  model.sync_discriminator_embeddings_from_generator()
  sampled = torch.as_tensor(batch['sampled_ids']).long().flatten()
  model._gumbel_sample = lambda *_, **__: sampled
  rows = {k: torch.as_tensor(v).long() for k, v in batch.items()}
  out = model(**both.rows_of_checkout(torch, rows), disc_loss_weight=both.DISCRIMINATOR_WEIGHT)
  out.loss.backward()
  own = 'bias' if sharing == 'added' else 'weight'
  gradients = {WORDS: table('discriminator', own).grad}
  if sharing != 'token':
    gradients[f'generator/{WORDS}'] = table('generator', 'weight').grad
  losses = np.array([float(out.gen_loss), float(out.disc_loss)])
  return losses, {k: x.numpy() for k, x in gradients.items()}


def main():
  a = arguments()
  batch, draw = both.make_batch(a), np.random.default_rng(a.seed)
  replaced = draw.random(batch['masked_targets'].shape) < 0.7
  others = draw.integers(1000, both.VOCAB[a.system], replaced.shape)
  batch['sampled_ids'] = np.where(replaced, others, batch['masked_targets']).astype(np.int32)
  for sharing in SHARING:
    encoder, objective = both.sections(a, parts)
    fields = dict(vocab_size=both.VOCAB[a.system], dtype=jnp.float32, unroll=1, remat='none')
    objective = type(objective)({**objective, 'shared': sharing})
    objective = both.build(objectives, objective, both.build(encoders, encoder, **fields))
    params = parameters(objective, a.seed)
    other = theirs(a.folder, objective, params, batch, sharing)
    losses, gradients = ours(objective, params, batch)
    found = zip(('generator', 'discriminator'), losses, other[0])
    print(f'{sharing} ({SHARING[sharing]}):', *(f'{n} {x:.6f} ({x - y:+.1e})' for n, x, y in found))
    for path, gradient in other[1].items():
      worst = np.abs(gradients[path] - gradient).max()
      print(f'  {path}: {worst / np.abs(gradient).max():.1e} of {np.abs(gradient).max():.3g}')


if __name__ == '__main__':
  main()
