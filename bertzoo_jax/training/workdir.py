"""What a workdir remembers of its run: the resolved config, the text, and every attempt.

config.json       the resolved config; science never changes, machinery is the last attempt's
corpus.json       hash and sizes of the text
attempts.jsonl    one line per attempt: command line, versions, commit, corpus hash, host, time,
                  start step
tokenizer/        a copy of the corpus's tokenizer
"""

import contextlib
import importlib.metadata
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

_PACKAGES = (
  'jax',
  'jaxlib',
  'libtpu',
  'flax',
  'optax',
  'orbax-checkpoint',
  'numpy',
  'tensorflow',
  'tensorflow-cpu',
  'tokenizers',
)


@contextlib.contextmanager
def writable(path):
  """As `check_writable`; after the `with`, what was made for it and is still empty is gone
  again.
  """
  path = storage.path(path)
  made = (
    [] if storage.is_remote(path) else [p for p in (path, *path.parents) if not os.path.exists(p)]
  )
  try:
    check_writable(path)
    yield
  finally:
    with contextlib.suppress(OSError):
      for folder in made:
        os.rmdir(folder)


def check_writable(path) -> None:
  """Makes the folder. Raises UserError if it cannot be written, TryAgain if that may pass."""
  path = storage.path(path)
  if not storage.is_remote(path) and path.is_file():
    raise errors.UserError(f'--workdir {path} is a file: give a folder.')
  try:
    path.mkdir(parents=True, exist_ok=True)
    probe = path / f'.probe-{os.getpid()}'
    storage.write_text(probe, 'x')
    probe.unlink()
  except Exception as e:  # every storage has errors of its own
    passing = storage.may_pass(e)
    raise (errors.TryAgain if passing else errors.UserError)(
      f'--workdir {path} cannot be written ({type(e).__name__}: {" ".join(str(e).split())}): '
      + ('run the same line again.' if passing else 'give a folder you own.')
    ) from e


def check_same_run(path, config, corpus_hash: str) -> None:
  """Raises UserError if the workdir holds a run with other science, listing the keys, or of another
  text.
  """
  path = storage.path(path)
  if (path / 'config.json').exists():
    old = configuration.from_json((path / 'config.json').read_text())
    if lines := configuration.differences(
      configuration.science(old), configuration.science(config)
    ):
      raise errors.UserError(
        f'{path} holds a run with another config: {"; ".join(lines)}. Give the old values to '
        'resume it, or another --workdir '
        '(--init takes its weights along).'
      )
  elif any((path / name).exists() for name in ('attempts.jsonl', 'metrics.jsonl')):
    raise errors.UserError(f'{path} holds a run without its config.json: take another --workdir.')
  if (path / 'corpus.json').exists() and (
    old := storage.read_json(path / 'corpus.json')['hash']
  ) != corpus_hash:
    raise errors.UserError(
      f'{path} was trained on the corpus {old[:12]}…, this one is {corpus_hash[:12]}…: give the '
      'old --corpus to resume it, '
      'or another --workdir (--init takes its weights along).'
    )


def run_config(workdir):
  """The config of the run in a workdir. Raises UserError where there is none."""
  path = storage.path(workdir) / 'config.json'
  if not path.exists():
    raise errors.UserError(
      f'{path} does not exist: a workdir needs the config.json that pretrain wrote; copy it there.'
    )
  return configuration.from_json(path.read_text())


def describe(path, config, corpus: dict, save_tokenizer) -> None:
  """Writes config.json, corpus.json and tokenizer/.

  Args:
    path: the workdir.
    config: resolved.
    corpus: its hash and sizes.
    save_tokenizer: folder → copies the tokenizer there.
  """
  path = storage.path(path)
  if not (path / 'corpus.json').exists():
    save_tokenizer(path / 'tokenizer')
    storage.write_json(path / 'corpus.json', corpus)
  storage.write_text(path / 'config.json', configuration.to_json(config))


def attempts(path) -> list[dict]:
  """The attempts of a run so far, in order; a line cut short by a kill is left out."""
  path = storage.path(path) / 'attempts.jsonl'
  out = []
  for line in path.read_text().splitlines() if path.exists() else ():
    try:
      out.append(json.loads(line))
    except ValueError:
      continue
  return out


def add_attempt(path, *, corpus_hash: str, start_step: int, devices: str, init: str | None) -> int:
  """Adds this process to attempts.jsonl and returns its number, from 1."""
  before = attempts(path)
  line = {
    'attempt': len(before) + 1,
    'time': time.strftime('%Y-%m-%dT%H:%M:%S%z'),
    'command': [sys.executable, *sys.orig_argv[1:]],
    'host': socket.gethostname(),
    'start_step': start_step,
    'init': init,
    'corpus_hash': corpus_hash,
    'commit': commit(),
    'devices': devices,
    'versions': versions(),
  }
  storage.write_text(
    storage.path(path) / 'attempts.jsonl', ''.join(json.dumps(x) + '\n' for x in [*before, line])
  )
  return line['attempt']


def versions() -> dict:
  """{package: version} of Python and what numbers depend on."""
  out = {'python': sys.version.split()[0]}
  for package in _PACKAGES:
    try:
      out[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  return out


def commit() -> str | None:
  """The git commit of this checkout, with '+' if files differ from it; None outside a checkout."""
  root = pathlib.Path(__file__).parents[2]
  git = lambda *args: subprocess.run(
    ['git', '-C', str(root), *args], capture_output=True, text=True, timeout=20
  )
  try:
    head = git('rev-parse', 'HEAD')
    if head.returncode:
      return None
    return head.stdout.strip() + (
      '+' if git('status', '--porcelain', '--untracked-files=no').stdout.strip() else ''
    )
  except (OSError, subprocess.TimeoutExpired):
    return None
