"""The model card (README.md) of an exported directory: the network, its text, its training, and
what the export leaves out. Every fact is from the config, the corpus manifest and the record of the
run.

The words are in `cards/`: card.txt, and for each kind of head how it is loaded.
"""

import html
import json
import math
import pathlib
import re
import string
from typing import Any
from typing import NamedTuple

from bertzoo_jax.common import tables
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import sentence_vectors
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf import weights
from bertzoo_jax.hf.architecture import POSITION_TABLE
from bertzoo_jax.hf.architecture import Architecture

_FOLDER = pathlib.Path(__file__).parent / 'cards'
# Sections that only some configs have, and their names in the table.
_SECTIONS = {'format': 'input', 'source': 'task', 'features': 'input'}
_SENTENCES = json.loads((_FOLDER / 'sentences.json').read_text(encoding='utf-8'))


class Run(NamedTuple):
  architecture: Architecture  # the class that the weights are for
  encoder: Any  # linen module
  sizes: Any  # result of the architecture's `sizes`
  # the resolved config of the run, nested. A phase with overrides has its length and batch_size.
  config: dict
  step: int  # steps trained
  tensors: dict  # content of model.safetensors
  corpus: dict  # the run's record of its corpus; may be empty
  metrics: dict  # the newest value of each metric; may be empty
  commits: list  # commits of the program, in order; may be empty
  init: str | None  # the address of --init that the run began with; None for random weights
  checked: str  # the comparisons after export
  aside: tuple = ()  # names of heads in weights.HEADS_FILE
  average: str = ''  # kind of average of the weights; '' for none
  base_models: tuple = ()  # names at the hub of the models that its weights come from
  outputs: task_heads.Task = task_heads.Task()  # meaning of the outputs of a task head
  vectors: sentence_vectors.Vectors | None = None  # None if it was not trained to make vectors

  @property
  def task(self) -> str | None:
    """The Hub's name of the task; None without a pipeline."""
    if self.vectors:
      return 'sentence-similarity'
    computed = self.architecture.computes(self.encoder)
    return self.architecture.pipeline if computed.pipeline is None else computed.pipeline

  @property
  def head(self) -> str:
    """The head of a task, of task_heads.KINDS; '' for none."""
    return task_heads.in_paths(self.architecture.places)

  @property
  def fine_tuned(self) -> bool:
    return self.head != '' or 'source' in self.config


def with_learned(a: Architecture, learned: tuple[str, ...], apart=()) -> Architecture:
  """The Architecture, its card's text completed if the head learned from left to right.

  apart: heads that the class has no place for.
  """
  if 'next_head' in apart:
    return a._replace(heads=f'{a.heads} {_SENTENCES["later_unseen"]}')
  if 'left to right' not in learned:
    return a
  sentence = f'{a.heads} {_SENTENCES["left_to_right_and_masked"]}'
  if len(learned) == 1:
    sentence = _SENTENCES['left_to_right']
  causal = 'transformers has no class that reads this model from left to right.'
  if name := architectures.CAUSAL.get(a.model_type):
    causal = f'`{name}.from_pretrained(DIRECTORY, is_decoder=True)` reads it from left to right.'
  return a._replace(heads=f'{sentence} {causal}', pipeline='')


def text(run: Run) -> str:
  """The card, Markdown with a YAML head. Text from files has no markup in it."""
  read = ('config', 'corpus', 'metrics', 'commits', 'init', 'aside', 'average')
  return _filled('card', facts(run._replace(**{name: _plain(getattr(run, name)) for name in read})))


def facts(run: Run) -> dict[str, str]:
  """The fields of card.txt. A field that only some cards have is '' in others."""
  config, note = run.config, run.architecture.computes(run.encoder).note
  lengths = _trained(config, run.step, 'length')
  licence, language, sources = (run.corpus.get(k) for k in ('license', 'language', 'sources'))
  layers = run.sizes.num_layers
  aside = string.Template(_SENTENCES['aside']).substitute(
    file=weights.HEADS_FILE, heads=', '.join(run.aside)
  )
  return {
    **{name: _fields(config[name]) for name in ('objective', 'optimizer', 'schedule', 'tokenizer')},
    'pipeline': _lines(
      [
        f'library_name: {"sentence-" * bool(run.vectors)}transformers',
        f'pipeline_tag: {run.task}',
      ]
      * bool(run.task)
    ),
    'languages': _listed('language', re.split(r'[\s,]+', str(language or '')), '[a-z]{2,3}'),
    'tags': _tags(run),
    'base_models': _listed('base_model', run.base_models, r'(?a:\w[\w.-]*(/\w[\w.-]*)?)'),
    'scores': _scores(run),
    'name': run.architecture.name,
    'how': 'fine-tuned' if run.fine_tuned else 'pretrained',
    'layers': f'{layers} layer{"s" * (layers > 1)}',
    'hidden_size': run.encoder.hidden_size,
    'num_heads': run.sizes.num_heads,
    'parameters': f'{sum(x.size for x in run.tensors.values()):,}',
    'longest': _longest(run, lengths),
    'cuts': _SENTENCES['cuts'] * (run.head != ''),
    'usage': _usage(run),
    'outputs': _outputs(config, run.outputs) * run.fine_tuned,
    'steps': f'{run.step:,} of {sum(steps for steps, _ in config["phases"]):,}'
    + f'; these weights are an average ({run.average})' * bool(run.average),
    'batch': _batch(config, run.step),
    'lengths': ', '.join(f'{n} tokens for {steps:,} steps' for n, steps in lengths),
    'init': _value(run.init.split(',')) if run.init else 'random weights',
    'sections': _sections(config),
    'seed': config['seed'],
    'program': _lines(f'| program | bertzoo_jax at commit {commit} |' for commit in run.commits),
    'language': _value(language or _SENTENCES['not_recorded']),
    'licence': _value(licence or _SENTENCES['not_recorded']),
    'sources': _value(sources or _SENTENCES['not_recorded']),
    'corpus': _lines(
      f'| corpus {key} | {_value(value)} |'
      for key, value in run.corpus.items()
      if key not in ('license', 'language', 'sources', 'task')
    ),
    'phases': _SENTENCES['phases'] * any(overrides for _, overrides in config['phases']),
    'measured': _measured(run),
    'heads': run.architecture.heads,
    'note': _lines([note] * bool(note)),
    'labels': _labels(config['format']) if 'pair_head' in run.architecture.head_names else '',
    'aside': aside if run.aside else '',
    'unused': _SENTENCES['unused'] * (bool(run.task) and not run.fine_tuned),
    'checked': run.checked,
  }


def _filled(name: str, values: dict) -> str:
  """A page of `cards/` with its `$names` filled in."""
  return string.Template((_FOLDER / f'{name}.txt').read_text(encoding='utf-8')).substitute(values)


def _lines(lines) -> str:
  return ''.join(f'{line}\n' for line in lines)


def _listed(key: str, words, form: str) -> str:
  """The words of a form as a list of YAML; '' without any."""
  words = [word for word in words if re.fullmatch(form, word)]
  return _lines([f'{key}:', *(f'- "{word}"' for word in words)] if words else [])


def _tags(run) -> str:
  """The tags that a card has beside the program's."""
  tags = ['masked-language-modeling'] * (run.task == 'fill-mask')
  if run.head:
    tags.append(task_heads.KINDS[run.head].task)
  return _lines(f'- {tag}' for tag in tags)


def _scores(run) -> str:
  """Scores of text that was not trained on, as a model-index: the Hub's other form, files in
  .eval_results/, holds scores of the benchmarks that are registered there alone.
  """
  task = task_heads.KINDS[run.head].task if run.head else run.task
  metrics = [
    {'type': name, 'value': float(f'{value:.5g}')}
    for name, value in run.metrics.items()
    if name.startswith(('dev_', 'held_out_')) and math.isfinite(value)
  ]
  if not task or not metrics:
    return ''
  text = dict(run.config).get('name', 'dev') if run.fine_tuned else 'text kept out of training'
  result = {'task': {'type': task}, 'dataset': {'name': text, 'type': text}, 'metrics': metrics}
  index = [{'name': run.architecture.name, 'results': [result]}]
  return f'model-index: {json.dumps(index, ensure_ascii=False)}\n'  # YAML holds JSON


def _trained(config: dict[str, Any], step: int, field: str) -> list[tuple[Any, int]]:
  """(value of a field, steps trained) of each phase that has begun."""
  out = []
  for steps, overrides in config['phases']:
    if (trained := min(steps, step)) > 0:
      out.append((overrides.get(field, config[field]), trained))
    step -= trained
  return out


def _batch(config: dict[str, Any], step: int) -> str:
  """Rows per batch, as text; with the steps of each phase if phases differ."""
  batches = _trained(config, step, 'batch_size') or [(config['batch_size'], 0)]
  if len({rows for rows, _ in batches}) == 1:
    return f'{batches[0][0]:,} rows'
  return ', '.join(f'{rows:,} rows for {steps:,} steps' for rows, steps in batches)


def _longest(run, lengths) -> str:
  """The sentence about the longest row that the network takes, and that it was trained on."""
  trained, most = max((n for n, _ in lengths), default=0), run.encoder.max_positions
  if not most:
    return f'It reads any length; the longest rows in training had {trained} tokens.'
  if trained >= most:
    return f'It reads at most {most} tokens.'
  sentence = f'It was trained on rows of at most {trained} tokens: cut texts there. '
  rows = run.architecture.rows
  if not any(row.ours == POSITION_TABLE and row.theirs in run.tensors for row in rows):
    return f'{sentence}It takes {most}, and has no position table.'
  return (
    f'{sentence}Its position table has {most} rows; this run did not train those from {trained} on.'
  )


def _plain(x):
  """A value whose texts, keys included, show no local folders and buckets, and draw nothing in
  Markdown: no HTML, headings, links or pictures.
  """
  if isinstance(x, dict):
    return {_plain(key): _plain(value) for key, value in x.items()}
  if isinstance(x, (list, tuple)):
    return type(x)(map(_plain, x))
  if not isinstance(x, str):
    return x
  return tables.plain_markdown(''.join(map(_public, _BORDER.split(x))))


def _code(text: str) -> str:
  """A text of `_plain` between backticks, where Markdown shows characters as they are."""
  return f'`{html.unescape(text).replace("`", "'") or " "}`'


# What separates the addresses in a text; a comma or blank may also be part of an address.
_BORDER = re.compile(r'([|;"\'(){}\[\]=]|[,\s](?=\s*(?:[\w.@+-]+:|~|\.{0,2}/)))')
_LOCAL = re.compile(r'/[^/\s]|~[^/\s]*/|\.\.?/|.*/\.\./')


def _public(address: str) -> str:
  """The last part of a local path or a URL; any other address unchanged."""
  before, weight, path = re.match(r'([^\w/~.]*)([\d.]+\*)?(?:[\w.@+-]+:)*(.*)', address).groups('')
  if not path.startswith('//') and not _LOCAL.match(path):
    return address
  path = re.sub('^//[^/]*/?', '/', path)  # a host or bucket
  return before + weight + (path.rstrip('/').rpartition('/')[2] or '...')


def _sections(config: dict[str, Any]) -> str:
  """Rows of the table for sections that only some configs have."""
  named = {name: word for name, word in _SECTIONS.items() if name in config}
  rows = [f'| {word} | {_fields(config[name])} |' for name, word in named.items()]
  if 'masking' in config:
    rows.append(f'| masking | {_masking(config["masking"])} |')
  return _lines(rows)


def _masking(section: dict[str, Any]) -> str:
  """The fields of a masking, with the fate of predicted tokens (mask, random, kept) in words."""
  shares = section.get('corruption', ())
  if isinstance(shares, str) or len(shares) != 3:  # no replacement, or a user's masking
    return _fields(section)
  becomes = 'by the mask token', 'by a random token'
  if section.get('substitute') == 'similar':
    becomes = 'by a similar word (a random word where there is none)', 'by a random word'
  replacements = ', '.join(f'{share:.0%} {what}' for share, what in zip(shares, becomes))
  rest = {k: v for k, v in section.items() if k not in ('corruption', 'substitute')}
  return f'{_fields(rest)}. Of the predicted tokens, replaced {replacements}; {shares[2]:.0%} stay'


def _measured(run) -> str:
  """The section of the newest metrics; '' without any."""
  if not run.metrics:
    return ''
  about = _SENTENCES['task_metrics' if 'metrics' in run.config else 'losses']
  rows = _lines(f'| {key} | {_value(value)} |' for key, value in run.metrics.items())
  bits = _SENTENCES['bits'] * any('bits_per_byte' in key for key in run.metrics)
  return f'## Last measured\n\n{about}\n\n| metric | value |\n|---|---|\n{rows}\n{bits}'


def _outputs(config: dict[str, Any], task: task_heads.Task) -> str:
  """The meaning of the outputs of a task's head."""
  sentences = [task.card] if task.card else []
  if task.labels and task.problem != 'regression':
    names = ', '.join(f'{i} {_code(label)}' for i, label in enumerate(_plain(tuple(task.labels))))
    sentences.append(f'Labels: {names}.')
  if 'metrics' in config:
    sentences.append(f'Metrics: {", ".join(config["metrics"])}; the first is the dev score.')
  return f'{" ".join(sentences)}\n\n' if sentences else ''


def _labels(format: dict[str, Any]) -> str:
  """The sentence about the labels of pairs, as the input format defines them."""
  kind, known = format.get('pairs', 'nsp'), _SENTENCES['pairs']
  if kind == 'nsp' and format.get('negatives') in known:
    kind = format['negatives']
  alone = _SENTENCES['alone'] * (kind == 'sop' and format.get('lone_sentences') == 'random')
  return f'Its labels in training: {known.get(kind, "those of the input above")}{alone}.\n'


def _usage(run) -> str:
  """How the directory is loaded."""
  features = run.config['features'] if 'features' in run.config else {}
  if run.vectors:
    return _filled('texts', _texts(run.vectors))
  if run.head == task_heads.CHOICE:
    return _filled('choices', _choices(features))
  if run.head in task_heads.LABELLED:
    page = {task_heads.ROW: 'scores', task_heads.TAG: 'tags'}[run.head]
    return _filled(page, {'task': task_heads.KINDS[run.head].task})
  if run.task == task_heads.KINDS[task_heads.SPAN].task:
    metrics = run.config['metrics'] if 'metrics' in run.config else ()
    return _filled('answers', _answers(features, run.encoder.padding_side == 'left', metrics))
  called = 'fill' if run.task == 'fill-mask' else 'vectors'
  return _filled('vectors', {'called': called, 'task': run.task}) if run.task else ''


def _texts(vectors: sentence_vectors.Vectors) -> dict[str, str]:
  """The fields of texts.txt."""
  prompts = [
    f'{_code(name)} puts {_code(_plain(x) + " " * x.endswith(" "))}'
    for name, x in vectors.prompts.items()
    if x
  ]
  sentences = [
    f'A vector is {_SENTENCES["pooling"][vectors.pooling]}, of '
    f'{"length 1" if vectors.normalize else "any length"}; texts are cut at {vectors.max_length} '
    'tokens.',
    f'Its first {", ".join(map(str, vectors.widths))} numbers were trained to serve alone '
    '(`truncate_dim`).' * bool(vectors.widths),
    f'Prompts: {", ".join(prompts)} before a text.' * bool(prompts),
  ]
  asked = ", prompt_name='query'" if vectors.prompts.get(sentence_vectors.QUERY) else ''
  return {'prompt': asked, 'how': ' '.join(filter(None, sentences))}


def _answers(features: dict[str, Any], usual: bool, metrics=()) -> dict[str, str]:
  """The fields of answers.txt. usual: whether rows begin with the passage if the order is auto."""
  order = features.get('order', 'auto')
  passage_first = usual if order == 'auto' else order == 'passage_first'
  threshold = features.get('no_answer_threshold', 0.0)
  answer = 'passage[places[start][0] : places[end][1]].strip()'
  code = f'print({answer})'
  if threshold or 'best_threshold' in metrics:  # an answer may be missing
    code = (
      "cls = row['input_ids'][0].tolist().index(tokenizer.cls_token_id)\n"
      'odds = scores[cls, cls] - scores[start, end]  # of no answer\n'
      f"print('' if odds > {threshold:g} else {answer})"
    )
  return {
    'texts': 'passage, question' if passage_first else 'question, passage',
    'sequence': 0 if passage_first else 1,
    'most': features.get('max_answer', 30),
    'answer': code,
    'task': task_heads.KINDS[task_heads.SPAN].task,
  }


def _choices(features: dict[str, Any]) -> dict[str, str]:
  """The fields of choices.txt."""
  first, blank = features.get('order') == 'options_first', features.get('blank', '')
  return {
    'texts': 'asked, [text] * len(asked)' if first else '[text] * len(asked), asked',
    'truncation': 'only_second' if first else 'only_first',
    'blank': f'An option takes the place of {_code(blank)} in its question. ' if blank else '',
  }


def _fields(section: dict[str, Any]) -> str:
  fields = ', '.join(f'{k} {_value(json.dumps(v))}' for k, v in section.items() if k != 'name')
  return f'{section["name"]} ({fields})' if fields else section['name']


def _value(value) -> str:
  """A number formatted, a list joined, anything else as text."""
  if isinstance(value, (list, tuple)):
    return ', '.join(map(_value, value))
  if isinstance(value, dict):
    return ' '.join(f'{k} {_value(v)}' for k, v in value.items())
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return str(value)
  return f'{value:,}' if isinstance(value, int) else f'{value:.5g}'
