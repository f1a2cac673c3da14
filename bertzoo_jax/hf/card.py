"""The model card (README.md) of an exported directory: what it is, of what, how long, and what is
not in it. Every fact is from the config, the corpus manifest and the record of the run.
"""

import json
import re
from typing import Any

from bertzoo_jax.hf import heads
from bertzoo_jax.hf import weights
from bertzoo_jax.hf.architecture import POSITION_TABLE
from bertzoo_jax.hf.architecture import Architecture


def text(
  *,
  architecture: Architecture,
  encoder,
  sizes,
  config: dict,
  step: int,
  tensors: dict,
  corpus: dict[str, Any],
  metrics: dict[str, Any],
  commits: list[str],
  init: str | None,
  checked: str,
  aside: tuple[str, ...] = (),
) -> str:
  """The card, Markdown with a YAML head.

  Args:
    architecture: of the class that the weights are for.
    encoder: linen module.
    sizes: of the architecture's `sizes`.
    config: the resolved config of the run, nested. Each phase that has overrides gives its length
      and batch_size.
    step: steps trained.
    tensors: what is in model.safetensors.
    corpus: what the run recorded of its corpus; may be empty.
    metrics: the newest value of each metric; may be empty.
    commits: of the program, in order; may be empty.
    init: the address of --init that the run began with; None for random weights.
    checked: what was compared after export.
    aside: names of heads in weights.HEADS.
  """
  computed = architecture.computes(encoder)
  task = architecture.pipeline if computed.pipeline is None else computed.pipeline
  trained = heads.of(architecture)
  scores = trained != ''
  parameters = sum(x.size for x in tensors.values())
  corpus = dict(corpus)
  licence, language = corpus.pop('license', None), corpus.pop('language', None)
  sources = corpus.pop('sources', None)
  codes = [c for c in re.split(r'[\s,]+', language or '') if re.fullmatch('[a-z]{2,3}', c)]
  head = [
    '---',
    *(['library_name: transformers', f'pipeline_tag: {task}'] if task else []),
    *(['language:', *(f'- "{code}"' for code in codes)] if codes else []),
    'tags:',
    '- bertzoo_jax',
    *(['- masked-language-modeling'] if task == 'fill-mask' else []),
    *([f'- {heads.KINDS[trained].task}'] if scores else []),
    '---',
    '',
  ]
  lengths = _lengths(config, step)
  sections = ((word, config[name]) for name, word in _SECTIONS.items() if name in config)
  lines = [
    f'# {architecture.name}, {"fine-tuned" if scores else "pretrained"} with bertzoo_jax',
    '',
    f'{sizes.num_layers} layer{"s" * (sizes.num_layers > 1)} of {encoder.hidden_size}, '
    f'{sizes.num_heads} heads, '
    f'{parameters:,} parameters in float32. {_longest(architecture, encoder, tensors, lengths)}'
    f'{_CUTS * scores}',
    '',
    *(_usage(task, trained, encoder, config) if task or trained == heads.CHOICE else []),
    *(_outputs(config) if scores else []),
    '## Training',
    '',
    '| | |',
    '|---|---|',
    f'| steps | {step:,} of {sum(steps for steps, _ in config["phases"]):,} |',
    f'| batch | {_batch(config, step)} |',
    f'| lengths | {", ".join(f"{n} tokens for {steps:,} steps" for n, steps in lengths)} |',
    f'| began with | {_public(init.split(",")) if init else "random weights"} |',
    *(f'| {word} | {_fields(_without_folders(section))} |' for word, section in sections),
    *([f'| masking | {_masking(config["masking"])} |'] if 'masking' in config else []),
    f'| objective | {_fields(config["objective"])} |',
    f'| optimizer | {_fields(config["optimizer"])} |',
    f'| schedule | {_fields(config["schedule"])} |',
    f'| tokenizer | {_fields(config["tokenizer"])} |',
    f'| seed | {config["seed"]} |',
    *(f'| program | bertzoo_jax at commit {commit} |' for commit in commits),
    f'| language of the text | {_value(language or _NOT_RECORDED)} |',
    f'| licence of the text | {_value(licence or _NOT_RECORDED)} |',
    f'| sources of the text | {_public(sources) if sources else _NOT_RECORDED} |',
    *(f'| corpus {key} | {_value(value)} |' for key, value in corpus.items()),
    '',
    *([_LAST_PHASE, ''] if any(overrides for _, overrides in config['phases']) else []),
  ]
  if metrics:
    lines += [
      '## Last measured',
      '',
      *(
        [_OF_TASK]
        if 'metrics' in config
        else ['Losses in nats; `held_out` on text kept out of training.']
      ),
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
    architecture.heads,
    *([computed.said] if computed.said else []),
    *([_labels(config['format'])] if _has_pair_head(architecture) else []),
    *(
      [
        f'`{weights.HEADS}` holds heads that transformers has no class for and does not read: '
        f'{", ".join(aside)}. `--init hf:` of bertzoo_jax reads them.'
      ]
      if aside
      else []
    ),
    'The state of the optimizer is not part of the export.',
    '',
    *(_UNUSED if task and not scores else []),
    checked,
    '',
  ]
  return '\n'.join(head + lines)


# Sections that only some configs have, and their names in the table.
_SECTIONS = {'format': 'input', 'source': 'task', 'features': 'input'}
_NOT_RECORDED = 'not recorded'
_CUTS = ' Its tokenizer cuts texts at the length of fine-tuning if called with `truncation=True`.'
_OF_TASK = 'Metrics of the dev set; losses in nats.'
_LAST_PHASE = (
  'The run had several phases. The table has the fields of the last one that was trained, and all '
  'lengths that were trained.'
)
_PAIRS = {
  'nsp': 'label 0: the second text follows the first, 1: it was drawn at random',
  'sop': 'label 0: the two texts are in their order, 1: they are swapped',
  'same_document': 'label 0: the second text follows the first, 1: it is from another place of the '
  'same document',
  'pool': 'label 0: the second text follows the first, 1: it belongs to another row',
}
_ALONE = '; a text of a single sentence got a random one behind it, and label 1'


def _lengths(config: dict[str, Any], step: int) -> list[tuple[int, int]]:
  """(tokens per row, steps trained) of each phase that has begun."""
  return _trained(config, step, 'length')


def _batch(config: dict[str, Any], step: int) -> str:
  """Rows of a batch, as text. If phases differ in them, the steps of each."""
  batches = _trained(config, step, 'batch_size') or [(config['batch_size'], 0)]
  if len({rows for rows, _ in batches}) == 1:
    return f'{batches[0][0]:,} rows'
  return ', '.join(f'{rows:,} rows for {steps:,} steps' for rows, steps in batches)


def _trained(config: dict[str, Any], step: int, field: str) -> list[tuple[Any, int]]:
  """(value of a field, steps trained) of each phase that has begun."""
  out = []
  for steps, overrides in config['phases']:
    if (trained := min(steps, step)) > 0:
      out.append((overrides.get(field, config[field]), trained))
    step -= trained
  return out


def _longest(architecture, encoder, tensors, lengths) -> str:
  """The sentence about the lengths that the network can read, and that it has read."""
  trained = max((n for n, _ in lengths), default=0)
  if not encoder.max_positions:
    return f'It reads any length; the longest rows in training had {trained} tokens.'
  if trained >= encoder.max_positions:
    return f'It reads at most {encoder.max_positions} tokens.'
  said = f'It was trained on rows of at most {trained} tokens: cut texts there. '
  if not any(row.ours == POSITION_TABLE and row.theirs in tensors for row in architecture.rows):
    return f'{said}It takes {encoder.max_positions}, and has no position table.'
  return (
    f'{said}Its position table has {encoder.max_positions} rows; this run did not train those from '
    f'{trained} on.'
  )


def _public(names: list[str]) -> str:
  """Addresses and sources as the user named them, without the folders of absolute paths."""
  return _value([re.sub(r'^(hf:)?[/~.].*/', '', name) for name in names])


def _outputs(config: dict[str, Any]) -> list[str]:
  """What the outputs of a task's head are."""
  task = heads.task_of(config['objective'])
  labels = ', '.join(f'{i} `{label}`' for i, label in enumerate(task.labels))
  what = {
    'regression': 'The output is a number. No function is applied to it.',
    'multi_label_classification': 'Each output is the logit that its label is true (sigmoid). '
    'Labels may be true together.',
    'single_label_classification': 'One label is right (softmax over the outputs).',
  }
  lines = [what[task.problem]] if task.problem in what else []
  if config['objective']['name'] == 'tagging':
    lines = ['A word has one tag (softmax over the outputs of its first token).']
  if task.labels and task.problem != 'regression':
    lines.append(f'Labels: {labels}.')
  if 'metrics' in config:
    lines.append(f'Metrics: {", ".join(config["metrics"])}; the first is the dev score.')
  return [' '.join(lines), ''] if lines else []


def _without_folders(x):
  """A section without the folders of absolute paths in its values."""
  if isinstance(x, dict):
    return {key: _without_folders(value) for key, value in x.items()}
  return re.sub(r'^[/~].*/', '', x) if isinstance(x, str) else x


def _has_pair_head(a: Architecture) -> bool:
  return any('pair_head/' in str(row.ours) for row in a.rows)


def _labels(format: dict[str, Any]) -> str:
  """The labels of pairs, as the format made them."""
  kind = format.get('pairs', 'nsp')
  if kind == 'nsp' and format.get('negatives') in _PAIRS:
    kind = format['negatives']
  alone = kind == 'sop' and format.get('lone_sentences') == 'random'
  return f'Its labels in training: {_PAIRS.get(kind, "those of the input above")}{_ALONE * alone}.'


def _masking(section: dict[str, Any]) -> str:
  """The fields of a masking, with what becomes of the predicted tokens in words."""
  shares = section.get('corruption', ())
  if (
    isinstance(shares, str) or len(shares) != 3
  ):  # nothing is replaced, or a part with fields of its own
    return _fields(section)
  similar = section.get('substitute') == 'similar'
  becomes = (
    ('by a similar word (a random word where there is none)', 'by a random word')
    if similar
    else ('by the mask token', 'by a random token')
  )
  told = ', '.join(f'{share:.0%} {what}' for share, what in zip(shares, becomes))
  rest = {k: v for k, v in section.items() if k not in ('corruption', 'substitute')}
  return f'{_fields(rest)}. Of the predicted tokens, replaced {told}; {shares[2]:.0%} stay'


def _usage(task: str, head: str, encoder, config: dict[str, Any]) -> list[str]:
  """How the directory is loaded. head: of heads.KINDS, or ''."""
  if head == heads.ROW:
    return _usage_of_scores()
  if head == heads.TAG:
    return _usage_of_tags()
  if head == heads.CHOICE:
    return _usage_of_choices(config)
  if task == heads.KINDS[heads.SPAN].task:
    return _usage_of_answers(config, encoder.padding_side == 'left')
  return [
    '```python',
    'from transformers import AutoTokenizer, pipeline',
    f"{'fill' if task == 'fill-mask' else 'vectors'} = pipeline('{task}', model='THIS_DIRECTORY')",
    "tokenizer = AutoTokenizer.from_pretrained('THIS_DIRECTORY')",
    '```',
    '',
    'Use `AutoTokenizer`: a class called by its name (`BertTokenizer`, `RobertaTokenizer`) may put '
    'its own text cleaning in place of this one.',
    '',
  ]


def _usage_of_scores() -> list[str]:
  """How a directory whose class scores rows is loaded."""
  return [
    '```python',
    'from transformers import pipeline',
    f"classify = pipeline('{heads.KINDS[heads.ROW].task}', model='THIS_DIRECTORY', "
    'truncation=True)',
    "classify('A text.')",
    "classify({'text': 'A text.', 'text_pair': 'A second text.'})  # for a task of pairs",
    '```',
    '',
    'Add `top_k=None` for the scores of all labels.',
    '',
  ]


def _usage_of_answers(config: dict[str, Any], usual: bool) -> list[str]:
  """How a directory whose class finds answers is loaded. usual: whether its rows begin with the
  passage where the config does not say so.
  """
  own = config['features'] if 'features' in config else {}
  order = own['order'] if 'order' in own else 'auto'
  passage_first = usual if order == 'auto' else order == 'passage_first'
  most = own['max_answer'] if 'max_answer' in own else 30
  threshold = own['no_answer_threshold'] if 'no_answer_threshold' in own else 0.0
  may_have_none = bool(threshold) or ('metrics' in config and 'best_threshold' in config['metrics'])
  return [
    '```python',
    'import torch',
    'from transformers import AutoModelForQuestionAnswering, AutoTokenizer',
    "tokenizer = AutoTokenizer.from_pretrained('THIS_DIRECTORY')",
    "model = AutoModelForQuestionAnswering.from_pretrained('THIS_DIRECTORY')",
    "question, passage = 'Who …?', 'A passage.'",
    f'texts = {"passage, question" if passage_first else "question, passage"}',
    "row = tokenizer(*texts, return_tensors='pt', return_offsets_mapping=True)",
    "places = row.pop('offset_mapping')[0]",
    f'own = torch.tensor([s == {0 if passage_first else 1} for s in row.sequence_ids()])',
    'with torch.no_grad():',
    '  out = model(**row)',
    'scores = out.start_logits[0][:, None] + out.end_logits[0]',
    f'spans = (own[:, None] & own).triu() & ~torch.ones_like(scores).triu({most}).bool()',
    "best = scores.masked_fill(~spans, -float('inf')).argmax()",
    'start, end = divmod(best.item(), len(own))',
    *(_answer_or_none(threshold) if may_have_none else [f'print({_ANSWER})']),
    '```',
    '',
    'Cut a longer passage into windows. transformers before 5 does it: '
    f"`pipeline('{heads.KINDS[heads.SPAN].task}', model='THIS_DIRECTORY')`.",
    '',
  ]


_ANSWER = 'passage[places[start][0] : places[end][1]].strip()'


def _answer_or_none(threshold: float) -> list[str]:
  """Code that prints nothing where the odds of no answer are above the threshold."""
  return [
    "cls = row['input_ids'][0].tolist().index(tokenizer.cls_token_id)",
    'odds = scores[cls, cls] - scores[start, end]  # of no answer',
    f"print('' if odds > {threshold:g} else {_ANSWER})",
  ]


def _usage_of_tags() -> list[str]:
  """How a directory whose class tags tokens is loaded."""
  return [
    '```python',
    'from transformers import pipeline',
    f"tag = pipeline('{heads.KINDS[heads.TAG].task}', model='THIS_DIRECTORY', "
    "aggregation_strategy='first')",
    "tag('A sentence with names.')",
    '```',
    '',
    'A word has the tag of its first token (`first`). For text that is split into words already, '
    'call the tokenizer with `is_split_into_words=True` and read the logits at the first token of '
    'each word.',
    '',
  ]


def _usage_of_choices(config: dict[str, Any]) -> list[str]:
  """How a directory whose class scores options is loaded."""
  own = config['features'] if 'features' in config else {}
  first = 'order' in own and own['order'] == 'options_first'
  blank = own['blank'] if 'blank' in own else ''
  texts = 'asked, [text] * len(asked)' if first else '[text] * len(asked), asked'
  return [
    '```python',
    'from transformers import AutoModelForMultipleChoice, AutoTokenizer',
    "tokenizer = AutoTokenizer.from_pretrained('THIS_DIRECTORY')",
    "model = AutoModelForMultipleChoice.from_pretrained('THIS_DIRECTORY')",
    "text, asked = 'A text.', ['A question? An option', 'A question? Another option']",
    f'rows = tokenizer({texts}, padding=True, truncation='
    f"'{'only_second' if first else 'only_first'}', return_tensors='pt')",
    'scores = model(**{name: x[None] for name, x in rows.items()}).logits[0]',
    '```',
    '',
    'Each option is a row of its own. '
    + (f'An option takes the place of `{blank}` in its question. ' if blank else '')
    + 'Without a text, the question is the text and the option stands beside it.',
    '',
  ]


_UNUSED = [
  'transformers lists heads it does not use as UNEXPECTED or MISSING (pooler): that is right.',
  '',
]


def _fields(section: dict[str, Any]) -> str:
  fields = ', '.join(f'{k} {_value(json.dumps(v))}' for k, v in section.items() if k != 'name')
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
