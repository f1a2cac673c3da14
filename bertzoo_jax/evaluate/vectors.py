"""Scores of vectors of texts: their cosines beside a column of scores, and retrieval by cosines."""

import json
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.pretrained import loading
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks import ranking
from bertzoo_jax.tasks.examples import Skipped
from bertzoo_jax.tasks.kinds import rows
from bertzoo_jax.tasks.reading import tables

COLUMNS = 'text_a|sentence1,text_b|sentence2,score|label'
_ALIKE = 0.9


class Scores(NamedTuple):
  """The scores of a network's vectors.

  Attributes:
    address, step: of the network; step: None for a directory.
    file: of the texts.
    counts: {name: number of texts read}. scores: {name: value}, the first one first.
    effective_rank, mean_cosine, lowest_cosine: of its vectors, see ranking.shape.
    size: numbers of a vector.
    notes: lines for the user.
  """

  address: str
  step: int | None
  file: str
  counts: dict[str, int]
  scores: dict[str, float]
  effective_rank: float
  mean_cosine: float
  lowest_cosine: float
  size: int
  notes: tuple[str, ...] = ()


def similarity(address: str, path: str, columns: str = COLUMNS) -> Scores:
  """Correlations of cosines with a column of scores. path: of a table; columns: of two texts and a
  score, NAME|NAME for the first that it has. Raises UserError for a file of another form.
  """
  pairs, skipped = _pairs(path, columns)
  model = loading.load(address)
  texts, vectors = list(dict.fromkeys(text for pair in pairs for text in pair[:2])), {}
  vectors = dict(zip(texts, ranking.normalized(model.encode(texts))))
  cosines = np.array([vectors[a] @ vectors[b] for a, b, _ in pairs])[:, None]
  labels = np.array([score for *_, score in pairs])
  scores = {name: metrics.OF_NUMBERS[name](labels, cosines) for name in ('spearman', 'pearson')}
  notes = [f'{skipped:,} rows cannot be read and are left out'] * bool(skipped)
  counts = dict(pairs=len(pairs), texts=len(texts))
  return _scores(model, path, counts, scores, np.stack(list(vectors.values())), notes)


def retrieval(address: str, folder: str, k: int = 10) -> Scores:
  """Retrieval by cosines, over all documents of a folder in BEIR's layout: corpus.jsonl,
  queries.jsonl and qrels/test.tsv (Thakur et al. 2021). A document with the id of the query is left
  out, as there. Raises UserError for files of another form.
  """
  place = storage.path(folder)
  documents = _objects(place / 'corpus.jsonl', ('title', 'text'))
  queries = _objects(place / 'queries.jsonl', ('text',))
  number, relevances = {name: n for n, name in enumerate(documents)}, {}
  for query, document, gain in _relevances(place / 'qrels' / 'test.tsv'):
    if query not in queries or document not in number:
      raise errors.UserError(
        f'{place}/qrels/test.tsv names the query {query[:40]!r} and the document '
        f'{document[:40]!r}, and one of them is in no file beside: download the folder again.'
      )
    if gain > 0 and query != document:
      relevances.setdefault(query, {})[number[document]] = gain
  if not relevances:
    raise errors.UserError(f'{place}/qrels/test.tsv has no document with a relevance above 0.')
  model = loading.load(address)
  prompts = model.pretrained.vectors.prompts
  prompt = lambda *names: next((name for name in names if name in prompts), None)
  x = model.encode([queries[name] for name in relevances], prompt=prompt('query'))
  y = model.encode(list(documents.values()), prompt=prompt('document', 'passage', 'corpus'))
  gains, without = list(relevances.values()), [number.get(name) for name in relevances]
  ranked = ranking.top(x, y, max(k, 100), without)
  scores = {
    f'ndcg@{k}': ranking.ndcg(ranked, gains, k),
    **{f'recall@{n}': ranking.recall(ranked, gains, n) for n in (1, k, 100)},
    'mrr': ranking.mrr(ranking.first_ranks(x, y, gains, without)),
  }
  return _scores(model, folder, dict(queries=len(x), documents=len(y)), scores, y, [])


def _scores(model, file, counts, scores, vectors, notes):
  effective, mean, lowest = ranking.shape(vectors)
  if lowest > _ALIKE:
    notes.append(
      f'all cosines are above {_ALIKE}: the vectors hardly differ. Train them, as with finetune '
      '--config configs/tasks/own.py:similar'
    )
  network, scores = model.pretrained, {name: float(x) for name, x in scores.items()}
  shape = (effective, mean, lowest, vectors.shape[1])
  return Scores(network.address, network.step, str(file), counts, scores, *shape, tuple(notes))


def table(scores: Scores) -> str:
  """The scores as lines for the user."""
  step = '' if scores.step is None else f' at step {scores.step:,}'
  counts = ', '.join(f'{n:,} {name}' for name, n in scores.counts.items())
  lines = [f'{scores.address}{step} on {scores.file}: {counts}']
  lines += [f'{name:12} {value:.4f}' for name, value in scores.scores.items()]
  lines.append(
    f'effective rank {scores.effective_rank:.1f} of {scores.size}; mean cosine of two texts '
    f'{scores.mean_cosine:.3f}, lowest {scores.lowest_cosine:.3f}'
  )
  return '\n'.join([*lines, *(f'note: {note}' for note in scores.notes)])


def _pairs(path, columns):
  """([(text, text, score)], number of rows that cannot be read)."""
  file, names = storage.path(path), [name.strip() for name in columns.split(',')]
  pairs, skipped = [], 0

  def choose(known):
    chosen = [next((one for one in name.split('|') if one in known), None) for name in names]
    if len(names) != 3 or None in chosen:
      shown = ', '.join(name[:40] for name in list(known)[:50])
      raise errors.UserError(
        f'{path} has the columns {shown}: name those of the two texts and of the score, '
        '--columns=A,B,SCORE.'
      )
    return dict(zip(('a', 'b', 'score'), chosen))

  for row in tables.rows(_bytes(file), file, choose):
    score = None if isinstance(row, Skipped) else rows.number(row.text('score', tables.as_label))
    if score is None:
      skipped += 1
    else:
      pairs.append((row.text('a'), row.text('b'), score))
  if len(pairs) < 2:
    raise errors.UserError(f'{path} has {len(pairs)} pairs with a score: two or more are needed.')
  return pairs, skipped


def _objects(file, fields) -> dict[str, str]:
  """{_id: text} of a file of JSON lines; of several fields their texts, with a blank between."""
  out = {}
  for number, line in enumerate(_bytes(file).splitlines(), 1):
    with errors.unreadable(f'{file}:{number} is no object with _id and text: mend the line'):
      if line.strip():
        row = json.loads(line)
        texts = [row[field] if field == 'text' else row.get(field) or '' for field in fields]
        out[str(row['_id'])] = ' '.join(texts).strip()
  if not out:
    raise errors.UserError(f'{file} has no text.')
  return out


def _relevances(file):
  """Yields (id of a query, id of a document, relevance) of a file with a header."""
  for number, line in enumerate(_bytes(file).decode('utf-8', 'replace').splitlines()[1:], 2):
    with errors.unreadable(
      f'{file}:{number} is no query, document and relevance with tabs between'
    ):
      if line.strip():
        query, document, gain = line.split('\t')
        yield query, document, float(gain)


def _bytes(file) -> bytes:
  if not file.exists():
    raise errors.UserError(f'{file} does not exist: correct the name.')
  with storage.reading(str(file)):
    return file.read_bytes()
