import made
import numpy as np
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import ranking
from bertzoo_jax.tasks.kinds import kind

SCORES = 'text_a\ttext_b\tscore\nab\tcde\t3\nx\ty\t0\nab\tab\t5\nabcdefghij\tb\t1\n'
NEGATIVES = 'text_a\ttext_b\tno\tnor\nq\ta\tb\tc\nr\td\ta\te\ns\ta\tf\tg\n'
sklearn = pytest.importorskip('sklearn.metrics')


def opened(folder, argument, content, **fields):
  made.write(folder, train_tsv=content, dev_tsv=content)
  return made.opened(folder, argument, dict(train='train.tsv', dev='dev.tsv'), **fields)


def said(row):
  return ''.join(chr(i - 10) for i in row if i >= 10)


def test_a_unit_has_a_row_for_each_text_and_a_score(tmp_path):
  task = opened(tmp_path, 'similar', SCORES, length=8)
  dev = task.splits['dev']
  rows = [said(dev.row(i)) for i in range(8)]
  assert dev.group == 2 and rows == ['ab', 'cde', 'x', 'y', 'ab', 'ab', 'abcdef', 'b']
  assert dev.labels.tolist() == [3, 0, 5, 1] and np.flatnonzero(dev.truncated).tolist() == [6]
  vectors = np.array([[(1, 0), (1, 1)], [(1, 0), (0, 1)], [(1, 0), (2, 0)], [(1, 0), (1, 2)]])
  got = kind.score(task.metrics, task, dev, {'vectors': vectors.astype(np.float32)})
  assert got['spearman'] == pytest.approx(1.0) and 0.9 < got['pearson'] < 1
  (first, *_) = task.kind.answers(task, dev, {'vectors': vectors})
  assert first == dict(example='0', text_a='ab', text_b='cde', score=0.707107)
  assert 'scores 0 to 5' in task.report()


def test_all_positives_of_a_query_are_right_and_its_own_text_is_no_candidate(tmp_path):
  task = opened(tmp_path, 'positives', 'text_a\ttext_b\nq\ta\nq\tb\nr\tq\n')
  at = np.array([[0, 0.5], [0, 0.1], [1, 0]])
  vectors = np.stack([np.cos(at), np.sin(at)], axis=-1).astype(np.float32)
  ranks = task.kind.metric_inputs(task, task.splits['dev'], {'vectors': vectors})
  assert ranks[0].tolist() == [0, 0, 2]  # for r, a and b are before q


def test_positives_are_ranked_among_all_texts_of_the_split(tmp_path):
  config = made.config('positives', dict(train='train.tsv', dev='dev.tsv'), negatives='no, nor')
  config = config.copy_and_resolve_references().unlock()
  config.features.update(prompt_a='>', prompt_b='-')
  made.write(tmp_path, train_tsv=NEGATIVES, dev_tsv=NEGATIVES)
  task = made.task(config.lock(), tmp_path)
  dev = task.splits['dev']
  assert dev.group == 4 and [said(dev.row(i)) for i in range(4)] == ['>q', '-a', '-b', '-c']
  assert dev.labels.tolist() == [1, 1, 1]
  angle = dict(q=0, r=1, s=2, a=0, b=0.5, c=9, d=3, e=1.2, f=2.1, g=2.2)
  at = [[angle[text] for text in line.split('\t')] for line in NEGATIVES.splitlines()[1:]]
  vectors = np.stack([np.cos(at), np.sin(at)], axis=-1).astype(np.float32)
  # a is the first for q. For r, e, b, a, f and g are before d. For s, 6 of 7 are before a
  ranks = task.kind.metric_inputs(task, dev, {'vectors': vectors})
  order = lambda q: sorted('abcdefg', key=lambda t: -np.cos(angle[q] - angle[t]))
  wanted = [order(q).index(right) for q, right in zip('qrs', 'ada')]
  assert ranks[0].tolist() == wanted and wanted[0] == 0 < min(wanted[1:])
  got = kind.score(task.metrics, task, dev, {'vectors': vectors})
  assert got['recall@1'] == pytest.approx(1 / 3) and got['recall@10'] == 1


EQUAL = 'text_a\ttext_b\tscore\na\tb\t2\nc\td\t2\n'


@pytest.mark.parametrize(
  'argument, content, fields, words',
  [
    ('similar', SCORES, dict(text_b=''), 'has not the two or more texts'),
    ('similar', SCORES.replace('\t3\n', '\thigh\n'), {}, "the score 'high', which is no number"),
    ('similar', SCORES, dict(label=''), 'names 0 columns, and one column of scores'),
    ('similar', SCORES, dict(label='score,text_a'), 'names 2 columns'),
    ('similar', SCORES, dict(negatives='text_a'), 'negatives is not read by an objective of'),
    ('similar', EQUAL, {}, 'All scores of train are 2: '),
    ('positives', NEGATIVES, dict(negatives='none'), "negatives names the column 'none'"),
  ],
)
def test_files_of_another_form_are_refused(tmp_path, argument, content, fields, words):
  with pytest.raises(errors.UserError, match=words):
    opened(tmp_path, argument, content, **fields)


def drawn(seed, count=7, documents=23, alike=False):
  """(queries, documents, relevances); alike: with documents that are equal."""
  rng = np.random.default_rng(seed)
  x, y = rng.normal(size=(count, 4)), rng.normal(size=(documents, 4))
  y = np.repeat(y[::3], 3, axis=0)[:documents] if alike else y
  gains = [dict(zip(rng.permutation(documents).tolist(), (3.0, 1.0, 2.0))) for _ in range(count)]
  return x, y, gains


@pytest.mark.parametrize('block', [5, 1 << 20])
@pytest.mark.parametrize('alike', [False, True])
def test_retrieval_is_exact_in_blocks_of_any_size(monkeypatch, block, alike):
  monkeypatch.setattr(ranking, '_BLOCK', block)
  x, y, gains = drawn(0, alike=alike)
  without = [next(iter(gains[0])), *[None] * 6]
  cosines = (ranking.normalized(x) @ ranking.normalized(y).T).astype(np.float64)
  cosines = cosines[:, [np.flatnonzero((y == row).all(axis=1))[0] for row in y]]
  cosines[0, without[0]] = -2
  order = np.argsort(-cosines, axis=1, kind='stable')
  ranked, ranks = ranking.top(x, y, 9, without), ranking.first_ranks(x, y, gains, without)
  np.testing.assert_array_equal(ranked, order[:, :9])
  assert ranks.tolist() == [min(row.tolist().index(n) for n in g) for row, g in zip(order, gains)]
  right = [len(set(row[:5]) & g.keys()) / 3 for row, g in zip(order.tolist(), gains)]
  assert ranking.recall(ranked, gains, 5) == pytest.approx(np.mean(right))
  assert ranking.mrr(ranks) == pytest.approx(np.mean(1 / (1 + ranks)))
  if not alike:  # scikit-learn averages over ties
    truth = [[g.get(n, 0.0) for n in range(23)] for g in gains]
    wanted = sklearn.ndcg_score(truth, cosines, k=5)
    assert ranking.ndcg(ranked, gains, 5) == pytest.approx(wanted, abs=1e-9)


def test_scores_worked_by_hand():
  ranked = np.array([[4, 0, 2], [1, 3, 0]])
  gains = [{0: 1.0, 5: 1.0}, {1: 1.0}]
  best = 1 + 1 / np.log2(3)
  assert ranking.ndcg(ranked, gains, 3) == pytest.approx((1 / np.log2(3) / best + 1) / 2)
  assert ranking.recall(ranked, gains, 3) == 0.75 and ranking.recall(ranked, gains, 1) == 0.5
  assert ranking.mrr([0, 3]) == 0.625 and ranking.mrr([0, 3], 3) == 0.5
  assert {name: f(np.array([0, 9, 10])) for name, f in ranking.OF_RANKS.items()} == pytest.approx(
    {'recall@1': 1 / 3, 'recall@10': 2 / 3, 'mrr': (1 + 0.1 + 1 / 11) / 3}
  )


def test_the_shape_of_vectors_is_that_of_their_singular_values():
  x = np.random.default_rng(1).normal(size=(30, 5)) + 1
  unit = x / np.linalg.norm(x, axis=1, keepdims=True)
  shares = np.linalg.svd(unit, compute_uv=False)
  shares /= shares.sum()
  cosines = unit @ unit.T
  mean = cosines[~np.eye(30, dtype=bool)].mean()
  wanted = (np.exp(-np.sum(shares * np.log(shares))), 5, mean, cosines.min())
  assert tuple(ranking.shape(x).values()) == pytest.approx(wanted, rel=1e-5)
  assert ranking.shape(np.eye(4))['effective_rank'] == pytest.approx(4)
