"""Features: how an example becomes a row."""

from typing import Annotated

from bertzoo_jax.parts import fields


@fields.part('texts')
class Texts:
  """One text or two in one row, framed as the encoder's tokenizer frames texts.

  If a row is too long, its longer text loses tokens.
  """


@fields.part('text_rows')
class TextRows:
  """A row for each text. The end of a long text is cut."""

  prompt_a: Annotated[str, "put before the first text, as 'query: '; `export` writes it."] = ''
  prompt_b: Annotated[str, "put before all other texts, as 'passage: '."] = ''


@fields.part('question_windows')
class QuestionWindows:
  """A question and its passage in one row. A passage that is too long becomes several windows."""

  doc_stride: Annotated[fields.TOKENS, 'tokens between the beginnings of two windows.'] = 128
  max_question: Annotated[fields.TOKENS, 'most tokens of a question; the rest is cut.'] = 64
  order: Annotated[
    fields.one_of('auto', 'question_first', 'passage_first'),
    "question_first | passage_first | auto (passage first if a row's classification token is its "
    "last, as XLNet's, else question first).",
  ] = 'auto'
  n_best: Annotated[
    fields.COUNT,
    'how many starts and ends of a window are paired, and how many answers of a question are kept.',
  ] = 20
  max_answer: Annotated[fields.TOKENS, 'most tokens of an answer.'] = 30
  beam: Annotated[
    fields.whole(1, 20),
    'how many starts objective=span_conditional keeps, and how many ends for each.',
  ] = 5
  no_answer_threshold: Annotated[
    fields.FINITE,
    'no answer is given if the odds of having none are above it. Only read if train has questions '
    'without an answer. The metric best_threshold finds it on dev.',
  ] = 0.0


@fields.part('words')
class Words:
  """The words of a sentence in one row; each is predicted at its first token."""

  overlap: Annotated[
    fields.AT_LEAST_0,
    'a sentence longer than config.length becomes several rows, and neighbours share this many '
    'tokens; below 1 it is a share of a row. A word is learned and predicted in the row where it '
    'has most context. No word is left out.',
  ] = 0.25


@fields.part('choice_rows')
class ChoiceRows:
  """A row for each option of a question: the text, and the question with the option."""

  options: Annotated[
    fields.COUNT_OR_0, 'rows per question; 0 for as many as the question with the most options has.'
  ] = 0
  order: fields.one_of(
    text_first="code of ALBERT's and XLNet's releases", options_first="code of RoBERTa's"
  ) = 'text_first'
  option_tokens: Annotated[
    fields.TOKENS,
    'most tokens of a question with its option. In rows shorter than twice this number it is half '
    'of the row.',
  ] = 128
  option_cut: Annotated[
    fields.one_of('start', 'end'),
    'which end of the question with its option is cut: start | end. The text always loses its end.',
  ] = 'start'
  blank: Annotated[
    str,
    'the option replaces this mark in a question. Where the question has none, the option follows '
    "it. '' if it always follows.",
  ] = '_'
