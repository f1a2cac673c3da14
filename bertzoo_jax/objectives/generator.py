"""The masked language model that fills masks for another network, and the tokens that it samples
(Clark et al. 2020 §2).

params['generator'] = {'encoder': …, 'mlm_head': …} are the generator's parameters,
params['encoder'] the main encoder's. A shared parameter is in one of them only. Legend: B batch, L
length, P predictions, V vocabulary, D width.
"""

import re
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util

from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective

# Parameters that the two encoders share: {regex of paths: mode}.
#
# 'same': one parameter, of the main network (Clark et al. 2020 §3.2).
# 'added': the main network computes with stop_gradient(the generator's parameter) + a residual
# parameter, which starts at 0 (He et al. 2021 §3.3).
SHARED = {
  'none': {},
  'token': {'^embeddings/word/': 'same'},
  'embeddings': {'^embeddings/': 'same'},  # ELECTRA's release: words, positions, segments, norm
  'all': {'': 'same'},
  'added': {'^embeddings/word/': 'added'},
}

# Lower than any logit, and finite.
_NEVER = -1e30


class Generator(NamedTuple):
  """A generator, and how it shares parameters with the main network."""

  encoder: Any  # the generator's encoder, a linen module
  main: Any  # the main network's encoder
  predicts: bool  # whether the main network has a vocabulary head
  tied: frozenset[str]  # paths in an encoder. The generator uses the main network's parameter.
  # paths in an encoder. The main network's array is the sum of both networks' parameters.
  residual: frozenset[str]
  # paths in an encoder. The main network does not compute with these arrays, but its export holds
  # the generator's (the position table of the enhanced mask decoder).
  export_only: frozenset[str]

  def init(self, key) -> dict:
    """The parameters of the generator that it does not take from the main network."""
    encoder_key, head_key = jax.random.split(key)
    flat = _flat(networks.init_encoder(self.encoder, encoder_key))
    unshared = {path: x for path, x in flat.items() if path not in self.tied}
    encoder = {'encoder': _nested(unshared)} if unshared else {}
    return {**encoder, 'mlm_head': heads.vocabulary().init(self.encoder, head_key)}

  def init_main(self, key) -> dict:
    """The parameters of the main network's encoder."""
    flat = _flat(networks.init_encoder(self.main, key, self.predicts))
    return _nested({p: jnp.zeros_like(x) if p in self.residual else x for p, x in flat.items()})

  def extract(self, params) -> dict:
    """{'encoder', 'mlm_head'} of the generator. params: of both networks."""
    unshared = params['generator']
    main = _flat(params['encoder']) if self.tied else {}
    flat = {path: main[path] for path in self.tied} | _flat(unshared.get('encoder', {}))
    return {'encoder': _nested(flat), 'mlm_head': unshared['mlm_head']}

  def main_encoder(self, params) -> dict:
    """The arrays that the main network's encoder computes with. params: of both networks."""
    if not self.residual:
      return params['encoder']
    flat, generator = _flat(params['encoder']), _flat(params['generator']['encoder'])
    flat |= {p: jax.lax.stop_gradient(generator[p]) + flat[p] for p in self.residual}
    return _nested(flat | {p: jax.lax.stop_gradient(generator[p]) for p in self.export_only})

  def network(self) -> objective.Network:
    return objective.Network('generator', self.encoder, self.extract, param_path=self._place)

  def main_network(self, name: str, head: str, **fields) -> objective.Network:
    """The main network as a network of an objective.

    head: name of its head. fields: further fields of Network.
    """

    def extract(params):
      return {'encoder': self.main_encoder(params), head: params[head]}

    insert = self._insert if self.residual else None
    return objective.Network(name, self.main, extract, self._main_place, insert=insert, **fields)

  def _place(self, path):
    return path if _in_encoder(path) in self.tied else f'generator/{path}'

  def _main_place(self, path):
    return f'generator/{path}' if _in_encoder(path) in self.export_only else path

  def _insert(self, loaded, params):
    """Network.insert of the main network: a residual is the loaded array − the generator's."""
    residual = lambda path, x: (
      x - params[f'generator/{path}'] if _in_encoder(path) in self.residual else x
    )
    return {self._main_place(path): residual(path, x) for path, x in loaded.items()}


def _in_encoder(path):
  """The path inside the encoder; None for a path elsewhere."""
  return path.removeprefix('encoder/') if path.startswith('encoder/') else None


def _flat(tree):
  return traverse_util.flatten_dict(tree, sep='/')


def _nested(flat):
  return traverse_util.unflatten_dict(flat, sep='/')


def build(encoder, *, width: float, depth: float, shared: str, predicts=False) -> Generator:
  """A generator for the network of `encoder`.

  Args:
    encoder: linen module of the main network.
    width, depth: relative to the main network; heads keep their width if possible.
    shared: a name in SHARED. Unshared tables are as wide as the generator's layers; shared tables,
      and those of a generator of full size, are as wide as the main network's.
    predicts: whether the main network has a vocabulary head.

  Raises UserError: shared='all' with networks of different sizes.
  """
  modes = SHARED[shared]
  if (width, depth) == (1.0, 1.0):
    return _sharing(encoder.clone(parent=None), encoder, shared, modes, predicts)
  if shared == 'all':
    raise errors.UserError(
      'objective.shared=all makes one network of two: set objective.width=1.0 and '
      'objective.depth=1.0, or share less.'
    )
  resized = encoder.resized(width, depth, None if shared == 'none' else encoder.embedding_width)
  return _sharing(resized, encoder, shared, modes, predicts)


def _sharing(generator, main, shared, modes, predicts) -> Generator:
  """The Generator of two encoders. shared: a name in SHARED; modes: its value."""
  shapes = lambda encoder, predicts: _flat(
    jax.eval_shape(lambda: networks.init_encoder(encoder, jax.random.key(0), predicts))
  )
  gen, net, unread = shapes(generator, True), shapes(main, predicts), {}
  shared_by = lambda mode: frozenset(
    path
    for path in gen.keys() & net.keys()
    if mode == next((how for regex, how in modes.items() if re.search(regex, path)), None)
  )
  for path in sorted(shared_by('same') | shared_by('added')):
    if gen[path].shape != net[path].shape:
      raise errors.UserError(
        f'objective.shared={shared} shares {path}, which has the shape {net[path].shape} in the '
        f'network and {gen[path].shape} in its generator: take objective.width=1.0, or share '
        'less (objective.shared=token, or none).'
      )
  if shared_by('added') and not predicts:
    unread = {p: x for p, x in shapes(main, True).items() if p not in net}
  lent = frozenset(p for p, x in unread.items() if p in gen and gen[p].shape == x.shape)
  return Generator(generator, main, predicts, shared_by('same'), shared_by('added'), lent)


class Guess(NamedTuple):
  """The output of a generator for a masked batch."""

  # logits_BPV, states_BPD: at the masked positions
  logits_BPV: jax.Array
  states_BPD: jax.Array
  # tempered_BPV, sampled_BP: the logits from which tokens are drawn, and the tokens
  tempered_BPV: jax.Array
  sampled_BP: jax.Array
  # (original_BL, filled_BL): ids before masking, and with the drawn tokens
  rows: tuple[jax.Array, jax.Array]


def guess(generator: Generator, ops, fields, params: dict, batch: dict, key) -> Guess:
  """The Guess of a generator. fields: of the objective. params: `Generator.extract`."""
  logits_BPV, states_BPD = logits(generator, params, batch, key, ops)
  tempered_BPV = tempered(logits_BPV, batch, fields.temperature, fields.disallow_correct)
  sampled_BP = sample(tempered_BPV, batch)
  return Guess(logits_BPV, states_BPD, tempered_BPV, sampled_BP, fill(batch, sampled_BP))


def logits(generator: Generator, params: dict, batch: dict, key, ops):
  """(logits_BPV, states_BPD) at the masked positions. params: `Generator.extract`."""
  encoder = generator.encoder
  states_BPD, _, _ = networks.predictions(encoder, params['encoder'], batch, key, ops)
  return networks.vocabulary_logits(encoder, params, states_BPD, ops.constrain), states_BPD


def tempered(logits_BPV, batch, temperature: float, disallow_correct: bool):
  """Logits / temperature, from which tokens are drawn; disallow_correct excludes the true one."""
  if disallow_correct:
    is_true = batch['masked_targets'][..., None] == jnp.arange(logits_BPV.shape[-1])
    logits_BPV = jnp.where(is_true, _NEVER, logits_BPV)
  return logits_BPV / temperature


def sample(logits_BPV, batch):
  """sampled_BP int32, by Gumbel noise: the highest of logit − log(−log u). No gradient passes.

  A row's noise depends only on its key in `row_keys` [B, 2] (row_keys.py), so it is the same for
  any mesh and microbatch. If the batch has `sampled_ids` [B, P], the result is these.
  """
  if 'sampled_ids' in batch:
    return batch['sampled_ids']
  bits_BPV = row_keys.bits(batch['row_keys'], logits_BPV.shape[1:])
  # one bit more would round to 1, and give infinite noise
  uniform_BPV = (bits_BPV >> 9).astype(jnp.float32) * 2.0**-23 + 2.0**-24
  noisy_BPV = jax.lax.stop_gradient(logits_BPV) - jnp.log(-jnp.log(uniform_BPV))
  # argmax as two plain reductions: XLA's reduction of (value, index) pairs takes twice as long on a
  # CPU.
  numbers_V = jnp.arange(noisy_BPV.shape[-1], dtype=jnp.int32)
  highest_BP1 = jnp.max(noisy_BPV, axis=-1, keepdims=True)
  return jnp.min(jnp.where(noisy_BPV >= highest_BP1, numbers_V, len(numbers_V) - 1), axis=-1)


def fill(batch: dict, sampled_BP) -> tuple[jax.Array, jax.Array]:
  """(original_BL, filled_BL): ids before masking, and with the sampled tokens at all masked
  positions.

  A position that occurs twice (masking with replacement) takes its first sample.
  """
  at, weights, ids_BL = batch['masked_positions'], batch['masked_weights'], batch['input_ids']
  rows, ids_BL = jnp.arange(len(sampled_BP))[:, None], jnp.asarray(ids_BL)
  again = (at == jnp.roll(at, 1, axis=1)) & (weights * jnp.roll(weights, 1, axis=1) > 0)
  once = (weights > 0) & ~again.at[:, 0].set(False)
  shown = jnp.take_along_axis(ids_BL, at, axis=1)
  # added: a filler points at position 0
  put = lambda new: ids_BL.at[rows, at].add(jnp.where(once, new - shown, 0))
  return put(batch['masked_targets']), put(sampled_BP)
