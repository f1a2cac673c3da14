"""A corpus of any size: every step is reached soon after a restart, in little memory."""

import importlib.util
import os
import pathlib

import numpy as np
import pytest

from bertzoo_jax.corpus import corpus as corpora

FILE = pathlib.Path(__file__).parents[2] / 'bench' / 'scale.py'


@pytest.fixture(scope='module')
def scale():
  spec = importlib.util.spec_from_file_location('scale', FILE)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_the_synthetic_corpus_is_one_that_opens_and_repeats_its_first_shards(scale, tmp_path):
  scale.make(tmp_path / 'c', shards=scale.DISTINCT + 2, sentences=300)
  corpora.verify(tmp_path / 'c')
  train = corpora.open(tmp_path / 'c').splits['train']
  assert train.num_sentences == 300 * (scale.DISTINCT + 2) == len(train.sentence_starts) - 1
  again = int(train.sentence_starts[300 * scale.DISTINCT])
  np.testing.assert_array_equal(train.gather(np.arange(500)), train.gather(again + np.arange(500)))
  assert set(np.unique(train.gather_units(np.arange(5000)))) == {0, 1}


@pytest.mark.slow
def test_any_step_is_reached_in_a_minute_and_16_gigabytes(scale, tmp_path):
  # of 16.7 M tokens; 3000 for 2 G sentences
  shards = int(os.environ.get('BERTZOO_SCALE_SHARDS', 300))
  results = scale.main([f'--folder={tmp_path / "c"}', f'--shards={shards}', '--rows=64'])
  assert [r['format'] for r in results] == list(scale.FORMATS)
  for r in results:
    assert r['open'] + r['build'] + r['batch'] < 60 and r['elsewhere'] < 60 and r['peak_GB'] < 16, r
