"""Questions with options, one of which is right: their examples, and the files with them."""

import dataclasses
import os
import re
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.parts import sources as definitions
from bertzoo_jax.tasks.examples import UNLABELLED
from bertzoo_jax.tasks.examples import Source
from bertzoo_jax.tasks.examples import taken
from bertzoo_jax.tasks.reading import columns
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import tables

FORMS = ('letter', 'from_0', 'from_1', 'text')
_STORY = re.compile(r'^\*{10,}\s*$')
_QUESTION = re.compile(r'^\d+:\s*(?:one|multiple):\s*(.*)$')
_OPTION = re.compile(r'^([* ]?)\s*([A-Z])\)\s?(.*)$')
_PER_STORY = 4  # questions and options of MCTest
_LETTERS = tuple('ABCDEFGHIJKLMNOPQRSTUVWXYZ')


@dataclasses.dataclass(frozen=True)
class Choices:
  """The questions of one split, as read.

  Attributes:
    texts: the text of each question; '' for none.
    questions: '' for none.
    options: of each question, two or more.
    labels: number of the right option from 0; None if the split has none.
    ids: name of each question.
    places: where each one is, for messages ('FILE, line 7').
    most: options of a question of the task, at most.
  """

  texts: list[str]
  questions: list[str]
  options: list[list[str]]
  labels: list[int] | None
  ids: list[str]
  places: list[str]
  most: int = 0
  take = taken

  def __len__(self):
    return len(self.texts)

  @property
  def keys(self) -> list[str]:
    """The text of each question: questions about one text fall on the same side of a split."""
    return [text or question for text, question in zip(self.texts, self.questions)]


class _Read(NamedTuple):
  """A question as written. label: of the right option, None without; form: of FORMS, how the layout
  writes labels, '' if it does not say.
  """

  text: str
  question: str
  options: list[str]
  label: str | None
  id: str
  place: str
  form: str = ''


def choices(fields: definitions.Choices, task_dir) -> Source:
  """Files of questions with options. Raises UserError for one that is not as the config says."""

  def read(path, split, digest):
    if path.is_dir():
      return _race_folder(path, split, digest), []
    data = files.bytes_of(path, digest, split)
    layout = _layout(data, path) if fields.layout == 'auto' else fields.layout
    if layout == 'table':
      return _table(data, path, split, fields)
    if layout == 'mctest':
      return _mctest(data, path, digest)
    return (_race if layout == 'race' else _dream)(data, path), []

  def finish(found):
    for split, own in found.items():
      if not own:
        raise errors.UserError(f'The {split} file has no questions: copy it again.')
    return _labelled(found, fields.label_form)

  source = files.source(task_dir, fields, read, finish, folders=True, label_columns=('label',))

  def predicted(path):
    own = {UNLABELLED: [one._replace(label=None) for one in source.read(path)]}
    made = _labelled(own, fields.label_form)[0][UNLABELLED]
    most = max([made.most, *(s.most for s in source.splits.values())])
    return dataclasses.replace(made, most=most)

  return dataclasses.replace(source, read=predicted)


def _layout(data, path) -> str:
  head = files.text_of(data, path)[:200].lstrip()
  if head.startswith(b'*' * 10):
    return 'mctest'
  if head.startswith(b'[') and head[1:].lstrip().startswith(b'['):
    return 'dream'
  return 'race' if path.suffix == '.txt' and head.startswith(b'{') else 'table'


# --- the layouts ---


def _race_folder(folder, split, digest) -> list[_Read]:
  """All files of RACE in a folder and the folders in it, in the order of their names' numbers."""
  names = []
  for inside, _, own in os.walk(str(folder)):
    names += [storage.path(os.path.join(inside, name)) for name in own if name.endswith('.txt')]
  number = lambda p: int(re.sub(r'\D', '', p.stem) or 0)
  out = []
  for path in sorted(names, key=lambda p: (str(p.parent), number(p), p.name)):
    out += _race(files.bytes_of(path, digest, f'{split} {path.name}'), path)
  return out


def _race(data, path) -> list[_Read]:
  """A file of RACE: one JSON object with an article and its questions."""
  record, where = files.json_of(files.text(data, path), path), str(path)
  if not isinstance(record, dict):
    raise errors.UserError(f'{path} holds no JSON object: it is no file of RACE; copy it again.')
  for key in ('article', 'questions', 'options'):
    if key not in record or key != 'article' and not isinstance(record[key], list):
      raise errors.UserError(
        f'{path} has no {key!r}{"" if key == "article" else ", a list"}: it is no file of RACE; '
        'copy it again.'
      )
  article = tables.as_text(record['article'], where)
  questions, options = record['questions'], record['options']
  answers = record.get('answers') or [None] * len(questions)
  if not len(questions) == len(options) == len(answers):
    raise errors.UserError(
      f'{path} has {len(questions)} questions, {len(options)} lists of options and {len(answers)} '
      'answers: copy it again.'
    )
  name = tables.as_text(record.get('id') or path.name, where).removesuffix('.txt')
  return [
    _Read(
      article,
      tables.as_text(question, where),
      _options(own, f'{path}, question {i + 1}'),
      tables.as_label(answer, where) or None,
      f'{name}-{i}',
      f'{path.name}, question {i + 1}',
      'letter',
    )
    for i, (question, own, answer) in enumerate(zip(questions, options, answers))
  ]


def _dream(data, path) -> list[_Read]:
  """A file of DREAM: [[turns of a dialogue], [{question, choice, answer}, …], name], …."""
  out = []
  array = files.json_of(files.text(data, path), path)
  for number, entry in enumerate(array if isinstance(array, list) else [None], 1):
    if not _is_dialogue(entry):
      raise errors.UserError(
        f'{path}, dialogue {number} has not the shape of DREAM, [[turns], [{{"question": …, '
        '"choice": […], "answer": …}], name]: copy the file again, or set '
        '--config.source.layout=table for a table of your own.'
      )
    turns, questions, name = entry
    dialogue = '\n'.join(tables.as_text(turn, f'{path}, {name}') for turn in turns)
    for i, one in enumerate(questions):
      where = f'{path.name}, {name}, question {i + 1}'
      out.append(
        _Read(
          dialogue,
          tables.as_text(one['question'], where),
          _options(one['choice'], where),
          tables.as_label(one.get('answer'), where) or None,
          f'{name}-{i}',
          where,
          'text',
        )
      )
  return out


def _is_dialogue(entry) -> bool:
  return (
    isinstance(entry, list)
    and len(entry) == 3
    and all(isinstance(part, list) for part in entry[:2])
    and all(isinstance(one, dict) and {'question', 'choice'} <= one.keys() for one in entry[1])
  )


def _options(own, where) -> list[str]:
  """The options of a question of JSON. Raises UserError if they are no list."""
  if not isinstance(own, list):
    raise errors.UserError(f'{where} has the options {own!r}, which are no list: mend the file.')
  return [tables.as_text(option, where) for option in own]


def _mctest(data, path, digest):
  """MCTest, as text or as a table; right options are in a file beside it, or have an asterisk."""
  beside = path.parent / f'{path.stem}.ans'
  answers = []
  if beside.exists():
    own = files.text_of(files.bytes_of(beside, digest), beside)
    answers = [line.split() for _, line in files.lines_of(own, beside) if line.strip()]
  data = files.text_of(data, path)
  is_table = not data.lstrip().startswith(b'*')
  stories = _stories_of_table(data, path) if is_table else _stories_of_text(data, path)
  if answers and len(answers) != len(stories):
    raise errors.UserError(
      f'{beside} has {len(answers)} lines, and {path} has {len(stories)} stories: copy both again.'
    )
  out, notes, apart = [], [], 0
  for number, (name, place, story, questions) in enumerate(stories):
    if answers and len(answers[number]) != len(questions):
      raise errors.UserError(
        f'{beside}, line {number + 1} has {len(answers[number])} answers, and its story has '
        f'{len(questions)} questions: copy both files again.'
      )
    for i, (question, options, starred) in enumerate(questions):
      label = starred
      if answers:
        letter = answers[number][i].upper()
        if letter not in _LETTERS[: len(options)]:
          raise errors.UserError(
            f'{beside}, line {number + 1} has the answer {letter!r}, which is none of the '
            f'{len(options)} options of question {i + 1}: copy it again.'
          )
        label = _LETTERS.index(letter)
        apart += starred is not None and starred != label
      letter = None if label is None else _LETTERS[label]
      at = f'{path.name}, line {place}, question {i + 1}'
      out.append(_Read(story, question, options, letter, f'{name}-{i}', at, 'letter'))
  if apart:
    notes.append(f'{path.name}: {apart:,} asterisks are not at the option of {beside.name}.')
  return out, notes


def _stories_of_text(data, path):
  """[(name, line, story, [(question, options, number of the one with an asterisk or None)])]."""
  blocks = []
  for number, line in files.lines_of(data, path):
    if _STORY.match(line):
      blocks.append((number, []))
    elif blocks:
      blocks[-1][1].append(line)
  out = []
  for number, lines in blocks:
    head = next((i for i, line in enumerate(lines) if not line.strip()), len(lines))
    name = next(
      (x.partition(':')[2].strip() for x in lines[:head] if x.startswith('Story:')), str(len(out))
    )
    story, questions = [], []
    for line in lines[head:]:
      if found := _QUESTION.match(line):
        questions.append((found[1].strip(), [], []))
      elif questions and (found := _OPTION.match(line)):
        if found[1] == '*':
          questions[-1][2].append(len(questions[-1][1]))
        questions[-1][1].append(found[3].strip())
      elif not questions:
        story.append(line)
    text = re.sub(r'\n{2,}', '\n', '\n'.join(line.strip() for line in story)).strip()
    own = [(q, options, starred[0] if starred else None) for q, options, starred in questions]
    out.append((name, number, text, own))
  return out


def _stories_of_table(data, path):
  """As _stories_of_text: name, properties, story, then four times a question and four options."""
  out, wanted = [], 3 + _PER_STORY * (1 + _PER_STORY)
  for number, line in files.lines_of(data, path):
    if not line.strip():
      continue
    fields = line.split('\t')
    if len(fields) != wanted:
      raise errors.UserError(
        f'{path}, line {number} has {len(fields)} columns, and a line of MCTest has {wanted}: copy '
        'the file again, or set --config.source.layout=table for a table of your own.'
      )
    text = fields[2].replace('\\newline', '\n').replace('\\tab', ' ')
    questions = []
    for at in range(3, wanted, 1 + _PER_STORY):
      question = re.sub(r'^(one|multiple):\s*', '', fields[at].strip())
      questions.append((question, [f.strip() for f in fields[at + 1 : at + 1 + _PER_STORY]], None))
    out.append((fields[0], number, text.strip(), questions))
  return out


def _table(data, path, split, fields):
  """A table of one's own."""
  named = [name.strip() for name in fields.options.split(',') if name.strip()]

  def choose(known):
    out = {}
    for field in ('text', 'question', 'label', 'example'):
      names = getattr(fields, field) if field != 'label' or split != UNLABELLED else ''
      needed = not columns.is_optional(names) and (field != 'label' or not split.startswith('test'))
      out[field] = columns.choose(field, names, known, path, needed)
    if not named:
      raise errors.UserError(
        'config.source.options is empty: name the columns of the options, '
        '--config.source.options=NAME,NAME, or the one that has a list of them.'
      )
    out |= {('option', n): columns.choose('options', n, known, path) for n in named}
    return {key: name for key, name in out.items() if name}

  got = tables.read(data, path, choose, fields)
  if len(named) == 1:  # it has lists
    options = got.texts(('option', named[0]), _as_list)
  else:
    options = zip(*(got.texts(('option', name)) for name in named))
  labels = [label.strip() or None for label in got.texts('label', tables.as_label)]
  names = [name.strip() or str(n) for name, n in zip(got.texts('example'), got.numbers)]
  places = [got.place(i) for i in range(len(got))]
  rows = zip(got.texts('text'), got.texts('question'), map(list, options), labels, names, places)
  return [_Read(*row) for row in rows], got.notes(split)


def _as_list(value, where) -> list[str]:
  if not isinstance(value, list):
    raise errors.UserError(
      f'{where} has no list of options: name one column for each option, '
      '--config.source.options=NAME,NAME.'
    )
  return [tables.as_text(v, where) for v in value]


# --- labels ---


def _labelled(found: dict[str, list[_Read]], form: str):
  """({split: Choices}, notes): labels as numbers, empty options left out."""
  known = [one for own in found.values() for one in own if one.label is not None and not one.form]
  form = _form(known) if form == 'auto' and known else form
  splits, notes = {}, []
  most = max(len(one.options) for own in found.values() for one in own)
  for name, own in found.items():
    labelled = all(one.label is not None for one in own)
    if not labelled and not name.startswith('test'):
      lacking = next(one for one in own if one.label is None)
      raise errors.UserError(
        f'{lacking.place} has no label: write one, or name its column with --config.source.label.'
      )
    labels, options = [], []
    for one in own:
      there = [i for i, option in enumerate(one.options) if option.strip()]
      if len(there) < 2:
        raise errors.UserError(f'{one.place} has {len(there)} options: at least two are needed.')
      options.append([one.options[i] for i in there])
      if labelled:
        number = _number(one, form)
        if number not in there:
          raise errors.UserError(
            f'{one.place} has the label {str(one.label)!r}, which is none of its '
            f'{len(there)} options: mend it, or set --config.source.label_form to one of '
            f'{", ".join(FORMS)}.'
          )
        labels.append(there.index(number))
    splits[name] = Choices(
      [one.text for one in own],
      [one.question for one in own],
      options,
      labels if labelled else None,
      [one.id for one in own],
      [one.place for one in own],
      most,
    )
  if known:
    notes.append(f'Labels are read as {form} (source.label_form).')
  return splits, notes


def _number(one: _Read, form):
  """The number of the right option; None if the label is none."""
  label, form = one.label, one.form or form
  if form == 'letter':
    letter = label.strip().upper()
    return ord(letter) - ord('A') if len(letter) == 1 else None
  if form == 'text':
    same = [i for i, option in enumerate(one.options) if option.strip() == label.strip()]
    return same[0] if same else None
  if not re.fullmatch(r'\d+(\.0)?', label):
    return None
  return int(float(label)) - (form == 'from_1')


def _form(known: list[_Read]) -> str:
  """The form of the labels of tables. Raises UserError if they could have two forms."""
  reads = lambda one, form: (n := _number(one, form)) is not None and 0 <= n < len(one.options)
  fits = {form: sum(reads(one, form) for one in known) for form in FORMS}
  fitting = [form for form, fit in fits.items() if fit == len(known)]
  if len(fitting) == 1:
    return fitting[0]
  if fitting and len({tuple(_number(one, form) for one in known) for form in fitting}) == 1:
    return fitting[0]
  forms = f'set --config.source.label_form to one of {", ".join(FORMS)}'
  likely = max(fits, key=fits.get)
  if fitting or not fits[likely]:
    odd, could = known[0], ' or '.join(fitting) or 'no option of their questions'
    raise errors.UserError(
      f'Labels as {odd.label!r} ({odd.place}) could be read as {could}: {forms}.'
    )
  odd = next(one for one in known if not reads(one, likely))
  raise errors.UserError(
    f'{odd.place} has the label {odd.label!r}, which is none of its {len(odd.options)} options, '
    f'while {fits[likely]:,} of {len(known):,} labels are read as {likely}: mend it, or {forms}.'
  )
