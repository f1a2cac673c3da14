"""Tokenizer folders of the Hugging Face hub."""

import tokenizers as hf

from bertzoo_jax.common import errors
from bertzoo_jax.common import hub

# Text that every pipeline made for a vocabulary splits alike; case, accents and blanks show in it.
PLAIN = ('The quick Brown fox jumps', 'a naïve café', "It's 5 o'clock, isn't it?", ' two  blanks')


def folder(name: str):
  """The folder of `hf:NAME` (without its 'hf:') with what tokenizers are read from. Raises
  UserError and TryAgain as bertzoo_jax.common.hub.
  """
  return hub.folder(name, hub.TOKENIZER)


def check(name, text: str, encode) -> None:
  """UserError where a folder's own tokenizer splits plain text otherwise than the config's does:
  then the config is another's.

  Args:
    name: of the folder, for the message.
    text: its tokenizer.json.
    encode: texts → lists of ids, as the config says.
  """
  try:
    engine = hf.Tokenizer.from_str(text)
  except Exception as e:  # the library raises nothing more particular
    raise errors.UserError(
      f'{name}: its tokenizer.json is not one that this version of tokenizers ({hf.__version__}) '
      f'reads ({e}).'
    ) from e
  engine.no_truncation()
  engine.no_padding()
  theirs = engine.encode_batch(list(PLAIN), add_special_tokens=False)
  for plain, ours, row in zip(PLAIN, encode(list(PLAIN)), theirs):
    if list(ours) != row.ids:
      here = ' '.join(engine.id_to_token(int(i)) or '?' for i in ours)
      raise errors.UserError(
        f'{name} splits {plain!r} into {" ".join(row.tokens)}, config.tokenizer into {here}: set '
        'its fields (lowercase, '
        'strip_accents, add_prefix_space, normalization …) to those that the vocabulary was made '
        'with.'
      )
