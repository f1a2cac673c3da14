"""Folders of the Hugging Face hub: hf:DIR, or hf:OWNER/NAME[@REVISION], fetched once."""

import re

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

# What tokenizers are read from; weights stay where they are.
TOKENIZER = tuple(
  'tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.txt '
  'vocab.json merges.txt spiece.model spm.model sentencepiece.bpe.model tokenizer.model '
  'bertzoo.json'.split()
)


def folder(name: str, files):
  """The folder of `hf:NAME` (without its 'hf:'): a local one of that name, else the hub's files,
  kept where that library keeps them.

  Args:
    name: a folder, or OWNER/NAME[@REVISION].
    files: names of the files that are wanted; those that are there are fetched.

  Raises:
    UserError: neither, or the hub has nothing of that name; TryAgain: it does not answer.
  """
  path = storage.path(name)
  if path.is_dir():
    return path
  if not re.fullmatch(r'[\w.-]+(/[\w.-]+)?(@[\w./-]+)?', name):
    raise errors.UserError(
      f'hf:{name} is no folder here, and no OWNER/NAME of the Hugging Face hub either: correct the '
      'name.'
    )
  try:
    import huggingface_hub
    from huggingface_hub import constants
  except ImportError as e:
    raise errors.UserError(
      f'hf:{name} is no folder here, and fetching it needs a package: pip install huggingface_hub.'
    ) from e
  repository, _, revision = name.partition('@')
  try:
    return storage.path(
      huggingface_hub.snapshot_download(
        repository, revision=revision or None, allow_patterns=list(files)
      )
    )
  except Exception as e:  # of many libraries: the network's, the hub's, the cache's
    cause = errors.words(e, 160) or type(e).__name__
    said = f'hf:{name} is no folder here, and the hub gives no such files ({cause} …)'
    if any(storage.may_pass(reason) for reason in _reasons(e)) and not constants.HF_HUB_OFFLINE:
      raise errors.TryAgain(
        f'{said}: run the same line again, or give a folder with its files as hf:DIR.'
      ) from e
    raise errors.UserError(
      f'{said}: correct the name, or download its files elsewhere and give their folder as hf:DIR.'
    ) from e


def _reasons(e):
  while e is not None:
    yield e
    e = e.__cause__ or e.__context__
