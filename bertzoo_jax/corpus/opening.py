"""Opens the corpora of a command: one, or several with one tokenizer as a mixture."""

import copy
import hashlib
import os

import numpy as np

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.corpus import mirror
from bertzoo_jax.corpus import splits as splits_lib


def open(paths, config, cache_dir: str | None = None, trained=None) -> corpora.Corpus:
  """A corpus, or the mixture of several.

  The config's section `corpus` is compared with the first corpus only: the others may have another
  splitting into sentences and words.

  paths: a folder that `prepare` wrote, local or gs://, or a sequence of such folders. cache_dir:
  local folder for mirrors of corpora in an object store. trained: to score a run, the hashes of the
  corpora that it was trained on, which fit; other text may have another splitting, too.

  Raises UserError as corpus.open and `check`.
  """
  paths = listed(paths)
  opened = [corpora.open(mirror.local(path, cache_dir), config.run.corpus_cache) for path in paths]
  check(dict(zip(paths, (c.manifest for c in opened))), config, trained)
  return opened[0] if len(opened) == 1 else mixed(dict(zip(names(paths), opened)))


def listed(paths) -> list:
  """One path, several or None as a list."""
  return [paths] if isinstance(paths, str | os.PathLike) else [*(paths or ())]


def check(manifests: dict, config, trained=None) -> None:
  """Raises UserError if the config does not match the corpora, or they have several tokenizers."""
  first, *others = manifests
  facts = manifests[first]
  if facts['hash'] not in (trained or ()):
    splitting = config.corpus if trained is None else facts.get('corpus', {})
    configuration.check_text(f'The corpus {first}', facts, config.tokenizer, splitting)
  for other in others:
    if manifests[other]['tokenizer_hash'] != facts['tokenizer_hash']:
      raise errors.UserError(
        f'The corpora {first} and {other} have different tokenizers: prepare the second one again '
        f'with --tokenizer {first}/tokenizer.'
      )


def mixed(named: dict) -> corpora.Corpus:
  """Joins {name: Corpus} into one corpus with the tokenizer and similar words of the first."""
  members = tuple(map(copy.copy, named.values()))
  for name, member in zip(named, members):
    member.name, member.members = name, (member,)
    member._similar = members[0].similar
  first = members[0]
  entries = {
    split: [m.manifest['splits'].get(split, {}) for m in members] for split in first.splits
  }
  origins = [corpora.origin(m.manifest) for m in members]
  manifest = {
    **first.manifest,
    'hash': hash_of([m.hash for m in members]),
    'splits': {
      split: {key: sum(e[key] for e in group) for key in group[0] if key != 'shards'}
      for split, group in entries.items()
    },
    'sources': [source for m in members for source in m.manifest.get('sources', ())],
    'about': {
      key: '; '.join(dict.fromkeys(o[key] for o in origins if o[key])) or None
      for key in ('language', 'license')
    },
  }
  return corpora.Corpus(
    first.path,
    manifest,
    np.sum([m.unigrams for m in members], axis=0),
    {split: splits_lib.joined([m.splits[split] for m in members]) for split in first.splits},
    first.word_starts,
    any(m.has_marks for m in members),
    first._similar,
    members,
  )


def hash_of(hashes: list[str]) -> str:
  """The hash of several corpora in this order; of a single one, its own hash."""
  return hashes[0] if len(hashes) == 1 else hashlib.sha256(' '.join(hashes).encode()).hexdigest()


def names(paths) -> list[str]:
  """Names of corpora: the shortest ends of their paths that differ."""
  parts = [storage.absolute(path).parts for path in paths]
  for length in range(1, max(map(len, parts), default=0) + 2):
    candidates = ['-'.join(part[-length:]).replace('/', '') for part in parts]
    if len(set(candidates)) == len(candidates):
      return candidates
  raise errors.UserError(f'--corpus has the same folder twice: {", ".join(map(str, paths))}.')
