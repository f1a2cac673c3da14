"""SuperGLUE's JSON objects (Wang et al. 2019, arXiv:1905.00537) as rows, by layout."""

import re

from bertzoo_jax.common import errors

_ASKED = {'cause': 'What was the cause of this?', 'effect': 'What happened as a result?'}  # jiant


def _copa(x):
  return [x | {'question': _ASKED[x['question']]}]


def _multirc(x):
  """A row per answer, with the number of its question."""
  text, asked = x['passage']['text'], x['passage']['questions']
  about = lambda q: {'passage': text, 'question': q['question'], 'idx': q['idx']}
  return [{**a, 'answer': a['text'], **about(q)} for q in asked for a in q['answers']]


def _record(x):
  """A row per query, with the entities as options. Spans end with their last character."""
  text, rows = x['passage']['text'], []
  options = [_cut(text, e['start'], e['end'] + 1) for e in x['passage']['entities']]
  for query in x['qas']:
    right = [answer['text'] for answer in query.get('answers', ())]
    rows.append({'text': text, 'question': query['query'], 'idx': query['idx']})
    rows[-1] |= {'options': [*dict.fromkeys(options)]} | (
      {'label': right[0], 'answers': right} if right else {}
    )
  return rows


def _wic(x):
  """Quotation marks around the word (GlossBERT: Huang et al. 2019, arXiv:1908.07245, §3.2)."""
  marked = lambda n: _marked(x[f'sentence{n}'], (int(x[f'start{n}']), int(x[f'end{n}']), '"'))
  return [x | {f'sentence{n}': marked(n) for n in '12'}]


def _wsc(x):
  """* noun * and # pronoun # (code of T5: Raffel et al. 2020). The file numbers words between
  blanks; if the span is not there, the next one is taken, else the last.
  """
  text, target, spans = x['text'], x['target'], []
  for n, mark in (('1', '*'), ('2', '#')):
    span, low = (s.replace('İ', 'I').lower() for s in (target[f'span{n}_text'], text))
    begin = [m.start() for m in re.finditer(r'\S+', text)][target[f'span{n}_index']]
    begin = low.find(span, begin) if span in low[begin:] else low.rindex(span)
    spans.append((begin, begin + len(span), mark))
  return [x | {'text': _marked(text, *spans)}]


def _cut(text, begin, end) -> str:
  if not 0 <= begin < end <= len(text):
    raise ValueError(f'{begin} to {end} is no span of {len(text)} characters')
  return text[begin:end]


def _marked(text, *spans) -> str:
  """spans: (first character, that behind the span, mark)."""
  both = lambda begin, end, mark: ((begin, f'{mark} '), (end, f' {mark}'))
  marks = [at for span in spans if _cut(text, *span[:2]) for at in both(*span)]
  for at, mark in sorted(marks, reverse=True):
    text = text[:at] + mark + text[at:]
  return text


BY_NAME = {'copa': _copa, 'multirc': _multirc, 'record': _record, 'wic': _wic, 'wsc': _wsc}


def rows(layout: str, value, where: str) -> list:
  """The rows of an object. Raises UserError, which begins with `where`, for another form."""
  with errors.unreadable(f'{where} has not the layout {layout} (config.source.layout): mend it'):
    return BY_NAME[layout](value)
