"""Tokenizer files of a Hugging Face directory, from a corpus' files (tokenizer.json,
bertzoo.json). json only.

Three traps decide what is written. transformers 5 rebuilds normalizer and pre-tokenizer by the
class that tokenizer_config.json names; only PreTrainedTokenizerFast keeps any pipeline. In version
5 that class ignores `from_pretrained(…, add_prefix_space=True)`, so a byte-level BPE gets the class
of its family (Shape.byte_level). Older tools need special_tokens_map.json and the bare vocabulary
(vocab.txt; vocab.json and merges.txt; a SentencePiece model) beside tokenizer.json.
"""

import json
import pathlib
import re
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.common import hub
from bertzoo_jax.common import vocabulary as vocabularies

ROLES = ('unk', 'pad', 'cls', 'sep', 'mask')  # of special pieces; transformers says unk_token, …
_CONFIG = 'tokenizer_config.json'
_GPT2 = 'GPT2Tokenizer'  # frames as tokenizer.json says


class Shape(NamedTuple):
  """How a class of transformers frames texts; the defaults are [CLS] A [SEP] B [SEP]."""

  # single, pair: roles of special pieces and texts (A, B), each with its segment; {} is the segment
  # of the second text
  single: str = 'cls:0 A:0 sep:0'
  pair: str = 'cls:0 A:0 sep:0 B:{} sep:{}'
  padding: str = 'right'  # side
  # bos, eos: roles that transformers also knows by these names
  bos: str = ''
  eos: str = ''
  model: str = 'spiece.model'  # name of the SentencePiece model's file there
  # its class for a byte-level BPE, if users pass add_prefix_space to that class
  byte_level: str = ''


def framed(template: str, **pieces: list[int]) -> list[int]:
  """The ids of a Shape's template. pieces: ids by role and text (cls, sep, A, B)."""
  return [i for word in template.split() for i in pieces[word.split(':')[0]]]


def read(directory) -> tuple[dict, dict]:
  """(tokenizer.json, {special name: id}) of a folder that prepare wrote. Raises UserError."""
  directory = pathlib.Path(directory)
  sentence = f'{directory} lacks a readable tokenizer.json and bertzoo.json: copy CORPUS/tokenizer'
  read = lambda name: json.loads((directory / name).read_text(encoding='utf-8'))
  with errors.unreadable(sentence, OSError):
    return read('tokenizer.json'), read('bertzoo.json')['special']


def files(
  tokenizer: dict,
  special: dict[str, int],
  *,
  shape: Shape,
  max_length: int,
  segments: int,
  model: bytes = b'',
) -> dict[str, str | bytes]:
  """{file name: content} of the tokenizer.

  tokenizer: tokenizer.json. special: ids by name: pad, unk, cls, sep, mask, and others that are
  never text. shape: how texts are framed. max_length: tokens the model takes; 0 for any number.
  segments: rows of the segment table; with two, the second text is segment 1. A shape that names
  higher segments overrides it. model: the SentencePiece model, empty for the other kinds.
  """
  segments = max([segments, *(int(n) + 1 for n in re.findall(r':(\d+)', shape.single))])
  pieces = vocabulary(tokenizer)
  strings = {f'{role}_token': pieces[special[role]] for role in ROLES}
  byte_level = (tokenizer.get('decoder') or {}).get('type') == 'ByteLevel'
  name = 'PreTrainedTokenizerFast'
  if byte_level and shape.byte_level and not tokenizer.get('normalizer'):
    name = shape.byte_level if segments < 2 else _GPT2  # RobertaTokenizer knows no segments
  blank = byte_level and tokenizer['pre_tokenizer']['add_prefix_space']
  tokenizer = {**tokenizer, 'truncation': None, 'padding': None}
  tokenizer['added_tokens'] = _added_tokens(tokenizer, special, pieces)
  tokenizer['post_processor'] = _post_processor(strings, special, shape, segments)
  if byte_level:
    tokenizer['post_processor'] = _trimming(tokenizer['post_processor'], name, blank)
  more = {
    f'{end}_token': strings[f'{role}_token']
    for end, role in (('bos', shape.bos), ('eos', shape.eos))
    if role
  }
  if others := [pieces[i] for role, i in special.items() if role not in ROLES]:
    more['additional_special_tokens'] = others
  config = {
    'tokenizer_class': name,
    # transformers 4 sets the pre-tokeniser by it
    **({'add_prefix_space': blank} if byte_level else {}),
    **({'model_max_length': max_length} if max_length else {}),
    'model_input_names': ['input_ids', *['token_type_ids'] * (segments > 1), 'attention_mask'],
    'padding_side': shape.padding,
    'truncation_side': 'right',
    'clean_up_tokenization_spaces': False,
    **strings,
    **more,
  }
  write = lambda content: json.dumps(content, ensure_ascii=False, indent=2) + '\n'
  out = {'tokenizer.json': write(tokenizer), _CONFIG: write(config)}
  out['special_tokens_map.json'] = write({**strings, **more})
  if tokenizer['model']['type'] == 'WordPiece':
    out['vocab.txt'] = ''.join(f'{p}\n' for p in pieces)
  elif byte_level:
    merges = [m if isinstance(m, str) else ' '.join(m) for m in tokenizer['model']['merges']]
    out['vocab.json'] = json.dumps({p: i for i, p in enumerate(pieces)}, ensure_ascii=False)
    out['merges.txt'] = '#version: 0.2\n' + ''.join(f'{m}\n' for m in merges)
  if model:
    out[shape.model] = model
  return out


def made_here(directory) -> bool:
  """Whether `prepare` wrote the folder's tokenizer files; else they are Hugging Face's."""
  return (pathlib.Path(directory) / 'bertzoo.json').exists()


def published(directory, max_length: int = 0, for_words=None) -> dict[str, bytes]:
  """{file name: content} of the tokenizer's files in a local Hugging Face directory, without the
  code and the other files that tokenizer_config.json names.

  max_length: tokens at which texts are cut; 0 keeps the directory's value. for_words: the
  tokenizer.json to write, in which a byte-level BPE puts a blank before each word; None keeps the
  directory's.
  """
  paths = {name: pathlib.Path(directory) / name for name in hub.TOKENIZER}
  files = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
  old = vocabularies.read_json(paths[_CONFIG]) if _CONFIG in files else {}
  kept = {k: x for k, x in old.items() if k != 'auto_map' and not k.endswith(('_file', '_files'))}
  kept |= {'model_max_length': max_length} if max_length else {}
  write = lambda content: (json.dumps(content, ensure_ascii=False, indent=2) + '\n').encode('utf-8')
  if for_words and '"ByteLevel"' in json.dumps(for_words.get('pre_tokenizer')):
    kept['add_prefix_space'] = True
    files |= {'tokenizer.json': write(for_words)} if 'tokenizer.json' in files else {}
  if kept != old:
    files[_CONFIG] = write(kept)
  return files


def vocabulary(tokenizer: dict) -> list[str]:
  """Pieces in the order of their ids. Raises UserError if ids have gaps."""
  pieces = {i: p for p, i in vocabularies.ids(tokenizer).items()}
  if sorted(pieces) != list(range(len(pieces))):
    raise errors.UserError(
      f'tokenizer.json has {len(pieces)} ids up to {max(pieces)}: ids must have no gaps; prepare '
      'the corpus again.'
    )
  return [pieces[i] for i in range(len(pieces))]


def _added_tokens(tokenizer: dict, special: dict[str, int], pieces: list[str]) -> list[dict]:
  """The added tokens, all special pieces among them: in a text, '[MASK]' is then one token."""
  added = {t['id']: t for t in tokenizer.get('added_tokens') or []}
  for i in special.values():
    off = dict.fromkeys(('single_word', 'lstrip', 'rstrip', 'normalized'), False)
    added.setdefault(i, dict(id=i, content=pieces[i], **off, special=True))
  return [added[i] for i in sorted(added)]


def _post_processor(strings, special, shape, segments) -> dict:
  second = 1 if segments > 1 else 0
  around = [(strings[f'{role}_token'], special[role]) for role in ('cls', 'sep')]
  return {
    'type': 'TemplateProcessing',
    'single': _template(shape.single, strings),
    'pair': _template(shape.pair.replace('{}', str(second)), strings),
    'special_tokens': {x: {'id': x, 'ids': [i], 'tokens': [x]} for x, i in around},
  }


def _trimming(template: dict, name: str, blank: bool) -> dict:
  """A post-processor of a byte-level BPE. Its pieces begin with the blank before a word; offsets
  leave that blank out. If the blank was only added to the text, they leave nothing out.
  """
  if name == 'RobertaTokenizer':  # both versions set its add_prefix_space
    cls, sep = ([x['id'], *x['ids']] for x in template['special_tokens'].values())
    ends = {'sep': sep, 'cls': cls, 'trim_offsets': True, 'add_prefix_space': blank}
    return {'type': 'RobertaProcessing', **ends}
  fields = {'add_prefix_space': blank or name == _GPT2, 'trim_offsets': True, 'use_regex': True}
  return {'type': 'Sequence', 'processors': [{'type': 'ByteLevel', **fields}, template]}


def _template(text, strings) -> list[dict]:
  """'cls:0 A:0' in the form of a post-processor."""
  out = []
  for name, segment in (word.split(':') for word in text.split()):
    kind, name = ('Sequence', name) if name in 'AB' else ('SpecialToken', strings[f'{name}_token'])
    out.append({kind: {'id': name, 'type_id': int(segment)}})
  return out
