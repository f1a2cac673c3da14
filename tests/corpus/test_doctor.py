import importlib.util
import os
import pathlib
import re

import numpy as np
import pytest

from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.corpus import doctor

GOOD = ['A first line of some length here.\nAnd a second one.', 'Another text.\nWith two lines.']
MENU = 'Home | About us | Contact | Imprint\n'


def notes(documents, unigrams=(5, 5, 5)):
  """The notes on documents in two chunks."""
  chunks = [doctor.count(documents[::2]), doctor.count(documents[1::2])]
  return doctor.describe(doctor.total(chunks, np.array(unigrams)))


@pytest.mark.parametrize(
  'documents, words',
  [
    (GOOD, []),
    ([MENU + g for g in GOOD] * 4, ["e.g. 'Home | About us | Contact | Imprint', 4 times"]),
    ([GOOD[0] + ' [MASK] and </s></s>', *GOOD], [r'\(2 × </s>, 1 × \[MASK\]\): they are read as']),
    (['\ufeffA\ufeff b.\nc', *GOOD], ['the text has 2 byte-order marks: a wrong decoding']),
    (['a\x00b\x1b[31m\nc', *GOOD], ['2 control characters']),
    (['sm\ufffdrg\n\x07', *GOOD], [r'1 replacement characters \(U\+FFFD\) and 1 control']),
    (['мир мир\nx', *GOOD], [r'other scripts \(Cyrillic \d\.\d%\)']),
    (['мир ' * 30, *GOOD], []),  # as much as of a second language
    (['One line.', 'One more line.', 'And one.'], ['100% of the documents are one line']),
  ],
)
def test_what_is_conspicuous_is_told_with_what_to_do(documents, words):
  found = notes(documents)
  assert len(found) == len(words), found
  for sentence, word in zip(found, words):
    assert re.search(word, sentence), sentence


def test_pieces_that_the_text_hardly_holds_are_told_and_nothing_draws_on_the_screen():
  (line,) = notes(GOOD, (0, 1, *[9] * 18))
  assert line.startswith('10% of the pieces occur at most once in the text')
  assert not doctor.describe(doctor.total([doctor.count(GOOD)], np.zeros(5)), trained=False)
  found = notes(['\x1b[2J' + 'x' * 40 + '\u202e' + 'y' * 99] * 8)
  assert '\\x1b[2J' in found[0] and '\u202e' not in ''.join(found)


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
