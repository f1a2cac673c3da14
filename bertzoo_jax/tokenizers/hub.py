"""Tokenizer folders of the Hugging Face hub."""

from bertzoo_jax.common import errors
from bertzoo_jax.common import hub

SAYING = ('tokenizer.json', 'tokenizer_config.json')  # files that say how text is split

# Text that every pipeline made for a vocabulary splits alike; case, accents and blanks show in it.
PLAIN = (
  'The quick Brown fox jumps',
  'a naïve café',
  "It's 5 o'clock, isn't it?",
  ' two  blanks',
  '中文字',
)


def folder(name: str):
  """The folder of `hf:NAME` with a tokenizer's files. UserError and TryAgain as common.hub."""
  return hub.folder(name, hub.TOKENIZER)


def check(name, theirs, ours) -> None:
  """UserError where a directory's own tokenizer splits plain text otherwise than the config's does:
  then the config is another's.

  Args:
    name: of the directory, for the message.
    theirs: its tokenizer, see `tokenizers.of_folder`.
    ours: tokenizers.Tokenizer, as the config says.
  """
  rows = zip(PLAIN, *(x.encode_as_transformers(list(PLAIN)) for x in (ours, theirs)))
  for plain, *ids in rows:
    if list(ids[0]) != list(ids[1]):
      here, there = (' '.join(x.pieces[i] for i in row) for x, row in zip((ours, theirs), ids))
      raise errors.UserError(
        f'{name} splits {plain!r} into {there}, config.tokenizer into {here}: set the fields of '
        'config.tokenizer (lowercase, strip_accents, add_prefix_space, normalization …) as they '
        'were when the vocabulary was made.'
      )
