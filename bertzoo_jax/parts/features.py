"""Features: how an example becomes a row.

A field without an explanation means the same as in the nearest part above that explains it.
"""

from bertzoo_jax.parts import fields


@fields.section
def texts(
  *, truncation: fields.one_of('longest_first', 'only_first', 'only_second') = 'longest_first'
):
  """One text or two in one row, framed as the encoder's tokenizer frames texts.

  truncation: longest_first (tokens are taken from the longer text) | only_first | only_second.
  """


@fields.section
def question_windows(
  *,
  doc_stride: fields.TOKENS = 128,
  max_question: fields.TOKENS = 64,
  order: fields.one_of('auto', 'question_first', 'passage_first') = 'auto',
  n_best: fields.COUNT = 20,
  max_answer: fields.TOKENS = 30,
  beam: fields.whole(1, 20) = 5,
  no_answer_threshold: fields.FINITE = 0.0,
):
  """A question and its passage in one row. A passage that is too long becomes several windows.

  doc_stride: tokens between the beginnings of two windows.
  max_question: most tokens of a question; the rest is cut.
  order: question_first | passage_first | auto (passage first if a row's classification token is its
    last, as XLNet's, else question first).
  n_best: how many starts and ends of a window are paired, and how many answers of a question are
    kept.
  max_answer: most tokens of an answer.
  beam: how many starts objective=span_conditional keeps, and how many ends for each.
  no_answer_threshold: no answer is given if the odds of having none are above it. Only read if
    train has questions without an answer. The metric best_threshold finds it on dev.
  """


@fields.section
def words(*, overlap: fields.AT_LEAST_0 = 0.25):
  """The words of a sentence in one row; each is predicted at its first token.

  overlap: a sentence longer than config.length becomes several rows, and neighbours share this many
    tokens; below 1 it is a share of a row. A word is learned and predicted in the row where it has
    most context. No word is left out.
  """


@fields.section
def choice_rows(
  *,
  options: fields.COUNT_OR_0 = 0,
  order: fields.one_of('text_first', 'options_first') = 'text_first',
  option_tokens: fields.TOKENS = 128,
  option_cut: fields.one_of('start', 'end') = 'start',
  blank: str = '_',
):
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


__all__ = fields.sections(vars())
