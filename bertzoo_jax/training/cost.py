"""What a step costs: floating-point operations that the model needs, and the peak of the device."""

import jax
import numpy as np

# bfloat16 matrix peak of one device as jax names it, FLOP/s, from the vendors' data sheets; dense,
# not sparse.
PEAK = {
  'TPU v2': 22.5e12,  # a core of the chip's 45
  'TPU v3': 61.5e12,  # a core of the chip's 123
  'TPU v4': 275e12,
  'TPU v5 lite': 197e12,
  'TPU v5e': 197e12,
  'TPU v5': 459e12,
  'TPU v5p': 459e12,
  'TPU v6 lite': 918e12,
  'TPU v6e': 918e12,
  'TPU7x': 2307e12 / 2,  # a core of the chip's 2307
  'NVIDIA A100-SXM4-40GB': 312e12,
  'NVIDIA A100-SXM4-80GB': 312e12,
  'NVIDIA H100 80GB HBM3': 989e12,
  'NVIDIA H200': 989e12,
}


def peak(device) -> float | None:
  """FLOP/s of one jax device in bfloat16, or None where it is not known (CPUs)."""
  return PEAK.get(device.device_kind)


def parameters(shapes: dict) -> int:
  """How many numbers {path: shape} holds."""
  return int(sum(np.prod(s, dtype=np.int64) for s in shapes.values()))


def flops_per_step(networks, params: dict, features: dict) -> float:
  """Operations of a forward and backward pass over a global batch, without recomputation: 6 a
  weight and token (Kaplan et al. 2020 §2.1), once for each layer that uses it, 12·n·L·D a token for
  the attention matrices, and a vocabulary head on the positions it predicts alone. A network that
  does not learn has its forward pass only.

  Args:
    networks: of an objective.
    params: its parameters, or shapes of them, nested.
    features: {name: shape} of the global batch.
  """
  rows, length = features['input_ids']
  predictions = features['masked_positions'][1] if 'masked_positions' in features else 0
  total = 0.0
  for network in networks:
    seen = {'mlm_head': length if network.predicts_all_positions else predictions, 'pair_head': 1}
    forward = 0
    for path, shape in _shapes(network.of(params)).items():
      if path.startswith('encoder/layers/') and path.endswith('kernel'):
        forward += 2 * length * network.encoder.plan.blocks * _size(shape[1:])
        if path.endswith('attention/query/kernel'):
          forward += 4 * length * length * network.encoder.plan.blocks * shape[-2] * shape[-1]
      elif path.endswith('kernel'):
        forward += 2 * seen.get(path.split('/')[0], length) * _size(shape)
      elif path.endswith('word/embedding') and 'mlm_head' in network.of(params):  # the tied decoder
        forward += 2 * seen['mlm_head'] * _size(shape)
    total += forward * (3.0 if network.trained else 1.0)
  return rows * total


# As Clark et al. 2020 count: dropout, norm, activation and softmax an element; the share of tokens
# that a vocabulary head sees.
_DROPOUT, _NORM, _ACTIVATION, _SOFTMAX, _PREDICTED = 4, 5, 8, 5, 0.15625


def published_flops(networks, params: dict, *, rows: int, length: int, steps: int) -> float:
  """Operations of a training as Clark et al. 2020 count them (flops_computation.py of their
  release): a multiplication and an addition are two, the backward pass is as much as the forward
  pass, looking up a word is a dense product, 15.625 % of the tokens go through a vocabulary head,
  and a pair head is left out. A network that does not learn has its forward pass only.

  Args:
    networks, params: as in `flops_per_step`.
    rows, length, steps: of the global batch; tokens a row; updates.
  """
  passes = lambda network: 2.0 if network.trained else 1.0
  return float(
    rows
    * steps
    * length
    * sum(passes(n) * _published_forward(n, n.of(params), length) for n in networks)
  )


def _published_forward(network, params, length):
  """Operations a token of one network's forward pass."""
  e = network.encoder
  d, f, h, w, v = e.hidden_size, e.intermediate_size, e.num_heads, e.table_width, e.vocab_size
  attention = (
    8 * d * d
    + 4 * d * length
    + (_SOFTMAX + _DROPOUT + 1) * length * h
    + (3 + 1 + _DROPOUT + 1) * d
    + _NORM
  )
  feed_forward = 4 * d * f + (_ACTIVATION + 1) * f + (1 + _DROPOUT + 1 + _NORM) * d
  total = e.plan.blocks * (attention + feed_forward)
  total += 2 * w * v + 2 * w * (length + 2) + (2 + _NORM + _DROPOUT) * w
  if w != d:
    total += 2 * d * w + d
  if 'replaced_head' in params:
    total += 2 * d * d + (1 + _ACTIVATION + 2) * d
  if 'mlm_head' in params:
    share = 1.0 if network.predicts_all_positions else _PREDICTED
    total += share * (2 * w * v + 2 * d * w + (1 + _ACTIVATION + _NORM) * w + (_SOFTMAX + 2) * v)
  return total


def _shapes(tree) -> dict:
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): x.shape
    for path, x in jax.tree_util.tree_leaves_with_path(tree)
  }


def _size(shape) -> int:
  return int(np.prod(shape, dtype=np.int64))
