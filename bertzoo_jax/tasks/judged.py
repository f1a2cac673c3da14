"""Predictions of a labelled split beside the right answers: a table, and a page with its labels."""

import collections

from bertzoo_jax.common import tables as text

_INPUTS = ('example', 'text_a', 'text_b', 'question')
_SHOWN = 30  # labels of a matrix


def rows(task, split, outputs) -> list[dict]:
  """A dict per example (of tags, per word): its input, gold, predicted, and the probability of the
  prediction (for several labels, of the least certain one).
  """
  out, kind = [], task.kind
  for line, gold in zip(kind.answers(task, split, outputs), kind.gold(task, split), strict=True):
    predicted = line[kind.predicted]
    if isinstance(gold, list) and 'words' in line:
      out += [
        {'example': line['example'], 'word': w, 'gold': g, 'predicted': p, 'probability': x}
        for w, g, p, x in zip(line['words'], gold, predicted, line['probabilities'])
      ]
      continue
    out.append({key: line[key] for key in _INPUTS if key in line})
    out[-1] |= {'gold': gold, 'predicted': predicted}
    if kind.probability is not None:
      out[-1]['probability'] = kind.probability(line)
  return out


def page(split: str, task, rows: list[dict]) -> str:
  """Precision, recall and F1 of each label, and the confusion matrix, as Markdown."""
  pairs = [(_labels(row['gold']), _labels(row['predicted'])) for row in rows]
  right = sum(set(a) == set(b) for a, b in pairs)
  table = [['label', 'gold', 'predicted', 'precision', 'recall', 'F1']]
  for label in task.labels:
    gold = sum(label in a for a, _ in pairs)
    predicted = sum(label in b for _, b in pairs)
    both = sum(label in a and label in b for a, b in pairs)
    cells = (_share(both, predicted), _share(both, gold), _share(2 * both, gold + predicted))
    table.append([label, f'{gold:,}', f'{predicted:,}', *cells])
  tables = [table]
  if len(task.labels) <= _SHOWN and all(len(a) == len(b) == 1 for a, b in pairs):
    counts = collections.Counter((a[0], b[0]) for a, b in pairs)
    matrix = [[a, *(f'{counts[a, b]:,}' for b in task.labels)] for a in task.labels]
    tables.append([['gold ↓ predicted →', *task.labels], *matrix])
  head = f'# {split}: {right:,} of {len(rows):,} right'
  return '\n\n'.join([head, *(text.aligned(table, markdown=True) for table in tables)]) + '\n'


def _labels(value):
  return value if isinstance(value, list) else [value]


def _share(part, whole) -> str:
  return f'{part / whole:.4f}' if whole else '–'
