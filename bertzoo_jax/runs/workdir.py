"""The records in a workdir: the resolved config, the text, and every attempt.

config.json       the resolved config; science never changes, machinery is the last attempt's
corpus.json       hash and sizes of the text
attempts.jsonl    one line per attempt: command line, versions, commit, corpus hash, SHA-256 of
                  config.json, host, time, start step
tokenizer/        a copy of the corpus's tokenizer

Every checkpoint has a copy of config.json and corpus.json, covered by its checksums. If the files
of the workdir are damaged, the copies are used and the files written again. A config.json or
corpus.json that no attempt has recorded is ignored.
"""

import contextlib
import errno
import hashlib
import importlib.metadata
import itertools
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import storage
from bertzoo_jax.parts import named
from bertzoo_jax.parts import ranges
from bertzoo_jax.runs import step_folders

# of other commands, for `check_unlike`
A_CORPUS = ('manifest.json', 'a corpus')
_CONFIG, _CORPUS, _ATTEMPTS = 'config.json', 'corpus.json', 'attempts.jsonl'
# keys of an attempt, and their fields of start.First
_TAKEN = {'init_layers': 'layers', 'vocabulary': 'vocabulary', 'positions': 'positions'}
_PACKAGES = (
  'jax jaxlib libtpu flax optax orbax-checkpoint numpy tensorflow tensorflow-cpu tokenizers'.split()
)


@contextlib.contextmanager
def writable(path):
  """Makes the folder, yields it without links; removes folders made here that stay empty."""
  path, missing = storage.path(path), []
  if not storage.is_remote(path):
    missing = [p for p in (path, *path.parents) if not os.path.exists(p)]
  try:
    check_writable(path)
    yield storage.resolved(path)
  finally:
    with contextlib.suppress(OSError):
      for folder in missing:
        os.rmdir(folder)


def check_unlike(path, *others: tuple[str, str]) -> None:
  """Raises UserError if the folder holds something else than runs of this command, or a link that
  leads out of it: nothing is written through links.

  others: (name of a file, kind of the folder that holds it).
  """
  for file, what in others:
    if (storage.path(path) / file).exists():
      raise errors.UserError(f'--workdir {path} holds {what} ({file}): give a folder of its own.')
  folders.check_links(path)


def check_writable(path) -> None:
  """Makes the folder. Raises UserError if it cannot be written, TransientError if that may pass."""
  path = storage.path(path)
  if not storage.is_remote(path) and path.is_file():
    raise errors.UserError(f'--workdir {path} is a file: give a folder.')
  try:
    path.mkdir(parents=True, exist_ok=True)
    probe = path / f'.probe-{os.getpid()}'
    storage.write_text(probe, 'x')
    probe.unlink()
  except Exception as e:  # every storage has errors of its own
    problem = f'--workdir {path} cannot be written ({errors.named(e)}): '
    if storage.may_pass(e):
      raise errors.TransientError(f'{problem}run the same command again.') from e
    is_full = isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = 'free space on its disk.' if is_full else 'give a folder you own.'
    raise errors.UserError(problem + remedy) from e


def check_same_run(path, config, corpus_hash: str) -> None:
  """Raises UserError if the workdir holds a run with other science or of another text."""
  path = storage.path(path)
  with storage.reading(f'The workdir {path}'):
    old, text = _recorded_config(path), corpus_record(path).get('hash')
    if old is None and (path / _CONFIG).exists():
      print(
        f'WARNING: {path / _CONFIG} is damaged, and no checkpoint has a copy: whether this is the '
        'config of the run cannot be checked.'
      )
    elif old is None and any((path / name).exists() for name in (_ATTEMPTS, 'metrics.jsonl')):
      raise errors.UserError(f'{path} holds a run without its config.json: take another --workdir.')
  if old is not None and (
    lines := configuration.differences(configuration.science(old), configuration.science(config))
  ):
    also = '' if 'source' in config else ' (--init takes its weights along)'
    raise errors.UserError(
      f'{path} holds a run with another config: {"; ".join(lines)}. Give the old values to resume '
      f'it, or another --workdir{also}.'
    )
  if text not in (None, corpus_hash) and 'source' in config:
    raise errors.UserError(
      f'{path} holds a run on other rows ({text[:12]}…, now {corpus_hash[:12]}…): a file of the '
      'task or its tokenizer has changed. Bring it back to resume, or take another --workdir.'
    )
  if text not in (None, corpus_hash):
    raise errors.UserError(
      f'{path} was trained on the corpus {text[:12]}…, this one is {corpus_hash[:12]}…: give the '
      'old --corpus to resume it, or another --workdir (--init takes its weights along).'
    )


def run_config(workdir):
  """The config of the run in a workdir. Raises UserError if it has none, or a link out of it."""
  folders.check_links(workdir)
  path = storage.path(workdir) / _CONFIG
  saved = _read_config(path)
  if (saved is None or not _noted(path)) and path.exists():
    saved = _recorded_config(path.parent) or saved
    if saved is None:
      raise errors.UserError(
        f'{path} cannot be read, and no checkpoint has a copy: write the config of the run there.'
      )
  if saved is None:
    raise errors.UserError(
      f'{path} does not exist: a workdir needs the config.json that pretrain wrote; copy it there.'
    )
  with errors.unreadable(f'{path} holds no config of a run: write the config of the run there'):
    ranges.check(saved)
    outside = named.is_outside(saved.encoder.name)  # such an encoder may have sections
    values = *(() if outside else saved.encoder.values()), saved.encoder.name, saved.objective.name
    conditions = saved.get('source', {}).get('where', ())
    texts = saved.hf, *saved.objective.get('labels', ()), *itertools.chain(*conditions)
    is_text = lambda x: isinstance(x, str)
    if any(hasattr(value, 'items') for value in values) or not all(map(is_text, texts)):
      raise TypeError('hf, encoder, objective or source')
  return saved


def machinery(path, device_kind: str) -> dict:
  """{'run.unroll': …, 'phases': …} of the last attempt; {} if it had another kind of device."""
  path = storage.path(path)
  with storage.reading(f'The workdir {path}'):
    last, file = (attempts(path) or [{}])[-1], path / _CONFIG
    config = _noted(file) and _read_config(file) or _recorded_config(path)
  if not config or not str(last.get('devices')).endswith(f'× {device_kind}'):
    return {}
  flat = configuration.flatten(config)
  return {k: value for k, value in flat.items() if k.startswith('run.') or k == 'phases'}


def corpus_record(workdir) -> dict:
  """{'hash', sizes} of the text of a run; {} if no text is recorded. A copy in a checkpoint comes
  before corpus.json, and corpus.json before the last attempt.
  """
  path = storage.path(workdir)
  hashes = [attempt.get('corpus_hash') for attempt in attempts(path)]
  noted = [{'hash': one} for one in hashes if isinstance(one, str)]
  ours = _read_json(path / _CORPUS)
  if noted and isinstance(ours, dict) and {'hash': ours.get('hash')} not in noted:
    ours = None
  candidates = [step_folders.recorded(path).get('corpus'), ours, *noted[-1:]]
  return next((x for x in candidates if isinstance(x, dict) and isinstance(x.get('hash'), str)), {})


def describe(path, config, corpus: dict, save_tokenizer) -> None:
  """Writes config.json, corpus.json (hash and sizes) and tokenizer/, each only where it is missing
  or damaged; prints which file was damaged. save_tokenizer: folder → copies it there.
  """
  path = storage.path(path)
  saved = _read_json(path / _CORPUS)
  if not isinstance(saved, dict) or saved.get('hash') != corpus['hash']:
    _set_aside(path / _CORPUS)
    save_tokenizer(path / 'tokenizer')
    storage.write_json(path / _CORPUS, corpus)
  text, file = configuration.to_json(config), path / _CONFIG
  saved = _read_config(file)
  if saved is None or configuration.science(saved) != configuration.science(config):
    _set_aside(file)
  if not file.exists() or file.read_bytes() != text.encode():
    storage.write_text(file, text)


def attempts(path) -> list[dict]:
  """The attempts of a run so far, in order; a line that cannot be read is left out."""
  known = storage.read_json_lines(storage.path(path) / _ATTEMPTS)[0]
  is_text = lambda x: x is None or isinstance(x, str)
  texts = ('init', *_TAKEN, 'corpus_hash', 'config_hash', 'commit')
  return [
    a
    for a in known
    if type(a.get('start_step', 0)) is int and all(is_text(a.get(k)) for k in texts)
  ]


def first_weights(path) -> str | None:
  """The --init of the last attempt that took it, the run's first weights; None: fresh ones."""
  return _first(path).get('init')


def first_taken(path) -> dict:
  """What the run took of its first weights: fields of start.First that are not the default."""
  first = _first(path)
  return {field: first[k] for k, field in _TAKEN.items() if first.get(k)}


def base_models(path) -> tuple[str, ...]:
  """Names of the models of the hub that a run, or the runs of its --init, began with."""
  return tuple(map(str, _first(path).get('base_models') or ()))


def _base_models(init: str | None) -> list[str]:
  """As `base_models`, for a run that begins now. A local folder of that name comes first."""
  names = []
  for address in storage.addresses(init) if init else ():
    at_hub, name = address.startswith('hf:'), address.removeprefix('hf:')
    while '@' in name and not storage.path(name).exists():
      name = name.rpartition('@')[0]
    if not at_hub:
      names += base_models(name)
    elif not storage.path(name).exists():
      names.append(name)
  return list(dict.fromkeys(names))


def _first(path) -> dict:
  """The last attempt that took the weights of its --init; {} without any."""
  began = lambda a: not a.get('start_step', 0) or a.get('resume_moments')
  return next((a for a in reversed(attempts(path)) if began(a)), {})


def add_attempt(
  path,
  *,
  corpus_hash: str,
  start_step: int,
  devices: str,
  init: str | None,
  taken: dict | None = None,
  resume_moments: bool = False,
) -> int:
  """Adds this process to attempts.jsonl and returns its number, from 1. taken: fields of
  start.First. resume_moments: whether it began at the step of `init`, with its moments.
  """
  file = storage.path(path) / _ATTEMPTS
  before, unreadable = storage.read_json_lines(file)
  if unreadable:
    print(f'WARNING: {file}: {unreadable} line(s) cannot be read and are left out.')
  numbers = [a['attempt'] for a in before if type(a.get('attempt')) is int]
  line = {
    'attempt': max([len(before), *numbers]) + 1,
    'time': time.strftime('%Y-%m-%dT%H:%M:%S%z'),
    'command': [sys.executable, *sys.orig_argv[1:]],
    'host': socket.gethostname(),
    'start_step': start_step,
    'init': init,
    **({'base_models': names} if (names := _base_models(init)) else {}),
    **{k: taken[f] for k, f in _TAKEN.items() if taken and taken[f] not in ('', 'same', 'copied')},
    **({'resume_moments': True} if resume_moments else {}),
    'corpus_hash': corpus_hash,
    'config_hash': _digest(file.parent / _CONFIG),
    'commit': commit(),
    'devices': devices,
    'versions': versions(),
  }
  storage.append_line(file, json.dumps(line))
  return line['attempt']


def _recorded_config(path):
  """The config of a run: its newest checkpoint's, else config.json's; None: neither readable."""
  kept = _config_of(step_folders.recorded(path).get('config'))
  return _read_config(path / _CONFIG) if kept is None and _noted(path / _CONFIG) else kept


def _noted(file) -> bool:
  """Whether an attempt recorded the hash of this config.json, or no attempt recorded any."""
  noted = {a.get('config_hash') for a in attempts(file.parent)} - {None}
  return not noted or _digest(file) in noted


def _digest(file) -> str | None:
  return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None


def _read_config(file):
  """Reads a config; None if the file is missing or cannot be read."""
  return _config_of(_read_json(file))


def _config_of(value):
  """Parses a value of a JSON file as a config; None if it is not one."""
  try:
    return None if value is None else configuration.from_json(json.dumps(value))
  except errors.UNREADABLE:
    return None


def _read_json(file):
  """Reads a JSON value; None if the file is missing or cannot be read."""
  try:
    return storage.read_json(file) if file.exists() else None
  except ValueError:
    return None


def _set_aside(file):
  """Renames a damaged file, if it exists, and prints a warning."""
  if file.exists():
    aside = storage.path(f'{file}.damaged')
    file.replace(aside)
    print(f'WARNING: {file} is damaged and is written again; the old file is {aside.name}.')


def versions() -> dict:
  """{package: version} of Python and the packages that decide numbers."""
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
  if not (root / '.git').exists():  # a package below a stranger's repository, whose hooks would run
    return None
  git = lambda *args: subprocess.run(
    ['git', '-C', str(root), *args], capture_output=True, text=True, timeout=20
  )
  try:
    head = git('rev-parse', 'HEAD')
    if head.returncode:
      return None
    changed = git('status', '--porcelain', '--untracked-files=no').stdout.strip()
    return head.stdout.strip() + '+' * bool(changed)
  except (OSError, subprocess.TimeoutExpired):
    return None
