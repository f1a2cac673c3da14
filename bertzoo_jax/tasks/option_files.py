"""Questions with options, one of which is right: their examples, and files of them."""

import re
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import examples
from bertzoo_jax.tasks.reading import columns
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import tables

LACKING = 'label: write one, or name its column with --config.source.label.'
FORMS = ('letter', 'from_0', 'from_1', 'text')
_STORY = re.compile(r'^\*{10,}\s*$')
_QUESTION = re.compile(r'^\d+:\s*(?:one|multiple):\s*(.*)$')
_OPTION = re.compile(r'^([* ]?)\s*([A-Z])\)\s?(.*)$')
_PER_STORY = 4  # questions and options of MCTest
_LETTERS = tuple('ABCDEFGHIJKLMNOPQRSTUVWXYZ')


class Choice(NamedTuple):
  # text, question: '' for none
  text: str
  question: str
  options: list[str]  # two or more
  # label of the right option, as written; after `numbered` its number from 0
  label: str | int | None = None
  label_form: str = ''  # one of FORMS, in which the layout writes labels; '' for any
  answers: tuple[str, ...] = ()  # all right options, as texts; () for that of the label
  most: int = 0  # largest number of options of a question of the task
  form = 'choices'

  @property
  def key(self) -> str:
    """Questions about one text fall on the same side of a split."""
    return self.text or self.question


# --- layouts: reader.File → iterator ---


def choices(file):
  """The questions of a file of any layout."""
  layout = file.fields.layout
  return LAYOUTS[_layout(file) if layout == 'auto' else layout](file)


def _layout(file) -> str:
  head = files.text_of(file.data, file.path)[:200].lstrip()
  if head.startswith(b'*' * 10):
    return 'mctest'
  if head.startswith(b'[') and head[1:].lstrip().startswith(b'['):
    return 'dream'
  return 'race' if file.path.suffix == '.txt' and head.startswith(b'{') else 'table'


def _race(file):
  """A file of RACE: one JSON object with an article and its questions."""
  path, where = file.path, str(file.path)
  record = files.json_of(files.text(file.data, path), path)
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
  for i, (question, raw, answer) in enumerate(zip(questions, options, answers)):
    question = tables.as_text(question, where)
    raw, label = _options(raw, f'{path}, question {i + 1}'), tables.as_label(answer, where) or None
    value = Choice(article, question, raw, label, 'letter')
    yield examples.Record(f'question {i + 1}', f'{name}-{i}', value)


def _dream(file):
  """A file of DREAM: [[turns of a dialogue], [{question, choice, answer}, …], name], …."""
  path = file.path
  array = files.json_of(files.text(file.data, path), path)
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
      place = f'{name}, question {i + 1}'
      where = f'{path.name}, {place}'
      question, options = tables.as_text(one['question'], where), _options(one['choice'], where)
      label = tables.as_label(one.get('answer'), where) or None
      value = Choice(dialogue, question, options, label, 'text')
      yield examples.Record(place, f'{name}-{i}', value)


def _is_dialogue(entry) -> bool:
  return (
    isinstance(entry, list)
    and len(entry) == 3
    and all(isinstance(part, list) for part in entry[:2])
    and all(isinstance(one, dict) and {'question', 'choice'} <= one.keys() for one in entry[1])
  )


def _options(value, where) -> list[str]:
  """The options of a question of JSON. Raises UserError if they are no list."""
  if not isinstance(value, list):
    raise errors.UserError(f'{where} has the options {value!r}, which are no list: mend the file.')
  return [tables.as_text(option, where) for option in value]


def _mctest(file):
  """MCTest, as text or a table; right options are in a second file, or have an asterisk."""
  path = file.path
  beside = path.parent / f'{path.stem}.ans'
  answers = []
  if beside.exists():
    content = files.text_of(files.bytes_of(beside, file.digest), beside)
    answers = [line.split() for _, line in files.lines_of(content, beside) if line.strip()]
  data = files.text_of(file.data, path)
  is_table = not data.lstrip().startswith(b'*')
  stories = _stories_of_table(data, path) if is_table else _stories_of_text(data, path)
  if answers and len(answers) != len(stories):
    raise errors.UserError(
      f'{beside} has {len(answers)} lines, and {path} has {len(stories)} stories: copy both again.'
    )
  apart = 0
  for number, (name, line, story, questions) in enumerate(stories):
    if answers and len(answers[number]) != len(questions):
      raise errors.UserError(
        f'{beside}, line {number + 1} has {len(answers[number])} answers, and its story has '
        f'{len(questions)} questions: copy both files again.'
      )
    for i, (question, options, starred) in enumerate(questions):
      letter = starred = None if starred is None else _LETTERS[starred]
      if answers:
        letter = answers[number][i].upper()
        if letter not in _LETTERS[: len(options)]:
          raise errors.UserError(
            f'{beside}, line {number + 1} has the answer {letter!r}, which is not one of '
            f'the {len(options)} options of question {i + 1}: copy it again.'
          )
        apart += starred not in (None, letter)
      value = Choice(story, question, options, letter, 'letter')
      yield examples.Record(f'line {line}, question {i + 1}', f'{name}-{i}', value)
  if apart:
    yield f'{path.name}: {apart:,} asterisks are not at the option of {beside.name}.'


def _stories_of_text(data, path):
  """[[name, line, story, [[question, options, number of the one with an asterisk or None]]]]."""
  out, in_head = [], False
  for number, line in files.lines_of(data, path):
    if _STORY.match(line):
      out.append([str(len(out)), number, '', []])
      in_head = True
    elif in_head:
      in_head = bool(line.strip())
      if line.startswith('Story:'):
        out[-1][0] = line.partition(':')[2].strip()
    elif out:
      questions = out[-1][3]
      if match := _QUESTION.match(line):
        questions.append([match[1].strip(), [], None])
      elif not questions:
        out[-1][2] = f'{out[-1][2]}\n{line.strip()}'.strip()
      elif match := _OPTION.match(line):
        if match[1] == '*' and questions[-1][2] is None:
          questions[-1][2] = len(questions[-1][1])
        questions[-1][1].append(match[3].strip())
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


def _table(file):
  fields, path, is_test = file.fields, file.path, file.split.startswith('test')
  named = [name.strip() for name in fields.options.split(',') if name.strip()]

  def choose(known):
    names = ('text', 'question', 'example', 'label', 'answers')
    names = names[: 3 if file.split == examples.UNLABELLED else 5]
    out = columns.chosen(fields, names, known, path, ('label', 'answers') if is_test else ())
    if not named:
      raise errors.UserError(
        'config.source.options is empty: name the columns of the options, '
        '--config.source.options=NAME,NAME, or the one that has a list of them.'
      )
    return out | {('option', n): columns.choose('options', n, known, path) for n in named}

  def choice(row):
    keys = [('option', name) for name in named]
    # a single column has lists
    options = list(map(row.text, keys)) if len(keys) > 1 else row.text(keys[0], _as_list)
    label = row.text('label', tables.as_label).strip() or None
    answers = tuple(row.text('answers', _as_list)) if 'answers' in row.values else ()
    value = Choice(row.text('text'), row.text('question'), options, label, '', answers)
    return examples.Record(row.place, row.text('example').strip() or None, value)

  return tables.records(file, choose, choice, fields)


def _as_list(value, where) -> list[str]:
  if not isinstance(value, list):
    raise errors.UserError(
      f'{where} has no list of options: name one column for each option, '
      '--config.source.options=NAME,NAME.'
    )
  return [tables.as_text(v, where) for v in value]


LAYOUTS = {'race': _race, 'dream': _dream, 'mctest': _mctest}
LAYOUTS |= dict.fromkeys(('table', 'copa', 'record'), _table)


# --- labels ---


def numbered(splits: dict[str, examples.Examples], form: str):
  """(splits, notes): labels as numbers, empty options left out.

  form: config.source.label_form.
  """
  records = [record for e in splits.values() for record in e.records]
  known = [r for r in records if r.value.label is not None and not r.value.label_form]
  form = _form(known) if form == 'auto' and known else form
  most = max(len(record.value.options) for record in records)

  def value(record, is_train):
    choice, label = record.value, None
    number = None if choice.label is None else _number(choice, form)
    others = choice.answers if is_train else ()
    kept = [
      i for i, x in enumerate(choice.options) if x.strip() and (i == number or x not in others)
    ]
    if len(kept) < 2:
      raise errors.UserError(f'{record.place} has {len(kept)} options: at least two are needed.')
    if choice.label is not None:
      if number not in kept:
        raise errors.UserError(
          f'{record.place} has the label {str(choice.label)!r}, which is not one of '
          f'its {len(kept)} options: correct it, or set --config.source.label_form to one of '
          f'{", ".join(FORMS)}.'
        )
      label = kept.index(number)
    return choice._replace(options=[choice.options[i] for i in kept], label=label, most=most)

  notes = [f'Labels are read as {form} (source.label_form).'] if known else []
  out = {n: e.changed(lambda r, n=n: value(r, n == examples.TRAIN)) for n, e in splits.items()}
  return out, notes


def _number(one: Choice, form):
  """The number of the right option; None if the label does not name one."""
  label, form = one.label, one.label_form or form
  if form == 'letter':
    letter = label.strip().upper()
    return ord(letter) - ord('A') if len(letter) == 1 else None
  if form == 'text':
    same = [i for i, option in enumerate(one.options) if option.strip() == label.strip()]
    return same[0] if same else None
  if not re.fullmatch(r'\d+(\.0)?', label):
    return None
  return int(float(label)) - (form == 'from_1')


def _form(known: list[examples.Record]) -> str:
  """The form of the labels of tables. Raises UserError if they could have two forms."""
  values = [record.value for record in known]
  reads = lambda one, form: (n := _number(one, form)) is not None and 0 <= n < len(one.options)
  fits = {form: sum(reads(one, form) for one in values) for form in FORMS}
  fitting = [form for form, fit in fits.items() if fit == len(known)]
  if fitting and len({tuple(_number(one, form) for one in values) for form in fitting}) == 1:
    return fitting[0]
  forms = f'set --config.source.label_form to one of {", ".join(FORMS)}'
  likely = max(fits, key=fits.get)
  if fitting or not fits[likely]:
    could = ' or '.join(fitting) or 'no option of their questions'
    raise errors.UserError(
      f'Labels as {values[0].label!r} ({known[0].place}) could be read as {could}: {forms}.'
    )
  place, _, odd = next(record for record in known if not reads(record.value, likely))
  raise errors.UserError(
    f'{place} has the label {odd.label!r}, which is not one of its {len(odd.options)} options, '
    f'while {fits[likely]:,} of {len(known):,} labels are read as {likely}: correct it, or {forms}.'
  )
