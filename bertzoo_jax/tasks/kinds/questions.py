"""Questions with answers in a passage: scores of starts and ends, or a beam of both."""

import json

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks.answering import answers
from bertzoo_jax.tasks.answering import question_metrics
from bertzoo_jax.tasks.answering import questions
from bertzoo_jax.tasks.examples import TRAIN


class Places:
  """Scores of all tokens."""

  outputs = {'start': 'tokens', 'end': 'tokens'}

  def spans(self, split, outputs):
    return answers.of_places(split.detail, split.offsets, outputs['start'], outputs['end'])

  def nothing(self, split):
    """Scores of which the special token's are the highest."""
    scores = np.zeros(len(split.ids), np.float32)
    scores[split.offsets[:-1] + split.detail.cls] = 1e6
    return {'start': scores, 'end': scores}

  def check(self, config, source):
    """Every question fits."""


class Beams:
  """A beam of starts, with a beam of ends for each."""

  outputs = dict.fromkeys(
    ('start_share', 'start_place', 'end_share', 'end_place', 'impossible'), 'rows'
  )

  def spans(self, split, outputs):
    return answers.of_beams(split.detail, outputs)

  def nothing(self, split):
    place = split.detail.place.astype(np.float32)
    return {
      'start_share': np.ones((len(split), 1), np.float32),
      'start_place': place[:, None],
      'end_share': np.ones((len(split), 1, 1), np.float32),
      'end_place': place[:, None, None],
      'impossible': np.full(len(split), 1e6, np.float32),
    }

  def check(self, config, source):
    """Raises UserError for questions without an answer, if nothing scores that there is none."""
    none = sum(not right for right in source.splits[TRAIN].answers or ())
    if none and not config.objective.answerable_weight:
      raise errors.UserError(
        f'train has {none:,} questions without an answer, and config.objective.answerable_weight=0 '
        'has no score for them: set --config.objective.answerable_weight=0.5.'
      )


class Questions:
  """A kind of questions; see kind.py."""

  head, takes, features = 'span_head', questions.Questions, ('question_windows',)
  metrics, of_label = question_metrics.BY_NAME, {}

  def __init__(self, name, of):
    """of: Places() or Beams()."""
    self.name, self._of, self.outputs = name, of, of.outputs

  def labels_of(self, names):
    return {}

  def numbered(self, source):
    return questions.numbered(source)

  def label_form(self, names):
    return (2,), np.int32

  def facts(self, names, train):
    return {'unanswerable': any(not right for right in train.source.answers)}

  def check(self, config, source, names):
    self._of.check(config, source)

  def report(self, task):
    none = ', some without' if _may_have_none(task) else ''
    lines = [f'questions with answers in a passage{none}']
    for s in task.splits.values():
      windows = np.bincount(s.detail.question, minlength=len(s.source))
      passages = len(set(s.source.contexts))
      line = (
        f'{s.name}: {passages:,} passages, {len(s):,} rows, at most {windows.max()} per question'
      )
      if s.labels is not None:
        there = s.features['impossible'] == 0
        none = sum(not right for right in s.source.answers)
        line += f'; {there.mean():.1%} of the rows have the answer'
        line += f', {none / len(s.source):.1%} of the questions have none' if none else ''
      lines.append(line)
    lines += [
      f'{s.name}: tokens per row median {int(np.median(s.sizes))}, longest {s.sizes.max()}'
      for s in task.splits.values()
    ]
    lines += report.known_lines(task, 'the passages of {known:,} questions')
    if _may_have_none(task):
      shares = (
        f'{s.name} {np.mean([not right for right in s.source.answers]):.1%}'
        for s in task.splits.values()
        if s.labels is not None and s.name != TRAIN
      )
      lines.append(f'Baseline (always no answer), f1: {", ".join(shares)}')
    return lines

  def _said(self, task, split, outputs) -> answers.Said:
    spans, odds = self._of.spans(split, outputs)
    threshold = split.detail.decoding.threshold
    return answers.said(split.detail, split.source, spans, odds, _may_have_none(task), threshold)

  def given(self, task, split, outputs):
    return split.source.answers, self._said(task, split, outputs)

  def gold(self, task, split):
    return [' | '.join(right) for right in split.source.answers]

  def constant(self, task, split):
    """No answer; None where all questions have one."""
    return self._of.nothing(split) if _may_have_none(task) else None

  def answers(self, task, split, outputs):
    found = self._said(task, split, outputs)
    out = []
    for i, text in enumerate(found.texts):
      line = {'example': split.examples[i], 'question': split.source.questions[i], 'answer': text}
      if text:
        line['start'] = found.starts[i]
      if found.may_have_none:
        line['no_answer_odds'] = round(float(found.odds[i]), 6)
      line['others'] = [
        {'text': other, 'probability': round(p, 6)} for other, p, _, _ in found.n_best[i][:5]
      ]
      out.append(line)
    return out

  def submission(self, task, split, outputs, file):
    """{id: answer}, as SQuAD, CMRC2018 and MRQA take them; beside it odds and best answers."""
    found = self._said(task, split, outputs)
    stem = file.removesuffix('.json')
    best = {
      example: [
        {'text': text, 'probability': p, 'start_score': a, 'end_score': b}
        for text, p, a, b in n_best
      ]
      for example, n_best in zip(split.examples, found.n_best)
    }
    out = {file: dict(zip(split.examples, found.texts)), f'{stem}.n_best.json': best}
    if found.may_have_none:
      out[f'{stem}.null_odds.json'] = dict(zip(split.examples, map(float, found.odds)))
    return {
      name: json.dumps(content, ensure_ascii=False, indent=1) + '\n'
      for name, content in out.items()
    }


def _may_have_none(task) -> bool:
  """Whether the task has questions without an answer: whether train has one."""
  return bool(task.facts.get('unanswerable'))
