import io
import pathlib
import warnings

import ml_collections
import pytest
import rich.console

from bertzoo_jax import prepare
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import config as configuration
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.show import __main__ as show
from tests import found
from tests import test_systems

SAMPLE = pathlib.Path(__file__).parents[2] / 'data/sample'


@pytest.fixture(scope='module')
def corpus_of(tmp_path_factory):
  """config → the sample as its corpus, one for equal sections of the tokenizer and the corpus."""
  made = {}

  def make(config):
    sections = dict(tokenizer=config.tokenizer, corpus=config.corpus)
    key = configuration.to_json(ml_collections.ConfigDict(sections))
    if key not in made:
      books = ('federalist.txt', 'sherlock.txt', 'time_machine.txt')
      files = ('zh_*.txt',) if 'zh' in config.corpus.splitter else books
      made[key] = str(tmp_path_factory.mktemp('corpus') / 'corpus')
      how = dict(workers=1, say=lambda _: None)
      prepare.prepare(config, [str(SAMPLE / f) for f in files], made[key], **how)
    return made[key]

  return make


@pytest.mark.parametrize('system', found.SYSTEMS)
def test_the_sample_becomes_rows_with_every_feature_that_will_be_read_and_show_prints_them(
  system, corpus_of
):
  config = found.config(system, 'tiny')
  path = corpus_of(config)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    corpus = corpora.open(path)
    for phase in configuration.phases(config):
      pipe = pipeline.for_phase(corpus, phase)
      batch = pipe.batch(0)
      assert set(test_systems._objective(phase.config, corpus.vocab_size).reads) <= set(batch)
      assert {name: (a.shape, a.dtype) for name, a in batch.items()} == pipe.features
      assert batch['masked_weights'].sum() > 0.1 * (batch['segment_ids'] > 0).sum()
      console = rich.console.Console(file=io.StringIO(), width=200, highlight=False, soft_wrap=True)
      show.show(config, path, phase=phase.index, rows=1, console=console)
      assert 'row 0' in console.file.getvalue()
