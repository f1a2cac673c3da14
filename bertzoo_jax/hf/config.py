"""config.json of a Hugging Face model, in both directions: the encoder's section ↔ the fields transformers reads."""

from typing import Any

from bertzoo_jax import errors
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


def sizes(name: str, encoder: dict, special: dict) -> names.Sizes:
  """What the name table needs to know. encoder: the config's section; special: ids by name, of which 'pad' is read."""
  offset = special['pad'] + 1 if names.choose(name).positions_after_padding else 0
  return names.Sizes(encoder['num_heads'], encoder['num_layers'], encoder['hidden_size'], offset)


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
        f'The head of {name} always applies {architecture.head_activation}, this model was trained with {activation}: '
        f'export as --architecture={" or ".join(sorted(others))}.')
  after_padding = architecture.positions_after_padding
  offset = sizes(name, encoder, special).position_offset
  return {
      'architectures': [name],
      'model_type': architecture.model_type,
      'vocab_size': vocab_size,
      **{theirs: encoder[ours] for ours, theirs in _FIELDS.items()},
      'hidden_act': ACTIVATIONS[activation],
      'max_position_embeddings': encoder['max_positions'] + offset,
      'type_vocab_size': encoder['type_vocab_size'] or architecture.segment_rows,
      'pad_token_id': special['pad'],
      'bos_token_id': special['cls'] if after_padding else None,
      'eos_token_id': special['sep'] if after_padding else None,
      'tie_word_embeddings': True,
      'is_decoder': False,
      'add_cross_attention': False,
      'classifier_dropout': None,
      'use_cache': True,
      'dtype': 'float32',
      'torch_dtype': 'float32',  # the name before transformers 5
      'position_embedding_type': 'absolute',  # read before transformers 5
  }


def fitting(config, paths) -> str:
  """The architecture to write: config.hf, or if that does not fit and exactly one other does, that one.

  Args:
    config: a run's, of which hf and encoder.activation are read.
    paths: '/'-joined paths of its parameters.

  Raises:
    UserError: config.hf is no architecture.
  """
  fits = names.fitting(paths, config['encoder']['activation'])
  names.choose(config['hf'])
  return fits[0] if len(fits) == 1 else config['hf']


def fitting_note(config, paths) -> str | None:
  """What export does about a config.hf that cannot hold a run's parameters or activation, in a sentence; None if it can.

  Args and errors as of `fitting`.
  """
  name, activation, paths = config['hf'], config['encoder']['activation'], list(paths)
  homeless, empty = names.misfits(name, paths)
  if activation not in ACTIVATIONS:
    return f'Hugging Face has no activation {activation}: export cannot write this model.'
  if homeless:
    why = f'cannot hold {homeless[0]}'
  elif empty:
    why = f'needs {empty[0]}, which is not trained here'
  elif names.choose(name).head_activation not in (None, activation):
    why = f'always applies {names.choose(name).head_activation} in its head, and encoder.activation is {activation}'
  else:
    return None
  fits = names.fitting(paths, activation)
  if len(fits) == 1:
    return f'config.hf={name} {why}: export writes {fits[0]}.'
  return f'config.hf={name} {why}: ' + (f'export needs --architecture={" or ".join(fits)}.' if fits else 'no architecture known to export does.')


# What transformers assumes for a field that config.json leaves out.
_DEFAULTS = dict(
    num_hidden_layers=12, hidden_size=768, num_attention_heads=12, intermediate_size=3072, layer_norm_eps=1e-12, hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1, initializer_range=0.02, hidden_act='gelu', max_position_embeddings=512, type_vocab_size=2,
    is_decoder=False, position_embedding_type='absolute', pad_token_id=None)


def to_ours(config: dict[str, Any]) -> tuple[str, dict[str, Any], names.Sizes]:
  """(architecture whose table reads the weights, the encoder's fields, sizes) of a config.json.

  Raises:
    UserError: a model type without a table, or a setting the encoder cannot express.
  """
  config = {**_DEFAULTS, **config}
  if 'model_type' not in config:
    raise errors.UserError('config.json does not say its model_type: it is no Hugging Face model.')
  name = errors.choose(config['model_type'], names.READERS, 'readable model type')
  architecture = names.choose(name)
  if config['is_decoder'] or config['position_embedding_type'] != 'absolute':
    raise errors.UserError('config.json describes a decoder or relative positions; only encoders with learned absolute positions can be read.')
  theirs = {**{v: k for k, v in ACTIVATIONS.items()}, **_OTHER_SPELLINGS}
  activation = errors.choose(config['hidden_act'], theirs, 'readable hidden_act')
  if architecture.head_activation not in (None, activation):
    raise errors.UserError(f'config.json says hidden_act={config["hidden_act"]}, but the head of {name} always applies '
                           f'{architecture.head_activation}: an encoder here has one activation and cannot express that.')
  pad = config['pad_token_id']
  offset = (1 if pad is None else pad) + 1 if architecture.positions_after_padding else 0
  segments = config['type_vocab_size']
  encoder = {ours: config[their] for ours, their in _FIELDS.items()}
  encoder.update(
      activation=activation,
      max_positions=config['max_position_embeddings'] - offset,
      type_vocab_size=0 if segments == 1 else segments)  # one row for every token is part of the positions
  return name, encoder, names.Sizes(encoder['num_heads'], encoder['num_layers'], encoder['hidden_size'], offset)
