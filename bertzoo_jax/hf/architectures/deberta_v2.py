"""DeBERTa v2 and V3 (He et al. 2020, 2021). V3's generator is a masked language model; its
discriminator has a head that transformers lacks.
"""

import numpy as np
import safetensors

from bertzoo_jax.common import errors
from bertzoo_jax.common import trust
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import tokenizer
from bertzoo_jax.hf import verify
from bertzoo_jax.hf.architecture import HEADS_BIAS
from bertzoo_jax.hf.architecture import HEADS_KERNEL
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architecture import Transform
from bertzoo_jax.hf.architecture import dense
from bertzoo_jax.hf.architecture import norm
from bertzoo_jax.hf.architectures import deberta_like
from bertzoo_jax.hf.architectures.deberta_like import ATTENTION
from bertzoo_jax.hf.architectures.deberta_like import THEIR_ATTENTION

TOKENS = tokenizer.Shape(model='spm.model')
HEAD = 'mask_predictions'  # of the release, replaced_token_detection_model.py

# Kernels [size, D, D] here, [D, D, size] and the output first there.
CONVOLUTION = Transform(lambda x, s: x.transpose(2, 1, 0), lambda y, s: y.transpose(2, 1, 0))

# Their key of a relative position has a bias. It adds the same number to all scores of a query, so
# the probabilities do not depend on it. It is written as zeros and not read.
KEY_OF_POSITIONS = Transform(
  lambda x, s: (HEADS_KERNEL.to_theirs(x, s), np.zeros(s.hidden_size, np.float32)),
  lambda ys, s: HEADS_KERNEL.to_ours(ys[0], s),
)


def _projection(name, **bias):
  ours, theirs = f'{ATTENTION}/{name}', f'{THEIR_ATTENTION}.{name}_proj'
  kernel, row = dense(ours, theirs, HEADS_KERNEL, HEADS_BIAS)
  return kernel, row._replace(**bias)


_BODY = (
  *deberta_like.encoder(
    *_projection('query'),
    *_projection('key', absent=lambda s: np.zeros(s.hidden_size, np.float32)),
    *_projection('value'),
    *deberta_like.may_lack(
      (
        Row(
          f'{ATTENTION}/position_key/kernel',
          (f'{THEIR_ATTENTION}.pos_key_proj.weight', f'{THEIR_ATTENTION}.pos_key_proj.bias'),
          KEY_OF_POSITIONS,
        ),
        *dense(
          f'{ATTENTION}/position_query',
          f'{THEIR_ATTENTION}.pos_query_proj',
          HEADS_KERNEL,
          HEADS_BIAS,
        ),
      )
    ),
  ),
  *deberta_like.may_lack(
    (
      *norm('encoder/relative_norm', 'deberta.encoder.LayerNorm'),
      *dense('encoder/convolution', 'deberta.encoder.conv.conv', CONVOLUTION),
      *norm('encoder/convolution_norm', 'deberta.encoder.conv.LayerNorm'),
    )
  ),
)

_REPLACED_HEAD = deberta_like.may_lack(
  (
    *norm('replaced_head/norm', f'{HEAD}.LayerNorm'),
    *dense('replaced_head/dense', f'{HEAD}.dense'),
    *dense('replaced_head/score/classifier', f'{HEAD}.classifier'),
  )
)


def _norm_of(at) -> str:
  relative = at.encoder.content_to_position or at.encoder.position_to_content
  return 'layer_norm' if at.encoder.norm_relative and relative else 'none'


def _convolution(content) -> int:
  if content['conv_kernel_size'] and content['conv_groups'] != 1:
    raise errors.UserError(
      f'config.json says conv_groups={content["conv_groups"]}, and the convolution of an encoder '
      'here has one group: it cannot be read.'
    )
  return content['conv_kernel_size']


_ACTIVATION = keys.activation('conv_act', 'tanh', 'convolution_activation')
_KEYS = (
  keys.Key('hidden_size', 'hidden_size', 1536),
  keys.Key('num_hidden_layers', 'num_layers', 24),
  keys.Key('num_attention_heads', 'num_heads', 24),
  keys.Key('intermediate_size', 'intermediate_size', 6144),
  keys.Key(
    'position_buckets',
    'buckets',
    -1,
    lambda at: at.encoder.buckets or -1,
    lambda content: max(0, content['position_buckets']),
  ),
  keys.Key(
    'norm_rel_ebd',
    'norm_relative',
    'none',
    _norm_of,
    lambda c: 'layer_norm' in [name.strip() for name in c['norm_rel_ebd'].lower().split('|')],
  ),
  keys.Key('share_att_key', 'shared_projections', False),
  keys.means('key_bias', True),
  keys.Key('conv_kernel_size', 'convolution_size', 0, read=_convolution),
  keys.Key('conv_groups', usual=1),
  _ACTIVATION._replace(read=lambda c: _ACTIVATION.read(c) if c['conv_kernel_size'] else 'gelu'),
)


def _build(name, *rows, config=(), **rest):
  return deberta_like.build(
    name, 'deberta-v2', (*_BODY, *rows), (*_KEYS, *config), tokens=TOKENS, **rest
  )


def discriminator_logits(directory, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """As verify.logits: DebertaV2Model computes the vectors, torch the head if the file has one."""
  torch = trust.torch()
  import transformers

  network, unloaded = verify.reloaded(directory, 'DebertaV2Model')
  x = verify.outputs(network, batch).last_hidden_state
  with safetensors.safe_open(f'{directory}/model.safetensors', framework='pt') as f:
    tensors = {k: f.get_tensor(k) for k in f.keys() if k.startswith(f'{HEAD}.')}  # noqa: SIM118
  if not tensors:
    return {'vectors': x.numpy(), 'unloaded': unloaded}
  dense = lambda name, x: torch.nn.functional.linear(
    x, tensors[f'{HEAD}.{name}.weight'], tensors[f'{HEAD}.{name}.bias']
  )
  if f'{HEAD}.LayerNorm.weight' in tensors:
    x = torch.nn.functional.layer_norm(
      x + x[:, :1],
      x.shape[-1:],
      tensors[f'{HEAD}.LayerNorm.weight'],
      tensors[f'{HEAD}.LayerNorm.bias'],
      network.config.layer_norm_eps,
    )
  x = transformers.activations.ACT2FN[network.config.hidden_act](dense('dense', x))
  replaced = dense('classifier', x)[..., 0]
  return {'replaced': replaced.numpy(), 'unloaded': sorted(set(unloaded) - tensors.keys())}


def _without_positions(encoder) -> architecture.Computed:
  """The Computed of a discriminator, which does not read the position table of the decoder."""
  note = f'`{deberta_like.POSITIONS}` belongs to the generator. This network does not use it.'
  computed = deberta_like.without_decoder(encoder)
  return computed._replace(note=note) if computed.note else computed


MASKED_LM = _build(
  'DebertaV2ForMaskedLM',
  *deberta_like.MLM_HEAD,
  *_REPLACED_HEAD,
  computes=deberta_like.without_decoder,
  heads='This network fills masks. If a discriminator lies beside it, this is its generator: '
  f'fine-tune the discriminator. {deberta_like.NO_POOLER}',
)
DISCRIMINATOR = _build(
  'DebertaV2Model',
  *_REPLACED_HEAD,
  heads='Where it was a discriminator: fine-tune this one. Its head that tells replaced tokens '
  f'(`{HEAD}`: its norm adds the vector of the first token to each, then two dense layers) is in '
  'model.safetensors, but transformers has no class for it and does not read it. The network has '
  'no vocabulary head either: `DebertaV2ForMaskedLM` would start one at random, so it cannot fill '
  f'masks. {deberta_like.NO_POOLER}',
  pipeline='feature-extraction',
  computes=_without_positions,
  logits=discriminator_logits,
)
TASKS, _ = deberta_like.family(_build, 'DebertaV2', may_choose=True)
