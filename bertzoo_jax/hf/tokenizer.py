"""Tokenizer files of a Hugging Face directory, from those of a corpus (tokenizer.json, bertzoo.json). json only.

Two traps decide what is written. transformers 5 rebuilds normaliser and pre-tokeniser from the class that
tokenizer_config.json names, so a pipeline of one's own survives only as PreTrainedTokenizerFast. And older tools want
special_tokens_map.json and the bare vocabulary beside tokenizer.json.
"""

import json
import pathlib

from bertzoo_jax import errors
from bertzoo_jax.hf import pieces as pieces_of

# Our names of the special pieces and transformers'.
_ROLES = {'unk': 'unk_token', 'pad': 'pad_token', 'cls': 'cls_token', 'sep': 'sep_token', 'mask': 'mask_token'}


def read(directory) -> tuple[dict, dict]:
  """(tokenizer.json, {special name: id}) of a corpus' or workdir's tokenizer folder. Raises UserError if they are not there."""
  directory = pathlib.Path(directory)
  try:
    tokenizer = json.loads((directory / 'tokenizer.json').read_text(encoding='utf-8'))
    special = json.loads((directory / 'bertzoo.json').read_text(encoding='utf-8'))['special']
  except (OSError, ValueError, KeyError) as e:
    raise errors.UserError(f'{directory} lacks a readable tokenizer.json and bertzoo.json ({e}): copy CORPUS/tokenizer there.') from e
  return tokenizer, special


def files(tokenizer: dict, special: dict[str, int], *, model_type: str, max_length: int, segments: int) -> dict[str, str]:
  """{file name: text} of the tokenizer.

  Args:
    tokenizer: tokenizer.json.
    special: ids by name: pad, unk, cls, sep, mask.
    model_type: 'roberta' joins pairs as <s> A </s></s> B </s>, all else as [CLS] A [SEP] B [SEP].
    max_length: tokens the model takes.
    segments: rows of the segment table; with two, the second text is segment 1.
  """
  pieces = vocabulary(tokenizer)
  strings = {role: pieces[special[ours]] for ours, role in _ROLES.items()}
  tokenizer = {**tokenizer, 'truncation': None, 'padding': None}
  tokenizer['added_tokens'] = _added_tokens(tokenizer, special, pieces)
  tokenizer['post_processor'] = _post_processor(strings, special, pairs_doubled=model_type == 'roberta', segments=segments,
                                                byte_level=tokenizer['model']['type'] == 'BPE')
  bos_eos = {'bos_token': strings['cls_token'], 'eos_token': strings['sep_token']} if model_type == 'roberta' else {}
  config = {
      'tokenizer_class': 'PreTrainedTokenizerFast',
      'model_max_length': max_length,
      'model_input_names': ['input_ids', *(['token_type_ids'] if segments > 1 else []), 'attention_mask'],
      'padding_side': 'right',
      'truncation_side': 'right',
      'clean_up_tokenization_spaces': False,
      **strings, **bos_eos,
  }
  out = {'tokenizer.json': tokenizer, 'tokenizer_config.json': config, 'special_tokens_map.json': {**strings, **bos_eos}}
  out = {name: json.dumps(content, ensure_ascii=False, indent=2) + '\n' for name, content in out.items()}
  if tokenizer['model']['type'] == 'WordPiece':
    out['vocab.txt'] = ''.join(f'{p}\n' for p in pieces)
  elif tokenizer['model']['type'] == 'BPE':
    merges = [m if isinstance(m, str) else ' '.join(m) for m in tokenizer['model']['merges']]
    out['vocab.json'] = json.dumps({p: i for i, p in enumerate(pieces)}, ensure_ascii=False)
    out['merges.txt'] = '#version: 0.2\n' + ''.join(f'{m}\n' for m in merges)
  return out


def vocabulary(tokenizer: dict) -> list[str]:
  """Pieces in the order of their ids. Raises UserError if ids have gaps."""
  pieces = {i: p for p, i in pieces_of.ids(tokenizer).items()}
  if sorted(pieces) != list(range(len(pieces))):
    raise errors.UserError(f'tokenizer.json has {len(pieces)} ids up to {max(pieces)}: ids must have no gaps; prepare the corpus again.')
  return [pieces[i] for i in range(len(pieces))]


def _added_tokens(tokenizer: dict, special: dict[str, int], pieces: list[str]) -> list[dict]:
  """The added tokens, all special pieces among them: in a text, '[MASK]' is then one token."""
  added = {t['id']: t for t in tokenizer.get('added_tokens') or []}
  for i in special.values():
    added.setdefault(i, dict(id=i, content=pieces[i], single_word=False, lstrip=False, rstrip=False, normalized=False, special=True))
  return [added[i] for i in sorted(added)]


def _post_processor(strings, special, *, pairs_doubled: bool, segments: int, byte_level: bool) -> dict:
  cls, sep = ({'SpecialToken': {'id': strings[f'{r}_token'], 'type_id': 0}} for r in ('cls', 'sep'))
  second = 1 if segments > 1 else 0
  sep_b = {'SpecialToken': {'id': strings['sep_token'], 'type_id': second}}
  text, text_b = {'Sequence': {'id': 'A', 'type_id': 0}}, {'Sequence': {'id': 'B', 'type_id': second}}
  template = {
      'type': 'TemplateProcessing',
      'single': [cls, text, sep],
      'pair': [cls, text, sep, *([{'SpecialToken': {'id': strings['sep_token'], 'type_id': second}}] if pairs_doubled else []), text_b, sep_b],
      'special_tokens': {
          strings[f'{r}_token']: {'id': strings[f'{r}_token'], 'ids': [special[r]], 'tokens': [strings[f'{r}_token']]} for r in ('cls', 'sep')},
  }
  if not byte_level:
    return template
  # Pieces of a byte-level BPE begin with the blank before a word; offsets should not.
  trim = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}
  return {'type': 'Sequence', 'processors': [trim, template]}
