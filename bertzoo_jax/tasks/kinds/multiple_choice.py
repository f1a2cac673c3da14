"""The kind with one right option of several. Its output is `choice`, a score per option."""

import functools

import numpy as np

from bertzoo_jax import parts
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks import option_files
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks.answering import question_metrics
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.kinds import kind as kind_lib


def _answered(score, labels, logits, choices):
  """The mean score of the best options, each beside the right one most like it, as in ReCoRD."""
  best = [c.options[np.argmax(row[: len(c.options)])] for c, row in zip(choices, logits)]
  right = [c.answers or (c.options[label],) for c, label in zip(choices, labels)]
  return np.mean([max(score(r, text) for r in each) for each, text in zip(right, best)])


def _report(task):
  most = max(s.group for s in task.splits.values())
  lines = [
    f'one of {most} options',
    *report.class_lines(task, [f'option {_letter(i)}' for i in range(most)], str),
    *report.length_lines(task),
  ]
  for s in task.splits.values():
    if fewer := sum(len(row) < s.group for row in s.source.column('options')):
      lines.append(f'{s.name}: {fewer:,} questions have fewer than {s.group} options')
  return lines + report.known_lines(task, 'the texts of {known:,} of {total:,} questions')


def _constant(task, split):
  """The position that the right option has most often in train."""
  out = np.zeros((len(split), split.group), np.float32)
  out[:, int(np.argmax(np.bincount(task.splits[TRAIN].labels)))] = 1
  return {'choice': out}


def _answers(task, split, outputs):
  out = []
  for i, logits in enumerate(np.asarray(outputs['choice'], np.float64)):
    _, question, options, *_ = split.source.values[i]
    shares = np.exp(logits[: len(options)] - logits[: len(options)].max())
    best = int(np.argmax(logits[: len(options)]))
    out.append(
      {
        'example': split.examples[i],
        'question': question,
        'label': _letter(best),
        'option': options[best],
        'probabilities': [round(float(p), 6) for p in shares / shares.sum()],
      }
    )
  return out


def _letter(number: int) -> str:
  return chr(ord('A') + number) if number < 26 else str(number)


def _asked(x):
  is_row = (
    isinstance(x, list | tuple)
    and len(x) == 3
    and kind_lib.are_texts(x[:2])
    and kind_lib.are_texts(x[2])
  )
  return (*x[:2], list(x[2])) if is_row and len(x[2]) > 1 else None


ROW = kind_lib.Kind(
  'choice',
  kind_lib.Inputs(
    value=option_files.Choice,
    features=('choice_rows',),
    unlabelled=lambda split, examples: f'{examples.places[0]} has no {option_files.LACKING}',
    asked='(text, question, [option, …]), with the text "" if there is none',
    read=_asked,
    usual=lambda: (parts.choices(files={}), parts.choice_rows()),
    columns=('text', 'question', 'options'),
    units='questions',
    chosen_by='a hash of their texts',
  ),
  head='choice_head',
  outputs={'choice': 'rows'},
  encode=lambda examples, split, names, source: (np.array(examples.labels, np.int32), []),
  metrics={
    'accuracy': metrics.accuracy,
    # nothing but articles and punctuation shares no word, though SQuAD takes it for no answer
    'f1': functools.partial(
      _answered, lambda a, b: bool(question_metrics.normalized(a)) * question_metrics.overlap(a, b)
    ),
    'exact_match': functools.partial(_answered, question_metrics.same),
  },
  metric_inputs=lambda task, split, outputs: (
    split.labels,
    np.asarray(outputs['choice'], np.float64),
  ),
  answers=_answers,
  predicted='option',
  probability=lambda line: max(line['probabilities']),
  gold=lambda task, split: [row[i] for row, i in zip(split.source.column('options'), split.labels)],
  report=_report,
  submission=kind_lib.indexed(lambda task, line: line['label'], _answers),
  constant=_constant,
)
