"""Microsoft's releases of DeBERTa: fields that their files leave out or name differently."""

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.hf.architectures import deberta_v2

# How Microsoft's SentencePiece models split text (spm_tokenizer.py of the release).
TOKENIZER = parts.sentencepiece(
  vocab_size='auto',
  specials='mask_last',
  lowercase=False,
  strip_accents=False,
  digit_commas='keep',
  word_starts='unicode',
  symbols='',
)


def config(content: dict, name: str) -> dict:
  """config.json of one network, with transformers' names. In Microsoft's training runs it has a
  section per network, and the name padding_idx.

  name: 'discriminator' or 'generator'.
  """
  both = isinstance(content.get('generator'), dict)
  fields = dict(content.get(name, {}) if both else content)
  if not both and name == 'generator':
    for field in ('num_hidden_layers', 'architectures'):
      fields.pop(field, None)
  if 'padding_idx' in fields:
    fields.setdefault('pad_token_id', fields.pop('padding_idx'))
  return fields


def model_type(tensors) -> str:
  """The model_type that the tensors' names tell: v1 has queries, keys and values in one tensor."""
  if any(key.endswith('attention.self.in_proj.weight') for key in tensors):
    return 'deberta'
  if any(key.endswith('attention.self.query_proj.weight') for key in tensors):
    return 'deberta-v2'
  raise errors.UserError(
    "config.json does not say its model_type, and the tensors have other names than DeBERTa's: "
    'add "model_type".'
  )


def classes(content, tensors) -> list:
  """`architectures`, by the file's heads, else by config.json; [] for the first (fills masks)."""
  if any(key.startswith(f'{deberta_v2.HEAD}.') for key in tensors):
    return [deberta_v2.DISCRIMINATOR.name]
  fills = any(key.startswith('lm_predictions.') for key in tensors)
  return [] if fills else content.get('architectures') or []
