"""Layer-wise decay beside the formula of ELECTRA's release, for every encoder."""

import re

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import parts
from bertzoo_jax.common import trees
from bertzoo_jax.training import layer_decay
from bertzoo_jax.training import optimizers
from tests.found import call_part

LAYERS = 4
DISENTANGLED = {**small.SECTION, **small.DISENTANGLED, 'embedding_size': 24}
OUTSIDE = 'embeddings|embedding_projection|relative|relative_norm|convolution|convolution_norm'
# {name: (objective, changes of its encoder, what stands outside of the layers)}
NETWORKS = {
  'transformer': ('mlm_pair', dict(embedding_size=24), 'embeddings|embedding_projection'),
  'disentangled': ('mlm', dict(section=DISENTANGLED, convolution_size=3), OUTSIDE),
  'two_stream': ('permutation_lm', {}, 'embeddings'),
  'feed-forward shared': ('mlm_pair', dict(sharing='feed_forward'), 'embeddings'),
  'all shared in groups': ('mlm_pair', dict(sharing='all', num_groups=2), 'embeddings'),
  'all shared': ('mlm_pair', dict(sharing='all'), 'embeddings'),
}


def release(path, layer, decay):
  """The multiplier as the release computes it: a dict of depths by the names of its layers."""
  depths = {'embeddings': 0, **{f'layer_{i}': i + 1 for i in range(LAYERS)}, 'task': LAYERS + 2}
  if not path.startswith('encoder/'):
    return decay ** (LAYERS + 2 - depths['task'])
  return decay ** (LAYERS + 2 - depths['embeddings' if layer is None else f'layer_{layer}'])


def paths_of(kind, **changes):
  objective = small.objective(kind, **{'num_layers': LAYERS, **changes})
  return trees.paths_of(jax.eval_shape(objective.init, jax.random.key(0)))


def multipliers(paths, rates):
  """{path: multiplier of each copy}, as an optimizer with these rates takes them."""
  fields = {k: v for k, v in parts.adamw(rates=rates).items() if k != 'name'}
  call_part(optimizers, 'adamw', lambda s: 1.0, paths, **fields)  # raises if a rule matches nothing
  return {path: np.ravel(x) for path, x in optimizers.policy(rates, paths, 1.0).items()}


@pytest.mark.parametrize('name', NETWORKS)
def test_every_parameter_has_the_multiplier_of_the_release(name):
  kind, changes, outside = NETWORKS[name]
  paths = paths_of(kind, **changes)
  found = multipliers(paths, layer_decay.rates(paths, LAYERS, 0.8, 'released'))
  assert any(not path.startswith('encoder/') for path in paths)
  seen = set()
  for path, shape in paths.items():
    if not path.startswith('encoder/layers/'):
      assert found[path] == pytest.approx([release(path, None, 0.8)]), path
      seen |= set(re.findall(r'^encoder/(\w+)/', path))
      continue
    copies = shape[0]
    last = [(c + 1) * LAYERS // copies - 1 for c in range(copies)]
    expected = [release(path, layer, 0.8) for layer in last]
    assert np.broadcast_to(found[path], copies) == pytest.approx(expected), path
  assert seen == set(outside.split('|'))


def test_the_figures_are_those_of_the_release_and_one_power_more_in_the_corrected_form():
  paths = paths_of('mlm_pair', num_layers=12)
  word = 'encoder/embeddings/word/embedding'
  layer = 'encoder/layers/attention/key/kernel'
  head = 'pair_head/pooler/kernel'
  found = multipliers(paths, layer_decay.rates(paths, 12, 0.8, 'released'))
  assert found[word] == pytest.approx([0.0440], rel=2e-3)
  assert found[layer][[0, 11]] == pytest.approx([0.0550, 0.64], rel=2e-3) and found[head] == [1.0]
  large = layer_decay.rates(paths_of('mlm_pair', num_layers=24), 24, 0.9, 'released')
  assert [m for _, m in large][::24] == pytest.approx([0.0646, 0.81], rel=2e-3)
  corrected = multipliers(paths, layer_decay.rates(paths, 12, 0.8, 'corrected'))
  assert corrected[layer][11] == pytest.approx(0.8) and corrected[head] == [1.0]
  for path, x in found.items():
    assert corrected[path] * (0.8 if path.startswith('encoder/') else 1.0) == pytest.approx(x), path


@pytest.mark.parametrize('sharing', ['attention', 'all'])
def test_blocks_of_a_layer_have_its_rate(sharing):
  paths = paths_of('mlm_pair', sharing=sharing, inner_group_num=2)
  found = multipliers(paths, layer_decay.rates(paths, LAYERS, 0.5, 'corrected', 2))
  apart = [0.5 ** (LAYERS - block // 2) for block in range(2 * LAYERS)]
  expected = apart if sharing == 'attention' else [0.5]
  rates = found['encoder/layers/feed_forward/in/kernel']
  assert rates == pytest.approx(expected)
