"""Questions with answers in a passage: scores of starts and ends, or a beam of both."""

import json

import numpy as np

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks.answering import answers
from bertzoo_jax.tasks.answering import question_metrics
from bertzoo_jax.tasks.answering import questions
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.kinds import kind as kind_lib


def _kind(name, spans, nothing, **rest) -> kind_lib.Kind:
  """A kind of questions.

  spans: (split, outputs) → (answers.Spans, odds of no answer). nothing: split → outputs that say
  that there is no answer.
  """

  def predicted(task, split, outputs) -> answers.Answers:
    threshold = split.detail.decoding.no_answer_threshold
    scored = spans(split, outputs)
    return answers.extract(split.detail, split.source, *scored, _may_have_none(task), threshold)

  def lines(task, split, outputs):
    extracted = predicted(task, split, outputs)
    out = []
    asked = split.source.column('question')
    for i, text in enumerate(extracted.texts):
      line = {'example': split.examples[i], 'question': asked[i], 'answer': text}
      if text:
        line['start'] = extracted.starts[i]
      if extracted.may_have_none:
        line['no_answer_odds'] = round(float(extracted.odds[i]), 6)
      line['others'] = [
        {'text': other, 'probability': round(p, 6)} for other, p, _, _ in extracted.n_best[i][:5]
      ]
      out.append(line)
    return out

  def submission(task, split, outputs, file):
    """{id: answer}, as SQuAD, CMRC2018 and MRQA take them; beside it odds and best answers."""
    extracted = predicted(task, split, outputs)
    stem = file.removesuffix('.json')
    best = {
      example: [
        {'text': text, 'probability': p, 'start_score': a, 'end_score': b}
        for text, p, a, b in n_best
      ]
      for example, n_best in zip(split.examples, extracted.n_best)
    }
    out = {file: dict(zip(split.examples, extracted.texts)), f'{stem}.n_best.json': best}
    if extracted.may_have_none:
      out[f'{stem}.null_odds.json'] = dict(zip(split.examples, map(float, extracted.odds)))
    return {
      name: json.dumps(content, ensure_ascii=False, indent=1) + '\n'
      for name, content in out.items()
    }

  return kind_lib.Kind(
    name,
    PASSAGES,
    head='span_head',
    label_form=lambda names: ((2,), np.int32),
    metrics=question_metrics.BY_NAME,
    metric_inputs=lambda task, split, outputs: (
      split.source.labels,
      predicted(task, split, outputs),
    ),
    answers=lines,
    predicted='answer',
    probability=lambda line: (
      max([x['probability'] for x in line['others'][:1]], default='') if line['answer'] else ''
    ),
    gold=lambda task, split: [' | '.join(right) for right in split.source.labels],
    report=_report,
    submission=submission,
    constant=lambda task, split: nothing(split) if _may_have_none(task) else None,
    learnable=questions.learnable,
    facts=lambda names, train: {'unanswerable': any(not label for label in train.source.labels)},
    **rest,
  )


def _report(task):
  none = ', some without' if _may_have_none(task) else ''
  lines = [f'questions with answers in a passage{none}']
  for s in task.splits.values():
    windows = np.bincount(s.detail.question, minlength=len(s.source))
    passages = len(set(s.source.keys))
    line = f'{s.name}: {passages:,} passages, {len(s):,} rows, at most {windows.max()} per question'
    if s.labels is not None:
      has_answer = s.features['impossible'] == 0
      none = sum(not right for right in s.source.labels)
      line += f'; {has_answer.mean():.1%} of the rows have the answer'
      line += f', {none / len(s.source):.1%} of the questions have none' if none else ''
    lines.append(line)
  lines += [
    f'{s.name}: tokens per row median {int(np.median(s.sizes))}, longest {s.sizes.max()}'
    for s in task.splits.values()
  ]
  lines += report.known_lines(task, 'the passages of {known:,} questions')
  if _may_have_none(task):
    shares = (
      f'{s.name} {np.mean([not right for right in s.source.labels]):.1%}'
      for s in task.splits.values()
      if s.labels is not None and s.name != TRAIN
    )
    lines.append(f'Baseline (always no answer), f1: {", ".join(shares)}')
  return lines


def _may_have_none(task) -> bool:
  """Whether the task has questions without an answer: whether train has one."""
  return bool(task.facts.get('unanswerable'))


PASSAGES = kind_lib.Inputs(
  value=questions.Question,
  features=('question_windows',),
  unlabelled=lambda split, examples: (
    f'The {split} file has no answers: give a file with answers, or call the split test.'
  ),
  asked='(question, passage)',
  read=lambda x: x if kind_lib.are_texts(x) and len(x) == 2 else None,
  usual=lambda: (parts.question_table(files={}), parts.question_windows()),
  columns=('question', 'context'),
  units='questions',
  chosen_by='a hash of their passages',
)


# --- scores of all tokens ---


def _no_place(split):
  """Scores that are highest at the special token."""
  scores = np.zeros(len(split.ids), np.float32)
  scores[split.offsets[:-1] + split.detail.cls] = 1e6
  return {'start': scores, 'end': scores}


ROW = _kind(
  'span',
  lambda split, outputs: answers.from_scores(
    split.detail, split.offsets, outputs['start'], outputs['end']
  ),
  _no_place,
  outputs={'start': 'tokens', 'end': 'tokens'},
)


# --- a beam of starts, with a beam of ends for each ---


def _no_beam(split):
  place = split.detail.place.astype(np.float32)
  return {
    'start_share': np.ones((len(split), 1), np.float32),
    'start_place': place[:, None],
    'end_share': np.ones((len(split), 1, 1), np.float32),
    'end_place': place[:, None, None],
    'impossible': np.full(len(split), 1e6, np.float32),
  }


def _check_beams(config, source, names):
  """Raises UserError for questions without an answer, if the head has no score for that."""
  none = sum(not right for right in source.splits[TRAIN].labels or ())
  if none and not config.objective.answerable_weight:
    raise errors.UserError(
      f'train has {none:,} questions without an answer, and config.objective.answerable_weight=0 '
      'has no score for them: set --config.objective.answerable_weight=0.5.'
    )


BEAMS = _kind(
  'span_conditional',
  lambda split, outputs: answers.from_beams(split.detail, outputs),
  _no_beam,
  outputs=dict.fromkeys(
    ('start_share', 'start_place', 'end_share', 'end_place', 'impossible'), 'rows'
  ),
  check=_check_beams,
  opens=lambda params: 'classifier' not in params,
)
