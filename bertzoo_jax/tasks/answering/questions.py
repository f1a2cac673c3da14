"""Questions with answers in a passage, as they are read: SQuAD's JSON and files of its shape,
MRQA's JSON lines, tables.

An answer is a text and the character at which it begins. Where the passage has another text there,
the nearest place of the answer is taken. An answer that the passage does not have cannot be
learned.
"""

import collections
import dataclasses

from bertzoo_jax.common import errors
from bertzoo_jax.parts import sources as definitions
from bertzoo_jax.tasks.examples import UNLABELLED
from bertzoo_jax.tasks.examples import Source
from bertzoo_jax.tasks.examples import taken
from bertzoo_jax.tasks.reading import columns
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import tables

NOWHERE = (-1, -1)
_YES_NO = ('yes', 'no')
_UNANSWERABLE, _YES_OR_NO = 'unanswerable', 'yes_no'
LEAVE_OUT = (_UNANSWERABLE, _YES_OR_NO)
_COLUMNS = ('question', 'context', 'answer', 'answer_start', 'example')  # of a table


@dataclasses.dataclass(frozen=True)
class Questions:
  """The questions of one split, as read.

  Attributes:
    questions: their texts.
    contexts: the passage of each.
    answers: the right answers of each, () if the passage has none; None if the split has no
      answers.
    spans: (start, end) of an answer in the passage, in characters; NOWHERE without one.
    ids: how a submission calls each question.
    places: where each question is, for messages.
  """

  questions: list[str]
  contexts: list[str]
  answers: list[tuple[str, ...]] | None
  spans: list[tuple[int, int]]
  ids: list[str]
  places: list[str]
  take = taken

  def __len__(self):
    return len(self.questions)

  @property
  def keys(self) -> list[str]:
    """The keys that choose a dev share: all questions about a passage fall on the same side."""
    return self.contexts


def found(context: str, text: str, start: int) -> tuple[int, bool]:
  """(place at which an answer begins, whether that is `start`); the place is −1 if the passage does
  not have the answer.

  start: as a file says it, in characters. Of several places the one nearest to it is taken, of two
  as near the first; without a start (below 0), the first.
  """
  if text and start >= 0 and context.startswith(text, start):
    return start, True
  start = max(start, 0)
  after = context.find(text, start) if text else -1
  before = context.rfind(text, 0, start + len(text)) if text else -1
  if before < 0 or after < 0:
    return max(before, after), False
  return (before if start - before <= after - start else after), False


def squad(fields: definitions.Squad, task_dir) -> Source:
  """Questions of JSON files. Raises UserError if a file is missing, or is not of this shape."""
  if wrong := [x for x in fields.leave_out if x not in LEAVE_OUT]:
    raise errors.UserError(
      f'config.source.leave_out has {wrong[0]!r}: it may have {" and ".join(LEAVE_OUT)}.'
    )

  def read(path, split, digest):
    data = files.unpacked(files.bytes_of(path, digest, split), path)
    return _questions(_records(data, path), split, tuple(fields.leave_out), path)

  return files.source(task_dir, fields, read)


def table(fields: definitions.QuestionTable, task_dir) -> Source:
  """Questions of tables. Errors: see `squad`."""

  def read(path, split, digest):
    def choose(known):
      unlabelled = split.startswith('test')
      out = {}
      for field in _COLUMNS:
        names = getattr(fields, field)
        needed = field in ('question', 'context') or not (unlabelled or columns.is_optional(names))
        out[field] = columns.choose(field, names, known, path, needed)
      return {field: name for field, name in out.items() if name}

    got = tables.read(files.bytes_of(path, digest, split), path, choose, fields)
    texts = {field: got.texts(field) for field in _COLUMNS}
    rows = zip(*texts.values(), got.numbers)

    def records():
      for i, (question, context, answer, start, name, number) in enumerate(rows):
        answers, place = None, got.place(i)
        if 'answer' in got.columns:
          answers = [(answer, _start(start, place))] if answer.strip() else []
        yield _Record(question, context, answers, False, name.strip() or str(number), place)

    out, more = _questions(records(), split, (), path)
    return out, [*got.notes(split), *more]

  return files.source(task_dir, fields, read)


def learnable(train: Questions):
  """(the questions whose answer is in their passage, or that have none; notes). Raises UserError if
  there is none.
  """
  kept = [i for i, a in enumerate(train.answers) if not a or train.spans[i] != NOWHERE]
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


# --- files → records ---


@dataclasses.dataclass(frozen=True)
class _Record:
  """A question of a file. answers: [(text, start)] or None; right: further right texts."""

  question: str
  context: str
  answers: list[tuple[str, int]] | None
  impossible: bool
  id: str
  place: str
  right: tuple[str, ...] | None = None


def _records(data, path):
  """Yields the _Record of each question."""
  text = files.text(data, path)
  if path.name.removesuffix('.gz').endswith(('.jsonl', '.ndjson')):
    yield from _of_lines(text, path)
    return
  whole = files.json_of(text, path)
  whole = whole['data'] if isinstance(whole, dict) and 'data' in whole else whole
  if not isinstance(whole, list):
    raise _unlike(path)
  for number, entry in enumerate(whole):
    paragraphs = entry.get('paragraphs', [entry]) if isinstance(entry, dict) else None
    if not isinstance(paragraphs, list):
      raise _unlike(path)
    for paragraph in paragraphs:
      yield from _of_paragraph(paragraph, path, f'{path.name}, text {number + 1}')


def _of_lines(text, path):
  for number, line in enumerate(text.split('\n'), 1):
    if not line.strip():
      continue
    paragraph = files.json_of(line, f'{path}, line {number}', 'JSON object')
    if isinstance(paragraph, dict) and 'header' in paragraph and 'qas' not in paragraph:
      continue
    yield from _of_paragraph(paragraph, path, f'{path.name}, line {number}')


def _of_paragraph(paragraph, path, place):
  try:
    context = tables.as_text(_either(paragraph, 'context', 'context_text'), place)
    # a question and its passage in one object, as Hugging Face's datasets write them
    qas = [paragraph] if 'question' in paragraph else paragraph['qas']
    for number, qa in enumerate(qas, 1):
      where = f'{place}, question {number}'
      answers, right = _answers(qa, context, where)
      name = _either(qa, 'id', 'qid', 'query_id', default='')
      yield _Record(
        tables.as_text(_either(qa, 'question', 'query_text'), where),
        context,
        answers,
        str(qa.get('is_impossible', False)).lower() == 'true',
        tables.as_text(name, where),
        where,
        right,
      )
  except (KeyError, TypeError, ValueError, AttributeError) as e:
    raise _unlike(path, f'{place}: {type(e).__name__} {e}') from e


def _answers(qa, context, where):
  """(answers, further right texts) of a question. Answers without a text are none."""
  if qa.get('detected_answers') is not None:
    answers = [
      (context[start : end + 1], start)
      for answer in qa['detected_answers']
      for start, end in answer['char_spans']
    ]
    right = tuple(tables.as_text(a, where) for a in qa.get('answers') or [])
    return answers, right or None
  answers, out = qa.get('answers'), []
  if answers is None:
    return None, None
  if isinstance(answers, dict) and isinstance(answers['text'], list):
    # {"text": […], "answer_start": […]}, as Hugging Face's datasets write a list of answers
    starts = answers.get('answer_start') or [None] * len(answers['text'])
    answers = [
      {'text': text, 'answer_start': start}
      for text, start in zip(answers['text'], starts, strict=True)
    ]
  elif isinstance(answers, str | dict):
    answers = [answers]
  elif not isinstance(answers, list):
    raise TypeError(f'its answers are {answers!r}')
  for answer in answers:
    if isinstance(answer, dict):
      out.append((tables.as_text(answer['text'], where), _start(answer.get('answer_start'), where)))
    else:
      out.append((tables.as_text(answer, where), -1))
  return [(text, start) for text, start in out if text.strip()], None


_NEEDED = object()


def _either(record, *names, default=_NEEDED):
  for name in names:
    if name in record:
      return record[name]
  if default is _NEEDED:
    raise KeyError(names[0])
  return default


def _start(value, where) -> int:
  """The number of a character; −1 where none is given."""
  if value is None or value == '':
    return -1
  with errors.unreadable(
    f'{where} has the answer_start {value!r}: give the number of the character, from 0, at which '
    'the answer begins'
  ):
    return int(float(value))


def _unlike(path, why='it is no list of texts with questions'):
  return errors.UserError(
    f'{path} has not the shape of SQuAD ({why}): write {{"data": [{{"paragraphs": [{{"context": …, '
    '"qas": [{"id": …, "question": …, "answers": [{"text": …, "answer_start": …}]}]}]}]}, or take '
    'config source=question_table for a table.'
  )


# --- records → questions ---


def _questions(records, split, leave_out, path):
  """(Questions, notes). Raises UserError for a file without questions."""
  counts, kept, contexts, first = collections.Counter(), [], {}, {}
  for number, r in enumerate(records):
    if split == UNLABELLED:
      r = dataclasses.replace(r, answers=None, impossible=False, right=None)
    starts = r.answers or []
    yes_no = any(s < 0 and t.strip().lower() in _YES_NO for t, s in starts)
    if yes_no and _YES_OR_NO in leave_out:
      counts[_YES_OR_NO] += 1
      continue
    unanswerable = r.impossible or r.answers is not None and not starts and not r.right
    if unanswerable and _UNANSWERABLE in leave_out:
      counts[_UNANSWERABLE] += 1
      continue
    right, span = _right(r, unanswerable, counts, first)
    context = contexts.setdefault(r.context, r.context)  # one text for all of its questions
    kept.append((r.question, context, right, span, r.id or str(number), r.place))
  if not kept:
    raise errors.UserError(
      f'{path} has no questions: copy the file again.'
      if not counts
      else f'{path} has no questions but those of config.source.leave_out: set '
      '--config.source.leave_out="()".'
    )
  columns = [list(column) for column in zip(*kept)]
  answered = [a is not None for a in columns[2]]
  if not all(answered):
    if any(answered) and not split.startswith('test'):
      raise errors.UserError(
        f'{columns[-1][answered.index(False)]} has no answers: write "answers": [] for a question '
        'that its passage does not answer.'
      )
    columns[2] = None
  return Questions(*columns), _notes(split, counts, first, columns)


def _right(r, unanswerable, counts, first):
  """(right answers or None, span) of a record."""
  if unanswerable:
    return (), NOWHERE
  if r.answers is None:
    return None, NOWHERE
  right = tuple(dict.fromkeys(r.right if r.right is not None else [t for t, _ in r.answers]))
  tried = [(text, *found(r.context, text, start), start) for text, start in r.answers]
  span = next(((at, at + len(text)) for text, at, *_ in tried if at >= 0), NOWHERE)
  if span == NOWHERE:
    counts['absent'] += 1
    first.setdefault('absent', r.place)
  elif any(at >= 0 and not same and start >= 0 for _, at, same, start in tried):
    counts['mended'] += 1
    first.setdefault('mended', r.place)
  return right, span


def _notes(split, counts, first, columns):
  notes = []
  if n := counts['mended']:
    notes.append(
      f'{split}: {n:,} questions have a wrong answer_start ({first["mended"]} is the first); the '
      'nearest place of the answer is taken.'
    )
  if n := counts['absent']:
    notes.append(
      f'{split}: {n:,} questions have no answer that is in the passage ({first["absent"]} is the '
      'first).'
    )
  if n := counts[_YES_OR_NO]:
    notes.append(f'{split}: {n:,} questions with the answer yes or no left out.')
  if n := counts[_UNANSWERABLE]:
    notes.append(f'{split}: {n:,} questions without an answer left out.')
  ids = columns[4]
  if len(set(ids)) < len(ids):
    notes.append(
      f'{split}: {len(ids) - len(set(ids)):,} questions have the id of another one; a submission '
      'has one answer for each id.'
    )
  return notes
