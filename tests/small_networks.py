"""Networks small enough to test, with every parameter moved off its initial value."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.model import operations
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.training import spikes
from bertzoo_jax.training import step as steps
from tests.found import call_part

VOCAB = 101
SIZES = dict(num_layers=3, hidden_size=48, num_heads=4, intermediate_size=80)
RATES = dict(dropout=0.0, attention_dropout=0.0)
SECTION = dict(parts.transformer(**SIZES, **RATES, max_positions=40))
_MEMORY = dict(memory_length=10, reuse_length=8, activation='gelu')
TWO_STREAM = dict(parts.two_stream(**SIZES, **RATES, **_MEMORY))
_WINDOWS = dict(max_positions=40, window=6, global_base=100.0, attention_output_dropout=0.0)
MODERN = dict(parts.modern(**{**SIZES, 'num_layers': 5}, **_WINDOWS))
# Changes of SECTION that make it V3's encoder.
DISENTANGLED = dict(
  name='disentangled',
  vocab_multiple=1,
  type_vocab_size=0,
  absolute_positions='decoder',
  content_to_position=True,
  position_to_content=True,
  max_distance=40,
  buckets=8,
  norm_relative=True,
  shared_projections=True,
  key_bias=True,
  convolution_size=0,
  convolution_activation='gelu',
)
# Sections of the encoder for objectives that do not go with SECTION's.
SECTIONS = {'permutation_lm': TWO_STREAM, 'memory_mlm': TWO_STREAM}
LANE_LENGTH, LANE_PREDICTIONS = 16, 5
BERT_IDS = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
ROBERTA_IDS = dict(cls=0, pad=1, sep=2, unk=3, mask=VOCAB - 1)


def encoder(
  *, vocab_size=VOCAB, dtype=jnp.float32, unroll=1, remat='none', section=SECTION, **changes
):
  """The encoder of a section with changes."""
  fields = {**section, **changes}
  given = dict(vocab_size=vocab_size, dtype=dtype, unroll=unroll, remat=remat)
  return encoders.BY_NAME[fields.pop('name')](**given, **fields)


def objective(kind, ops=operations.PLAIN, **changes):
  """An objective on that encoder or on the one it needs (SECTIONS), with its usual values. changes:
  of the encoder, and of the objective.
  """
  changes = {'section': SECTIONS.get(kind, SECTION), **changes}
  fields = {k: v for k, v in getattr(parts, kind)().items() if k != 'name'}
  own = {k: changes.pop(k) for k in fields if k in changes}
  return call_part(objectives, kind, encoder(**changes), ops, **{**fields, **own})


def perturbed(params, seed=0, scale=0.1):
  """Every leaf with noise added: biases are no longer 0, and swapped ones show."""
  rng = np.random.default_rng(seed)
  noise = lambda x: rng.normal(0, scale, x.shape).astype(np.float32)
  return jax.tree.map(lambda x: np.asarray(x) + noise(x), params)


def parameters(objective, seed=0, scale=0.1):
  return parameters_of(objective.init, seed, scale)


def parameters_of(init, seed=0, scale=0.1):
  """Parameters as `perturbed` makes them of initial ones, without a program that draws those."""
  shapes = jax.eval_shape(init, jax.random.key(0))
  start = jax.tree_util.tree_map_with_path(
    lambda path, x: np.full(x.shape, path[-1].key == 'scale', np.float32), shapes
  )
  return without_first_norm(perturbed(start, seed, scale))


def without_first_norm(params):
  """The parameters, with 1 for what the modern encoder does not read, and no directory holds: the
  norm before its first attention.
  """
  if not isinstance(params, dict):
    return params
  made = {name: without_first_norm(x) for name, x in params.items()}
  if 'final_norm' in made:
    made['layers']['attention_norm']['scale'][0] = 1
  return made


def state(objective, tx, params, rows):
  """The state before the first step, with these parameters."""
  made = lambda params: objective._replace(init=lambda key: params)
  return jax.jit(lambda params: steps.init(made(params), tx, 0, rows))(params)


def save(workdir, params, step):
  """Writes a checkpoint of these weights, which needs no training."""
  zero = jnp.zeros((), jnp.int32)
  arrays, none = jax.tree.map(jnp.asarray, params), dict(total=zero, consecutive=zero, last=zero)
  made = steps.TrainState(zero + step, arrays, {'m': jnp.zeros(2)}, (), none, spikes.fresh())
  saver = checkpoint.Checkpoints(workdir, keep=1, keep_every=0)
  saver.save(made)
  saver.close()


def batch(rows=4, length=24, predictions=5, seed=0, vocab_size=VOCAB):
  """A batch of random ids with padding, segments, fillers at position 0 and pair labels."""
  rng = np.random.default_rng(seed)
  lengths = np.concatenate([[length], rng.integers(predictions + 1, length + 1, rows - 1)])
  real = np.arange(length) < lengths[:, None]
  positions = np.stack([np.sort(rng.choice(n, predictions, replace=False)) for n in lengths])
  weights = np.arange(predictions) < rng.integers(1, predictions + 1, (rows, 1))
  ids = rng.integers(5, vocab_size, (rows, length))
  made = dict(
    input_ids=np.where(real, ids, 0).astype(np.int32),
    token_type_ids=((np.arange(length) >= lengths[:, None] // 2) & real).astype(np.int32),
    segment_ids=real.astype(np.int32),
    masked_positions=np.where(weights, positions, 0).astype(np.int32),
    masked_targets=np.where(weights, rng.integers(5, vocab_size, positions.shape), 0),
    masked_weights=weights.astype(np.float32),
    pair_labels=rng.integers(0, 2, rows).astype(np.int32),
  )
  made['masked_targets'] = made['masked_targets'].astype(np.int32)
  return {**made, **spans(rng, made)}


def with_targets(batch, ids_BL=None):
  """ids_BL with the targets at their positions. Without ids_BL: the rows before their masking."""
  ids_BL = (batch['input_ids'] if ids_BL is None else ids_BL).copy()
  row, slot = np.nonzero(batch['masked_weights'])
  ids_BL[row, batch['masked_positions'][row, slot]] = batch['masked_targets'][row, slot]
  return ids_BL


def spans(rng, batch):
  """Features of spans inside the rows, for about two of three predictions of the batch."""
  at, ends = batch['masked_positions'], (batch['segment_ids'] > 0).sum(axis=1)[:, None]
  offset, behind = (rng.integers(0, 3, at.shape) for _ in range(2))
  left, right = at - offset - 1, at + behind + 1
  inside = (left >= 0) & (right < ends) & (batch['masked_weights'] > 0)
  found = dict(span_left=left, span_right=right, span_offset=offset)
  return {name: np.where(inside, x, 0).astype(np.int32) for name, x in found.items()}


def lanes(batch, seed=0, resets=0):
  """The batch with a random order of its predictions, both directions and `resets`."""
  rng = np.random.default_rng(seed)
  rows, length = batch['input_ids'].shape
  target = np.zeros((rows, length), bool)
  for row, (places, weights) in enumerate(zip(batch['masked_positions'], batch['masked_weights'])):
    target[row, places[weights > 0]] = True
  ranks = np.stack([1 + rng.permutation(length) for _ in range(rows)])
  return dict(
    batch,
    order=np.where(target, ranks, 0).astype(np.int32),
    direction=(np.arange(rows) % 2).astype(np.int32),
    resets=np.broadcast_to(np.asarray(resets, np.int32), (rows,)).copy(),
  )


def with_memory(kind='permutation_lm', **changes):
  return objective(kind, **changes)


def lane_batches(count=3, rows=4):
  """Consecutive full rows of lanes, the first two read forward, with a classifier's segment."""
  for step in range(count):
    resets = np.full(rows, step == 0)
    own = batch(rows, LANE_LENGTH, LANE_PREDICTIONS, seed=step)
    rng = np.random.default_rng(step)
    drawn = [rng.choice(LANE_LENGTH, LANE_PREDICTIONS, False) for _ in range(rows)]
    places = np.sort(np.stack(drawn))
    own |= dict(
      input_ids=rng.integers(5, VOCAB, (rows, LANE_LENGTH)),
      segment_ids=np.ones((rows, LANE_LENGTH), np.int32),
      token_type_ids=np.sort(rng.integers(0, 2, (rows, LANE_LENGTH))),
      masked_positions=places,
      masked_weights=np.ones((rows, LANE_PREDICTIONS), np.float32),
    )
    own['token_type_ids'][:, -1] = 2
    own = lanes(own, seed=step, resets=resets)
    yield {**own, 'direction': (np.arange(rows) >= rows // 2).astype(np.int32)}


def rows(**sizes):
  """A batch as the step hands it to an objective."""
  made = batch(**sizes)
  keys_B2 = np.random.default_rng(5).integers(0, 2**32, (len(made['input_ids']), 2), np.uint32)
  return {**made, 'row_keys': keys_B2}


def evaluate(objective, params, batch, normalizers=None, carry=None):
  """((loss, (carry, sums)), gradients) without dropout. carry: None for the first one."""
  if carry is None:
    carry = objective.carry(len(batch['input_ids']))
  return _evaluate(objective.loss, objective.normalizers, params, batch, normalizers, carry)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _evaluate(loss, count, params, batch, normalizers, carry):
  normalizers = count(batch) if normalizers is None else normalizers
  return jax.value_and_grad(loss, has_aux=True)(params, batch, normalizers, carry, None, False)


def worst(a, b):
  """The largest difference of two trees of arrays."""
  return max(
    float(np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64))))
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b))
  )
