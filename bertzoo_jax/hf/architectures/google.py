"""Google's releases of BERT, ALBERT and ELECTRA: TensorFlow's variables by transformers' names."""

import re
from typing import Any
from typing import NamedTuple

import numpy as np

from bertzoo_jax import parts
from bertzoo_jax.common import errors

# Variables of optimizers and savers.
_NO_WEIGHT = re.compile(r'(^|/)(adam_\w|\w*Optimizer\w*|global_step|temperature)$|^_|_power$')
_LAYER = (r'/layer_(\d+)/', r'/layer/\1/')
_ENDS = (
  (r'/(kernel|gamma|output_weights)$', '/weight'),
  (r'/(beta|output_bias)$', '/bias'),
  (r'_embeddings$', '_embeddings/weight'),
)
# ALBERT's SentencePiece models (tokenization.py and README of the release).
_ALBERT_TOKENIZER = parts.sentencepiece(vocab_size='auto', symbols='')


class Kind(NamedTuple):
  """How the variables of a kind of network are called here."""

  model_type: str  # model_type in transformers
  known_by: str  # text in the name of at least one of its variables
  rules: tuple  # ordered (regex, replacement) for a name, all applied
  heads: tuple  # ordered (beginning of a tensor's name, class that has such a head)
  fields: dict  # config.json fields that the release's file lacks or gets wrong
  tokenizer: dict | None  # config section of its SentencePiece model; None for a vocab.txt


_BERT = Kind(
  'bert',
  'bert/encoder/layer_0/',
  (_LAYER,),
  (('cls.seq_relationship.', 'BertForPreTraining'), ('cls.', 'BertForMaskedLM')),
  {},
  None,
)
_ALBERT = Kind(
  'albert',
  '/inner_group_0/',
  (
    ('^bert/', 'albert/'),
    (r'/transformer/group_(\d+)/inner_group_(\d+)/', r'/albert_layer_groups/\1/albert_layers/\2/'),
    (r'(albert_layers/\d+)/LayerNorm/', r'\1/attention/LayerNorm/'),
    (r'/LayerNorm_\d+/', '/full_layer_layer_norm/'),
    (r'/attention_\d+/(self|output)/', '/attention/'),
    (r'/ffn_\d+/intermediate/output/dense/', '/ffn_output/'),
    (r'/ffn_\d+/intermediate/dense/', '/ffn/'),
    ('/pooler/dense/', '/pooler/'),
    ('^cls/predictions/(transform/)?', 'predictions/'),
    ('^cls/seq_relationship/', 'sop_classifier/classifier/'),
  ),
  (('sop_classifier.', 'AlbertForPreTraining'), ('predictions.', 'AlbertForMaskedLM')),
  {'hidden_act': 'gelu_new'},  # modeling.py calls it gelu
  _ALBERT_TOKENIZER,
)
_ELECTRA = Kind(
  'electra',
  'electra/encoder/layer_0/',
  (
    _LAYER,
    ('^discriminator_predictions/dense_1/', 'discriminator_predictions/dense_prediction/'),
    ('^generator_predictions/output_bias', 'generator_lm_head/bias'),
    ('^generator/', 'electra/'),
  ),
  (
    ('discriminator_predictions.', 'ElectraForPreTraining'),
    ('generator_lm_head.', 'ElectraForMaskedLM'),
  ),
  {},
  None,
)
_KINDS = (_ALBERT, _ELECTRA, _BERT)


def is_weight(name: str) -> bool:
  """Whether a variable is a network's, not an optimizer's or a saver's."""
  return not _NO_WEIGHT.search(name)


def networks(variables: dict[str, np.ndarray], content: dict[str, Any]) -> dict[str, tuple]:
  """{name: (tensors by transformers' names, config.json)}; the name is '' except for ELECTRA's two.

  variables: {name: array} of the checkpoint's weights. content: of the release's bert_config.json
  or albert_config.json; {} without one, as ELECTRA's. Raises UserError: the variables are another
  network's, or the number of heads is unknown.
  """
  names = {x.removeprefix('module/'): x for x in variables}
  kind = next((k for k in _KINDS if any(k.known_by in name for name in names)), None)
  if kind is None:
    raise errors.UserError(
      'The TensorFlow checkpoint has no variables of BERT, ALBERT or ELECTRA, such as '
      f'{_KINDS[-1].known_by}…: give a release of one of these.'
    )
  parts = {'': names}
  if kind is _ELECTRA and any(name.startswith('generator/') for name in names):
    below = lambda start: {name: x for name, x in names.items() if name.startswith(start)}
    # the generator reads the discriminator's tables unless it has its own
    shared = {} if below('generator/embeddings/') else below('electra/embeddings/')
    generator = below('generator')
    discriminator = {name: x for name, x in names.items() if name not in generator}
    parts = {'discriminator': discriminator, 'generator': {**shared, **generator}}
  out = {}
  for network, by_name in parts.items():
    tensors = {_renamed(name, kind): _turned(name, variables[x]) for name, x in by_name.items()}
    out[network] = tensors, _config(kind, tensors, content)
  return out


def tokenizer(content: dict[str, Any]) -> dict | None:
  """The config section of the SentencePiece model of a network with such a config.json."""
  return next((k.tokenizer for k in _KINDS if k.model_type == content['model_type']), None)


def _renamed(name, kind) -> str:
  for regex, to in (*kind.rules, *_ENDS):
    name = re.sub(regex, to, name)
  return name.replace('/', '.')


def _turned(name, x) -> np.ndarray:
  x = np.asarray(x, np.float32)
  return np.ascontiguousarray(x.T) if name.endswith('/kernel') else x


def _config(kind, tensors, content) -> dict:
  """config.json, from the release's file and the tensors' shapes."""
  shape = lambda end: next(x.shape for name, x in tensors.items() if name.endswith(end))
  words, width = shape('word_embeddings.weight')
  hidden = shape('attention.self.query.weight' if kind is not _ALBERT else 'query.weight')[0]
  layers = {int(m[1]) for m in (re.search(r'\.layer\.(\d+)\.', name) for name in tensors) if m}
  sizes = dict(
    vocab_size=words,
    hidden_size=hidden,
    intermediate_size=shape('ffn.weight' if kind is _ALBERT else 'intermediate.dense.weight')[0],
    max_position_embeddings=shape('position_embeddings.weight')[0],
    type_vocab_size=shape('token_type_embeddings.weight')[0],
    **({} if kind is _BERT else {'embedding_size': width}),
    **({'num_hidden_layers': len(layers)} if layers else {}),
  )
  if kind is _ELECTRA:  # model/util or configure_pretraining.py: 64 dimensions per head
    sizes['num_attention_heads'] = max(1, hidden // 64)
  elif 'num_attention_heads' not in content:
    raise errors.UserError(
      'A TensorFlow checkpoint does not say its number of heads: put the bert_config.json or '
      'albert_config.json of the release beside it.'
    )
  name = next((n for start, n in kind.heads if any(t.startswith(start) for t in tensors)), None)
  head = {'architectures': [name] if name else []}
  return {**content, **kind.fields, **sizes, **head, 'model_type': kind.model_type}
