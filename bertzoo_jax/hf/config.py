"""config.json of a Hugging Face model, in both directions: the encoder's section ↔ the fields
transformers reads.
"""

from typing import Any

from bertzoo_jax.common import errors
from bertzoo_jax.hf import names

# transformers' gelu is the exact one; gelu_new is Google's approximation by tanh.
ACTIVATIONS = {'gelu': 'gelu', 'gelu_tanh': 'gelu_new', 'relu': 'relu'}
_OTHER_SPELLINGS = {'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_python': 'gelu'}

_FIELDS = {  # the encoder's field and theirs, where only the name differs
  'num_layers': 'num_hidden_layers',
  'hidden_size': 'hidden_size',
  'num_heads': 'num_attention_heads',
  'intermediate_size': 'intermediate_size',
  'norm_eps': 'layer_norm_eps',
  'dropout': 'hidden_dropout_prob',
  'attention_dropout': 'attention_probs_dropout_prob',
  'initializer_range': 'initializer_range',
}


_MORE = {  # what only some model types have
  'bert': lambda e, special, blocks: {},
  'roberta': lambda e, special, blocks: {
    'bos_token_id': special['cls'],
    'eos_token_id': special['sep'],
  },
  'electra': lambda e, special, blocks: {'embedding_size': _table_width(e)},
  'albert': lambda e, special, blocks: {
    'embedding_size': _table_width(e),
    'num_hidden_layers': e['num_layers'],
    'num_hidden_groups': blocks // e['inner_group_num'],
    'inner_group_num': e['inner_group_num'],
    'classifier_dropout_prob': 0.1,
    'bos_token_id': special['cls'],
    'eos_token_id': special['sep'],
  },
}


def sizes(name: str, encoder: dict, special: dict) -> names.Sizes:
  """What the name table needs to know. encoder: the config's section; special: ids by name, of
  which 'pad' is read.
  """
  architecture = names.choose(name)
  offset = special['pad'] + 1 if architecture.positions_after_padding else 0
  layers, groups, inner = (encoder[k] for k in ('num_layers', 'num_groups', 'inner_group_num'))
  blocks = (groups if architecture.groups and encoder['sharing'] == 'all' else layers) * inner
  return names.Sizes(
    encoder['num_heads'],
    encoder['hidden_size'],
    _table_width(encoder),
    offset,
    layers,
    groups,
    inner,
    blocks,
  )


def _table_width(encoder: dict) -> int:
  return encoder['embedding_size'] or encoder['hidden_size']


def to_hf(name: str, encoder: dict, special: dict, vocab_size: int) -> dict[str, Any]:
  """The content of config.json.

  Args:
    name: the architecture.
    encoder: the config's section of that name.
    special: ids by name: pad, unk, cls, sep, mask.
    vocab_size: rows of the word table.

  Raises:
    UserError: the architecture computes something else than the encoder does.
  """
  architecture, activation = names.choose(name), encoder['activation']
  errors.choose(activation, ACTIVATIONS, 'activation that Hugging Face has')
  if architecture.head_activation not in (None, activation):
    others = [n for n, a in names.ARCHITECTURES.items() if a.head_activation is None]
    raise errors.UserError(
      f'The head of {name} always applies {architecture.head_activation}, this model was trained '
      f'with {activation}: '
      f'export as --architecture={" or ".join(sorted(others))}.'
    )
  size = sizes(name, encoder, special)
  return {
    'architectures': [name],
    'model_type': architecture.model_type,
    'vocab_size': vocab_size,
    **{theirs: encoder[ours] for ours, theirs in _FIELDS.items()},
    'num_hidden_layers': encoder['num_layers'] * encoder['inner_group_num'],
    'hidden_act': ACTIVATIONS[activation],
    'max_position_embeddings': encoder['max_positions'] + size.position_offset,
    'type_vocab_size': encoder['type_vocab_size'] or architecture.segment_rows,
    'pad_token_id': special['pad'],
    'bos_token_id': None,
    'eos_token_id': None,
    'tie_word_embeddings': True,
    'is_decoder': False,
    'add_cross_attention': False,
    'classifier_dropout': None,
    'use_cache': True,
    'dtype': 'float32',
    'torch_dtype': 'float32',  # the name before transformers 5
    'position_embedding_type': 'absolute',  # read before transformers 5
    **_MORE[architecture.model_type](encoder, special, size.blocks),
  }


def fitting(name: str, activation: str, paths) -> str:
  """The architecture to write: `name`, or if that does not fit one of its model type that does, or
  else any that does.

  Args:
    name: of the architecture that is wished for.
    activation: of the encoder.
    paths: '/'-joined paths of the network's parameters.

  Raises:
    UserError: `name` is no architecture.
  """
  model_type, fits = names.choose(name).model_type, names.fitting(paths, activation)
  related = [other for other in fits if names.choose(other).model_type == model_type]
  return name if name in fits else next(iter(related or fits), name)


def fitting_note(name: str, activation: str, paths) -> str | None:
  """What export does where `name` cannot hold a network's parameters or activation, in a sentence;
  None if it can.

  Args and errors as of `fitting`.
  """
  paths = list(paths)
  homeless, empty = names.misfits(name, paths)
  if activation not in ACTIVATIONS:
    return f'Hugging Face has no activation {activation}: export cannot write this model.'
  if homeless:
    why = f'cannot hold {homeless[0]}'
  elif empty:
    why = f'needs {empty[0]}, which is not trained here'
  elif names.choose(name).head_activation not in (None, activation):
    why = (
      f'always applies {names.choose(name).head_activation} in its head, and encoder.activation is '
      f'{activation}'
    )
  else:
    return None
  other = fitting(name, activation, paths)
  return f'{name} {why}: ' + (
    f'export writes {other}.' if other != name else 'no architecture known to export does.'
  )


# What transformers assumes for a field that config.json leaves out.
_DEFAULTS = dict(
  num_hidden_layers=12,
  hidden_size=768,
  num_attention_heads=12,
  intermediate_size=3072,
  layer_norm_eps=1e-12,
  hidden_dropout_prob=0.1,
  attention_probs_dropout_prob=0.1,
  initializer_range=0.02,
  hidden_act='gelu',
  max_position_embeddings=512,
  type_vocab_size=2,
  is_decoder=False,
  position_embedding_type='absolute',
  pad_token_id=None,
)
_DEFAULTS_OF = {  # where a model type has its own
  'albert': dict(
    embedding_size=128,
    hidden_size=4096,
    num_attention_heads=64,
    intermediate_size=16384,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    hidden_act='gelu_new',
    num_hidden_groups=1,
    inner_group_num=1,
  ),
  'electra': dict(
    embedding_size=128, hidden_size=256, num_attention_heads=4, intermediate_size=1024
  ),
}


def to_ours(content: dict[str, Any]) -> tuple[str, dict[str, Any], names.Sizes]:
  """(architecture whose table reads the weights, the encoder's fields, sizes) of a config.json.

  Raises:
    UserError: a model type without a table, or a setting the encoder cannot express.
  """
  if 'model_type' not in content:
    raise errors.UserError('config.json does not say its model_type: it is no Hugging Face model.')
  readers = errors.choose(content['model_type'], names.READERS, 'readable model type')
  content = {**_DEFAULTS, **_DEFAULTS_OF.get(content['model_type'], {}), **content}
  name = next((n for n in content.get('architectures') or () if n in readers), readers[0])
  architecture = names.choose(name)
  if content['is_decoder'] or content['position_embedding_type'] != 'absolute':
    raise errors.UserError(
      'config.json describes a decoder or relative positions; only encoders with learned absolute '
      'positions can be read.'
    )
  theirs = {**{v: k for k, v in ACTIVATIONS.items()}, **_OTHER_SPELLINGS}
  activation = errors.choose(content['hidden_act'], theirs, 'readable hidden_act')
  if architecture.head_activation not in (None, activation):
    raise errors.UserError(
      f'config.json says hidden_act={content["hidden_act"]}, but the head of {name} always applies '
      f'{architecture.head_activation}: an encoder here has one activation and cannot express that.'
    )
  pad = content['pad_token_id']
  offset = (1 if pad is None else pad) + 1 if architecture.positions_after_padding else 0
  segments = content['type_vocab_size']
  encoder = {ours: content[their] for ours, their in _FIELDS.items()}
  width, groups, inner = (
    content.get('embedding_size', content['hidden_size']),
    content.get('num_hidden_groups'),
    content.get('inner_group_num', 1),
  )
  if groups and content['num_hidden_layers'] % groups:
    raise errors.UserError(
      f'config.json says num_hidden_groups={groups}, which does not divide '
      f'num_hidden_layers={content["num_hidden_layers"]}: '
      'groups here have the same number of layers.'
    )
  encoder.update(
    embedding_size=0 if width == content['hidden_size'] else width,
    sharing='all' if groups else 'none',
    num_groups=groups or 1,
    inner_group_num=inner,
    activation=activation,
    max_positions=content['max_position_embeddings'] - offset,
    type_vocab_size=0 if segments == 1 else segments,
  )  # one row for every token is part of the positions
  layers, groups = encoder['num_layers'], groups or encoder['num_layers']
  return (
    name,
    encoder,
    names.Sizes(
      encoder['num_heads'],
      encoder['hidden_size'],
      width,
      offset,
      layers,
      groups,
      inner,
      groups * inner,
    ),
  )
