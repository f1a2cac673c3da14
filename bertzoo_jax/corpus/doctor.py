"""Counts text that a model should not learn: repeated lines, special tokens spelt out, control
characters, rare scripts. It is counted per chunk while a corpus is made.
"""

import collections
import unicodedata

import numpy as np

_LEAST = 20  # characters; shorter lines do not count as repeated
_SHOWN = 60  # characters of a quoted line
_REPEATED = 0.05  # share of the characters in repeated lines above which a note says so
_SCRIPT = 0.002, 0.2  # a script with a share of the letters between these gets a note
_ONE_LINE = 0.9  # share of documents of one line
_ONCE = 0.05  # share of the pieces that occur at most once
_SPELT = ('[MASK]', '[CLS]', '[SEP]', '[PAD]', '[UNK]', '<s>', '</s>', '<pad>', '<unk>', '<mask>')
_MARKS = {'\ufeff': 'byte-order marks', '\ufffd': 'replacement characters (U+FFFD)'}


def count(documents: list[str]) -> dict:
  """Counts of a chunk: documents, and one_line ones; characters, and repeated ones (in lines that
  occur earlier in the chunk); line: [the most frequent line, its count]; spelt: {special token:
  count}; marks: {kind: count}; controls: count; letters: {script: count}.
  """
  characters, lines = collections.Counter(), collections.Counter()
  spelt = collections.Counter()
  for text in documents:
    characters.update(text)
    lines.update(line.strip() for line in text.split('\n') if len(line) >= _LEAST)
    if '[' in text or '<' in text:
      spelt.update({token: n for token in _SPELT if (n := text.count(token))})
  often = max(lines, key=lambda line: (lines[line], line), default='')
  letters, controls = collections.Counter(), 0
  for c, n in characters.items():
    kind = unicodedata.category(c)
    if kind[0] == 'L':
      letters[unicodedata.name(c, 'UNKNOWN').split(' ')[0].split('-')[0]] += n
    elif kind == 'Cc' and c not in '\n\r\t':
      controls += n
  return dict(
    documents=len(documents),
    one_line=sum('\n' not in text.strip() for text in documents),
    characters=characters.total(),
    repeated=sum(len(line) * (n - 1) for line, n in lines.items()),
    line=[often[:_SHOWN], lines[often]],
    spelt=dict(spelt),
    marks={name: characters[c] for c, name in _MARKS.items() if characters[c]},
    controls=controls,
    letters=dict(letters),
  )


def total(counts: list[dict], unigrams: np.ndarray) -> dict:
  """The sums of the counts of chunks, with the share of pieces that occur at most once."""
  sums = ('documents', 'one_line', 'characters', 'repeated', 'controls')
  out = {key: sum(c[key] for c in counts) for key in sums}
  for key in ('spelt', 'marks', 'letters'):
    out[key] = dict(sum((collections.Counter(c[key]) for c in counts), collections.Counter()))
  out['line'] = max((c['line'] for c in counts), key=lambda row: (row[1], row[0]), default=['', 0])
  return out | {'rare_pieces': float(np.mean(unigrams <= 1))}


def describe(counts: dict, trained: bool = True) -> list[str]:
  """Sentences about conspicuous counts, each with a remedy.

  trained: whether the vocabulary was made of this text.
  """
  lines, size = [], max(1, counts['characters'])
  text, times = counts['line']
  if counts['repeated'] > _REPEATED * size:
    lines.append(
      f'{counts["repeated"] / size:.0%} of the characters are in lines that occur earlier in the '
      f'same megabytes, e.g. {text!r}, {times:,} times: if they are menus or licences, '
      'remove them from the files.'
    )
  if counts['spelt']:
    some = ', '.join(f'{n:,} × {token}' for token, n in sorted(counts['spelt'].items()))
    lines.append(
      f'the text spells special tokens ({some}): they are read as text, never as the special '
      'token. If they come from an older preparation, take the original text.'
    )
  strange = dict(counts['marks'], **{'control characters': counts['controls']})
  if any(strange.values()):
    some = ' and '.join(f'{n:,} {name}' for name, n in strange.items() if n)
    lines.append(
      f'the text has {some}: a wrong decoding left them. Decode the files again as UTF-8.'
    )
  letters = sum(counts['letters'].values())
  few = {
    s: n / letters for s, n in counts['letters'].items() if _SCRIPT[0] < n / letters < _SCRIPT[1]
  }
  if few:
    some = ', '.join(f'{s.capitalize()} {share:.1%}' for s, share in sorted(few.items()))
    lines.append(
      f'some letters are of other scripts ({some}). If no text of other languages is meant, leave '
      'these documents out (--where, or a language filter).'
    )
  if counts['documents'] > 1 and counts['one_line'] > _ONE_LINE * counts['documents']:
    lines.append(
      f'{counts["one_line"] / counts["documents"]:.0%} of the documents are one line: where each '
      'line is a sentence, put a blank line between documents instead.'
    )
  if trained and counts['rare_pieces'] > _ONCE:
    lines.append(
      f'{counts["rare_pieces"]:.0%} of the pieces occur at most once in the text, so their vectors '
      'are hardly trained: a smaller vocabulary, or more text, is better.'
    )
  return lines
