"""Input formats: which text a row holds (Liu et al. 2019 §4.2 names four)."""

from typing import Annotated

from bertzoo_jax.parts import fields

SENTENCE_SEPARATORS = Annotated[
  bool, "a separator after every sentence (fairseq's data, where every line ends in </s>)."
]
NEGATIVE_RATE = Annotated[fields.SHARE, 'probability of a false or swapped pair.']


@fields.part('full_sentences')
class FullSentences:
  """Contiguous sentences, across documents, to at most `length` tokens; no pair loss."""

  document_separator: Annotated[bool, 'an extra separator where a document ends (the paper).'] = (
    True
  )
  sentence_separators: SENTENCE_SEPARATORS = False


@fields.part('doc_sentences')
class DocSentences:
  """As full_sentences within one document; up to `max_pieces` short packed segments
  share a row and do not attend to each other.

  Also SpanBERT's one segment per document.
  """

  max_pieces: Annotated[fields.COUNT, 'most segments per row.'] = 8
  sentence_separators: SENTENCE_SEPARATORS = False
  long_sentences: Annotated[
    fields.one_of('cut', 'drop'),
    "a sentence that no row can hold: cut | drop (SpanBERT's release).",
  ] = 'cut'


@fields.part('token_blocks')
class TokenBlocks:
  """One stream of tokens over sentences and documents, cut anywhere (code of DeBERTa's release)."""


@fields.part('segment_pairs')
class SegmentPairs:
  """Two segments of several sentences (Devlin et al. 2018 A.2)."""

  pairs: fields.one_of(
    nsp='the second is the true next one or a false one',
    sop='in true or swapped order; Lan et al. 2019 §3.1',
    none='true, no label',
  ) = 'nsp'
  short_rate: Annotated[
    fields.SHARE, 'share of document visits with a random shorter target length.'
  ] = 0.1
  negative_rate: NEGATIVE_RATE = 0.5
  negatives: Annotated[
    fields.one_of('documents', 'pool'),
    'of nsp: documents (from a random other one) | pool (a segment of the row that is next when '
    '1,000 rows are shuffled; code of ERNIE 1.0).',
  ] = 'documents'
  lone_sentences: Annotated[
    fields.one_of('random', 'skip'),
    'chunks of one sentence: random (a random partner, label 1, so that more than negative_rate '
    "ends up 1; BERT, and ALBERT's release) | skip (they make no row).",
  ] = 'random'


@fields.part('sentence_pairs')
class SentencePairs:
  """Two sentences, the second the true next one or of another document (Liu et al. 2019 §4.2)."""

  negative_rate: NEGATIVE_RATE = 0.5


@fields.part('adjacent_segments')
class AdjacentSegments:
  """One or two segments of a document, never a false pair (Clark et al. 2020; ELECTRA's code)."""

  single_rate: Annotated[fields.SHARE, 'share of rows with one segment.'] = 0.1
  short_rate: Annotated[fields.SHARE, 'share of rows with a random shorter target length.'] = 0.05


@fields.part('memory_segments')
class MemorySegments:
  """Rows that go on: [reused part] A [SEP] B [SEP] [CLS] (Yang et al. 2019 §2.5; XLNet's code)."""

  reuse_length: Annotated[
    fields.TOKENS, 'tokens by which a step moves on; the memory keeps their states.'
  ] = 256
  both_directions: Annotated[bool, 'every other lane is read from right to left.'] = True
  random_rate: Annotated[fields.SHARE, 'share of rows whose B does not follow A.'] = 0.5
