"""Questions with answers in a passage, as they are read: SQuAD's JSON and files of its shape,
MRQA's JSON lines, tables.

An answer is a text and the character at which it begins. If the passage has another text there, the
nearest occurrence of the answer is taken. An answer that does not occur in the passage cannot be
learned.
"""

import sys
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import examples
from bertzoo_jax.tasks.reading import columns
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import tables

NOWHERE = (-1, -1)
_YES_NO = ('yes', 'no')
_UNANSWERABLE, _YES_OR_NO = 'unanswerable', 'yes_no'
LEAVE_OUT = {  # config.source.leave_out: words of the note
  _UNANSWERABLE: 'without an answer',
  _YES_OR_NO: 'with the answer yes or no',
}
_ALONE = 'questions but those of config.source.leave_out: set --config.source.leave_out="()".'
_COLUMNS = ('question', 'context', 'answer', 'answer_start', 'example')  # columns of a table


class Question(NamedTuple):
  question: str
  context: str
  label: tuple[str, ...] | None = None  # the right answers, () if the passage has none
  # (start, end) of an answer in the passage, in characters; NOWHERE without one
  span: tuple[int, int] = NOWHERE
  mended: bool = False  # whether the file has another start
  form = 'questions'

  @property
  def key(self) -> str:
    return self.context


def locate(context: str, text: str, start: int) -> tuple[int, bool]:
  """(first character of an answer in a passage, whether it is `start`); −1 if the passage does not
  have the answer.

  start: of the file, in characters. Of several occurrences the nearest to it is taken, the first of
  two equally near; without a start (below 0), the first.
  """
  if text and start >= 0 and context.startswith(text, start):
    return start, True
  start = max(start, 0)
  after = context.find(text, start) if text else -1
  before = context.rfind(text, 0, start + len(text)) if text else -1
  if before < 0 or after < 0:
    return max(before, after), False
  return (before if start - before <= after - start else after), False


def remarks(splits: dict[str, examples.Examples]):
  """(splits, notes about corrected starts, answers that do not occur, repeated ids)."""
  notes = []
  for split, one in splits.items():
    values, places = one.values, one.places
    if mended := [i for i, q in enumerate(values) if q.mended]:
      notes.append(
        f'{split}: {len(mended):,} questions have a wrong answer_start ({places[mended[0]]} is the '
        'first); the nearest place of the answer is taken.'
      )
    if absent := [i for i, q in enumerate(values) if q.label and q.span == NOWHERE]:
      notes.append(
        f'{split}: {len(absent):,} questions have no answer that is in the passage '
        f'({places[absent[0]]} is the first).'
      )
    if same := len(one) - len(set(one.ids)):
      notes.append(
        f'{split}: {same:,} questions have the id of another one; a submission has one answer for '
        'each id.'
      )
  return splits, notes


def learnable(train: examples.Examples):
  """(the questions that can be learned, notes). Raises UserError if there are none."""
  kept = [i for i, q in enumerate(train.values) if not q.label or q.span != NOWHERE]
  if not kept:
    raise errors.UserError(
      f'None of the {len(train):,} train questions has its answer in its passage: answers are '
      'copied from the passage, letter by letter.'
    )
  if len(kept) == len(train):
    return train, []
  lost = len(train) - len(kept)
  note = f'train: {lost:,} questions left out, whose answers are not in the passage.'
  return train.take(kept), [note]


# --- layouts: reader.File → iterator ---


def table(file):
  fields, place = file.fields, file.path.name

  def choose(known):
    optional = _COLUMNS[2:] if file.split.startswith('test') else ()
    return columns.chosen(fields, _COLUMNS, known, file.path, optional)

  def question(row):
    asked, context, answer, start, name = map(row.text, _COLUMNS)
    answers = None
    if 'answer' in row.values:
      answers = [(answer, _start(start, f'{place}, {row.place}'))] if answer.strip() else []
    return _record(file, row.place, name.strip(), asked, context, answers)

  return tables.records(file, choose, question, fields)


def squad(file):
  """SQuAD's JSON and files of its shape, and MRQA's lines."""
  path = file.path
  text = files.text(files.unpacked(file.data, path), path)
  if path.name.removesuffix('.gz').endswith(('.jsonl', '.ndjson')):
    yield from _lines(file, text)
    return
  content = files.json_of(text, path)
  content = content['data'] if isinstance(content, dict) and 'data' in content else content
  if not isinstance(content, list):
    raise _unlike(path)
  for number, entry in enumerate(content, 1):
    paragraphs = entry.get('paragraphs', [entry]) if isinstance(entry, dict) else None
    if not isinstance(paragraphs, list):
      raise _unlike(path)
    for paragraph in paragraphs:
      yield from _paragraph(file, paragraph, f'text {number}')


def _lines(file, text):
  for number, line in enumerate(text.split('\n'), 1):
    if not line.strip():
      continue
    paragraph = files.json_of(line, f'{file.path}, line {number}', 'JSON object')
    if isinstance(paragraph, dict) and 'header' in paragraph and 'qas' not in paragraph:
      continue
    yield from _paragraph(file, paragraph, f'line {number}')


def _paragraph(file, paragraph, place):
  try:
    where = f'{file.path.name}, {place}'
    context = tables.as_text(_either(paragraph, 'context', 'context_text'), where)
    # a question and its passage in one object, as Hugging Face's datasets write them
    qas = [paragraph] if 'question' in paragraph else paragraph['qas']
    for number, qa in enumerate(qas, 1):
      address = f'{where}, question {number}'
      answers, right = _answers(qa, context, address)
      name = tables.as_text(_either({'': '', **qa}, 'id', 'qid', 'query_id', ''), address)
      question = tables.as_text(_either(qa, 'question', 'query_text'), address)
      none = str(qa.get('is_impossible', False)).lower() == 'true'
      at = f'{place}, question {number}'
      yield _record(file, at, name, question, context, answers, right, none)
  except (KeyError, TypeError, ValueError, AttributeError) as e:
    raise _unlike(file.path, f'{where}: {type(e).__name__} {e}') from e


def _record(file, place, name, question, context, answers, right=None, none=False):
  """A question as a record.

  answers: [(text, start)], or None if the file has no field for them; right: further right texts;
  none: whether the file marks the question as unanswerable.
  """
  context = sys.intern(context)  # one text for all of its questions
  if file.split == examples.UNLABELLED:
    return examples.Record(place, name or None, Question(question, context))
  leave_out = getattr(file.fields, 'leave_out', ())
  none = none or answers == [] and not right
  yes_no = any(start < 0 and text.strip().lower() in _YES_NO for text, start in answers or ())
  for reason, true in ((_YES_OR_NO, yes_no), (_UNANSWERABLE, none)):
    if true and reason in leave_out:
      return examples.Skipped('', LEAVE_OUT[reason], 'questions', alone=_ALONE)
  value = Question(question, context, () if none else None)
  if answers is not None and not none:
    right = tuple(dict.fromkeys([text for text, _ in answers] if right is None else right))
    tried = [(text, *locate(context, text, start), start) for text, start in answers]
    span = next(((at, at + len(text)) for text, at, *_ in tried if at >= 0), NOWHERE)
    mended = any(at >= 0 and not same and start >= 0 for _, at, same, start in tried)
    value = Question(question, context, right, span, mended)
  return examples.Record(place, name or None, value)


def _answers(qa, context, where):
  """(answers, further right texts) of a question. Answers without a text are left out."""
  if qa.get('detected_answers') is not None:
    answers = [
      (context[start : end + 1], start)
      for answer in qa['detected_answers']
      for start, end in answer['char_spans']
    ]
    return answers, tuple(tables.as_text(a, where) for a in qa.get('answers') or []) or None
  answers = qa.get('answers')
  if answers is None:
    return None, None
  if isinstance(answers, dict) and isinstance(answers['text'], list):
    # {"text": […], "answer_start": […]}, as Hugging Face's datasets write a list of answers
    starts = answers.get('answer_start') or [None] * len(answers['text'])
    pairs = zip(answers['text'], starts, strict=True)
  else:
    answers = [answers] if isinstance(answers, str | dict) else answers
    if not isinstance(answers, list):
      raise TypeError(f'its answers are {answers!r}')
    both = lambda one: (one['text'], one.get('answer_start'))
    pairs = (both(one) if isinstance(one, dict) else (one, None) for one in answers)
  pairs = [(tables.as_text(text, where), _start(start, where)) for text, start in pairs]
  return [(text, start) for text, start in pairs if text.strip()], None


def _either(record, *names):
  return record[next((name for name in names if name in record), names[0])]


def _start(value, where) -> int:
  """The number of a character; −1 if the file gives none."""
  if value is None or value == '':
    return -1
  with errors.unreadable(
    f'{where} has the answer_start {value!r}: give the number of the character, from 0, at which '
    'the answer begins'
  ):
    return int(float(value))


def _unlike(path, why='it is no list of texts with questions'):
  return errors.UserError(
    f'{path} has not the form of SQuAD ({why}): write {{"data": [{{"paragraphs": [{{"context": …, '
    '"qas": [{"id": …, "question": …, "answers": [{"text": …, "answer_start": …}]}]}]}]}, or take '
    'config source=question_table for a table.'
  )
