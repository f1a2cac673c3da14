"""One constructor per named part of a fine-tuning config, and the config itself.

As configs/parts.py: a constructor returns a section with all fields of the part. Nothing here
imports a framework.
"""

import ml_collections
from bertzoo_jax.configs.parts import _part

from bertzoo_jax.configs import parts

# --- source: how the files of a task are read ---


def table(
  *,
  files,
  text_a,
  text_b='',
  label='label',
  example='',
  header=True,
  columns=(),
  separator='auto',
  quotes='auto',
  labels=(),
  leave_out=(),
  where=(),
  dev_share=0.1,
):
  """Rows of a table: tsv, txt, csv, jsonl, json or parquet, by the end of the file's name.

  'NAME|NAME' is the first of these that exists, of files and of columns. 'NAME?' may be absent, of
  files, of `example` and of the columns of `where`.

  files: {split: file name in --task_dir}. `train` is learned. Splits whose name begins with `dev`
    are scored, those whose name begins with `test` are predicted. '' for none.
  text_a, text_b, label, example: names of columns, or their numbers from 0 for a table without a
    header; '' for none. label may be several names by comma (multilabel). example: the number of an
    example in a submission. JSON keys have dots between levels.
  header: whether the first line names the columns.
  columns: their names in files that have no such line; one that begins with a header is then read
    by its own names.
  separator: auto (tab for tsv and txt, comma for csv) | the character.
  quotes: auto (csv has them, tsv has none) | double | none.
  labels: the labels in the order of their classes, 'NAME|NAME' if one has several spellings; () for
    those of the train split, sorted (by number if all are numbers).
  leave_out: labels whose rows are left out ('-' in OCNLI and SNLI).
  where: ((column, value), …): of a file that has the column, only rows with this value are read.
  dev_share: of the train split, which becomes `dev` where there is no such file.
  """
  return _part('table', {**locals(), 'files': ml_collections.ConfigDict(dict(files))})


def tfds(
  *,
  dataset,
  splits,
  text_a,
  text_b='',
  label='label',
  example='',
  labels=(),
  leave_out=(),
  dev_share=0.1,
):
  """A dataset of tensorflow-datasets, from --task_dir or its own folder.

  dataset: name ('glue/rte').
  splits: {split: split of the dataset, or DATASET:SPLIT of another one}; '' for none.
  text_a, text_b, label, example: names of features.
  labels: names of the dataset's classes 0, 1, …; () for those that it has.
  leave_out, dev_share: see table.
  """
  return _part('tfds', {**locals(), 'splits': ml_collections.ConfigDict(dict(splits))})


def squad(*, files, leave_out=(), dev_share=0.1):
  """Questions with answers in a passage: JSON as SQuAD, CMRC2018, DRCD and CJRC have it, or MRQA's
  JSON lines (.jsonl, .jsonl.gz).

  A wrong answer_start is mended where the passage has the answer elsewhere. A train question whose
  answer is nowhere in its passage is left out.

  files: see table.
  leave_out: of `unanswerable` (questions without an answer) and `yes_no` (answers yes or no that
    are no part of the passage).
  dev_share: of the train passages, whose questions become `dev` where there is no such split.
  """
  return _part('squad', {**locals(), 'files': ml_collections.ConfigDict(dict(files))})


def question_table(
  *,
  files,
  question='question',
  context='context',
  answer='answer',
  answer_start='answer_start?',
  example='id?',
  header=True,
  columns=(),
  separator='auto',
  quotes='auto',
  dev_share=0.1,
):
  """Questions of a table, one per row; an empty answer means that the passage has none.

  question, context, answer: names of columns.
  answer_start: the column of the character, from 0, at which the answer begins; without it the
    first place of the answer is taken. example: the id of a question. NAME? may be absent.
  files, header, columns, separator, quotes: see table. dev_share: see squad.
  """
  return _part('question_table', {**locals(), 'files': ml_collections.ConfigDict(dict(files))})


def conll(
  *,
  files,
  word=0,
  tag=-1,
  layout='auto',
  separator='auto',
  prefix='',
  scheme='auto',
  convert='',
  labels=(),
  dev_share=0.1,
):
  """Sentences of tagged words: a word per line, its columns, and an empty line behind a sentence.

  files: see table. A test file may have words alone.
  word, tag: numbers of columns from 0; −1 is the last one.
  layout: columns | conllu (Universal Dependencies: comments, ranges of words and empty nodes are
    left out) | table (MSRA-NER: a sentence per line, its words and its tags, each with U+0002
    between) | auto (conllu by the name's end, table by U+0002). Lines of -DOCSTART- are left out.
  separator: auto (tabs if most lines have one, else blanks) | the character.
  prefix: what words begin with and is left out, as 'en:' in WikiANN's files.
  scheme: of the tags, auto | iob1 | iob2 | bioes | bilou | io | none (parts of speech). Tags that
    the scheme does not allow are counted and said.
  convert: the scheme to convert the tags to, iob2 | bioes | bilou; '' for none.
  labels: all tags in order; () for those of train, and of a scheme all prefixes of its types.
  dev_share: see table.
  """
  return _part('conll', {**locals(), 'files': ml_collections.ConfigDict(dict(files))})


def tfds_tags(
  *,
  dataset,
  splits,
  words='tokens',
  tags='tags',
  scheme='auto',
  convert='',
  labels=(),
  dev_share=0.1,
):
  """Tagged sentences of tensorflow-datasets.

  dataset, splits: see tfds.
  words, tags: names of features, each a sequence.
  scheme, convert, labels, dev_share: see conll.
  """
  return _part('tfds_tags', {**locals(), 'splits': ml_collections.ConfigDict(dict(splits))})


def choices(
  *,
  files,
  layout='auto',
  text='text',
  question='question',
  options='options',
  label='label',
  example='',
  label_form='auto',
  header=True,
  columns=(),
  separator='auto',
  quotes='auto',
  dev_share=0.1,
):
  """Questions with options, one of which is right.

  files: see table. A name may be that of a folder with files of RACE.
  layout: race (a JSON object per file: article, questions, options, answers) | dream (a JSON array
    of dialogues) | mctest (stories as text or as a table, with a file of answers, .ans, beside) |
    table (tsv, txt, csv, jsonl, json or parquet) | auto (by what the file begins with). The fields
    below are those of a table.
  text, question, label, example: names of columns; '' for none. Without a text, the question stands
    beside each option.
  options: the columns of the options, with commas between; or one column that has lists of them
    (JSON, parquet). Empty options are left out.
  label_form: what the labels are: letter (A is the first option) | from_0 | from_1 (numbers) | text
    (of the right option) | auto (the only one that fits all labels).
  header, columns, separator, quotes, dev_share: see table. dev_share is of texts, so all questions
    about one text stay together.
  """
  return _part('choices', {**locals(), 'files': ml_collections.ConfigDict(dict(files))})


# --- features: how an example becomes a row ---


def texts(*, truncation='longest_first'):
  """One text or two in one row, framed as the encoder's tokenizer frames texts.

  truncation: longest_first (tokens are taken from the longer text) | only_first | only_second.
  """
  return _part('texts', locals())


def question_windows(
  *,
  doc_stride=128,
  max_question=64,
  order='auto',
  n_best=20,
  max_answer=30,
  beam=5,
  no_answer_threshold=0.0,
):
  """A question and its passage in one row. A passage that is too long becomes several windows.

  doc_stride: tokens between the beginnings of two windows.
  max_question: most tokens of a question; the rest is cut.
  order: question_first | passage_first | auto (passage first if a row's classification token is its
    last, as XLNet's, else question first).
  n_best: how many starts and ends of a window are paired, and how many answers of a question are
    kept.
  max_answer: most tokens of an answer.
  beam: how many starts objective=span_conditional keeps, and how many ends for each; at most 20.
  no_answer_threshold: no answer is given if the odds of having none are above it. Only read if
    train has questions without an answer. The metric best_threshold finds it on dev.
  """
  return _part('question_windows', locals())


def words(*, overlap=0.25):
  """The words of a sentence in one row; each is predicted at its first token.

  overlap: a sentence longer than config.length becomes several rows, and neighbours share this many
    tokens; below 1 it is a share of a row. A word is learned and predicted in the row where it has
    most context. No word is left out.
  """
  return _part('words', locals())


def choice_rows(*, options=0, order='text_first', option_tokens=128, option_cut='start', blank='_'):
  """A row for each option of a question: the text, and the question with the option.

  options: rows per question; 0 for as many as the question with the most options has.
  order: text_first (code of ALBERT's and XLNet's releases) | options_first (code of RoBERTa's).
  option_tokens: most tokens of a question with its option. In rows shorter than twice this number
    it is half of the row.
  option_cut: which end of the question with its option is cut: start | end. The text always loses
    its end.
  blank: the option replaces this mark in a question. Where the question has none, the option
    follows it. '' if it always follows.
  """
  return _part('choice_rows', locals())


# --- objective ---


def sift(*, weight=0.0, rate=1e-4, init=1e-2, loss='symmetric_kl'):
  """SiFT, a section of every objective: outputs for perturbed embeddings should not differ from
  those for the embeddings themselves (He et al. 2020; numbers of the release).

  weight: weight of the difference in the loss; 0 for none. The release has 5, and 3 for its
    smallest network.
  rate: size of the one step by which a perturbation grows. init: its first standard deviation.
  loss: how outputs are compared: symmetric_kl | kl | mse. A number takes mse.
  """
  return ml_collections.ConfigDict(locals())


def classification(*, head='auto', dropout=0.1, input_dropout=0.0, sift=None):
  """One of several classes per row.

  head: auto (that of the weights' Hugging Face class) | tanh | gelu | linear.
  dropout: of the vector that the classifier reads. input_dropout: of the row's vector before the
    dense layer of the head.
  sift: fields of `sift` that are not its usual ones; None for no SiFT.
  """
  return _part('classification', {**locals(), 'sift': _sift(sift)})


def regression(*, head='auto', dropout=0.1, input_dropout=0.0, sift=None):
  """One number per row, learned by the squared error. Fields: see classification."""
  return _part('regression', {**locals(), 'sift': _sift(sift, loss='mse')})


def multilabel(*, head='auto', dropout=0.1, input_dropout=0.0, sift=None):
  """Each label true or false per row. Fields: see classification."""
  return _part('multilabel', {**locals(), 'sift': _sift(sift)})


def _sift(given, **usual):
  """The section with these fields, of the others the usual ones."""
  return _SIFT(**{**usual, **(given or {})})


_SIFT = sift  # constructors have an argument of this name


def span(*, sift=None):
  """The answer to a question as a span of its passage: start and end by one linear layer.

  sift: see classification.
  """
  return _part('span', {**locals(), 'sift': _sift(sift)})


def span_conditional(*, head='tanh', hidden_size=0, answerable_weight=0.5, dropout=0.1, sift=None):
  """The same, with the end scored given the start, and a score that there is no answer.

  head: tanh (XLNet, ALBERT: tanh, and a norm for the end) | gelu (ELECTRA: no norm).
  hidden_size: width of the hidden layers; 0 for the encoder's. ELECTRA has 512.
  answerable_weight: of the loss of that score; 0 for no such score.
  dropout: before the last layer of that score. sift: see classification.
  """
  return _part('span_conditional', {**locals(), 'sift': _sift(sift)})


def tagging(*, dropout=0.1, sift=None):
  """One tag per word, at its first token. dropout: of the vectors that the head reads.
  sift: see classification.
  """
  return _part('tagging', {**locals(), 'sift': _sift(sift)})


def choice(*, head='auto', dropout=0.1, input_dropout=0.0, sift=None):
  """One of several options, each of which gets a score. Fields: see classification."""
  return _part('choice', {**locals(), 'sift': _sift(sift)})


# --- a fine-tuning ---

SECTIONS = {
  'source': (table, tfds, squad, question_table, conll, tfds_tags, choices),
  'features': (texts, question_windows, words, choice_rows),
  'objective': (classification, regression, multilabel, span, span_conditional, tagging, choice),
  'optimizer': parts.SECTIONS['optimizer'],
  'schedule': parts.SECTIONS['schedule'],
}


def fine_tuning(
  *,
  source,
  metrics,
  name='',
  features=None,
  objective=None,
  optimizer=None,
  schedule=None,
  length=128,
  batch_size=32,
  epochs=3.0,
  steps=0,
  warmup=0.1,
  layer_decay=1.0,
  layer_decay_form='released',
  encoder=None,
  seed=0,
  seeds=(),
  grid=(),
  init='',
  submission=None,
  run=None,
):
  """The complete config of one task's fine-tuning.

  name: of the task, for tables and messages.
  metrics: names; the first is the dev score, by which the best of a grid is chosen.
  length: most tokens of a row.
  epochs, steps: how long; steps 0 means by epochs.
  warmup: below 1 a share of all steps, from 1 on steps.
  layer_decay: the rate of a layer is that of the layer above it × layer_decay; 1 for none.
  layer_decay_form: released | corrected (ELECTRA's release skips a power between the head and the
    last layer).
  encoder: {field: value} of the encoder that fine-tuning sets; all others come with the weights.
    None for both kinds of dropout at 0.1, {} for nothing.
  seed: of a run without `seeds`. seeds: one run each; () for `seed` alone.
  grid: ((key, (values, …)), …); every combination is run with every seed. A key is none that says
    which rows there are (source, features, length) or which runs (seed, seeds, init).
  init: name of the task whose best run this one begins with (MNLI for RTE); '' for --init.
  submission: {test split: name of its file for the benchmark}.
  """
  return ml_collections.ConfigDict(
    dict(
      name=name,
      seed=seed,
      length=length,
      batch_size=batch_size,
      epochs=epochs,
      steps=steps,
      warmup=warmup,
      layer_decay=layer_decay,
      layer_decay_form=layer_decay_form,
      seeds=seeds,
      grid=grid,
      init=init,
      submission=ml_collections.ConfigDict(dict(submission or {})),
      metrics=metrics,
      source=source,
      features=features or texts(),
      encoder=ml_collections.ConfigDict(
        dict(dropout=0.1, attention_dropout=0.1) if encoder is None else dict(encoder)
      ),
      objective=objective or classification(),
      optimizer=optimizer or parts.adamw(),
      schedule=schedule or parts.linear_from_start(learning_rate=3e-5, warmup=0),
      run=run or parts.run(eval_every=0, keep=1),
    )
  )
