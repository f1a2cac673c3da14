"""Maskings: which tokens are predicted."""

from typing import Annotated

from bertzoo_jax.parts import fields

RATE = Annotated[fields.SHARE_BETWEEN, "share of a row's tokens, specials counted."]
CORRUPTION = Annotated[fields.each(fields.SHARE), 'shares of [MASK], of random and of kept tokens.']
RANDOM_TOKENS = fields.one_of(
  all="any id, [PAD] and [MASK] too, as BERT's release",
  no_specials='',
  unigrams='as often as in the corpus',
)
REPEAT = Annotated[
  fields.COUNT_OR_0,
  '0 draws anew in every epoch; k > 0 repeats the rows and masks of epoch e mod k (static '
  'masking; Liu et al. 2019 §4.1).',
]
SUBSTITUTE = Annotated[
  fields.one_of('mask', 'similar'),
  "replacement in the first of the three shares: mask | similar (a word of the corpus's table, "
  'MacBERT).',
]
MAX_PREDICTIONS = Annotated[fields.COUNT_OR_0, 'most predictions of a row; 0: from the rate.']


@fields.part('token')
class Token:
  """Single tokens, uniformly (Devlin et al. 2018 §3.1)."""

  rate: RATE = 0.15
  corruption: CORRUPTION = (0.8, 0.1, 0.1)
  rounding: fields.one_of(
    nearest='at least one; BERT', random='up or down, right on average; fairseq'
  ) = 'nearest'
  maskable: fields.one_of('text', all_but_padding='fairseq also masks its specials') = 'text'
  random_tokens: RANDOM_TOKENS = 'all'
  sampling: fields.one_of(
    'distinct', independent="with replacement, so that slots may repeat; ELECTRA's release"
  ) = 'distinct'
  repeat: REPEAT = 0


@fields.part('whole_word')
class WholeWord:
  """All pieces of words (BERT, Cui et al. 2019), phrases or entities (Sun et al. 2019 §3.2)."""

  rate: Annotated[
    fields.SHARE_BETWEEN,
    "share of a row's tokens, specials counted (budget), or the chance of a unit (independent).",
  ] = 0.15
  level: fields.one_of('word', 'phrase', entity='words outside of them') = 'word'
  selection: fields.one_of(
    budget='random order, a unit that exceeds it is skipped',
    independent="a coin per unit; ERNIE's release",
  ) = 'budget'
  corruption: CORRUPTION = (0.8, 0.1, 0.1)
  corrupted: Annotated[
    fields.one_of('pieces', 'units'),
    'mask, random or keep is drawn once per piece (pieces) or once per unit (units).',
  ] = 'pieces'
  substitute: SUBSTITUTE = 'mask'
  random_tokens: RANDOM_TOKENS = 'all'
  max_predictions: MAX_PREDICTIONS = 0
  repeat: REPEAT = 0


@fields.part('ngram')
class Ngram:
  """Runs of one to N words (Lan et al. 2019 §3.1; Cui et al. 2020 §3.2)."""

  rate: RATE = 0.15
  weights: Annotated[
    fields.each(fields.AT_LEAST_0), 'of runs of 1, 2, …, N words; 6, 3, 2 is 1/n.'
  ] = (6, 3, 2)
  order: fields.one_of(shuffled='Lan et al. 2019', left_to_right='Cui et al. 2020') = 'shuffled'
  corruption: CORRUPTION = (0.8, 0.1, 0.1)
  corrupted: fields.one_of('pieces', units='words') = 'pieces'
  substitute: SUBSTITUTE = 'mask'
  random_tokens: RANDOM_TOKENS = 'all'
  max_predictions: MAX_PREDICTIONS = 0
  repeat: REPEAT = 0


@fields.part('span')
class Span:
  """Spans of words of geometric length, and the tokens at their borders (Joshi et al. 2020 §3)."""

  rate: Annotated[fields.SHARE_BETWEEN, 'of the text, specials not counted.'] = 0.15
  p: Annotated[fields.SHARE_BETWEEN, 'of the geometric distribution.'] = 0.2
  max_words: Annotated[fields.COUNT, 'most words of a span; probabilities are rescaled.'] = 10
  corruption: CORRUPTION = (0.8, 0.1, 0.1)
  corrupted: fields.one_of(spans='touching spans are one', units='words', pieces='') = 'spans'
  random_tokens: RANDOM_TOKENS = 'unigrams'
  overflow: Annotated[
    fields.one_of('skip', 'cut'),
    'a word that exceeds the budget: skip | cut (masks its first pieces; the release).',
  ] = 'skip'
  max_pair_targets: Annotated[fields.COUNT, 'how far into a span the border objective reaches.'] = (
    15
  )
  repeat: REPEAT = 0


@fields.part('ngram_windows')
class NgramWindows:
  """One run of up to max_gram words (p ∝ 1/n) in every window of words (code of He et al. 2020)."""

  rate: RATE = 0.15
  max_gram: Annotated[fields.COUNT, 'most words of a run; 1: single tokens.'] = 3
  scan: Annotated[
    fields.one_of('left_to_right', 'spread'),
    'which windows are used up to the budget: left_to_right (the release; the end of a row is '
    'hardly ever masked) | spread (in random order, round the row from a random word).',
  ] = 'spread'
  corruption: CORRUPTION = (0.8, 0.1, 0.1)
  random_tokens: RANDOM_TOKENS = 'all'
  repeat: REPEAT = 0


@fields.part('permutation')
class Permutation:
  """Spans that are predicted in random order; a token sees the earlier ones (Yang et al. 2019)."""

  context: Annotated[fields.COUNT, 'K: about one token in K is predicted.'] = 6
  max_span: Annotated[
    fields.COUNT_OR_0, 'most words of a span (p ∝ 1/n); 0: single random tokens, no spans.'
  ] = 5
  num_predictions: Annotated[fields.TOKENS, 'predictions of a full row.'] = 85
  block: Annotated[fields.TOKENS, 'tokens permuted together; they do not see later blocks.'] = 256
  span_units: Annotated[
    fields.one_of('words', 'pieces'),
    "words | pieces (n pieces from a word's first on, as the release does). The paper says tokens "
    "(§3.1); the release's authors meant words.",
  ] = 'words'
  repeat: REPEAT = 0


@fields.part('in_order')
class InOrder:
  """Predicts each token from those before it: `permutation_lm` then goes from left to right."""
