"""evaluate --similarity and --retrieval: scores of vectors that are known, files and refusals."""

import json
import types

import numpy as np
import pytest
from scipy import stats

from bertzoo_jax.common import errors
from bertzoo_jax.evaluate import vectors
from bertzoo_jax.hf import sentence_vectors
from bertzoo_jax.pretrained import loading

PAIRS = 'sentence1\tsentence2\tscore\n1\t2\t5\n1\t9\t1.5\n4\t6\t3\n2\t2\t4\n'
PROMPTS = {'query': 'q', 'passage': ''}


@pytest.fixture(autouse=True)
def network(monkeypatch):
  """A network whose vector of the text N has the angle N; a query's the angle N / 10."""

  def encode(texts, prompt=None):
    at = np.array([float(text.split()[-1]) for text in texts]) / (10 if prompt == 'query' else 1)
    return np.stack([np.cos(at), np.sin(at)], axis=1)

  known = sentence_vectors.Vectors(prompts=PROMPTS)
  pretrained = types.SimpleNamespace(address='hf:x', step=None, vectors=known)
  loaded = types.SimpleNamespace(encode=encode, pretrained=pretrained)
  monkeypatch.setattr(loading, 'load', lambda address: loaded)


def test_the_correlation_is_that_of_cosines_and_scores(tmp_path):
  file = tmp_path / 'pairs.tsv'
  file.write_text(PAIRS + '1\t2\tnone\n')
  scores = vectors.similarity('x', str(file))
  cosines, labels = np.cos([1, 8, 2, 0]), [5, 1.5, 3, 4]
  both = dict(spearman=stats.spearmanr, pearson=stats.pearsonr)
  wanted = {name: f(cosines, labels).statistic for name, f in both.items()}
  assert scores.scores == pytest.approx(wanted)
  assert scores.counts == dict(pairs=4, texts=5) and scores.notes == (
    '1 rows have no score or cannot be read, and are left out',
    'no prompt but the usual one was put before the texts; the network knows query, passage',
  )
  file.write_text('a,b,how\n1,1.1,5\n1.2,1.3,1\n'.replace(',', '\t'))
  alike = vectors.table(vectors.similarity('x', str(file), 'a,b,how'))
  assert 'note: all cosines are above 0.9' in alike and 'effective rank   1.' in alike


NULL, TWICE = '{"_id": "d2", "text": null}', '{"_id": "d2", "text": "2"}'


def folder(path, **changed):
  """Queries 10 and 20 look for 1 and 2 among the documents 1, 2, 3 and 10."""
  document = lambda i: json.dumps({'_id': f'd{i}', 'title': 'a', 'text': str(i)})
  files = dict(
    corpus='\n'.join(map(document, (3, 2, 1, 10))),
    queries='\n'.join(json.dumps({'_id': q, 'text': t}) for q, t in (('d3', '10'), ('b', '20'))),
    qrels='query-id\tcorpus-id\tscore\nd3\td2\t2\nd3\td1\t1\nb\td2\t1\nb\td10\t0\nd3\td3\t1\n',
  )
  (path / 'qrels').mkdir()
  names = dict(corpus='corpus.jsonl', queries='queries.jsonl', qrels='qrels/test.tsv')
  for name, content in {**files, **changed}.items():
    (path / names[name]).write_text(content)
  return str(path)


def test_retrieval_ranks_all_documents_but_the_query_itself(tmp_path):
  scores = vectors.retrieval('x', folder(tmp_path))
  # d3 ranks d1, d2 (itself is left out); b ranks d2 first
  first = (1 + 2 / np.log2(3)) / (2 + 1 / np.log2(3))
  assert scores.scores == pytest.approx(
    {'ndcg@10': (first + 1) / 2, 'recall@1': 0.75, 'recall@10': 1, 'recall@100': 1, 'mrr': 1}
  )
  assert scores.counts == dict(queries=2, documents=4)


@pytest.mark.parametrize(
  'call, words',
  [
    (lambda path: vectors.similarity('x', str(path / 'no.tsv')), 'no.tsv does not exist'),
    (lambda path: vectors.similarity('x', write(path, PAIRS), 'a,b,c'), 'name those of the two'),
    (lambda path: vectors.similarity('x', write(path, PAIRS), 'score'), 'name those of the two'),
    (lambda path: vectors.similarity('x', write(path, PAIRS[:33])), 'has 1 pairs with a score'),
    (lambda path: vectors.retrieval('x', str(path)), 'corpus.jsonl does not exist'),
    (lambda path: vectors.retrieval('x', folder(path, corpus='')), 'has no text'),
    (lambda path: vectors.retrieval('x', folder(path, queries='[1]')), 'queries.jsonl:1 is no obj'),
    (lambda path: vectors.retrieval('x', folder(path, qrels='a\nb d2 1')), 'tsv:2 is no query'),
    (
      lambda path: vectors.retrieval('x', folder(path, qrels='a\nb\td7\t1')),
      'names a query',
    ),
    (lambda path: vectors.retrieval('x', folder(path, qrels='a\nb\td2\t0')), 'has no document'),
    (lambda path: vectors.retrieval('x', folder(path, corpus=NULL)), 'corpus.jsonl:1 is no object'),
    (
      lambda path: vectors.retrieval('x', folder(path, corpus=f'{TWICE}\n{TWICE}')),
      'of an earlier',
    ),
  ],
)
def test_files_of_another_form_are_refused(tmp_path, call, words):
  with pytest.raises(errors.UserError, match=words):
    call(tmp_path)


def write(path, content):
  (path / 'pairs.tsv').write_text(content)
  return str(path / 'pairs.tsv')
