"""Vectors of texts as sentence-transformers describes them in a directory. No framework.

modules.json names a Transformer, a Pooling and perhaps a Normalize. Releases since 6 write other
names of these classes, and `pooling_mode` in place of `pooling_mode_*`: both forms are read, the
older one is written.
"""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import storage
from bertzoo_jax.hf import weights

MODULES, TRANSFORMER = 'modules.json', 'sentence_bert_config.json'
PROMPTS, POOLING = 'config_sentence_transformers.json', '1_Pooling/config.json'
FILES = (MODULES, TRANSFORMER, PROMPTS, POOLING, '2_Normalize/config.json')
QUERY, DOCUMENT = 'query', 'document'  # the names that its encode_query and encode_document take
_CLASSES = ['Transformer', 'Pooling', 'Normalize']
_OLD = {  # the name of a pooling, and its older key
  'mean': 'pooling_mode_mean_tokens',
  'cls': 'pooling_mode_cls_token',
  'lasttoken': 'pooling_mode_lasttoken',
  'max': 'pooling_mode_max_tokens',
  'mean_sqrt_len_tokens': 'pooling_mode_mean_sqrt_len_tokens',
  'weightedmean': 'pooling_mode_weightedmean_tokens',
}


class Vectors(NamedTuple):
  """How a network's vectors of texts are made."""

  pooling: str = 'mean'  # a name in model.pooling.KINDS
  normalize: bool = False  # whether vectors have length 1
  widths: tuple[int, ...] = ()  # of the beginnings of vectors that were trained to serve alone
  prompts: Mapping[str, str] = {}  # {name: text that is put before a text}
  prompt: str = ''  # name of the default one; '' for none
  max_length: int | None = None  # tokens of a row; None for as many as the encoder takes
  lower: bool = False  # whether texts are written in lower case first
  refused: str = ''  # why pooling and normalize are not those of the directory; '' if they are


def in_config(config) -> Vectors:
  """The Vectors of a run by its config; the usual ones if its objective makes no vectors."""
  section, features = config['objective'], config['features'] if 'features' in config else {}
  if not {'pooling', 'normalize', 'widths'} <= {*section}:  # a user's part may have one of them
    return Vectors()
  texts = [features[name] if name in features else '' for name in ('prompt_a', 'prompt_b')]
  return Vectors(
    *(section['pooling'], section['normalize'], tuple(section['widths'])),
    prompts=dict(zip((QUERY, DOCUMENT), texts)) if any(texts) else {},
    prompt=QUERY if texts[0] == texts[1] != '' else '',
    max_length=config['length'],
  )


def read(folder, padding: str = 'right') -> Vectors:
  """The Vectors of a Hugging Face directory; the usual ones if it has no modules.json.

  padding: side of the padding of rows. Raises UserError for damaged files.
  """
  folder = storage.path(folder)
  if not (folder / MODULES).exists():
    return Vectors()
  there = lambda name: (folder / name).exists()
  load = lambda name: weights.read_json(folders.inside(folder, name)) if there(name) else {}
  texts, rows = load(PROMPTS), load(TRANSFORMER)
  with errors.unreadable(
    f'{folder}: {", ".join(FILES)} are not as sentence-transformers writes them: download the '
    'directory again',
    OSError,
  ):
    longest = rows.get('max_seq_length') or load('tokenizer_config.json').get('model_max_length')
    prompts, default = texts.get('prompts') or {}, texts.get('default_prompt_name') or ''
    if {*map(type, prompts.values())} - {str} or default and default not in prompts:
      raise ValueError('prompts')
    return Vectors(
      prompts=prompts,
      prompt=default,
      max_length=int(longest) if longest and 0 < longest < 2**30 else None,
      lower=bool(rows.get('do_lower_case')),
      **_modules(folder, texts, rows, padding),
    )


def _modules(folder, texts, rows, padding) -> dict:
  """{'pooling', 'normalize'}, or {'refused'} for modules that nothing here computes."""
  lines = json.loads(folders.inside(folder, MODULES).read_text(encoding='utf-8'))
  known = re.compile(rf'sentence_transformers\.(?:\w+\.)*({"|".join(_CLASSES)})')
  names = [(m := known.fullmatch(line['type'])) and m[1] for line in lines]
  kinds = texts.get('model_type'), rows.get('transformer_task')
  if len(names) < 2 or names != _CLASSES[: len(names)]:
    others = [repr(line['type'][:60]) for line, name in zip(lines, names) if not name]
    what = f'modules.json has {", ".join(others[:3]) or "other modules, or in another order"}'
  elif lines[0].get('path'):
    what = f'modules.json has the network in {lines[0]["path"][:60]!r}'
  elif set(kinds) - {None, 'SentenceTransformer', 'feature-extraction'}:
    what = f'it is a model of another kind, {kinds[0]}, {kinds[1]}'[:120]
  elif not (file := folders.inside(folder, f'{lines[1]["path"]}/config.json')).exists():
    what = f'{file} is missing'
  else:
    content = weights.read_json(file)
    ways = content.get('pooling_mode') or [way for way, key in _OLD.items() if content.get(key)]
    ways = [ways] if isinstance(ways, str) else ways or ['mean']
    usual = {'mean': 'mean', 'lasttoken' if padding == 'left' else 'cls': 'first'}
    whole = content.get('include_prompt', True) or not texts.get('prompts')
    if whole and len(ways) == 1 and ways[0] in usual:
      return dict(pooling=usual[ways[0]], normalize=len(names) > 2)
    what = f'the pooling is {", ".join(ways)[:80]}{"" if whole else " without the prompts"}'
  sentence = (
    f'{folder}: {what}; only Transformer, Pooling (mean, or the token that classifies) and '
    'Normalize are computed. Name a pooling (mean or first) to get vectors without those modules.'
  )
  return dict(refused=sentence)


def files(vectors: Vectors, size: int, padding: str) -> dict[str, str]:
  """{name of a file: its text} of a directory. size: of a vector; padding: side of the rows'."""
  way = 'mean' if vectors.pooling == 'mean' else 'lasttoken' if padding == 'left' else 'cls'
  places = dict(zip(_CLASSES, ('', '1_Pooling', *['2_Normalize'] * vectors.normalize)))
  contents = {
    MODULES: [
      {'idx': i, 'name': str(i), 'path': path, 'type': f'sentence_transformers.models.{name}'}
      for i, (name, path) in enumerate(places.items())
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
    **({'2_Normalize/config.json': {}} if vectors.normalize else {}),
  }
  return {name: json.dumps(x, indent=2, ensure_ascii=False) + '\n' for name, x in contents.items()}
