"""Input formats: which sentences make a row, and where its tokens and separators stand.

A format is pure: its row list is a function of (text, key), and a row is computed from its number
when it is asked for. The list holds only where each row starts; every random draw is a counter hash
of that place. All functions are numpy over whole arrays.
"""

from bertzoo_jax.batches.formats import contiguous
from bertzoo_jax.batches.formats import memory
from bertzoo_jax.batches.formats import pairs

BY_NAME = {
  'full_sentences': contiguous.full_sentences,
  'doc_sentences': contiguous.doc_sentences,
  'token_blocks': contiguous.token_blocks,
  'adjacent_segments': contiguous.adjacent_segments,
  'memory_segments': memory.memory_segments,
  'segment_pairs': pairs.segment_pairs,
  'sentence_pairs': pairs.sentence_pairs,
}
