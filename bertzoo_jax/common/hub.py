"""The Hugging Face hub: folders, hf:DIR or hf:OWNER/NAME[@REVISION], which are fetched once; files
of data sets; repositories to push to.
"""

import contextlib
import json
import os
import re
from typing import NamedTuple

import huggingface_hub
import yaml
from huggingface_hub import constants

from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import storage

# The files of tokenizers; weights are not fetched.
TOKENIZER = tuple(
  'tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.txt '
  'vocab.json merges.txt spiece.model spm.model sentencepiece.bpe.model tokenizer.model '
  'bertzoo.json'.split()
)

_CARDS = 'README.md', '.huggingface.yaml'  # of data sets
MAIN = 'main'  # the branch that is read if no revision is named
PREFIX = 'hf:'  # of addresses of the hub


def folder(name: str, files):
  """The folder of `hf:NAME` (name: without 'hf:'): a local folder, else the hub's files
  (OWNER/NAME[@REVISION]) in the cache of huggingface_hub.

  files: names of files to fetch, if they exist. Raises UserError for another form of name, a name
  that the hub lacks, or a link out of a local folder; TransientError if the hub does not answer.
  """
  path = storage.path(name)
  if path.is_dir():
    for file in files:
      folders.inside(path, file)
    return path
  _check_there(name, f'hf:{name}')
  if not re.fullmatch(r'[\w.-]+(/[\w.-]+)?(@[\w./-]+)?', name):
    raise errors.UserError(
      f'hf:{name} is no folder here, and no OWNER/NAME of the Hugging Face hub: correct the name.'
    )
  repository, _, revision = name.partition('@')
  wanted = dict(revision=revision or None, allow_patterns=list(files))
  with _hub_errors(
    f'hf:{name} is no folder here, and the hub gives no such files',
    'run the same command again, or give a folder with its files as hf:DIR',
    'correct the name, or download its files elsewhere and give their folder as hf:DIR',
  ):
    return storage.path(huggingface_hub.snapshot_download(repository, **wanted))


def _check_there(name, address):
  """Raises UserError for a local path without a folder."""
  if re.match(r'[/~]|\.\.?(/|$)', name) and not storage.path(name).is_dir():
    raise errors.UserError(f'{address}: there is no folder {name}: correct the path.')


_DATA = re.compile(r'(.+?)(?:@([\w./-]+))?(?::([\w.-]+))?')  # name, revision, split


class Data(NamedTuple):
  """A split of a data set: addresses of its files, in order, and its record for a manifest."""

  files: tuple[str, ...]
  facts: dict[str, str]


def data(address: str) -> Data:
  """The split that `hf:NAME[/CONFIG][@REVISION][:SPLIT]` names, as the package `datasets` finds its
  files. NAME: a local folder, else OWNER/NAME of the hub. SPLIT: train if omitted.

  Raises UserError without that package, or for an unknown split; TransientError if the hub does not
  answer.
  """
  whole, local = address.removeprefix(PREFIX), lambda name: storage.path(name).is_dir()
  if whole.endswith(']') and not local(whole):
    raise errors.UserError(
      f'{address}: a split is a name, without […]: write hf:{whole.partition("[")[0]}.'
    )
  if not (match := _DATA.fullmatch(whole)):
    raise errors.UserError(f'{address}: write hf:NAME[/CONFIG][@REVISION][:SPLIT].')
  # an existing folder comes first, even with @ and : in its name
  name, revision, split = (whole, '', '') if local(whole) else match.groups()
  with errors.needing(f'{address} needs a package', 'datasets'):
    import datasets
  words, split = name.rstrip('/').split('/'), split or 'train'
  at = next((n for n in (len(words), len(words) - 1) if n > 1 and local('/'.join(words[:n]))), 0)
  if not at and not local(name):
    _check_there(name, address)
  name, config = '/'.join(words[: at or 2]), '/'.join(words[at or 2 :])
  if not local(name) and len(words) == 1:
    # `datasets` takes a word such as json as a reader of the files in the current folder
    raise errors.UserError(f'{address}: {name} is no folder here; for the hub write OWNER/NAME.')
  with _hub_errors(
    f'{address} cannot be read',
    'run the same command again',
    'correct the name, or download its files (hf download) and give their folder as hf:./DIR',
  ):
    where = str(storage.absolute(name)) if local(name) else name
    for card in _CARDS:
      _check_card(address, storage.path(where) / card)
    builder = datasets.load_dataset_builder(where, config or None, revision=revision or None)
  splits = {str(name): tuple(files) for name, files in (builder.config.data_files or {}).items()}
  if split not in splits:
    raise errors.UserError(
      f'{address} has no split {split!r}: name one after a colon.'
      f'{errors.did_you_mean(split, splits)}'
    )
  files = splits[split]
  begin = os.path.join(os.path.realpath(where), '') if local(name) else f'hf://datasets/{name}@'
  folders.check_files(begin, files)
  revision = next((m[1] for f in files if (m := re.match('hf://[^@]+@([^/]+)/', f))), '')
  return Data(files, dict(name=name, config=builder.config.name, split=split, revision=revision))


def _check_card(address, card):
  """Raises UserError if the card of a local data set names files outside: `datasets` would list all
  folders there. Aliases (*a) are refused: ten lines of them can expand to a terabyte.
  """
  if not card.exists():
    return
  text = card.read_text(encoding='utf-8')
  if card.suffix == '.md':
    from huggingface_hub import repocard  # takes half a second, with its HTTP client

    text = m[2] if (m := repocard.REGEX_YAML_BLOCK.search(text)) else ''
  aliases = any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
  metadata = None if aliases else yaml.safe_load(text)
  rows = [
    (row.get('data_dir'), row.get('data_files')) for row in (metadata or {}).get('configs') or ()
  ]
  if aliases or re.search(r'"/|"\.\.["/]|/\.\.["/]|://', json.dumps(rows, default=str)):
    what = 'has aliases (*name)' if aliases else 'names files outside that folder'
    raise errors.UserError(f'{address}: {card} {what}: take another.')


class Repository:
  """A repository of models to push to, OWNER/NAME. Uses the token of `hf auth login` or $HF_TOKEN,
  and never prints it. Raises UserError without a token, or for another form of name.
  """

  def __init__(self, name: str):
    if not re.fullmatch(r'[\w.-]+/[\w.-]+', name):
      raise errors.UserError(f'--push={name}: write OWNER/NAME, or OWNER/NAME@BRANCH.')
    self.name, token = name, huggingface_hub.get_token()
    if not token:
      raise errors.UserError(
        '--push needs a token of the Hugging Face hub that may write: run hf auth login, or set '
        '$HF_TOKEN.'
      )
    self._api = huggingface_hub.HfApi(token=token)

  def has(self, branch: str) -> bool:
    """Whether a branch has files; an interrupted push leaves an empty branch."""
    with self._push_errors(branch):
      if not self._api.repo_exists(self.name):
        return False
      branches = [ref.name for ref in self._api.list_repo_refs(self.name).branches]
      return branch in branches and bool(
        {*self._api.list_repo_files(self.name, revision=branch)} - {'.gitattributes'}
      )

  def check_free(self, branch: str) -> None:
    """Raises UserError if a branch has files."""
    if self.has(branch):
      raise errors.UserError(
        f'{self.name} has files in its branch {branch} already: push to a new one, '
        f'--push {self.name}@BRANCH, or delete that one at the hub.'
      )

  def push(self, branch: str, folder, names: list[str]) -> None:
    """Replaces a branch by files of a folder, in one commit; a new repository is private."""
    self.check_free(branch)
    with self._push_errors(branch):
      self._api.create_repo(self.name, private=True, exist_ok=True)
      if branch != MAIN:
        empty = self._api.list_repo_commits(self.name)[-1].commit_id
        self._api.create_branch(self.name, branch=branch, revision=empty, exist_ok=True)
      self._api.upload_folder(
        repo_id=self.name,
        folder_path=str(folder),
        allow_patterns=names,
        revision=branch,
        delete_patterns='*',  # the first commit may hold files
        commit_message='bertzoo_jax.export',
      )

  def _push_errors(self, branch):
    return _hub_errors(
      f'{self.name}@{branch} cannot be pushed to',
      'run the same command again',
      'correct the name, or give a token that may write there',
      'leave --push out',
    )


@contextlib.contextmanager
def _hub_errors(what, again, remedy, offline='name files that are here'):
  """Turns an error of the hub into a UserError, or if it may pass into a TransientError whose
  remedy is `again`.
  """
  try:
    yield
  except errors.UserError:
    raise
  except Exception as e:  # of many libraries: the network's, the hub's, the cache's
    cause = errors.words(e).replace(huggingface_hub.get_token() or '\0', '…')[:160]
    what = f'{what} ({cause or type(e).__name__} …)'
    if constants.HF_HUB_OFFLINE:
      remedy = f'$HF_HUB_OFFLINE is set: unset it, or {offline}'
    elif any(map(storage.may_pass, errors.causes(e))):
      raise errors.TransientError(f'{what}: {again}.') from e
    raise errors.UserError(f'{what}: {remedy}.') from e
