"""The kind with a tag per word. Its output is `tag`, the logits of every token."""

import numpy as np

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks import schemes
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.kinds import kind as kind_lib
from bertzoo_jax.tasks.reading import tagged


def _names(train, source):
  """The tags of train, or config.source.labels; of a scheme, all prefixes for each type."""
  tags = {tag for sentence in train.labels for tag in sentence}
  names = tuple(source.labels) or schemes.completed(tags, train.values[0].scheme)
  if len(names) < 2:
    raise errors.UserError(
      f'All words of train have the tag {"".join(names)!r}: there is nothing to learn; name '
      'another column with --config.source.tag.'
    )
  return names


def _encode(examples, split, names, source):
  """int32 [W] of all words, −1 for a word whose tag is no label."""
  ids = {name: i for i, name in enumerate(names)}
  numbers = [ids.get(tag, -1) for tags in examples.labels for tag in tags]
  unknown = sorted({tag for tags in examples.labels for tag in tags} - set(ids))
  if unknown and split == TRAIN:
    raise errors.UserError(
      f'train has the tag {unknown[0]!r}, which config.source.labels lacks: list all tags '
      'there, or give () for the tags of train.'
      if source.labels
      else f'train has the tag {unknown[0]!r}, which is not in the scheme '
      f'{examples.values[0].scheme}: set --config.source.scheme=auto, or correct the file.'
    )
  notes = [
    f'{split}: {numbers.count(-1):,} words have a tag that train lacks '
    f'({", ".join(map(repr, unknown[:10]))}): they count as wrong.'
  ]
  return np.array(numbers, np.int32), notes if unknown else []


def _types(names):
  """{type of entities: the argument of a metric of one type}."""
  types = sorted({schemes.parts(name)[1] for name in names} - {''})
  return {type_: {'type_': type_} for type_ in types}


def _facts(names, train):
  counts = np.bincount(_numbers(train), minlength=len(names))
  return {'usual': names[int(np.argmax(counts))]}


def _check(config, source, names):
  wanted = [n for n in config.metrics if n.startswith(('entity_', 'strict_'))]
  odd = [label for label in names if label != schemes.OUTSIDE and '-' not in label]
  if wanted and odd:
    raise errors.UserError(
      f'config.metrics has {wanted[0]!r}, which is of entities (B-…, I-…), and there is the tag '
      f'{odd[0]!r}: set --config.metrics="(\'accuracy\',)", or delete a line of column names.'
    )


def _report(task):
  scheme = task.splits[TRAIN].source.values[0].scheme
  heading = f'{len(task.labels)} tags of words'
  if scheme != 'none':
    heading = f'{len(_types(task.labels))} types of entities ({scheme}, {len(task.labels)} tags)'
  lines = [heading, *report.class_lines(task, task.labels, numbers=_numbers)]
  for name, s in task.splits.items():
    at = s.detail
    long = at.windows > 1
    lines.append(
      f'{name}: {len(at.first):,} words; tokens per row median {int(np.median(s.sizes))}, 95 % '
      f'at most {int(np.quantile(s.sizes, 0.95))}, longest {s.sizes.max()}; {int(long.sum()):,} '
      f'sentence{"" if long.sum() == 1 else "s"} longer than {task.max_length} tokens are '
      f'{int(at.windows[long].sum()):,} rows'
    )
    if silent := int((at.first < 0).sum()):
      example = _silent_word(s)
      lines.append(
        f'{name}: {silent:,} words have no token, the first is {example}; they are predicted as '
        f'{_fallback(task)!r}.'
      )
  return lines + report.repeat_lines(task)


def _constant(task, split):
  out = np.zeros((len(split.ids), len(task.labels)), np.float32)
  out[:, task.labels.index(task.facts['usual'])] = 1
  return {'tag': out}


def _answers(task, split, outputs):
  best, shares = predicted(task, split, outputs), _shares(split, outputs)
  return [
    {'example': name, 'words': words, 'tags': tags, 'probabilities': row}
    for name, words, tags, row in zip(split.examples, split.source.column('words'), best, shares)
  ]


def _submission(task, split, outputs, file):
  """Word, its tag if the file has one, and the predicted tag, separated by tabs."""
  source = split.source
  columns = ([] if source.labels is None else [source.labels]) + [predicted(task, split, outputs)]
  return {file: tagged.written(source.column('words'), *columns)}


def _numbers(split):
  """The labels of words that have a token and a label."""
  return split.labels[split.labels >= 0]


def _silent_word(split):
  number = int(np.flatnonzero(split.detail.first < 0)[0])
  sentence = int(np.searchsorted(split.detail.sentences, number, side='right')) - 1
  word = split.source.values[sentence].words[number - int(split.detail.sentences[sentence])]
  return f'{word!r} in {split.source.places[sentence]}'


def _fallback(task) -> str:
  """The tag of a word without tokens: O, else the most frequent one of train."""
  if schemes.OUTSIDE in task.labels:
    return schemes.OUTSIDE
  return task.facts.get('usual', task.labels[0])


def predicted(task, split, outputs) -> list[list[str]]:
  """The predicted tags of each sentence: the best at the first token of each word."""
  at = split.detail
  best = np.argmax(np.asarray(outputs['tag']), axis=-1)
  tags = [
    task.labels[best[place]] if place >= 0 else _fallback(task) for place in at.first.tolist()
  ]
  return [tags[a:b] for a, b in zip(at.sentences[:-1], at.sentences[1:])]


def _shares(split, outputs) -> list[list[float | None]]:
  """The probability of each word's predicted tag; None for a word without tokens."""
  at, logits = split.detail, np.asarray(outputs['tag'], np.float64)
  logits = logits - logits.max(axis=-1, keepdims=True)
  highest = 1 / np.exp(logits).sum(axis=-1)
  shares = [round(float(highest[place]), 6) if place >= 0 else None for place in at.first.tolist()]
  return [shares[a:b] for a, b in zip(at.sentences[:-1], at.sentences[1:])]


def _asked(x):
  words = x.split() if isinstance(x, str) else x
  return (list(words),) if kind_lib.are_texts(words) else None


ROW = kind_lib.Kind(
  'tagging',
  kind_lib.Inputs(
    value=tagged.Sentence,
    features=('words',),
    unlabelled=lambda split, examples: (
      f'{examples.places[0]}: {split} has no tags: write one for each word.'
    ),
    asked='a text, whose words have blanks between, or a list of words',
    read=_asked,
    usual=lambda: (parts.conll(files={}), parts.words()),
    units='sentences',
  ),
  head='tag_head',
  outputs={'tag': 'tokens'},
  names=_names,
  encode=_encode,
  metrics=metrics.TAGS,
  of_label=metrics.OF_TYPE,
  labels_of=_types,
  metric_inputs=lambda task, split, outputs: (
    split.source.labels,
    predicted(task, split, outputs),
    split.source.values[0].scheme,
  ),
  answers=_answers,
  predicted='tags',
  labelled=True,
  gold=lambda task, split: split.source.labels,
  report=_report,
  submission=_submission,
  constant=_constant,
  facts=_facts,
  check=_check,
  card='A word has one tag (softmax over the outputs of its first token).',
)
