"""Vectors of texts as sentence-transformers describes them in a directory. No framework.

modules.json names a Transformer, a Pooling and perhaps a Normalize. Releases since 6 write other
names of these classes, and `pooling_mode` in place of `pooling_mode_*`: both forms are read, the
older one is written.
"""

import json
import re
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import storage
from bertzoo_jax.hf import weights

MODULES, TRANSFORMER = 'modules.json', 'sentence_bert_config.json'
PROMPTS, POOLING = 'config_sentence_transformers.json', '1_Pooling/config.json'
FILES = (MODULES, TRANSFORMER, PROMPTS, POOLING)
QUERY, DOCUMENT = 'query', 'document'  # the names that its encode_query and encode_document take
_PACKAGE = 'sentence_transformers'
_WAYS = {'mean': 'mean', 'cls': 'first', 'lasttoken': 'last'}
_OLD = {'mean': 'pooling_mode_mean_tokens', 'cls': 'pooling_mode_cls_token'}
_OLD |= {way: f'pooling_mode_{way}' for way in ('max_tokens', 'mean_sqrt_len_tokens')}
_OLD |= {'weightedmean': 'pooling_mode_weightedmean_tokens', 'lasttoken': 'pooling_mode_lasttoken'}


class Vectors(NamedTuple):
  """How a network's vectors of texts are made.

  Attributes:
    pooling: mean | first, see Loaded.encode.
    normalize: whether vectors have length 1.
    widths: of the beginnings of vectors that were trained to serve alone; () for the whole alone.
    prompts: {name: text that is put before a text}; prompt: name of the default one, '' for none.
    max_length: tokens of a row; None for as many as the encoder takes.
    lower: whether texts are written in lower case first.
    refused: why pooling and normalize are not those of the directory; '' if they are.
  """

  pooling: str = 'mean'
  normalize: bool = False
  widths: tuple[int, ...] = ()
  prompts: Mapping[str, str] = {}
  prompt: str = ''
  max_length: int | None = None
  lower: bool = False
  refused: str = ''


def in_config(config) -> Vectors:
  """The Vectors of a run by its config; the usual ones if its objective makes no vectors."""
  section, features = config['objective'], config['features'] if 'features' in config else {}
  if 'pooling' not in section:
    return Vectors()
  get = lambda name, usual: section[name] if name in section else usual
  texts = [features[name] if name in features else '' for name in ('prompt_a', 'prompt_b')]
  return Vectors(
    section['pooling'],
    get('normalize', False),
    tuple(get('widths', ())),
    dict(zip((QUERY, DOCUMENT), texts)) if any(texts) else {},
    QUERY if texts[0] == texts[1] != '' else '',
    config['length'],
  )


def read(folder, padding: str = 'right') -> Vectors:
  """The Vectors of a Hugging Face directory; the usual ones if it has no modules.json.

  padding: side of the padding of rows. Raises UserError for a damaged file.
  """
  folder = storage.path(folder)
  if not (folder / MODULES).exists():
    return Vectors()
  texts, rows = _object(folder, PROMPTS), _object(folder, TRANSFORMER)
  longest = rows.get('max_seq_length')
  longest = longest or _object(folder, 'tokenizer_config.json').get('model_max_length')
  with _as_written(folder):
    prompts, default = texts.get('prompts') or {}, texts.get('default_prompt_name') or ''
    if {*map(type, prompts.values())} - {str} or default and default not in prompts:
      raise ValueError('prompts')
    vectors = Vectors(
      prompts=prompts,
      prompt=default,
      max_length=int(longest) if longest and 0 < longest < 2**30 else None,
      lower=bool(rows.get('do_lower_case')),
    )
  try:
    with _as_written(folder):
      return vectors._replace(**_modules(folder, texts, rows, padding))
  except errors.UserError as e:
    return vectors._replace(refused=str(e))


def _as_written(folder):
  return errors.unreadable(
    f'{folder}: {MODULES}, {PROMPTS}, {TRANSFORMER} or the config.json of the pooling is not as '
    'sentence-transformers writes it: download the directory again.',
    OSError,
  )


def _modules(folder, texts, rows, padding) -> dict[str, Any]:
  """{'pooling', 'normalize'}. Raises UserError for modules or ways that nothing here computes."""
  lines = json.loads((folder / MODULES).read_text(encoding='utf-8'))
  modules = [(line['type'], line.get('path', '')) for line in lines]
  known = rf'{_PACKAGE}\.(?:\w+\.)*(Transformer|Pooling|Normalize)'
  names = [(m := re.fullmatch(known, str(kind))) and m[1] for kind, _ in modules]
  if names not in (['Transformer', 'Pooling'], ['Transformer', 'Pooling', 'Normalize']):
    others = ', '.join(repr(str(kind)[:60]) for (kind, _), name in zip(modules, names) if not name)
    raise _refused(folder, f'modules.json has {others or "other modules, or in another order"}')
  if modules[0][1]:
    raise _refused(folder, f'modules.json has its network in {str(modules[0][1])[:60]!r}')
  content = weights.read_json(folders.inside(folder, f'{modules[1][1]}/config.json'))
  ways = content.get('pooling_mode') or [way for way, key in _OLD.items() if content.get(key)]
  ways = [ways] if isinstance(ways, str) else ways or ['mean']
  way = _WAYS.get(ways[0]) if len(ways) == 1 else None
  if way in ('first', 'last'):  # of the token that classifies
    way = 'first' if way == ('last' if padding == 'left' else 'first') else None
  if not way:
    raise _refused(folder, f'{modules[1][1]} has the pooling {", ".join(map(str, ways))[:80]}')
  if not content.get('include_prompt', True) and texts.get('prompts'):
    raise _refused(folder, f'{modules[1][1]} leaves prompts out of the pooling')
  kinds = (
    texts.get('model_type', 'SentenceTransformer'),
    rows.get('transformer_task', 'feature-extraction'),
  )
  if kinds != ('SentenceTransformer', 'feature-extraction'):
    raise _refused(folder, f'it is a model of the kind {kinds[0]}, {kinds[1]}'[:120])
  return dict(pooling=way, normalize=len(names) > 2)


def _refused(folder, what) -> errors.UserError:
  return errors.UserError(
    f'{folder}: {what}; only Transformer, Pooling (mean, or the token that classifies) and '
    'Normalize are computed. Name a pooling (mean or first) to get vectors without those modules.'
  )


def _object(folder, name) -> dict:
  return weights.read_json(folder / name) if (folder / name).exists() else {}


def files(vectors: Vectors, size: int, padding: str) -> dict[str, str]:
  """{name of a file: its text} of a directory. size: of a vector; padding: side of the rows'."""
  way = 'mean' if vectors.pooling == 'mean' else 'lasttoken' if padding == 'left' else 'cls'
  names = ['Transformer', 'Pooling', *['Normalize'] * vectors.normalize]
  paths = ['', *(f'{i}_{name}' for i, name in enumerate(names[1:], 1))]
  contents = {
    MODULES: [
      {'idx': i, 'name': str(i), 'path': path, 'type': f'{_PACKAGE}.models.{name}'}
      for i, (name, path) in enumerate(zip(names, paths))
    ],
    TRANSFORMER: {'max_seq_length': vectors.max_length, 'do_lower_case': False},
    PROMPTS: {
      'prompts': dict(vectors.prompts),
      'default_prompt_name': vectors.prompt or None,
      'similarity_fn_name': 'cosine',
    },
    POOLING: {
      'word_embedding_dimension': size,
      **{key: way == name for name, key in _OLD.items()},
      'include_prompt': True,
    },
    **({f'{paths[2]}/config.json': {}} if vectors.normalize else {}),
  }
  return {name: json.dumps(x, indent=2, ensure_ascii=False) + '\n' for name, x in contents.items()}
