"""The model card (README.md) of an exported directory: what it is, of what, how long, and what is
not in it.
"""

import json
from typing import Any

# What each architecture holds and lacks, as its user must know it.
_HEADS = {
  'BertForPreTraining': 'The pair head (`cls.seq_relationship`) tells whether the second text '
  'follows the first: label 0 it does, 1 it was '
  'drawn at random.',
  'BertForMaskedLM': 'There is no pooler and no pair head: transformers starts them at random if '
  'asked.',
  'RobertaForMaskedLM': 'Position and segment rows that the class demands and training had no use '
  'for are zeros. There is no pooler: transformers '
  'starts one at random if asked.',
  'AlbertForPreTraining': 'The pair head (`sop_classifier`) tells how the second text relates to '
  'the first, as the input above says: label 0 it '
  'follows, 1 it does not (they are swapped, or it was drawn at random).',
  'AlbertForMaskedLM': 'There is no pooler and no pair head: transformers starts them at random if '
  'asked.',
  'ElectraForPreTraining': 'This is the discriminator: its logits, one a token, are above 0 where '
  'it takes a token for replaced. Fine-tune this '
  'one. There is no pooler; the classes for fine-tuning start their heads at random.',
  'ElectraForMaskedLM': 'This network fills masks. Where it was a generator, its tokens are what a '
  'discriminator learned to tell; to fine-tune, '
  'take the discriminator.',
}
_PIPELINE = {'ElectraForPreTraining': 'feature-extraction'}  # all others fill masks


def text(
  *,
  architecture: str,
  config: dict,
  step: int,
  tensors: dict,
  corpus: dict[str, Any],
  metrics: dict[str, Any],
  commits: list[str],
  checked: str,
) -> str:
  """The card, Markdown with a YAML head.

  Args:
    architecture: the class the weights are for.
    config: the resolved config of the run, nested.
    step: steps trained.
    tensors: what is in model.safetensors.
    corpus: what the run recorded of its corpus; may be empty.
    metrics: the newest value of each metric; may be empty.
    commits: of the program, in order; may be empty.
    checked: what was compared after export.
  """
  encoder = config['encoder']
  parameters, task = sum(x.size for x in tensors.values()), _PIPELINE.get(architecture, 'fill-mask')
  head = [
    '---',
    'library_name: transformers',
    f'pipeline_tag: {task}',
    'tags:',
    '- bertzoo_jax',
    '- masked-language-modeling',
    '---',
    '',
  ]
  lengths = ', '.join(
    f'{overrides.get("length", config["length"])} tokens for {steps:,} steps'
    for steps, overrides in config['phases']
  )
  lines = [
    f'# {architecture}, pretrained with bertzoo_jax',
    '',
    f'{encoder["num_layers"]} layers of {encoder["hidden_size"]}, {encoder["num_heads"]} heads, '
    f'{parameters:,} parameters in float32, '
    f'at most {encoder["max_positions"]} tokens.',
    '',
    '```python',
    'from transformers import AutoTokenizer, pipeline',
    f"{'fill' if task == 'fill-mask' else 'vectors'} = pipeline('{task}', model='THIS_DIRECTORY')",
    "tokenizer = AutoTokenizer.from_pretrained('THIS_DIRECTORY')",
    '```',
    '',
    'Use `AutoTokenizer`: a class called by its name (`BertTokenizer`, `RobertaTokenizer`) may put '
    'its own text cleaning in place of this one.',
    '',
    '## Training',
    '',
    '| | |',
    '|---|---|',
    f'| steps | {step:,} of {sum(steps for steps, _ in config["phases"]):,} |',
    f'| batch | {config["batch_size"]:,} rows |',
    f'| lengths | {lengths} |',
    f'| input | {config["format"]["name"]} |',
    f'| masking | {_masking(config["masking"])} |',
    f'| objective | {_fields(config["objective"])} |',
    f'| optimizer | {_fields(config["optimizer"])} |',
    f'| schedule | {_fields(config["schedule"])} |',
    f'| tokenizer | {_fields(config["tokenizer"])} |',
    f'| seed | {config["seed"]} |',
    *(f'| program | bertzoo_jax at commit {commit} |' for commit in commits),
    *(f'| corpus {key} | {_value(value)} |' for key, value in corpus.items()),
    '',
  ]
  if metrics:
    lines += [
      '## Last measured',
      '',
      'Losses in nats; `held_out` on text kept out of training.',
      '',
      '| metric | value |',
      '|---|---|',
      *(f'| {key} | {_value(value)} |' for key, value in metrics.items()),
      '',
    ]
    if any('bits_per_byte' in key for key in metrics):
      lines += [
        'Bits per byte count the guesses at masked tokens only: they compare with other masked '
        'models at the same masking rate, not with '
        'models that predict every token.',
        '',
      ]
  lines += ['## What is here, and what is not', '']
  lines += [
    _HEADS[architecture],
    'The state of the optimizer is not part of the export.',
    '',
    'transformers lists heads it does not use as UNEXPECTED or MISSING (pooler): that is right.',
    '',
    checked,
    '',
  ]
  return '\n'.join(head + lines)


def _masking(section: dict[str, Any]) -> str:
  if not {'rate', 'corruption', 'repeat'} <= set(section):  # a part with fields of its own
    return _fields(section)
  shares = ', '.join(
    f'{share:.0%} {what}'
    for share, what in zip(section['corruption'], ('mask token', 'random token', 'unchanged'))
  )
  again = (
    f'the masks of {section["repeat"]} epochs repeat'
    if section['repeat']
    else 'drawn anew in every epoch'
  )
  return f'{section["name"]}, {section["rate"]:.0%} of the tokens: {shares}; {again}'


def _fields(section: dict[str, Any]) -> str:
  fields = ', '.join(f'{k} {json.dumps(v)}' for k, v in section.items() if k != 'name')
  return f'{section["name"]} ({fields})' if fields else section['name']


def _value(value) -> str:
  """A number readable, a list joined, anything else as it is; in a table's cell a bar would end
  it.
  """
  if isinstance(value, (list, tuple)):
    return ', '.join(map(_value, value))
  if isinstance(value, dict):
    return ' '.join(f'{k} {_value(v)}' for k, v in value.items())
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return str(value).replace('|', '\\|').replace('\n', ' ')
  return f'{value:,}' if isinstance(value, int) else f'{value:.5g}'
