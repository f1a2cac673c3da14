"""Kinds of questions with answers in a passage: a score per token for starts and ends, or a beam of
starts and of the ends that go with each.
"""

import functools
import json

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import answers
from bertzoo_jax.tasks import question_metrics
from bertzoo_jax.tasks import questions
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.kinds.kind import Kind


def _may_have_none(task) -> bool:
  """Whether the task has questions without an answer: whether train has one."""
  return any(not right for right in task.splits[TRAIN].source.answers)


def _said(spans_of, task, split, outputs) -> answers.Said:
  spans, odds = spans_of(split, outputs)
  threshold = split.detail.decoding.threshold
  return answers.said(split.detail, split.source, spans, odds, _may_have_none(task), threshold)


def _of_places(split, outputs):
  return answers.of_places(split.detail, split.offsets, outputs['start'], outputs['end'])


def _of_beams(split, outputs):
  return answers.of_beams(split.detail, outputs)


def _given(spans_of, task, split, outputs):
  return split.source.answers, _said(spans_of, task, split, outputs)


def _heading(task):
  none = ', some without' if _may_have_none(task) else ''
  return f'questions with answers in a passage{none}'


def _report(task):
  lines = []
  for s in task.splits.values():
    windows = np.bincount(s.detail.question, minlength=len(s.source))
    passages = len(set(s.source.contexts))
    line = f'{s.name}: {passages:,} passages, {len(s):,} rows, at most {windows.max()} per question'
    if s.labels is not None:
      there = s.features['impossible'] == 0
      none = sum(not right for right in s.source.answers)
      line += f'; {there.mean():.1%} of the rows have the answer'
      line += f', {none / len(s.source):.1%} of the questions have none' if none else ''
    lines.append(line)
  lines += report.window_lines(task)
  learned = set(task.splits[TRAIN].source.contexts)
  for s in task.splits.values():
    if s.name != TRAIN and (known := sum(c in learned for c in s.source.contexts)):
      lines.append(f'{s.name}: the passages of {known:,} questions are in train, too')
  if _may_have_none(task):
    shares = (
      f'{s.name} {np.mean([not right for right in s.source.answers]):.1%}'
      for s in task.splits.values()
      if s.labels is not None and s.name != TRAIN
    )
    lines.append(f'Baseline (always no answer), f1: {", ".join(shares)}')
  return lines


def _no_answer_places(task, split):
  """Scores of which the special token's are the highest; None where all questions have answers."""
  if not _may_have_none(task):
    return None
  scores = np.zeros(len(split.ids), np.float32)
  scores[split.offsets[:-1] + split.detail.cls] = 1e6
  return {'start': scores, 'end': scores}


def _no_answer_beams(task, split):
  if not _may_have_none(task):
    return None
  place = split.detail.place.astype(np.float32)
  return {
    'start_share': np.ones((len(split), 1), np.float32),
    'start_place': place[:, None],
    'end_share': np.ones((len(split), 1, 1), np.float32),
    'end_place': place[:, None, None],
    'impossible': np.full(len(split), 1e6, np.float32),
  }


def _answers(spans_of, task, split, outputs):
  found = _said(spans_of, task, split, outputs)
  out = []
  for i, text in enumerate(found.texts):
    line = {'example': split.examples[i], 'question': split.source.questions[i], 'answer': text}
    if found.may_have_none:
      line['no_answer_odds'] = round(float(found.odds[i]), 6)
    line['others'] = [
      {'text': other, 'probability': round(p, 6)} for other, p, _, _ in found.n_best[i][:5]
    ]
    out.append(line)
  return out


def _submission(spans_of, task, split, outputs, name):
  """{id: answer}, as the evaluations of SQuAD, CMRC2018 and MRQA take them; beside it the odds of
  no answer and the best answers of each question.
  """
  found = _said(spans_of, task, split, outputs)
  stem = name.removesuffix('.json')
  best = {
    example: [
      {'text': text, 'probability': p, 'start_score': a, 'end_score': b} for text, p, a, b in n_best
    ]
    for example, n_best in zip(split.examples, found.n_best)
  }
  out = {
    name: dict(zip(split.examples, found.texts)),
    f'{stem}.n_best.json': best,
  }
  if found.may_have_none:
    out[f'{stem}.null_odds.json'] = dict(zip(split.examples, map(float, found.odds)))
  return {
    file: json.dumps(content, ensure_ascii=False, indent=1) + '\n' for file, content in out.items()
  }


def _fits_beams(config, source):
  """Raises UserError for questions without an answer, if nothing scores that there is none."""
  none = sum(not right for right in source.splits[TRAIN].answers or ())
  if none and not config.objective.answerable_weight:
    raise errors.UserError(
      f'train has {none:,} questions without an answer, and config.objective.answerable_weight=0 '
      'has no score for them: set --config.objective.answerable_weight=0.5.'
    )


def _kind(name, outputs, spans_of, constant, **more):
  return Kind(
    name=name,
    head='span_head',
    outputs=outputs,
    takes=questions.Questions,
    features=('question_windows',),
    numbered=questions.numbered,
    label_form=lambda labels: ((2,), np.int32),
    heading=_heading,
    report=_report,
    metrics=question_metrics.BY_NAME,
    given=functools.partial(_given, spans_of),
    check=lambda names, labels: None,
    constant=constant,
    answers=functools.partial(_answers, spans_of),
    submission=functools.partial(_submission, spans_of),
    **more,
  )


SPAN = _kind('span', {'start': 'tokens', 'end': 'tokens'}, _of_places, _no_answer_places)
SPAN_CONDITIONAL = _kind(
  'span_conditional',
  dict.fromkeys(('start_share', 'start_place', 'end_share', 'end_place', 'impossible'), 'rows'),
  _of_beams,
  _no_answer_beams,
  fits=_fits_beams,
)
