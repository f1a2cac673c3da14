"""The Hugging Face hub: folders of it, hf:DIR or hf:OWNER/NAME[@REVISION], which are fetched once,
and repositories to push to.
"""

import contextlib
import re

import huggingface_hub
from huggingface_hub import constants

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

# What tokenizers are read from; weights stay where they are.
TOKENIZER = tuple(
  'tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.txt '
  'vocab.json merges.txt spiece.model spm.model sentencepiece.bpe.model tokenizer.model '
  'bertzoo.json'.split()
)

MAIN = 'main'  # the branch that is read where no revision is named


def folder(name: str, files):
  """The folder of `hf:NAME` (without its 'hf:'): a local one of that name, else the hub's files
  (OWNER/NAME[@REVISION]), kept where that library keeps them.

  files: names of those that are wanted; what is there is fetched. Raises UserError for neither, or
  a name that the hub lacks, TryAgain if it does not answer.
  """
  path = storage.path(name)
  if path.is_dir():
    return path
  if not re.fullmatch(r'[\w.-]+(/[\w.-]+)?(@[\w./-]+)?', name):
    raise errors.UserError(
      f'hf:{name} is no folder here, and no OWNER/NAME of the Hugging Face hub: correct the name.'
    )
  repository, _, revision = name.partition('@')
  wanted = dict(revision=revision or None, allow_patterns=list(files))
  with _told(
    f'hf:{name} is no folder here, and the hub gives no such files',
    'run the same line again, or give a folder with its files as hf:DIR',
    'correct the name, or download its files elsewhere and give their folder as hf:DIR',
  ):
    return storage.path(huggingface_hub.snapshot_download(repository, **wanted))


class Repository:
  """A repository of models to push to, OWNER/NAME. The token is the one that `hf auth login` or
  $HF_TOKEN gave; it is in no message. Raises UserError without one, or for a name that is none.
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
    """Whether a branch has files; a push that was cut short leaves one without."""
    with self._told(branch):
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

  def push(self, branch: str, folder) -> None:
    """Makes a folder the content of a branch, in one commit. The repository is made if there is
    none, private; a new branch begins empty.
    """
    self.check_free(branch)
    with self._told(branch):
      self._api.create_repo(self.name, private=True, exist_ok=True)
      if branch != MAIN:
        empty = self._api.list_repo_commits(self.name)[-1].commit_id
        self._api.create_branch(self.name, branch=branch, revision=empty, exist_ok=True)
      self._api.upload_folder(
        repo_id=self.name,
        folder_path=str(folder),
        revision=branch,
        commit_message='bertzoo_jax.export',
      )

  def _told(self, branch):
    return _told(
      f'{self.name}@{branch} cannot be pushed to',
      'run the same line again',
      'correct the name, or give a token that may write there',
    )


@contextlib.contextmanager
def _told(what, again, remedy):
  """Turns an error of the hub into a TryAgain with `again` if it may pass, else into a UserError
  with `remedy`.
  """
  try:
    yield
  except errors.UserError:
    raise
  except Exception as e:  # of many libraries: the network's, the hub's, the cache's
    cause = errors.words(e).replace(huggingface_hub.get_token() or '\0', '…')[:160]
    what = f'{what} ({cause or type(e).__name__} …)'
    if any(storage.may_pass(reason) for reason in _reasons(e)) and not constants.HF_HUB_OFFLINE:
      raise errors.TryAgain(f'{what}: {again}.') from e
    raise errors.UserError(f'{what}: {remedy}.') from e


def _reasons(e):
  while e is not None:
    yield e
    e = e.__cause__ or e.__context__
