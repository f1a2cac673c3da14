"""The masked language model that fills masks for another network, and what it fills in (Clark et
al. 2020 §2).

Its parameters are params['generator'] = {'encoder': …, 'mlm_head': …}; what it shares with the main
network, whose parameters are params['encoder'], is there only. Legend: B batch, L length, P
predictions, V vocabulary, D width.
"""

import re
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util

from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective

# What of the generator's encoder is the main network's own: regexes of paths (Clark et al. 2020
# §3.2).
SHARED = {
  'none': (),
  'token': ('^embeddings/word/',),
  'embeddings': ('^embeddings/',),  # as the release: words, positions, segments and their norm
  'all': ('',),
}

# Lower than any logit, and finite.
_NEVER = -1e30


class Generator(NamedTuple):
  """A generator.

  Attributes:
    encoder: linen module.
    shared: regexes of the paths in its encoder that are the main network's.
  """

  encoder: Any
  shared: tuple[str, ...]

  def init(self, key) -> dict:
    """The parameters of its own."""
    encoder_key, head_key = jax.random.split(key)
    flat = traverse_util.flatten_dict(networks.init_encoder(self.encoder, encoder_key), sep='/')
    own = {path: x for path, x in flat.items() if not self._is_shared(path)}
    encoder = {'encoder': traverse_util.unflatten_dict(own, sep='/')} if own else {}
    return {**encoder, 'mlm_head': networks.init_mlm_head(self.encoder, head_key)}

  def of(self, params) -> dict:
    """{'encoder', 'mlm_head'}: its own parameters, and those it shares, of the parameters of
    all.
    """
    own = params['generator']
    main = traverse_util.flatten_dict(params['encoder'], sep='/') if self.shared else {}
    flat = {
      path: x for path, x in main.items() if self._is_shared(path)
    } | traverse_util.flatten_dict(own.get('encoder', {}), sep='/')
    return {'encoder': traverse_util.unflatten_dict(flat, sep='/'), 'mlm_head': own['mlm_head']}

  def network(self) -> objective.Network:
    """It as a network of an objective."""
    return objective.Network('generator', self.encoder, self.of, place=self._place)

  def _place(self, path):
    shared = path.startswith('encoder/') and self._is_shared(path.removeprefix('encoder/'))
    return path if shared else f'generator/{path}'

  def _is_shared(self, path):
    return any(re.search(regex, path) for regex in self.shared)


def build(encoder, *, width: float, depth: float, shared: str) -> Generator:
  """A generator for the network of `encoder`.

  Args:
    encoder: linen module of the main network.
    width, depth: sizes of layers and their number, as shares of the main network's; a head keeps
      its width if it can.
    shared: a name in SHARED. Tables that are not shared are as wide as the generator's layers;
      a generator of the network's own size, and shared tables, have the network's width.

  Raises:
    UserError: an unknown name, shares out of range, or networks of two sizes that are to share all.
  """
  regexes = errors.choose(shared, SHARED, 'choice of what the generator shares')
  for name, share in (('width', width), ('depth', depth)):
    if not 0.0 < share <= 1.0:
      raise errors.UserError(
        f"objective.{name} is {share}: the generator's share of the network's is above 0 and at "
        'most 1.'
      )
  if (width, depth) == (1.0, 1.0):
    return Generator(encoder.clone(parent=None), regexes)
  if shared == 'all':
    raise errors.UserError(
      'objective.shared=all makes one network of two: set objective.width=1.0 and '
      'objective.depth=1.0, or share less.'
    )
  table_width = None if shared == 'none' else encoder.table_width
  resized = encoder.resized(width, depth, table_width)
  if table_width not in (None, resized.table_width):
    raise errors.UserError(
      f'objective.shared={shared} needs a generator with tables of width {table_width}, and this '
      f'encoder makes them of width {resized.table_width}: take objective.shared=none, or '
      'objective.width=1.0.'
    )
  return Generator(resized, regexes)


def logits(generator: Generator, params: dict, batch: dict, key, ops):
  """(logits_BPV, states_BPD) at the masked positions. params: `Generator.of`."""
  states_BPD = networks.predictions(
    generator.encoder, params['encoder'], batch, key, ops
  ).states_BPD
  logits_BPV = networks.vocabulary_logits(generator.encoder, params, states_BPD, ops.constrain)
  return logits_BPV, states_BPD


def check_temperature(temperature: float) -> None:
  """Raises UserError for what no logit can be divided by."""
  if not temperature > 0.0:
    raise errors.UserError(
      f'objective.temperature is {temperature}: it must be above 0; 1.0 samples as the generator '
      'says.'
    )


def tempered(logits_BPV, batch, *, temperature: float, disallow_correct: bool):
  """The logits that tokens are drawn by: divided by the temperature, and with disallow_correct
  never the true token.
  """
  if disallow_correct:
    is_true = batch['masked_targets'][..., None] == jnp.arange(logits_BPV.shape[-1])
    logits_BPV = jnp.where(is_true, _NEVER, logits_BPV)
  return logits_BPV / temperature


def sample(logits_BPV, batch):
  """sampled_BP int32, by Gumbel noise: the highest of logit − log(−log u). No gradient passes.

  A row's noise depends on its key in `row_keys` [B, 2] alone, so on no mesh and no microbatch
  (row_keys.py). Where the batch has `sampled_ids` [B, P], these are taken.
  """
  if 'sampled_ids' in batch:
    return batch['sampled_ids']
  bits_BPV = row_keys.bits(batch['row_keys'], logits_BPV.shape[1:])
  uniform_BPV = (bits_BPV >> 9).astype(
    jnp.float32
  ) * 2.0**-23 + 2.0**-24  # one bit more would round to 1, and give infinite noise
  noisy_BPV = jax.lax.stop_gradient(logits_BPV) - jnp.log(-jnp.log(uniform_BPV))
  # As argmax, in two plain reductions: the one of pairs that argmax becomes takes twice as long on
  # a CPU.
  size = logits_BPV.shape[-1]
  highest_BP1 = jnp.max(noisy_BPV, axis=-1, keepdims=True)
  return jnp.min(
    jnp.where(noisy_BPV >= highest_BP1, jnp.arange(size, dtype=jnp.int32), size - 1), axis=-1
  )


def fill(batch: dict, sampled_BP) -> tuple[jax.Array, jax.Array]:
  """(original_BL, filled_BL): the row before masking, and with the sampled tokens at all masked
  positions.

  A position that comes twice (masking with replacement) takes its first sample.
  """
  at, rows, ids_BL = (
    batch['masked_positions'],
    jnp.arange(len(sampled_BP))[:, None],
    jnp.asarray(batch['input_ids']),
  )
  again = (at == jnp.roll(at, 1, axis=1)) & (
    batch['masked_weights'] * jnp.roll(batch['masked_weights'], 1, axis=1) > 0
  )
  once = (batch['masked_weights'] > 0) & ~again.at[:, 0].set(False)
  shown = jnp.take_along_axis(ids_BL, at, axis=1)
  put = lambda new: ids_BL.at[rows, at].add(
    jnp.where(once, new - shown, 0)
  )  # added: a filler points at position 0
  return put(batch['masked_targets']), put(sampled_BP)
