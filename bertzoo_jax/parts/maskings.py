"""Maskings: which tokens are predicted.

A field without an explanation means the same as in the nearest part above that explains it.
"""

from bertzoo_jax.parts import fields


@fields.section
def token(
  *,
  rate: fields.SHARE_BETWEEN = 0.15,
  corruption: fields.each(fields.SHARE) = (0.8, 0.1, 0.1),
  rounding: fields.one_of('nearest', 'random') = 'nearest',
  maskable: fields.one_of('text', 'all_but_padding') = 'text',
  random_tokens: fields.one_of('all', 'no_specials', 'unigrams') = 'all',
  sampling: fields.one_of('distinct', 'independent') = 'distinct',
  repeat: fields.COUNT_OR_0 = 0,
):
  """Single tokens, uniformly (Devlin et al. 2018 §3.1).

  rate: share of a row's tokens, specials counted.
  corruption: shares of [MASK], of a random token, of the token kept.
  rounding: nearest (at least one; BERT) | random (up or down, right on average; fairseq).
  maskable: text | all_but_padding (fairseq also masks its specials).
  random_tokens: all (any id, [PAD] and [MASK] too, as BERT's release) | no_specials | unigrams (as
    often as in the corpus).
  sampling: distinct | independent (with replacement, so that slots may repeat; ELECTRA's release).
  repeat: 0 draws anew in every epoch; k > 0 repeats the rows and masks of epoch e mod k (static
    masking; Liu et al. 2019 §4.1).
  """


@fields.section
def whole_word(
  *,
  rate: fields.SHARE_BETWEEN = 0.15,
  level: fields.one_of('word', 'phrase', 'entity') = 'word',
  selection: fields.one_of('budget', 'independent') = 'budget',
  corruption: fields.each(fields.SHARE) = (0.8, 0.1, 0.1),
  corrupted: fields.one_of('pieces', 'units') = 'pieces',
  substitute: fields.one_of('mask', 'similar') = 'mask',
  random_tokens: fields.one_of('all', 'no_specials', 'unigrams') = 'all',
  max_predictions: fields.COUNT_OR_0 = 0,
  repeat: fields.COUNT_OR_0 = 0,
):
  """All pieces of the chosen words (Google's BERT, Cui et al. 2019), phrases or entities (Sun et
  al. 2019 §3.2).

  rate: share of a row's tokens, specials counted (budget), or the chance of a unit (independent).
  level: word | phrase | entity (words where there is none).
  selection: budget (random order, a unit that exceeds it is skipped) | independent (a coin per
    unit; ERNIE's release).
  corrupted: mask, random or keep is drawn once per piece (pieces) or once per unit (units).
  substitute: replacement in the first of the three shares: mask | similar (a word of the corpus's
    table, MacBERT).
  max_predictions: most predictions of a row; 0: from the rate.
  """


@fields.section
def ngram(
  *,
  rate: fields.SHARE_BETWEEN = 0.15,
  weights: fields.each(fields.AT_LEAST_0) = (6, 3, 2),
  order: fields.one_of('shuffled', 'left_to_right') = 'shuffled',
  corruption: fields.each(fields.SHARE) = (0.8, 0.1, 0.1),
  corrupted: fields.one_of('pieces', 'units') = 'pieces',
  substitute: fields.one_of('mask', 'similar') = 'mask',
  random_tokens: fields.one_of('all', 'no_specials', 'unigrams') = 'all',
  max_predictions: fields.COUNT_OR_0 = 0,
  repeat: fields.COUNT_OR_0 = 0,
):
  """Runs of one to N words (Lan et al. 2019 §3.1; Cui et al. 2020 §3.2).

  rate: share of a row's tokens, specials counted.
  weights: of runs of 1, 2, …, N words; 6, 3, 2 is 1/n.
  order: shuffled (ALBERT) | left_to_right (MacBERT).
  corrupted: pieces | units (words).
  """


@fields.section
def span(
  *,
  rate: fields.SHARE_BETWEEN = 0.15,
  p: fields.SHARE_BETWEEN = 0.2,
  max_words: fields.COUNT = 10,
  corruption: fields.each(fields.SHARE) = (0.8, 0.1, 0.1),
  corrupted: fields.one_of('spans', 'units', 'pieces') = 'spans',
  random_tokens: fields.one_of('all', 'no_specials', 'unigrams') = 'unigrams',
  overflow: fields.one_of('skip', 'cut') = 'skip',
  max_pair_targets: fields.COUNT = 15,
  repeat: fields.COUNT_OR_0 = 0,
):
  """Spans of words of geometric length, and the tokens at their borders (Joshi et al. 2020 §3).

  rate: of the text, specials not counted.
  p: of the geometric distribution.
  max_words: where it is cut off; the rest is rescaled.
  corrupted: spans (touching ones are one) | units (words) | pieces.
  overflow: a word that exceeds the budget: skip | cut (masks its first pieces; the release).
  max_pair_targets: how far into a span the border objective reaches.
  """


@fields.section
def ngram_windows(
  *,
  rate: fields.SHARE_BETWEEN = 0.15,
  max_gram: fields.COUNT = 3,
  scan: fields.one_of('left_to_right', 'spread') = 'spread',
  corruption: fields.each(fields.SHARE) = (0.8, 0.1, 0.1),
  random_tokens: fields.one_of('all', 'no_specials', 'unigrams') = 'all',
  repeat: fields.COUNT_OR_0 = 0,
):
  """One run of up to max_gram words (p ∝ 1/n) in every window of words (code of He et al. 2020).

  rate: share of a row's tokens, specials counted.
  max_gram: most words of a run; 1: single tokens.
  scan: which windows are used up to the budget: left_to_right (the release; the end of a row is
    hardly ever masked) | spread (in random order, round the row from a random word).
  """


@fields.section
def permutation(
  *,
  context: fields.COUNT = 6,
  max_span: fields.COUNT_OR_0 = 5,
  num_predictions: fields.TOKENS = 85,
  block: fields.TOKENS = 256,
  span_units: fields.one_of('words', 'pieces') = 'words',
  repeat: fields.COUNT_OR_0 = 0,
):
  """Spans that are predicted in random order; a token sees the earlier ones (Yang et al. 2019).

  context: K, about one token of it is predicted.
  max_span: words (p ∝ 1/n); 0 for single random tokens in place of spans.
  num_predictions: of a full row.
  block: tokens permuted together; they do not see later blocks.
  span_units: words | pieces (n pieces from a word's first on, as the release does). The paper says
    tokens (§3.1); the release's authors meant words.
  """


@fields.section
def in_order():
  """Predicts each token from the tokens before it. `permutation_lm` is then a language model from
  left to right.
  """


__all__ = fields.sections(vars())
