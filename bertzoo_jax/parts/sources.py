"""Sources: how the files of a task are read.

A field without an explanation means the same as in the nearest part above that explains it.
"""

from bertzoo_jax.parts import fields


@fields.section
def table(
  *,
  files: dict,
  text_a: str,
  text_b: str = '',
  label: str = 'label',
  example: str = '',
  header: bool = True,
  columns: tuple = (),
  separator: str = 'auto',
  quotes: fields.one_of('auto', 'double', 'single', 'none') = 'auto',
  labels: tuple = (),
  leave_out: tuple = (),
  where: tuple = (),
  dev_share: fields.SHARE_BELOW_1 = 0.1,
  stratified: bool = False,
):
  """Rows of a table: tsv, txt, csv, jsonl, json or parquet, by the end of the file's name.

  'NAME|NAME' is the first of these that exists, of files and of columns. 'NAME?' may be absent, of
  files, of `example` and of the columns of `where`.

  files: {split: file name in --task_dir, or hf:NAME[/CONFIG][@REVISION][:SPLIT], a split of a data
    set of Hugging Face, of a local folder or the hub}. `train` is learned. Splits whose name begins
    with `dev` are scored, those whose name begins with `test` are predicted. '' for none.
  text_a, text_b, label, example: names of columns, or their numbers from 0 for a table without a
    header; '' for none. label may be several names by comma (multilabel); example is the number of
    an example in a submission. JSON keys have dots between levels.
  header: whether the first line names the columns.
  columns: their names in files that have no such line; one that begins with a header is then read
    by its own names.
  separator: auto (tab for tsv and txt, comma for csv) | the character.
  quotes: auto (csv has double ones, tsv has none) | double | single | none.
  labels: the labels in the order of their classes, 'NAME|NAME' if one has several spellings; () for
    those of the train split, sorted (by number if all are numbers).
  leave_out: labels whose rows are left out ('-' in OCNLI and SNLI).
  where: ((column, value), …): of a file that has the column, only rows with this value are read.
  dev_share: of the train split, which becomes `dev` where there is no such file.
  stratified: whether this share is taken of the rows of each label.
  """


@fields.section
def tfds(
  *,
  dataset: str,
  splits: dict,
  text_a: str,
  text_b: str = '',
  label: str = 'label',
  example: str = '',
  labels: tuple = (),
  leave_out: tuple = (),
  dev_share: fields.SHARE_BELOW_1 = 0.1,
  stratified: bool = False,
):
  """A dataset of tensorflow-datasets, from --task_dir or its own folder.

  dataset: name ('glue/rte').
  splits: {split: split of the dataset, or DATASET:SPLIT of another one}; '' for none.
  text_a, text_b, label, example: names of features.
  labels: names of the dataset's classes 0, 1, …; () for those that it has.
  """


@fields.section
def squad(*, files: dict, leave_out: tuple = (), dev_share: fields.SHARE_BELOW_1 = 0.1):
  """Questions with answers in a passage: JSON as SQuAD, CMRC2018, DRCD and CJRC have it, or MRQA's
  JSON lines (.jsonl, .jsonl.gz).

  A wrong answer_start is mended where the passage has the answer elsewhere. A train question whose
  answer is nowhere in its passage is left out.

  leave_out: of `unanswerable` (questions without an answer) and `yes_no` (answers yes or no that
    are no part of the passage).
  dev_share: of the train passages, whose questions become `dev` where there is no such split.
  """


@fields.section
def question_table(
  *,
  files: dict,
  question: str = 'question',
  context: str = 'context',
  answer: str = 'answer',
  answer_start: str = 'answer_start?',
  example: str = 'id?',
  header: bool = True,
  columns: tuple = (),
  separator: str = 'auto',
  quotes: fields.one_of('auto', 'double', 'single', 'none') = 'auto',
  dev_share: fields.SHARE_BELOW_1 = 0.1,
):
  """Questions of a table, one per row; an empty answer means that the passage has none.

  question, context, answer: names of columns.
  answer_start: the column of the character, from 0, at which the answer begins; without it the
    first place of the answer is taken. NAME? may be absent.
  example: the column of the id of a question. NAME? may be absent.
  """


@fields.section
def choices(
  *,
  files: dict,
  layout: fields.one_of('auto', 'race', 'dream', 'mctest', 'table') = 'auto',
  text: str = 'text',
  question: str = 'question',
  options: str = 'options',
  label: str = 'label',
  example: str = '',
  label_form: fields.one_of('auto', 'letter', 'from_0', 'from_1', 'text') = 'auto',
  header: bool = True,
  columns: tuple = (),
  separator: str = 'auto',
  quotes: fields.one_of('auto', 'double', 'single', 'none') = 'auto',
  dev_share: fields.SHARE_BELOW_1 = 0.1,
):
  """Questions with options, one of which is right.

  files: {split: file name in --task_dir}, as of a table. A name may be that of a folder with files
    of RACE.
  layout: race (a JSON object per file: article, questions, options, answers) | dream (a JSON array
    of dialogues) | mctest (stories as text or as a table, with a file of answers, .ans, beside) |
    table (tsv, txt, csv, jsonl, json or parquet) | auto (by what the file begins with). The fields
    below are those of a table.
  text, question, label, example: names of columns; '' for none. Without a text, the question stands
    beside each option.
  options: the columns of the options, with commas between; or one column that has lists of them
    (JSON, parquet). Empty options are left out.
  label_form: form of the labels: letter (A is the first option) | from_0 | from_1 (numbers) | text
    (of the right option) | auto (the only one that fits all labels).
  dev_share: share of the texts of the train split, so that all questions about one text stay
    together.
  """


@fields.section
def conll(
  *,
  files: dict,
  word: fields.whole(-10_000, 10_000) = 0,
  tag: fields.whole(-10_000, 10_000) = -1,
  layout: fields.one_of('auto', 'columns', 'conllu', 'table') = 'auto',
  separator: str = 'auto',
  prefix: str = '',
  scheme: fields.one_of('auto', 'iob1', 'iob2', 'bioes', 'bilou', 'io', 'none') = 'auto',
  convert: fields.one_of('', 'iob2', 'bioes', 'bilou') = '',
  labels: tuple = (),
  dev_share: fields.SHARE_BELOW_1 = 0.1,
):
  """Sentences of tagged words: a word per line, its columns, and an empty line behind a sentence;
  or (jsonl, json, parquet) a row per sentence with a list of words and a list of tags.

  files: {split: file name in --task_dir}, as of a table. A test file may have words alone.
  word, tag: numbers of columns from 0; −1 is the last one.
  layout: columns | conllu (Universal Dependencies: comments, ranges of words and empty nodes are
    left out) | table (MSRA-NER: a sentence per line, its words and its tags, each with U+0002
    between) | auto (conllu by the name's end, table by U+0002). Lines of -DOCSTART- are left out.
  separator: auto (tabs if most lines have one, else blanks) | the character.
  prefix: start of words that is left out, as 'en:' in WikiANN's files.
  scheme: of the tags: auto | iob1 | iob2 | bioes | bilou | io | none (parts of speech). Tags that
    the scheme does not allow are counted and said.
  convert: the scheme to convert the tags to: iob2 | bioes | bilou; '' for none.
  labels: all tags in order, which name tags that are numbers; () for those of train, and of a
    scheme all prefixes of its types.
  dev_share: of the train sentences, which become `dev` where there is no such file.
  """


@fields.section
def tfds_tags(
  *,
  dataset: str,
  splits: dict,
  words: str = 'tokens',
  tags: str = 'tags',
  scheme: fields.one_of('auto', 'iob1', 'iob2', 'bioes', 'bilou', 'io', 'none') = 'auto',
  convert: fields.one_of('', 'iob2', 'bioes', 'bilou') = '',
  labels: tuple = (),
  dev_share: fields.SHARE_BELOW_1 = 0.1,
):
  """Tagged sentences of tensorflow-datasets.

  words, tags: names of features, each a sequence.
  """


__all__ = fields.sections(vars())
