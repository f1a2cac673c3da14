"""Questions with options, one of which is right: their examples, and the files with them."""

import dataclasses
import hashlib
import json
import os
import re
from typing import Any
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.tasks import places
from bertzoo_jax.tasks import rows
from bertzoo_jax.tasks import tables
from bertzoo_jax.tasks.columns import OPTIONAL
from bertzoo_jax.tasks.examples import Source

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
    texts: what each question is about; '' for nothing.
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

  def __len__(self):
    return len(self.texts)

  @property
  def keys(self) -> list[str]:
    """What each question is about: questions about one text fall on the same side of a split."""
    return [text or question for text, question in zip(self.texts, self.questions)]

  def take(self, indices) -> 'Choices':
    """The questions with these indices."""
    kept = {
      field.name: values and [values[i] for i in indices]
      for field in dataclasses.fields(self)
      if field.name != 'most'
      for values in [getattr(self, field.name)]
    }
    return Choices(**kept, most=self.most)


class _Read(NamedTuple):
  """A question as written. label: a number, or what stands for it; None without."""

  text: str
  question: str
  options: list[str]
  label: Any
  id: str
  place: str


def choices(
  task_dir,
  *,
  files,
  layout,
  text,
  question,
  options,
  label,
  example,
  label_form,
  header,
  columns,
  separator,
  quotes,
  dev_share,
) -> Source:
  """Files of questions with options.

  Args:
    task_dir: the folder of the files; '' for the current folder.

  Raises:
    UserError: a file, column, label or encoding is not as the config says.
  """
  names = dict(text=text, question=question, options=options, example=example)
  form = dict(header=header, columns=tuple(columns), separator=separator, quotes=quotes)
  found, notes, digest = {}, [], hashlib.sha256()
  for split, path in places.of(task_dir, dict(files), folders=True).items():
    if path is None:
      notes.append(places.absent(split, task_dir))
      continue
    own = _of_path(path, split, layout, {**names, 'label': label}, form, digest)
    found[split], more = own
    notes += more
    if not found[split]:
      raise errors.UserError(f'{path} has no questions: copy it again.')
  splits, more = _labelled(found, label_form)

  def read(path) -> Choices:
    own, _ = _of_path(
      storage.path(path), 'test', layout, {**names, 'label': ''}, form, hashlib.sha256()
    )
    unlabelled = {'test': [one._replace(label=None) for one in own]}
    made = _labelled(unlabelled, label_form)[0]['test']
    most = max(made.most, *(s.most for s in splits.values()))
    return dataclasses.replace(made, most=most)

  return Source(
    splits, (), ('label',), (), dev_share, digest.hexdigest(), tuple(notes + more), read
  )


def _of_path(path, split, layout, names, form, digest):
  """(questions of a file or of all files of a folder, notes)."""
  if path.is_dir():
    return _race_folder(path, split, digest), []
  data = tables.bytes_of(path)
  digest.update(f'{split} {len(data)} '.encode() + data)
  layout = _layout(data, path) if layout == 'auto' else layout
  if layout == 'race':
    return _race(data, path), []
  if layout == 'dream':
    return _dream(data, path), []
  if layout == 'mctest':
    return _mctest(data, path, digest)
  return _table(data, path, split, names, form)


def _layout(data, path) -> str:
  head = rows.text_of(data, path)[:200].lstrip()
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
    data = tables.bytes_of(path)
    digest.update(f'{split} {path.name} {len(data)} '.encode() + data)
    out += _race(data, path)
  return out


def _race(data, path) -> list[_Read]:
  """A file of RACE: one JSON object with an article and its questions."""
  record, where = _json(data, path), str(path)
  if not isinstance(record, dict):
    raise errors.UserError(f'{path} holds no JSON object: it is no file of RACE; copy it again.')
  for key in ('article', 'questions', 'options'):
    if key not in record or key != 'article' and not isinstance(record[key], list):
      raise errors.UserError(
        f'{path} has no {key!r}{"" if key == "article" else ", a list"}: it is no file of RACE; '
        'copy it again.'
      )
  article = rows.as_text(record['article'], where)
  questions, options = record['questions'], record['options']
  answers = record.get('answers') or [None] * len(questions)
  if not len(questions) == len(options) == len(answers):
    raise errors.UserError(
      f'{path} has {len(questions)} questions, {len(options)} lists of options and {len(answers)} '
      'answers: copy it again.'
    )
  name = rows.as_text(record.get('id') or path.name, where).removesuffix('.txt')
  return [
    _Read(
      article,
      rows.as_text(question, where),
      _options(own, f'{path}, question {i + 1}'),
      None if answer in (None, '') else _Letter(answer),
      f'{name}-{i}',
      f'{path.name}, question {i + 1}',
    )
    for i, (question, own, answer) in enumerate(zip(questions, options, answers))
  ]


def _dream(data, path) -> list[_Read]:
  """A file of DREAM: [[turns of a dialogue], [{question, choice, answer}, …], name], …."""
  out = []
  array = _json(data, path)
  for number, entry in enumerate(array if isinstance(array, list) else [None], 1):
    if not _is_dialogue(entry):
      raise errors.UserError(
        f'{path}, dialogue {number} has not the shape of DREAM, [[turns], [{{"question": …, '
        '"choice": […], "answer": …}], name]: copy the file again, or set '
        '--config.source.layout=table for a table of your own.'
      )
    turns, questions, name = entry
    dialogue = '\n'.join(rows.as_text(turn, f'{path}, {name}') for turn in turns)
    for i, one in enumerate(questions):
      where = f'{path.name}, {name}, question {i + 1}'
      out.append(
        _Read(
          dialogue,
          rows.as_text(one['question'], where),
          _options(one['choice'], where),
          _Text(rows.as_text(one['answer'], where)) if one.get('answer') else None,
          f'{name}-{i}',
          where,
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
  return [rows.as_text(option, where) for option in own]


def _mctest(data, path, digest):
  """MCTest, as text (stories between lines of asterisks) or as a table without a header. The right
  options stand in a file beside it with the end .ans, or have an asterisk.
  """
  beside = path.parent / f'{path.stem}.ans'
  answers = []
  if beside.exists():
    own = tables.bytes_of(beside)
    digest.update(own)
    answers = [line.split() for _, line in rows.lines_of(rows.text_of(own, beside), beside)]
    answers = [line for line in answers if line]
  data = rows.text_of(data, path)
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
      if label is not None:
        label = _LETTERS[label]
      out.append(
        _Read(
          story,
          question,
          options,
          None if label is None else _Letter(label),
          f'{name}-{i}',
          f'{path.name}, line {place}, question {i + 1}',
        )
      )
  if apart:
    notes.append(f'{path.name}: {apart:,} asterisks are not at the option of {beside.name}.')
  return out, notes


def _stories_of_text(data, path):
  """[(name, line, story, [(question, options, number of the one with an asterisk or None)])]."""
  blocks = []
  for number, line in rows.lines_of(data, path):
    if _STORY.match(line):
      blocks.append((number, []))
    elif blocks:
      blocks[-1][1].append(line)
  out = []
  for number, lines in blocks:
    head = next((i for i, line in enumerate(lines) if not line.strip()), len(lines))
    name = next(
      (x.partition(':')[2].strip() for x in lines[:head] if x.startswith('Story:')),
      str(len(out)),
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
  for number, line in rows.lines_of(data, path):
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


def _table(data, path, split, names, form):
  """A table of one's own."""
  chosen = {}
  of_options = [name.strip() for name in names['options'].split(',') if name.strip()]

  def wanted(known):
    out = []
    for field in ('text', 'question', 'label', 'example'):
      name = names[field].removesuffix(OPTIONAL)
      if name and name in known:
        chosen[field] = name
        out.append(name)
      elif name and name == names[field] and not (field == 'label' and split.startswith('test')):
        raise _no_column(field, name, known, path)
    for name in of_options:
      if name not in known:
        raise _no_column('options', name, known, path)
    if not of_options:
      raise errors.UserError(
        'config.source.options is empty: name the columns of the options, '
        '--config.source.options=NAME,NAME, or the one that has a list of them.'
      )
    return list(dict.fromkeys([*out, *of_options]))

  # a single column has lists
  got = rows.read(data, path, wanted, lists=of_options if len(of_options) == 1 else (), **form)
  column = lambda field, i: got.values[chosen[field]][i] if field in chosen else ''
  out = []
  for i, number in enumerate(got.numbers):
    place = f'{path.name}, {got.unit} {got.places[i]}'
    options = [got.values[name][i] for name in of_options]
    if len(of_options) == 1:
      options = options[0]
      if not isinstance(options, list):
        raise errors.UserError(
          f'{place}: the column {of_options[0]!r} has no list of options: name one column for each '
          'option, --config.source.options=NAME,NAME.'
        )
    label = column('label', i)
    out.append(
      _Read(
        column('text', i),
        column('question', i),
        options,
        label.strip() if 'label' in chosen and label.strip() else None,
        column('example', i).strip() or str(number),
        place,
      )
    )
  return out, [
    f'{split}: {many:,} {got.unit}{"s" if many > 1 else ""} of {path.name} {reason} left out, the '
    f'first is {got.unit} {place}.'
    for reason, (many, place) in got.left_out.items()
  ]


def _no_column(field, name, known, path):
  return errors.UserError(
    f'config.source.{field} names the column {name!r}, and {path} has '
    f'{", ".join(map(repr, list(known)[:50]))}.{errors.did_you_mean(name, known, listed=True)} Set '
    f'--config.source.{field} to one of them.'
  )


def _json(data, path):
  try:
    return json.loads(rows.text(data, path))
  except (ValueError, RecursionError) as e:
    raise errors.UserError(f'{path} holds no JSON ({e}): mend or copy the file.') from e


# --- labels ---


class _Letter(str):
  """A label that is a letter, whatever the options are."""


class _Text(str):
  """A label that is the text of an option."""


def _labelled(found: dict[str, list[_Read]], form: str):
  """({split: Choices}, notes): labels as numbers, empty options left out."""
  known = [one for own in found.values() for one in own if type(one.label) is str]
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
  label = one.label
  form = {_Letter: 'letter', _Text: 'text'}.get(type(label), form)
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
  """What labels of tables are. Raises UserError where they could be two things."""
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
