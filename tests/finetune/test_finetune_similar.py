import random

import numpy as np
import pytest

import bertzoo_jax
from bertzoo_jax.evaluate import vectors
from bertzoo_jax.runs import metrics
from tests import tuned
from tests.pretrained import test_loading as loading


def pairs(count, seed):
  """A tsv: two texts are alike if both have the traveller, or both the garden."""
  texts = list(tuned.rows(2 * count, seed))
  draw = random.Random(seed)
  lines = [(a, b, 4 * (x == y) + draw.random()) for (x, a), (y, b) in zip(texts[::2], texts[1::2])]
  return 'text_a\ttext_b\tscore\n' + ''.join(f'{a}\t{b}\t{score:.2f}\n' for a, b, score in lines)


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  folder = tuned.world(tmp_path_factory.mktemp('world'), 'bert')
  for split, count in dict(train=96, dev=40).items():
    (folder / f'{split}.pairs.tsv').write_text(pairs(count, len(split)))
  return folder


def tuned_on(world, folder, argument, **changes):
  names = {f'source__files__{split}': f'{split}.pairs.tsv' for split in ('train', 'dev')}
  config = tuned.config(argument, **names, **changes)
  return tuned.finetune(world, folder, config), folder / config.name / 'run'


def test_vectors_get_the_order_of_scores_and_are_encode_s(world, tmp_path):
  (line,), run = tuned_on(world, tmp_path / 'f', 'similar', steps=60, run__accumulation=2)
  after = vectors.similarity(str(run), str(world / 'dev.pairs.tsv'))
  assert line.metric == 'spearman' and line.median > 0.7
  assert after.scores['spearman'] == pytest.approx(line.median, abs=1e-6)
  model = bertzoo_jax.load(run)
  x = model.encode(['the traveller', 'the garden'])
  np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, atol=1e-5)
  (answer,) = model.predict([('the traveller', 'the garden')])
  assert answer['score'] == pytest.approx(float(x[0] @ x[1]), abs=1e-5)
  again = bertzoo_jax.load(f'hf:{loading.written(run, tmp_path / "out")}')
  assert again.pretrained.vectors == model.pretrained.vectors
  np.testing.assert_allclose(again.encode(['the traveller', 'the garden']), x, atol=1e-5)


@pytest.mark.slow
def test_positives_are_found_among_all_texts(world, tmp_path):
  changes = dict(steps=30, source__negatives='score', metrics=('mrr',))
  _, run = tuned_on(world, tmp_path / 'f', 'positives', **changes)
  losses = [row['contrast_loss'] for row in metrics.read(run) if 'contrast_loss' in row]
  assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1
