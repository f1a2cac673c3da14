import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from bertzoo_jax import objectives
from bertzoo_jax.common import trees
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.parts import named
from tests import found


class Shape(NamedTuple):
  """A network. base: parameters of transformers' base model. distances: whether it is of v1.
  convolution: tokens.
  """

  layers: int
  width: int
  pieces: int
  base: int
  distances: bool = False
  convolution: int = 0

  @property
  def masked(self) -> int:
    """With 512 absolute positions and the head that predicts masked tokens."""
    d = self.width
    return self.base + 512 * d + (d * d + d) + 2 * d + self.pieces

  @property
  def both(self) -> int:
    """As a discriminator, with a generator of half the layers and its word table."""
    d = self.width
    head = 2 * d + (d * d + d) + (d + 1)
    return self.base + head + self.masked - self.layers // 2 * (12 * d * d + 13 * d)


GPT2, V2, MULTILINGUAL = 50_265, 128_100, 251_000
MASKED = {
  ('deberta', 'base'): Shape(12, 768, GPT2, 138_601_728, distances=True),
  ('deberta', 'base_ablation'): Shape(12, 768, GPT2, 138_601_728, distances=True),
  ('deberta', 'large'): Shape(24, 1024, GPT2, 405_163_008, distances=True),
  ('deberta', 'xlarge'): Shape(48, 1024, GPT2, 757_804_032, distances=True),
  ('deberta_v2', 'base_ablation'): Shape(12, 768, V2, 185_603_328, convolution=3),
  ('deberta_v2', 'xlarge'): Shape(24, 1536, V2, 884_593_152, convolution=3),
  ('deberta_v2', 'xxlarge'): Shape(48, 1536, V2, 1_564_549_632, convolution=3),
}
REPLACED = {
  ('deberta_v3', 'xsmall'): Shape(12, 384, V2, 70_682_112),
  ('deberta_v3', 'small'): Shape(6, 768, V2, 141_304_320),
  ('deberta_v3', 'base'): Shape(12, 768, V2, 183_831_552),
  ('deberta_v3', 'base_ablation'): Shape(12, 768, V2, 183_831_552),
  ('deberta_v3', 'large'): Shape(24, 1024, V2, 434_012_160),
  ('deberta_v3', 'mdeberta_base'): Shape(12, 768, MULTILINGUAL, 278_218_752),
}
SHAPES = MASKED | REPLACED


def _leaves(config):
  """{path: shape} of all that a config trains."""
  given = dict(vocab_size=config.tokenizer.vocab_size, dtype=jnp.float32)
  encoder = named.build(config.encoder, encoders.BY_NAME, 'encoder', **given)
  objective = named.build(config.objective, objectives.BY_NAME, 'objective', encoder=encoder)
  return trees.paths_of(jax.eval_shape(objective.init, jax.random.key(0)))


def _count(leaves, *but):
  """Number of parameters, except below the paths `but`."""
  return sum(math.prod(shape) for path, shape in leaves.items() if not path.startswith(but))


@pytest.mark.parametrize('system, size', SHAPES)
def test_a_network_has_the_parameters_of_transformers_base_model_and_of_its_heads(system, size):
  shape, leaves = SHAPES[system, size], _leaves(found.config(system, size))
  rest = ('encoder/embeddings/position/', 'mlm_head/', 'replaced_head/', 'generator/')
  assert _count(leaves, *rest) == shape.base
  wanted = shape.both if (system, size) in REPLACED else shape.masked
  assert _count(leaves) == wanted == found.module(system).PARAMETERS[size]


@pytest.mark.parametrize('shape', sorted({*SHAPES.values()}))
def test_transformers_base_model_has_as_many(shape):
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  kind = 'Deberta' if shape.distances else 'DebertaV2'
  only_v2 = dict(position_buckets=256, norm_rel_ebd='layer_norm', share_att_key=True)
  config = getattr(transformers, f'{kind}Config')(
    vocab_size=shape.pieces,
    num_hidden_layers=shape.layers,
    hidden_size=shape.width,
    num_attention_heads=shape.width // 64,
    intermediate_size=4 * shape.width,
    type_vocab_size=0,
    relative_attention=True,
    position_biased_input=False,
    pos_att_type='c2p|p2c',
    **({} if shape.distances else only_v2),
    **({'conv_kernel_size': shape.convolution} if shape.convolution else {}),
  )
  with torch.device('meta'):
    network = getattr(transformers, f'{kind}Model')(config)
  assert sum(p.numel() for p in network.parameters()) == shape.base


def test_every_published_size_is_counted_here():
  published = {(s, size) for s, size in found.SIZES if s.startswith('deberta') and size != 'tiny'}
  assert published == SHAPES.keys()
