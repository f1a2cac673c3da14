"""Objects of JSON that are no plain rows: a function of BY_NAME turns one into its rows.

All layouts are SuperGLUE's (Wang et al. 2019, arXiv:1905.00537). A function raises one of
errors.UNREADABLE for an object of another form.
"""

import re

from bertzoo_jax.common import errors

_ASKED = {'cause': 'What was the cause of this?', 'effect': 'What happened as a result?'}


def copa(row):
  """The question `cause` or `effect` in words, those of jiant's code."""
  yield {**row, 'question': _ASKED[row['question']]}


def multirc(row):
  """A row per answer, with the number of its question."""
  for question in row['passage']['questions']:
    for answer in question['answers']:
      known = {'passage': row['passage']['text'], 'question': question['question']}
      yield {**answer, **known, 'answer': answer['text'], 'idx': question['idx']}


def record(row):
  """A row per query, whose options are the entities of the passage; the label is its first answer.

  The spans of the file end with their last character.
  """
  passage = row['passage']
  options = [_cut(passage['text'], e['start'], e['end'] + 1) for e in passage['entities']]
  for query in row['qas']:
    answers = [answer['text'] for answer in query.get('answers', ())]
    about = {'label': answers[0], 'answers': answers} if answers else {}
    about |= {'text': passage['text'], 'options': list(dict.fromkeys(options))}
    yield {'question': query['query'], 'idx': query['idx'], **about}


def wic(row):
  """Quotation marks around the word in both sentences, as in GlossBERT (Huang et al. 2019,
  arXiv:1908.07245, §3.2).
  """
  spans = {n: (int(row[f'start{n}']), int(row[f'end{n}'])) for n in '12'}
  yield row | {f'sentence{n}': _marked(row[f'sentence{n}'], (*spans[n], '"')) for n in '12'}


def wsc(row):
  """Asterisks around the noun, number signs around the pronoun, as in T5's code (Raffel et al.
  2020, arXiv:1910.10683). The file numbers words between blanks. Where the word is another one, the
  span is the next one behind it, else the last one.
  """
  text, target, spans = row['text'], row['target'], []
  for n, mark in (('1', '*'), ('2', '#')):
    span, word = target[f'span{n}_text'].lower(), target[f'span{n}_index']
    begin = [m.start() for m in re.finditer(r'\S+', text)][word]
    begin = text.lower().find(span, begin)
    begin = begin if begin >= 0 else text.lower().rindex(span)
    spans.append((begin, begin + len(span), mark))
  yield row | {'text': _marked(text, *spans)}


def _cut(text, begin, end) -> str:
  if not 0 <= begin < end <= len(text):
    raise ValueError(f'{begin} to {end} is no span of {len(text)} characters')
  return text[begin:end]


def _marked(text, *spans) -> str:
  """A text with marks before and behind spans. spans: (first character, that behind it, mark)."""
  for begin, end, mark in sorted(spans, reverse=True):
    text = f'{text[:begin]}{mark} {_cut(text, begin, end)} {mark}{text[end:]}'
  return text


BY_NAME = {'copa': copa, 'multirc': multirc, 'record': record, 'wic': wic, 'wsc': wsc}


def rows(layout: str, value, where: str) -> list:
  """The rows of an object. Raises UserError, which begins with `where`, for another form."""
  with errors.unreadable(f'{where} has not the layout {layout} (config.source.layout): mend it'):
    return list(BY_NAME[layout](value))
