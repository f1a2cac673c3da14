"""The kind with one of several classes per row."""

import re
import unicodedata

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks.kinds import rows
from bertzoo_jax.tasks.kinds.kind import rounded
from bertzoo_jax.tasks.kinds.rows import number

_MANY = 20  # labels; a column with more, different in most rows, is taken for a mistake
# as pandas writes a list or a set
_LIST = re.compile(r'\[\s*([\'"].*[\'"]|-?\d.*)?\s*\]|\{\s*[\'"].*[\'"]\s*\}')
# spellings of a missing label: always, and if all other labels are numbers
_MISSING = '', 'nan', 'NaN', '<NA>'
_NO_NUMBER = 'none', 'null', 'na', 'n/a', 'nan', 'inf', '-inf'


def _names(train, source):
  """The labels in the order of their classes: config.source.labels, or those of train."""
  if source.labels:
    return tuple(names.split('|')[0] for names in source.labels)
  labels = {label[0] for label in train.labels}
  words = {label for label in labels if number(label) is None}
  beside_numbers = words < labels and all(word.lower() in _NO_NUMBER for word in words)
  # −1 to 1 and −2 to 2 are scales of opinion; −1 beside names, or beside 0, 1 and 2, is no label
  no_gold = {x for x in labels - words if number(x) < 0}
  if len(labels) <= 3 and not words or not {number(x) for x in no_gold} <= {-1, -100}:
    no_gold = set()
  for label in sorted(words | no_gold):
    if label in _MISSING or beside_numbers or label in no_gold:
      place = train.places[train.labels.index((label,))]
      raise errors.UserError(
        f'{place} has no label{f", but {label!r}" if label else ""}: write one, or leave such rows '
        f'out with --config.source.leave_out="({label!r},)", or give all labels '
        '(--config.source.labels).'
      )
  if len(labels) > max(_MANY, len(train) / 2):
    raise errors.UserError(
      f'The label column has {len(labels):,} different values in {len(train):,} examples '
      f'({", ".join(map(repr, sorted(labels)[:3]))}, …): name another column with '
      '--config.source.label, or take configs/tasks/own.py:regress for numbers.'
    )
  if len(labels) == 1:
    raise errors.UserError(
      f'All {len(train):,} train examples have the label {min(labels)!r}: there is nothing to '
      'learn; name another column with --config.source.label.'
    )
  _check_spellings(labels, train)
  return tuple(sorted(labels, key=str if words else number))


def _check_spellings(labels, train):
  """Raises UserError for a label in two spellings (1 and 1.0, Joy and joy), or a list as text."""
  seen, place = {}, lambda label: train.places[train.labels.index((label,))]
  for label in sorted(labels):
    if _LIST.fullmatch(label):
      raise errors.UserError(
        f'{place(label)} has the label {label!r}, a list: write one label per row, or a column of '
        '0 and 1 for each label (configs/tasks/own.py:multilabel).'
      )
    plain = unicodedata.normalize('NFKC', label).casefold()
    plain = ''.join(c for c in plain if unicodedata.category(c) != 'Cf')
    value = {'true': 1.0, 'false': 0.0}.get(plain, number(plain))
    other = seen.setdefault(plain if value is None else value, label)
    if other != label:
      raise errors.UserError(
        f'{place(label)} has the label {label!r}, and other rows have {other!r}: spell both alike, '
        'or give all labels, with | between spellings of one, '
        f'--config.source.labels="(…, {f"{other}|{label}"!r}, …)".'
      )


def _encode(examples, split, names, source):
  """int32 [N]. Labels of a test split that train lacks are not used."""
  classes = {s: i for i, spellings in enumerate(source.labels) for s in spellings.split('|')}
  classes = classes or {name: i for i, name in enumerate(names)}
  unknown = next((i for i, (label,) in enumerate(examples.labels) if label not in classes), None)
  if unknown is None:
    return np.array([classes[label] for (label,) in examples.labels], np.int32), []
  label = examples.labels[unknown][0]
  if split.startswith('test'):
    note = f'{split}: its labels are not used, {label!r} is no label of train.'
    return None, [note] if label else []
  raise errors.UserError(
    f'{examples.places[unknown]} has the label {label!r}, and the labels are '
    f'{", ".join(map(repr, names[:50]))}{", …" if len(names) > 50 else ""}: mend the row, leave '
    f'such rows out (--config.source.leave_out="({label!r},)") or give all labels '
    '(--config.source.labels).'
  )


def _check(config, source, names):
  known = metrics.OF_LABEL if config.positive else ()
  binary = [name for name in config.metrics if name in metrics.OF_TWO and name not in known]
  if binary and len(names) != 2:
    raise errors.UserError(
      f'config.metrics has {binary[0]!r}, which is of two classes, and there are {len(names)}: '
      f'take macro_f1{f", or {binary[0]}/LABEL" if binary[0] in metrics.OF_LABEL else ""}.'
    )


def _answer(names, logits, above):
  shares = np.exp(logits - logits.max())
  return {
    'label': names[int(np.argmax(logits))],
    'probabilities': rounded(shares / shares.sum(), names),
  }


ROW = rows.kind(
  'classification',
  accept=rows.one_column(
    'classification', 'several columns are for configs/tasks/own.py:multilabel.'
  ),
  names=_names,
  encode=_encode,
  metrics=metrics.OF_CLASSES,
  of_label=metrics.OF_LABEL,
  check=_check,
  lines=lambda task: [f'{len(task.labels)} classes', *report.class_lines(task, task.labels)],
  answer=_answer,
  predicted='label',
  probability=lambda line: line['probabilities'][line['label']],
  labelled=True,
  shown=lambda names, logits: names[int(np.argmax(logits))],
  gold=lambda names, label: names[label],
  constant=lambda train, names: np.bincount(train, minlength=len(names)),
  problem='single_label_classification',
  card='One label is right (softmax over the outputs).',
)
