"""DeBERTa, the first version (He et al. 2020)."""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import tokenizer
from bertzoo_jax.hf.architecture import HEADS_BIAS
from bertzoo_jax.hf.architecture import HEADS_KERNEL
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architecture import Transform
from bertzoo_jax.hf.architecture import dense
from bertzoo_jax.hf.architectures import deberta_like
from bertzoo_jax.hf.architectures.deberta_like import ATTENTION
from bertzoo_jax.hf.architectures.deberta_like import THEIR_ATTENTION


def _interleaved(kernels, sizes):
  """Kernels [D, H, K] of query, key and value → [H·3·K, D]: the three of each head together."""
  return np.stack(kernels).transpose(2, 0, 3, 1).reshape(-1, kernels[0].shape[0])


def _apart(y, sizes):
  """The inverse of `_interleaved`."""
  return tuple(y.reshape(sizes.num_heads, 3, -1, y.shape[1]).transpose(1, 3, 0, 2))


INTERLEAVED = Transform(_interleaved, _apart)


_BODY = deberta_like.encoder(
  Row(
    tuple(f'{ATTENTION}/{x}/kernel' for x in ('query', 'key', 'value')),
    f'{THEIR_ATTENTION}.in_proj.weight',
    INTERLEAVED,
  ),
  Row(f'{ATTENTION}/query/bias', f'{THEIR_ATTENTION}.q_bias', HEADS_BIAS),
  Row(f'{ATTENTION}/value/bias', f'{THEIR_ATTENTION}.v_bias', HEADS_BIAS),
  *deberta_like.may_lack(
    (
      Row(f'{ATTENTION}/position_key/kernel', f'{THEIR_ATTENTION}.pos_proj.weight', HEADS_KERNEL),
      *dense(
        f'{ATTENTION}/position_query', f'{THEIR_ATTENTION}.pos_q_proj', HEADS_KERNEL, HEADS_BIAS
      ),
    )
  ),
)


def _without_buckets(at):
  encoder, second = at.encoder, at.a.name.replace('Deberta', 'DebertaV2')
  if encoder.buckets or encoder.shared_projections and encoder.relative_attention:
    raise errors.UserError(
      f'This encoder has buckets or shared projections, and {at.a.name} has neither: export as '
      f'--architecture={second}.'
    )


_KEYS = (
  keys.means('buckets', 0)._replace(write=_without_buckets),
  keys.means('norm_relative', False),
  keys.means('shared_projections', False),
  keys.means('key_bias', False),
  keys.means('convolution_size', 0),
  keys.means('convolution_activation', 'gelu'),
)


def _build(name, *rows, config=(), **rest):
  return deberta_like.build(
    name,
    'deberta',
    (*_BODY, *rows),
    (*_KEYS, *config),
    # DebertaTokenizer of transformers 5 puts two separators between two texts
    tokens=tokenizer.Shape(bos='cls', eos='sep', byte_level='GPT2Tokenizer'),
    **rest,
  )


MASKED_LM = _build(
  'DebertaForMaskedLM',
  *deberta_like.MLM_HEAD,
  computes=deberta_like.without_decoder,
  heads=deberta_like.NO_POOLER,
)
TASKS, MODEL = deberta_like.family(_build, 'Deberta', may_choose=False)
