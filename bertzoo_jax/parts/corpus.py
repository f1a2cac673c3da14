"""How `prepare` treats a text."""

from bertzoo_jax.parts import fields


@fields.section(named=False)
def corpus(
  *,
  splitter: str = 'rules:en',
  held_out: fields.SHARE_BELOW_1 = 0.01,
  min_chars: fields.COUNT_OR_0 = 0,
  duplicates: fields.one_of('documents+paragraphs', 'documents', 'keep') = 'documents+paragraphs',
  words: fields.one_of('pieces', 'jieba', 'blanks') = 'pieces',
  phrases: fields.one_of('none', 'lexicon', 'jieba') = 'none',
  entities: fields.one_of('none', 'lexicon', 'jieba') = 'none',
  similar: fields.one_of('none', 'trained', 'vectors', 'thesaurus') = 'none',
):
  """How `prepare` treats a text: sentences, held-out documents, duplicates, marks of words and of
  larger units.

  splitter: rules:LANG | rules:generic (any language: stops, no abbreviations) | sentencex:LANG
    (that package) | lines (one sentence per line) | regex:PATTERN (its match ends a sentence) |
    none.
  held_out: share of the documents, by content hash, kept out of training.
  min_chars: shorter documents are dropped.
  duplicates: texts that are kept only once: documents+paragraphs | documents | keep (no texts).
  words: pieces (they begin where the tokenizer's pieces say so) | jieba (Chinese) | blanks (text
    segmented beforehand).
  phrases, entities: larger units: none | lexicon (--phrases, --entities FILE) | jieba (parts of
    speech).
  similar: a table of similar words: none | trained (word vectors of this text) | vectors |
    thesaurus (--similar FILE).
  """


__all__ = fields.sections(vars())
