"""Scores of vectors of texts: their cosines beside a column of scores, and retrieval by cosines."""

import json
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.evaluate import pair_files
from bertzoo_jax.pretrained import loading
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks import ranking
from bertzoo_jax.tasks.examples import Skipped
from bertzoo_jax.tasks.kinds import rows
from bertzoo_jax.tasks.reading import tables

COLUMNS = 'text_a|sentence1,text_b|sentence2,score|label'
_ALIKE, _K = 0.9, 10


class Scores(NamedTuple):
  """The scores of a network's vectors of the texts in a file."""

  address: str
  file: str
  counts: dict[str, int]  # {name: number of texts read}
  scores: dict[str, float]
  shape: dict[str, float]  # see ranking.shape
  notes: tuple[str, ...] = ()  # lines for the user


def similarity(address: str, path: str, columns: str = COLUMNS) -> Scores:
  """Correlations of cosines with a column of scores. path: of a table; columns: of two texts and a
  score, NAME|NAME for the first that it has. Raises UserError for a file of another form.
  """
  pairs, skipped = _pairs(path, columns)
  texts, model = list(dict.fromkeys(t for pair in pairs for t in pair[:2])), loading.load(address)
  vectors = ranking.normalized(_encoded(model, texts))
  number = {text: n for n, text in enumerate(texts)}
  a, b = (vectors[[number[pair[side]] for pair in pairs]] for side in (0, 1))
  labels, cosines = np.array([score for *_, score in pairs]), np.sum(a * b, axis=1)
  scores = {name: metrics.OF_NUMBERS[name](labels, cosines) for name in ('spearman', 'pearson')}
  notes = [f'{skipped:,} rows have no score or cannot be read, and are left out'] * bool(skipped)
  known = model.pretrained.vectors
  if unused := [name for name in known.prompts if name != known.prompt]:
    names = ', '.join(unused[:10])
    notes.append(f'no prompt but the usual one was put before the texts; the network knows {names}')
  return _scores(model, path, dict(pairs=len(pairs), texts=len(texts)), scores, vectors, notes)


def retrieval(address: str, folder: str) -> Scores:
  """Retrieval by cosines, over all documents of a folder in BEIR's layout: corpus.jsonl,
  queries.jsonl and qrels/test.tsv (Thakur et al. 2021). A document with the id of the query is left
  out, as there. Raises UserError for files of another form.
  """
  place, relevances = storage.path(folder), {}
  documents, queries = (_texts(place / f'{name}.jsonl') for name in ('corpus', 'queries'))
  number = {name: n for n, name in enumerate(documents)}
  judged, lines = set(), pair_files.lines(pair_files.there(place / 'qrels' / 'test.tsv'))
  if lines and rows.number(lines[0][1].split('\t')[-1]) is None:
    lines = lines[1:]  # the names of the columns
  for line, text in lines:
    with errors.unreadable(f'{place}/qrels/test.tsv:{line} is no query, document and relevance'):
      query, document, gain = text.split('\t')
      if not np.isfinite(gain := float(gain)):
        raise ValueError(gain)
    if query not in queries or document not in number:
      raise errors.UserError(
        f'{place}/qrels/test.tsv:{line} names a query or a document that is in no file beside: '
        'download the folder again.'
      )
    judged.add(query)
    if gain > 0 and query != document:
      relevances.setdefault(query, {})[number[document]] = gain
  if not relevances:
    raise errors.UserError(f'{place}/qrels/test.tsv has no document with a relevance above 0.')
  model = loading.load(address)
  prompts = model.pretrained.vectors.prompts
  prompt = lambda *names: next((name for name in names if name in prompts), None)
  x = _encoded(model, [queries[name] for name in relevances], prompt('query'))
  y = _encoded(model, list(documents.values()), prompt('document', 'passage', 'corpus'))
  gains, without = list(relevances.values()), [number.get(name) for name in relevances]
  ranked = ranking.top(x, y, 100, without)
  scores = {
    f'ndcg@{_K}': ranking.ndcg(ranked, gains, _K),
    **{f'recall@{n}': ranking.recall(ranked, gains, n) for n in (1, _K, 100)},
    'mrr': ranking.mrr(ranking.first_ranks(x, y, gains, without)),
  }
  lost = len(judged) - len(relevances)
  notes = [f'{lost:,} queries have no document with a relevance above 0, and are left out']
  counts = dict(queries=len(x), documents=len(y))
  return _scores(model, folder, counts, scores, y, notes * bool(lost))


def _encoded(model, texts, prompt=None):
  vectors = model.encode(texts, prompt=prompt)
  if not np.isfinite(vectors).all():
    raise errors.UserError(
      f'{model.pretrained.address} makes vectors that are not finite: its weights diverged or are '
      'damaged; take an earlier checkpoint.'
    )
  return vectors


def _scores(model, file, counts, scores, vectors, notes):
  shape = ranking.shape(vectors)
  if shape['lowest_cosine'] > _ALIKE:
    notes.append(
      f'all cosines are above {_ALIKE}: the vectors hardly differ. Train them, as with finetune '
      '--config configs/tasks/own.py:similar'
    )
  scores = {name: float(x) for name, x in scores.items()}
  return Scores(model.pretrained.address, str(file), counts, scores, shape, tuple(notes))


def table(scores: Scores) -> str:
  counts = ', '.join(f'{n:,} {name}' for name, n in scores.counts.items())
  numbers = {**scores.scores, **scores.shape}
  lines = [f'{name.replace("_", " "):16} {value:.4g}' for name, value in numbers.items()]
  notes = [f'note: {note}' for note in scores.notes]
  return '\n'.join([f'{scores.address} on {scores.file}: {counts}', *lines, *notes])


def _pairs(path, columns):
  """([(text, text, score)], number of rows that cannot be read)."""
  file, names = pair_files.there(storage.path(path)), [name.strip() for name in columns.split(',')]

  def choose(known):
    chosen = [next((one for one in name.split('|') if one in known), None) for name in names]
    if len(names) != 3 or None in chosen:
      raise errors.UserError(
        f'{path} has the columns {", ".join(name[:40] for name in list(known)[:50])}: name those '
        'of the two texts and of the score, --columns=A,B,SCORE.'
      )
    return dict(zip(('a', 'b', 'score'), chosen))

  read = list(tables.rows(file.read_bytes(), file, choose))
  whole = [row for row in read if not isinstance(row, Skipped)]
  pairs = [
    (row.text('a'), row.text('b'), score)
    for row in whole
    if (score := rows.number(row.text('score', tables.as_label))) is not None
  ]
  if len(pairs) < 2:
    raise errors.UserError(f'{path} has {len(pairs)} pairs with a score: two or more are needed.')
  return pairs, len(read) - len(pairs)


def _texts(file) -> dict[str, str]:
  """{_id: title and text} of a file of JSON lines."""
  out = {}
  for number, line in pair_files.lines(pair_files.there(file)):
    with errors.unreadable(f'{file}:{number} is no object with _id and text: mend the line'):
      row = json.loads(line)
      name, text = str(row['_id']), f'{row.get("title") or ""} ' + row['text']
    if name in out:
      raise errors.UserError(f'{file}:{number} has the _id of an earlier line: give it another.')
    out[name] = text.strip()
  if not out:
    raise errors.UserError(f'{file} has no text.')
  return out
