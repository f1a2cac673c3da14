"""Input formats: which text a row holds (Liu et al. 2019 §4.2 names four).

A field without an explanation means the same as in the nearest part above that explains it.
"""

from bertzoo_jax.parts import fields


@fields.section
def full_sentences(*, document_separator: bool = True, sentence_separators: bool = False):
  """Contiguous sentences, across documents, to at most `length` tokens; no pair loss.

  document_separator: an extra separator where a document ends (the paper).
  sentence_separators: one after every sentence (fairseq's data, where every line ends in </s>).
  """


@fields.section
def doc_sentences(
  *,
  max_pieces: fields.COUNT = 8,
  sentence_separators: bool = False,
  long_sentences: fields.one_of('cut', 'drop') = 'cut',
):
  """As full_sentences within one document; up to `max_pieces` short packed segments
  share a row and do not attend to each other.

  Also SpanBERT's one segment per document.

  max_pieces: most segments per row.
  long_sentences: a sentence that no row can hold is cut | drop (SpanBERT's release).
  """


@fields.section
def token_blocks():
  """One stream of tokens over sentences and documents, cut anywhere (code of DeBERTa's release)."""


@fields.section
def segment_pairs(
  *,
  pairs: fields.one_of('nsp', 'sop', 'none') = 'nsp',
  short_rate: fields.SHARE = 0.1,
  negative_rate: fields.SHARE = 0.5,
  negatives: fields.one_of('documents', 'pool') = 'documents',
  lone_sentences: fields.one_of('random', 'skip') = 'random',
):
  """Two segments of several sentences (Devlin et al. 2018 A.2).

  pairs: nsp (the second is the true next one or a false one) | sop (in true or swapped order; Lan
    et al. 2019 §3.1) | none (true, no label).
  short_rate: share of document visits with a random shorter target length.
  negative_rate: of the coin for a false or swapped pair.
  negatives: of nsp: documents (from a random other one) | pool (a segment of the row that is next
    when 1,000 rows are shuffled; code of ERNIE 1.0).
  lone_sentences: chunks of one sentence: random (a random partner, label 1, so that more than
    negative_rate ends up 1; BERT, and ALBERT's release) | skip (they make no row).
  """


@fields.section
def sentence_pairs(*, negative_rate: fields.SHARE = 0.5):
  """Two single sentences, the second the true next one or a random one of another document (Liu et
  al. 2019 §4.2).
  """


@fields.section
def adjacent_segments(*, single_rate: fields.SHARE = 0.1, short_rate: fields.SHARE = 0.05):
  """Running text of one document in one or two segments, never a false pair (Clark et al. 2020;
  code of ELECTRA's release).

  single_rate: share of rows with one segment.
  short_rate: share of rows with a random shorter target length.
  """


@fields.section
def memory_segments(
  *,
  reuse_length: fields.TOKENS = 256,
  both_directions: bool = True,
  random_rate: fields.SHARE = 0.5,
):
  """Rows that continue from step to step: [reused part] A [SEP] B [SEP] [CLS] (Yang et al. 2019
  §2.5; code of XLNet).

  reuse_length: tokens by which a step moves on; the memory keeps their states.
  both_directions: every other lane is read from right to left.
  random_rate: share of rows whose B does not follow A.
  """


__all__ = fields.sections(vars())
