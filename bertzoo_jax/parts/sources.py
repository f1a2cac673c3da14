"""Sources: how the files of a task are read."""

from typing import Annotated

from bertzoo_jax.parts import fields

FILES = Annotated[
  dict,
  '{split: file name in --task_dir, or hf:NAME[/CONFIG][@REVISION][:SPLIT], a split of a data '
  'set of Hugging Face, of a local folder or the hub}. `train` is learned. Splits whose name '
  "begins with `dev` are scored, those whose name begins with `test` are predicted. '' for none.",
]
COLUMN = Annotated[
  str,
  "names of columns, or their numbers from 0 for a table without a header; '' for none. label "
  'may be several names by comma (multilabel); example is the number of an example in a '
  'submission. JSON keys have dots between levels.',
]
TEXT = Annotated[str, "a column, or a text with columns in braces: 'Question: {question}'."]
HEADER = Annotated[bool, 'whether the first line names the columns.']
COLUMNS = Annotated[
  tuple,
  'names of the columns of files without a header; a file that begins with a header keeps its '
  'own names.',
]
SEPARATOR = Annotated[str, 'auto (tab for tsv and txt, comma for csv) | the character.']
QUOTES = fields.one_of(auto='csv has double ones, tsv has none', double='', single='', none='')
LEAVE_OUT = Annotated[tuple, "labels whose rows are left out ('-' in OCNLI and SNLI)."]
DEV_SHARE = Annotated[
  fields.SHARE_BELOW_1, 'share of the train split that becomes `dev` if there is no such file.'
]
STRATIFIED = Annotated[bool, 'whether dev_share is taken of the rows of each label.']
DATASET = Annotated[str, "name ('glue/rte')."]
SPLITS = Annotated[
  dict, "{split: split of the dataset, or DATASET:SPLIT of another one}; '' for none."
]
FEATURE = Annotated[str, 'names of features.']
DEV_PASSAGES = Annotated[
  fields.SHARE_BELOW_1,
  'share of the train passages whose questions become `dev` if there is no such split.',
]
QUESTION_COLUMN = Annotated[str, 'names of columns.']
CHOICE_COLUMN = Annotated[
  str, "names of columns; '' for none. Without a text, the question stands beside each option."
]
WORD_COLUMN = Annotated[
  fields.whole(-10_000, 10_000), 'numbers of columns from 0; −1 is the last one.'
]
SCHEME = Annotated[
  fields.one_of('auto', 'iob1', 'iob2', 'bioes', 'bilou', 'io', 'none'),
  'of the tags: auto | iob1 | iob2 | bioes | bilou | io | none (parts of speech). Tags that the '
  'scheme does not allow are counted and reported.',
]
CONVERT = Annotated[
  fields.one_of('', 'iob2', 'bioes', 'bilou'),
  "the scheme to convert the tags to: iob2 | bioes | bilou; '' for none.",
]
TAGS = Annotated[
  tuple,
  'all tags in order, to name tags that are numbers; () for the tags of train, and with a scheme '
  'all its prefixes of their types.',
]
DEV_SENTENCES = Annotated[
  fields.SHARE_BELOW_1, 'share of the train sentences that become `dev` if there is no such file.'
]
SEQUENCE = Annotated[str, 'names of features, each a sequence.']


@fields.part('table')
class Table:
  """Rows of a table: tsv, txt, csv, jsonl, json or parquet, by the end of the file's name.

  'NAME|NAME' is the first file or column that exists. 'NAME?' may be absent: a file, `example` or a
  column of `where`.
  """

  files: FILES
  text_a: TEXT
  text_b: TEXT = ''
  label: COLUMN = 'label'
  example: COLUMN = ''
  layout: fields.one_of(
    'rows',
    multirc='a row per answer',
    wic='the word in quotation marks',
    wsc='* noun *, # pronoun #',
  ) = 'rows'
  header: HEADER = True
  columns: COLUMNS = ()
  separator: SEPARATOR = 'auto'
  quotes: QUOTES = 'auto'
  labels: Annotated[
    tuple,
    "the labels in the order of their classes, 'NAME|NAME' if one has several spellings; () for "
    'those of the train split, sorted (by number if all are numbers).',
  ] = ()
  leave_out: LEAVE_OUT = ()
  where: Annotated[
    tuple,
    '((column, value), …): of a file that has the column, only rows with this value are read.',
  ] = ()
  dev_share: DEV_SHARE = 0.1
  stratified: STRATIFIED = False


@fields.part('text_tuples')
class TextTuples(Table):
  """Rows of a table: two texts and a score; or, without a label, a query, a positive, negatives."""

  negatives: Annotated[str, "names of the columns of negatives, by comma; '' for none."] = ''


@fields.part('tfds')
class Tfds:
  """A dataset of tensorflow-datasets, from --task_dir or its own folder."""

  dataset: DATASET
  splits: SPLITS
  text_a: FEATURE
  text_b: FEATURE = ''
  label: FEATURE = 'label'
  example: FEATURE = ''
  labels: Annotated[tuple, "names of the dataset's classes 0, 1, …; () for its own names."] = ()
  leave_out: LEAVE_OUT = ()
  dev_share: DEV_SHARE = 0.1
  stratified: STRATIFIED = False


@fields.part('squad')
class Squad:
  """Questions with answers in a passage: JSON as SQuAD, CMRC2018, DRCD and CJRC have it, or MRQA's
  JSON lines (.jsonl, .jsonl.gz).

  A wrong answer_start is mended where the passage has the answer elsewhere. A train question whose
  answer is nowhere in its passage is left out.
  """

  files: FILES
  leave_out: Annotated[
    tuple,
    'of `unanswerable` (questions without an answer) and `yes_no` (answers yes or no that are not '
    'in the passage).',
  ] = ()
  dev_share: DEV_PASSAGES = 0.1


@fields.part('question_table')
class QuestionTable:
  """Questions of a table, one per row; an empty answer means that the passage has none."""

  files: FILES
  question: QUESTION_COLUMN = 'question'
  context: QUESTION_COLUMN = 'context'
  answer: QUESTION_COLUMN = 'answer'
  answer_start: Annotated[
    str,
    'the column of the character, from 0, at which the answer begins; without it the first place '
    'of the answer is taken. NAME? may be absent.',
  ] = 'answer_start?'
  example: Annotated[str, 'the column of the id of a question. NAME? may be absent.'] = 'id?'
  header: HEADER = True
  columns: COLUMNS = ()
  separator: SEPARATOR = 'auto'
  quotes: QUOTES = 'auto'
  dev_share: DEV_PASSAGES = 0.1


@fields.part('choices')
class Choices:
  """Questions with options, one of which is right."""

  files: Annotated[
    dict,
    '{split: file name in --task_dir}, as for a table; or the name of a folder with files of RACE.',
  ]
  layout: Annotated[
    fields.one_of('auto', 'race', 'dream', 'mctest', 'copa', 'record', 'table'),
    'race (a JSON object per file: article, questions, options, answers) | dream (a JSON array of '
    'dialogues) | mctest (stories as text or as a table, with a file of answers, .ans, beside) | '
    "copa | record (SuperGLUE's JSON lines) | table (tsv, txt, csv, jsonl, json or parquet) | auto "
    '(by what the file begins with). The fields below are those of a table.',
  ] = 'auto'
  text: CHOICE_COLUMN = 'text'
  question: CHOICE_COLUMN = 'question'
  options: Annotated[
    str,
    'the columns of the options, with commas between; or one column that has lists of them (JSON, '
    'parquet). Empty options are left out.',
  ] = 'options'
  answers: Annotated[
    str, "a column with lists of all right options, of which train keeps the label's; '' for none."
  ] = ''
  label: CHOICE_COLUMN = 'label'
  example: CHOICE_COLUMN = ''
  label_form: Annotated[
    fields.one_of('auto', 'letter', 'from_0', 'from_1', 'text'),
    'form of the labels: letter (A is the first option) | from_0 | from_1 (numbers) | text (of '
    'the right option) | auto (the only one that fits all labels).',
  ] = 'auto'
  header: HEADER = True
  columns: COLUMNS = ()
  separator: SEPARATOR = 'auto'
  quotes: QUOTES = 'auto'
  dev_share: Annotated[
    fields.SHARE_BELOW_1,
    'share of the texts of the train split, so that all questions about one text stay together.',
  ] = 0.1


@fields.part('conll')
class Conll:
  """Sentences of tagged words: a word per line, its columns, and an empty line behind a sentence;
  or (jsonl, json, parquet) a row per sentence with a list of words and a list of tags.
  """

  files: Annotated[
    dict, '{split: file name in --task_dir}, as for a table. A test file may have words only.'
  ]
  word: WORD_COLUMN = 0
  tag: WORD_COLUMN = -1
  layout: Annotated[
    fields.one_of('auto', 'columns', 'conllu', 'table'),
    'columns | conllu (Universal Dependencies: comments, ranges of words and empty nodes are left '
    'out) | table (MSRA-NER: a sentence per line, its words and its tags, each with U+0002 '
    "between) | auto (conllu by the name's end, table by U+0002). Lines of -DOCSTART- are left "
    'out.',
  ] = 'auto'
  separator: Annotated[str, 'auto (tabs if most lines have one, else blanks) | the character.'] = (
    'auto'
  )
  prefix: Annotated[str, "start of words that is left out, as 'en:' in WikiANN's files."] = ''
  scheme: SCHEME = 'auto'
  convert: CONVERT = ''
  labels: TAGS = ()
  dev_share: DEV_SENTENCES = 0.1


@fields.part('tfds_tags')
class TfdsTags:
  """Tagged sentences of tensorflow-datasets."""

  dataset: DATASET
  splits: SPLITS
  words: SEQUENCE = 'tokens'
  tags: SEQUENCE = 'tags'
  scheme: SCHEME = 'auto'
  convert: CONVERT = ''
  labels: TAGS = ()
  dev_share: DEV_SENTENCES = 0.1
