import os
import tempfile

import numpy as np
from etils import epath
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from bertzoo_jax.text import duplicates
from bertzoo_jax.text import sources

LONG = [chr(97 + i) * duplicates.LEAST for i in range(4)]
paragraph = st.sampled_from([*LONG, 'Yes.', 'No.', LONG[0] + ' '])
texts = st.lists(
  st.lists(st.lists(paragraph, min_size=1, max_size=4), max_size=6), min_size=1, max_size=3
)  # sources of documents


class Reader:
  def __init__(self, sources_of):
    self._sources = sources_of
    self.dropped = sources.Dropped()
    self.bytes_read = 0
    self.place = 'here:1'

  position = (0, 0)

  def documents(self, start=None):
    for documents in self._sources:
      yield from map(list, documents)


def _find(reader, excluded=frozenset(), parts=1):
  with tempfile.TemporaryDirectory() as folder:
    found = duplicates.find(reader, excluded, lambda _: None, epath.Path(folder) / 'hashes', parts)
    assert not os.listdir(folder)
  return found


def _kept(*arguments):
  return [document for _, _, document in duplicates.kept(*arguments)]


def _literally(sources_of, choice):
  """Source by source with sets of seen texts."""
  documents_seen, paragraphs_seen, kept = set(), set(), []
  for documents in sources_of:
    for document in documents:
      whole = ' '.join(' '.join(document).split())
      if choice != 'keep' and whole in documents_seen:
        continue
      documents_seen.add(whole)
      rest = []
      for p in document:
        long = len(p) >= duplicates.LEAST
        if not (long and choice == 'documents+paragraphs' and p.strip() in paragraphs_seen):
          rest.append(p)
        paragraphs_seen.update([p.strip()] * long)
      kept += [rest] * bool(rest)
  return kept


@settings(max_examples=300, deadline=None)
@given(
  texts,
  st.sampled_from(sorted(duplicates.CHOICES)),
  st.sampled_from([1, 3, 40]),
)
def test_a_reader_with_a_perfect_memory_keeps_the_same_text(sources_of, choice, parts):
  found = _find(Reader(sources_of), parts=parts)
  reader = Reader(sources_of)
  assert _kept(reader, found, choice, 0) == _literally(sources_of, choice)
  if choice == 'keep':
    assert not reader.dropped.reasons


def test_excluded_and_short_documents_and_excluded_paragraphs_are_left_out_and_counted():
  excluded = duplicates.hashes_of(Reader([[[LONG[1]], ['Yes.', LONG[2]]]]))
  several = [[LONG[0], 'Yes.'], [LONG[1]], ['  ' + LONG[2]], ['Yes.']]
  both, none = 'documents+paragraphs', frozenset()
  first = [[LONG[0]]]
  for documents, without, choice, least, kept, dropped in (
    (several, excluded, both, 0, [[LONG[0], 'Yes.'], ['Yes.']], {'document of --exclude': 2}),
    ([[LONG[0], LONG[2]]], excluded, 'keep', 0, first, {'paragraph of --exclude': 1}),
    ([['Yes.'], [LONG[0]]], none, 'keep', 5, first, {'document under 5 characters': 1}),
  ):
    reader = Reader([documents])
    assert _kept(reader, _find(reader, without), choice, least) == kept
    assert {reason: d['count'] for reason, d in reader.dropped.reasons.items()} == dropped


def test_repeats_are_saved_whole_or_not_at_all(tmp_path):
  reader = Reader([[[LONG[0]], [LONG[0]], [LONG[1], LONG[0]]]])
  found = _find(reader)
  assert found.documents.tolist() == [1] and found.paragraphs.tolist() == [3]
  duplicates.save(tmp_path, found)
  for ours, theirs in zip(found, duplicates.load(tmp_path)):
    np.testing.assert_array_equal(ours, theirs)
  (tmp_path / 'repeated_counts.npy').unlink()
  assert duplicates.load(tmp_path) is None
