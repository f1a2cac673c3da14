"""The kind with one right option of several. Its output is `choice`, a score per option."""

import numpy as np

from bertzoo_jax.tasks import choices
from bertzoo_jax.tasks import labels as labels_lib
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks.examples import TRAIN


class Choices:
  """See kind.py."""

  name, head, outputs = 'choice', 'choice_head', {'choice': 'rows'}
  takes, features = choices.Choices, ('choice_rows',)
  metrics, of_label = {'accuracy': metrics.accuracy}, {}

  def labels_of(self, names):
    return {}

  def numbered(self, source):
    """The labels are int32 [N]; they have no names."""
    splits = dict(source.splits)
    notes = labels_lib.take_dev(splits, source, 'questions', 'a hash of their texts')
    notes += labels_lib.cap(splits, source)
    of = lambda e: None if e.labels is None else np.array(e.labels, np.int32)
    return (), {name: (e, of(e)) for name, e in splits.items()}, notes

  def label_form(self, names):
    return (), np.int32

  def facts(self, names, train):
    return {}

  def check(self, config, source, names):
    """Every metric fits."""

  def report(self, task):
    labelled = {s.name: s for s in task.splits.values() if s.labels is not None}
    most = max(s.group for s in task.splits.values())
    counts = {n: (np.bincount(s.labels, minlength=most), len(s)) for n, s in labelled.items()}
    lines = [
      f'one of {most} options',
      *report.class_lines([f'option {_letter(i)}' for i in range(most)], counts, str),
      *report.length_lines(task),
    ]
    for s in task.splits.values():
      if fewer := sum(len(options) < s.group for options in s.source.options):
        lines.append(f'{s.name}: {fewer:,} questions have fewer than {s.group} options')
    return lines + report.known_lines(task, 'the texts of {known:,} of {of:,} questions')

  def given(self, task, split, outputs):
    return split.labels, np.asarray(outputs['choice'], np.float64)

  def gold(self, task, split):
    return [options[i] for options, i in zip(split.source.options, split.labels)]

  def constant(self, task, split):
    out = np.zeros((len(split), split.group), np.float32)
    out[:, _usual(task)] = 1
    return {'choice': out}

  def answers(self, task, split, outputs):
    out = []
    for i, logits in enumerate(np.asarray(outputs['choice'], np.float64)):
      options = split.source.options[i]
      shares = np.exp(logits[: len(options)] - logits[: len(options)].max())
      best = int(np.argmax(logits[: len(options)]))
      out.append(
        {
          'example': split.examples[i],
          'question': split.source.questions[i],
          'label': _letter(best),
          'option': options[best],
          'probabilities': [round(float(p), 6) for p in shares / shares.sum()],
        }
      )
    return out

  def submission(self, task, split, outputs, file):
    """A line `index<TAB>prediction`, then a letter for each question."""
    lines = ['index\tprediction\n']
    lines += [f'{x["example"]}\t{x["label"]}\n' for x in self.answers(task, split, outputs)]
    return {file: ''.join(lines)}


def _letter(number: int) -> str:
  return chr(ord('A') + number) if number < 26 else str(number)


def _usual(task) -> int:
  """The place of the right option that is the most frequent one in train."""
  return int(np.argmax(np.bincount(task.splits[TRAIN].labels)))
