"""The numbers of parameters of the networks with disentangled attention, derived a second time.

Legend: L layers, D width, V rows of the word table, T rows of the relative table.
"""

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

POSITIONS = 512


class Shape(NamedTuple):
  """A network. distances: whether T is one row per distance, the table has no norm and products of
  its own, and keys have no bias (v1). convolution: tokens. published: parameters of transformers'
  base model.
  """

  layers: int
  width: int
  pieces: int
  published: int | None = None
  distances: bool = False
  convolution: int = 0

  @property
  def encoder(self) -> int:
    """Without absolute positions."""
    d = self.width
    norm, dense = 2 * d, lambda ins, outs: ins * outs + outs
    layer = 4 * dense(d, d) + norm + dense(d, 4 * d) + dense(4 * d, d) + norm
    relative = 2 * 256 * d + norm
    if self.distances:
      layer += d * d + dense(d, d) - d
      relative = 2 * 512 * d
    convolution = dense(self.convolution * d, d) + norm if self.convolution else 0
    return self.pieces * d + norm + self.layers * layer + relative + convolution

  @property
  def masked(self) -> int:
    """With the positions and the head that predict masked tokens."""
    d = self.width
    return self.encoder + POSITIONS * d + (d * d + d) + 2 * d + self.pieces

  @property
  def both(self) -> int:
    """As a discriminator, with a generator of half the layers and its word table."""
    d = self.width
    head = 2 * d + (d * d + d) + (d + 1)
    return self.encoder + head + self._replace(layers=self.layers // 2).masked


GPT2, V2, MULTILINGUAL = 50_265, 128_100, 251_000
MASKED = {
  ('deberta', 'base'): Shape(12, 768, GPT2, 138_601_728, distances=True),
  ('deberta', 'base_ablation'): Shape(12, 768, GPT2, 138_601_728, distances=True),
  ('deberta', 'large'): Shape(24, 1024, GPT2, 405_163_008, distances=True),
  ('deberta', 'xlarge'): Shape(48, 1024, GPT2, 757_804_032, distances=True),
  ('deberta_v2', 'base_ablation'): Shape(12, 768, V2, convolution=3),
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
  encoder = named.build(
    config.encoder,
    encoders.BY_NAME,
    'encoder',
    vocab_size=config.tokenizer.vocab_size,
    dtype=jnp.float32,
  )
  objective = named.build(config.objective, objectives.BY_NAME, 'objective', encoder=encoder)
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  return trees.paths_of(shapes)


def _count(leaves, *but):
  """Number of parameters, except below the paths `but`."""
  return sum(math.prod(shape) for path, shape in leaves.items() if not path.startswith(but))


# Of another number of pieces, or of another depth, than a size beside it.
ALIKE = ('mdeberta_base', 'small', 'base_ablation')


@pytest.mark.parametrize(
  'system, size',
  [
    pytest.param(system, size, marks=[pytest.mark.slow] * (size in ALIKE))
    for system, size in SHAPES
  ],
)
def test_a_network_has_the_parameters_of_transformers_base_model_and_of_its_heads(system, size):
  shape, leaves = SHAPES[system, size], _leaves(found.config(system, size))
  of_others = ('encoder/embeddings/position/', 'mlm_head/', 'replaced_head/', 'generator/')
  assert _count(leaves, *of_others) == shape.encoder == (shape.published or shape.encoder)
  wanted = shape.both if (system, size) in REPLACED else shape.masked
  assert _count(leaves) == wanted == found.module(system).PARAMETERS[size]


@pytest.mark.parametrize('shape', sorted({s for s in SHAPES.values() if s.published}))
def test_transformers_base_model_has_as_many(shape):
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  kind = 'Deberta' if shape.distances else 'DebertaV2'
  of_v2 = dict(position_buckets=256, norm_rel_ebd='layer_norm', share_att_key=True)
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
    **({} if shape.distances else of_v2),
    **({'conv_kernel_size': shape.convolution} if shape.convolution else {}),
  )
  with torch.device('meta'):
    network = getattr(transformers, f'{kind}Model')(config)
  assert sum(p.numel() for p in network.parameters()) == shape.published


def test_the_second_table_of_word_vectors_is_all_that_one_table_for_both_saves():
  config = found.config('deberta_v3', 'base')
  added = _leaves(config)
  with config.unlocked():
    config.objective.shared = 'token'
  words = 'generator/encoder/embeddings/word/embedding'
  assert added[words] == (128_100, 768)
  assert added.keys() - _leaves(config).keys() == {words}


def test_every_published_size_is_counted_here():
  published = {(s, size) for s, size in found.SIZES if s.startswith('deberta') and size != 'tiny'}
  assert published == SHAPES.keys()
