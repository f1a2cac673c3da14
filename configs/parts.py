"""One constructor per named part. It returns a section of a config: all fields of the part, with
the usual values.

A part's arguments are those of the function or module of the same name in `bertzoo_jax` (a test
holds the two together). Nothing here imports a framework, so a config can be read on any machine.

A config file calls these, and ends in `experiment(...)`; its `get_config(argument)` passes the
argument through `argument(...)`, which understands

    base                          a size
    base,masking=token            a whole section swapped for another part with its usual values
    base,masking=mine.masks:odd   the same with a part of your own (see `part`), with its defaults
    base,steps=2000               all phases and the warmup scaled to a total of 2,000 steps
"""

import difflib

import ml_collections

from bertzoo_jax.common import trust


def part(name, **fields):
  """A section with a part of your own: a function or class that any module holds.

  name: package.module:name; the module is looked for in the current folder and on PYTHONPATH.
  fields: its keyword arguments; a field that is left out has the part's own default.
  """
  if not all(word.isidentifier() for word in name.replace(':', '.').split('.')) or (
    name.count(':') != 1
  ):
    raise ValueError(f'{name!r} is no part: write package.module:name.')
  trust.names(name)
  return _part(name, fields)


def _part(name, fields):
  """The section of a constructor. fields: its arguments, which are its `locals()`."""
  return ml_collections.ConfigDict({'name': name, **fields})


def _tokenizer(name, fields):
  """The section of a tokenizer. vocab_size is a number or 'auto', also on the command line."""
  size = ml_collections.FieldReference(fields['vocab_size'], field_type=object)
  return _part(name, {**fields, 'vocab_size': size})


# --- text: what `prepare` makes a corpus of ---


def wordpiece(
  *,
  vocab_size=30522,
  lowercase=True,
  strip_accents=True,
  split_chinese=True,
  normalization='none',
  max_word_chars=100,
  min_frequency=2,
  coverage=0.9999,
):
  """BERT's WordPiece (Devlin et al. 2018 §3; code of the release): [PAD] [UNK] [CLS] [SEP] [MASK],
  `##` inside words.

  vocab_size: pieces, specials included; auto: prepare chooses it by the size of the text, training
    takes the corpus's.
  lowercase, strip_accents: separate choices (the uncased release does both).
  split_chinese: blanks around CJK characters.
  normalization: none | nfc | nfkc, before all else.
  max_word_chars: longer words are unknown (100 in Hugging Face, 200 in Google's code).
  min_frequency: of a merge in training.
  coverage: share of all characters that training gives a piece of their own, if there are pieces
    enough; the rarest become unknown.
  """
  return _tokenizer('wordpiece', locals())


def byte_bpe(
  *,
  vocab_size=50265,
  lowercase=False,
  normalization='none',
  add_prefix_space=False,
  min_frequency=2,
):
  """GPT-2's byte-level BPE with RoBERTa's specials (Liu et al. 2019 §4.4): <s> 0, <pad> 1, </s> 2,
  <unk> 3, <mask> last.
  """
  return _tokenizer('byte_bpe', locals())


def sentencepiece(
  *,
  vocab_size=30000,
  model='unigram',
  specials='bracketed',
  lowercase=True,
  strip_accents=True,
  collapse_blanks=True,
  straight_quotes=False,
  normalization='nmt_nfkc',
  digit_commas='split',
  word_starts='letters',
  coverage=0.99995,
  symbols='()"-.–£€',
):
  """SentencePiece (Kudo & Richardson 2018); the usual values are ALBERT's (README and code of its
  release).

  vocab_size: as for wordpiece.
  model: unigram | bpe.
  specials: bracketed (<pad> 0, <unk> 1, [CLS] 2, [SEP] 3, [MASK] 4) | angled (<unk> 0, <s>, </s>,
    <cls>, <sep>, <pad> 5, <mask>, <eod>, <eop> 8, and A <sep> B <sep> <cls>; XLNet) | mask_last
    ([PAD] 0, [CLS], [SEP], [UNK] 3, and [MASK] behind all others; DeBERTa v2).

  Changes to a text, in this order:
  collapse_blanks: all white space to single blanks.
  straight_quotes: `` and '' become ".
  strip_accents: NFKD without combining marks.
  lowercase: after that.
  normalization, the model's own (a published model brings its own): nmt_nfkc | nfkc | nmt_nfkc_cf |
    nfkc_cf | identity.
  digit_commas: split (no piece with a comma behind a digit at its end is used) | keep.
  word_starts, pieces that start a word besides those with a blank in front: letters (punctuation,
    and what has other than English letters) | ascii (ASCII punctuation; XLNet) | unicode (any
    punctuation alone; DeBERTa).
  coverage: share of all characters that training gives a piece.
  symbols: characters that are always pieces of their own.
  """
  return _tokenizer('sentencepiece', locals())


def corpus(
  *,
  splitter='rules:en',
  held_out=0.01,
  min_chars=0,
  duplicates='documents+paragraphs',
  words='pieces',
  phrases='none',
  entities='none',
  similar='none',
):
  """How `prepare` treats a text: sentences, held-out documents, duplicates, marks of words and of
  larger units.

  splitter: rules:LANG | rules:generic (any language: stops, no abbreviations) | lines (one sentence
    per line) | regex:PATTERN (its match ends a sentence) | none.
  held_out: share of the documents, by content hash, kept out of training.
  min_chars: shorter documents are dropped.
  duplicates: texts that are kept only once: documents+paragraphs | documents | keep (no texts).
  words: pieces (they begin where the tokenizer's pieces say so) | jieba (Chinese) | blanks (text
    segmented beforehand).
  phrases, entities: none | lexicon (--phrases, --entities FILE) | jieba (parts of speech).
  similar: none | trained (word vectors of this text) | vectors | thesaurus (--similar FILE).
  """
  return ml_collections.ConfigDict(locals())


# --- input formats (Liu et al. 2019 §4.2 names the four) ---


def full_sentences(*, document_separator=True, sentence_separators=False):
  """Contiguous sentences, across documents, to at most `length` tokens; no pair loss.

  document_separator: an extra separator where a document ends (the paper).
  sentence_separators: one after every sentence (fairseq's data, where every line ends in </s>).
  """
  return _part('full_sentences', locals())


def doc_sentences(*, max_pieces=8, sentence_separators=False, long_sentences='cut'):
  """As full_sentences within one document; up to `max_pieces` short packed segments
  share a row and do not attend to each other.

  Also SpanBERT's one segment per document.
  long_sentences: a sentence that no row can hold is cut | drop (SpanBERT's release).
  """
  return _part('doc_sentences', locals())


def token_blocks():
  """One stream of tokens over sentences and documents, cut anywhere (code of DeBERTa's release)."""
  return _part('token_blocks', locals())


def segment_pairs(
  *, pairs='nsp', short_rate=0.1, negative_rate=0.5, negatives='documents', lone_sentences='random'
):
  """BERT's two segments of several sentences (Devlin et al. 2018 A.2).

  pairs: nsp (the second is the true next one or a false one) | sop (in true or swapped order; Lan
    et al. 2019 §3.1) | none (true, no label).
  short_rate: share of document visits with a random shorter target length.
  negative_rate: of the coin for a false or swapped pair.
  negatives, of nsp: documents (from a random other one) | same_document (from another place of the
    first segment's document) | pool (a segment of the row that is next when 1,000 rows are
    shuffled; code of ERNIE 1.0).
  lone_sentences, chunks of one sentence: random (a random partner, label 1, so that more than
    negative_rate ends up 1; BERT, and ALBERT's release) | skip (they make no row).
  """
  return _part('segment_pairs', locals())


def sentence_pairs(*, negative_rate=0.5):
  """Two single sentences, the second the true next one or a random one of another document (Liu et
  al. 2019 §4.2).
  """
  return _part('sentence_pairs', locals())


def adjacent_segments(*, single_rate=0.1, short_rate=0.05):
  """Running text of one document in one or two segments, never a false pair (Clark et al. 2020;
  code of ELECTRA's release).

  single_rate: share of rows with one segment.
  short_rate: share of rows with a random shorter target length.
  """
  return _part('adjacent_segments', locals())


def memory_segments(*, reuse_length=256, both_directions=True, random_rate=0.5):
  """Rows that continue from step to step: [reused part] A [SEP] B [SEP] [CLS] (Yang et al. 2019
  §2.5; code of XLNet).

  reuse_length: tokens by which a step moves on; the memory keeps their states.
  both_directions: every other lane is read from right to left.
  random_rate: share of rows whose B does not follow A.
  """
  return _part('memory_segments', locals())


# --- masking ---


def token(
  *,
  rate=0.15,
  corruption=(0.8, 0.1, 0.1),
  rounding='nearest',
  maskable='text',
  random_tokens='all',
  sampling='distinct',
  repeat=0,
):
  """Single tokens, uniformly (Devlin et al. 2018 §3.1).

  rate: share of a row's tokens, specials counted.
  corruption: shares of [MASK], of a random token, of the token kept.
  rounding: nearest (at least one; BERT) | random (up or down, right on average; fairseq).
  maskable: text | all_but_padding (fairseq also masks its specials).
  random_tokens: all | no_specials | unigrams (as often as in the corpus).
  sampling: distinct | independent (with replacement, so that slots may repeat; ELECTRA's release).
  repeat: 0 draws anew in every epoch; k > 0 repeats the rows and masks of epoch e mod k (static
    masking; Liu et al. 2019 §4.1).
  """
  return _part('token', locals())


def whole_word(
  *,
  rate=0.15,
  level='word',
  selection='budget',
  corruption=(0.8, 0.1, 0.1),
  corrupted='pieces',
  substitute='mask',
  random_tokens='all',
  max_predictions=0,
  repeat=0,
):
  """All pieces of the chosen words (Google's BERT, Cui et al. 2019), phrases or entities (Sun et
  al. 2019 §3.2).

  level: word | phrase | entity (words where there is none).
  selection: budget (random order, a unit that exceeds it is skipped) | independent (a coin per
    unit; ERNIE's release).
  corrupted: mask, random or keep is drawn once per piece (pieces) or once per unit (units).
  substitute: replacement in the first of the three shares: mask | similar (a word of the corpus's
    table, MacBERT).
  max_predictions: 0: from the rate.
  rate, random_tokens, repeat: see token.
  """
  return _part('whole_word', locals())


def ngram(
  *,
  rate=0.15,
  weights=(6, 3, 2),
  order='shuffled',
  corruption=(0.8, 0.1, 0.1),
  corrupted='pieces',
  substitute='mask',
  random_tokens='all',
  max_predictions=0,
  repeat=0,
):
  """Runs of one to N words (Lan et al. 2019 §3.1; Cui et al. 2020 §3.2).

  weights: of runs of 1, 2, …, N words; 6, 3, 2 is 1/n.
  order: shuffled (ALBERT) | left_to_right (MacBERT).
  corrupted: pieces | units (words).
  The others: see whole_word and token.
  """
  return _part('ngram', locals())


def span(
  *,
  rate=0.15,
  p=0.2,
  max_words=10,
  corruption=(0.8, 0.1, 0.1),
  corrupted='spans',
  random_tokens='unigrams',
  overflow='skip',
  max_pair_targets=15,
  repeat=0,
):
  """Spans of words of geometric length, and the tokens at their borders (Joshi et al. 2020 §3).

  rate: of the text, specials not counted.
  p, max_words: of the geometric distribution, cut off there and rescaled.
  corrupted: spans (touching ones are one) | units (words) | pieces.
  overflow, where a word exceeds the budget: skip | cut (masks its first pieces; the release).
  max_pair_targets: how far into a span the border objective reaches.
  The others: see token.
  """
  return _part('span', locals())


def ngram_windows(
  *, rate=0.15, max_gram=3, scan='spread', corruption=(0.8, 0.1, 0.1), random_tokens='all', repeat=0
):
  """One run of up to max_gram words (p ∝ 1/n) in every window of words (code of He et al. 2020).

  max_gram: 1: single tokens.
  scan, which windows are used up to the budget: left_to_right (the release; the end of a row is
    hardly ever masked) | spread (in random order, round the row from a random word).
  The others: see token.
  """
  return _part('ngram_windows', locals())


def permutation(
  *, context=6, max_span=5, num_predictions=85, block=256, span_units='words', repeat=0
):
  """Spans that are predicted in random order; a token sees the earlier ones (Yang et al. 2019).

  context: K, about one token of it is predicted.
  max_span: words (p ∝ 1/n); 0 for single random tokens in place of spans.
  num_predictions: of a full row.
  block: tokens permuted together; they do not see later blocks.
  span_units: words | pieces (n pieces from a word's first on, as the release does). The paper says
    tokens (§3.1); the release's authors meant words.
  repeat: see token.
  """
  return _part('permutation', locals())


def in_order():
  """Predicts each token from the tokens before it. `permutation_lm` is then a language model from
  left to right.
  """
  return _part('in_order', locals())


# --- network ---


def transformer(
  *,
  num_layers=12,
  hidden_size=768,
  num_heads=12,
  intermediate_size=3072,
  embedding_size=0,
  max_positions=512,
  type_vocab_size=2,
  sharing='none',
  num_groups=1,
  inner_group_num=1,
  activation='gelu_tanh',
  norm_eps=1e-12,
  dropout=0.1,
  attention_dropout=0.1,
  initializer='truncated_normal',
  initializer_range=0.02,
):
  """The post-LN Transformer encoder with learned positions (Devlin et al. 2018 §3).

  embedding_size: of the tables, projected to hidden_size; 0: the same, and no projection.
  type_vocab_size: 0 for no segment table.
  sharing: parameters that layers share: none | all | attention | feed_forward (Lan et al. 2019
    §3.1, Table 4; each with its norm).
  num_groups: of consecutive layers; layers share in their group only.
  inner_group_num: blocks, each with its own parameters, that make a layer.
  activation: gelu_tanh (Google's BERT) | gelu (the exact one) | relu.
  initializer: truncated_normal (cut at two deviations, not rescaled) | normal, with deviation
    initializer_range. The detection head's output layer is Glorot-uniform.
  """
  return _part('transformer', locals())


def disentangled(
  *,
  num_layers=12,
  hidden_size=768,
  num_heads=12,
  intermediate_size=3072,
  embedding_size=0,
  vocab_multiple=1,
  max_positions=512,
  type_vocab_size=0,
  absolute_positions='decoder',
  content_to_position=True,
  position_to_content=True,
  max_distance=512,
  buckets=256,
  norm_relative=True,
  shared_projections=True,
  key_bias=True,
  convolution_size=0,
  convolution_activation='gelu',
  sharing='none',
  num_groups=1,
  inner_group_num=1,
  activation='gelu',
  norm_eps=1e-7,
  dropout=0.1,
  attention_dropout=0.1,
  initializer='normal',
  initializer_range=0.02,
):
  """DeBERTa's encoder: disentangled attention and the enhanced mask decoder (He et al. 2020 §3).

  The usual values are v2's without its convolution; v1 has buckets=0, norm_relative=False,
  shared_projections=False, key_bias=False.

  vocab_multiple: the number of rows of the word table is rounded up to a multiple of it (v2, V3:
    100). The last rows belong to no piece.
  absolute_positions: decoder (the enhanced mask decoder) | input (added to the words) | none.
  content_to_position, position_to_content: the two relative terms of a score, each on or off.
  max_distance: all distances from this one on share a row of the relative table.
  buckets: rows of the relative table to each side, in logarithmic steps beyond half of them; 0 for
    a row per distance.
  norm_relative: whether the relative table has a norm.
  shared_projections: whether the layer's query and key kernels also project the relative table;
    else it has kernels of its own.
  key_bias: whether keys have a bias.
  convolution_size: width in tokens of the convolution beside the first layer (v2 XLarge, XXLarge:
    3); 0 for none.
  convolution_activation: its activation.
  All others: see `transformer`.
  """
  return _part('disentangled', locals())


def two_stream(
  *,
  num_layers=12,
  hidden_size=768,
  num_heads=12,
  intermediate_size=3072,
  memory_length=384,
  reuse_length=256,
  clamp_length=0,
  activation='gelu_tanh',
  norm_eps=1e-12,
  dropout=0.1,
  attention_dropout=0.1,
  initializer='normal',
  initializer_range=0.02,
):
  """XLNet's encoder: a content and a query stream, relative positions and a memory (Yang et al.
  2019 §2.3 to 2.5; code of the release).

  memory_length: tokens of earlier rows that each layer remembers; 0 for none.
  reuse_length: tokens of a row that enter the memory; must equal the format's reuse_length.
  clamp_length: greater distances count as this one; 0 for no limit.
  All others: see `transformer`.
  """
  return _part('two_stream', locals())


# --- objective ---


def mlm():
  """Masked language modelling: the mean negative log-likelihood of the masked tokens."""
  return _part('mlm', locals())


def mlm_pair(*, pair_weight=1.0):
  """Masked language modelling plus a two-way classification of the pair: mlm + pair_weight · pair
  (Devlin et al. 2018 A.2).
  """
  return _part('mlm_pair', locals())


def mlm_span_boundary(*, boundary_weight=1.0, num_offsets=15, offset_size=200):
  """mlm + boundary_weight · boundary: masked language modelling, and each token of a span predicted
  from the tokens beside the span and its place in it (Joshi et al. 2020 §3.2, 3.4).

  num_offsets: number of first tokens of a span that are predicted so, at most
    masking.max_pair_targets.
  offset_size: width of the vectors of places (both values: code of the release).
  """
  return _part('mlm_span_boundary', locals())


def left_to_right():
  """A language model from left to right, over all tokens of a row: the baseline of Devlin et al.
  2018 §5.1. Masked tokens are put back first, so the choice of masking has no effect.
  """
  return _part('left_to_right', locals())


def permutation_lm(*, pair_weight=0.0):
  """Permutation language modelling: a prediction sees the memory and the tokens before it in a
  random order (Yang et al. 2019 §2.2, 2.3).

  pair_weight: weight of the loss on pair_labels; 0 for none. In the paper it does not help.
  """
  return _part('permutation_lm', locals())


def memory_mlm(*, pair_weight=0.0):
  """Masked language modelling with a memory: the denoising autoencoder that Yang et al. 2019
  compare with (Table 6).

  pair_weight: see `permutation_lm`.
  """
  return _part('memory_mlm', locals())


def replaced_token(
  *,
  width=0.25,
  depth=1.0,
  shared='embeddings',
  temperature=1.0,
  disallow_correct=False,
  loss_over='all',
  head='token',
  generator_weight=1.0,
  discriminator_weight=50.0,
):
  """A generator fills masks, a discriminator tells which tokens are replaced, both in one update
  (Clark et al. 2020 §2).

  width, depth: of the generator, as shares of the network's.
  shared: parameters that it shares with the network: none | token (word vectors) | embeddings (the
    release) | all | added (the network's word vectors are the generator's, without gradient, plus
    a table of its own). He et al. 2021 §3.3 call them NES (none), ES (token), GDES (added).
  temperature, disallow_correct (never the true token): of sampling.
  loss_over: all | masked tokens.
  head: token (it reads each token's vector: ELECTRA's) | token_and_row (that and the vector of the
    row's first token: DeBERTaV3's).
  generator_weight, discriminator_weight: of the two losses.
  """
  return _part('replaced_token', locals())


def replaced_token_adversarial(
  *,
  width=0.25,
  depth=1.0,
  shared='embeddings',
  temperature=1.0,
  disallow_correct=False,
  loss_over='all',
  head='token',
  generator_weight=1.0,
  discriminator_weight=50.0,
):
  """As replaced_token, but the generator learns to fool the discriminator (REINFORCE; Clark et al.
  2020, appendix F).
  """
  return _part('replaced_token_adversarial', locals())


def generator_mlm():
  """The first of two stages: masked language modelling by a generator of the network's size."""
  return _part('generator_mlm', locals())


def replaced_token_frozen(
  *,
  temperature=1.0,
  disallow_correct=False,
  loss_over='all',
  head='token',
  discriminator_weight=50.0,
):
  """The second of two stages: a discriminator that starts with the generator's weights; the
  generator stays as it is.
  """
  return _part('replaced_token_frozen', locals())


def corruption_detection(*, loss_over='all', head='token'):
  """Detects the tokens that the masking put in. masking.corruption=(0, 1, 0) with random_tokens
  'all' or 'unigrams' gives the uniform or the unigram generator.
  """
  return _part('corruption_detection', locals())


def replace_mlm(
  *,
  width=0.25,
  depth=1.0,
  shared='embeddings',
  temperature=1.0,
  disallow_correct=False,
  generator_weight=1.0,
):
  """Masked language modelling with a generator's tokens in place of masks (Clark et al. 2020
  §3.5).
  """
  return _part('replace_mlm', locals())


def all_tokens_mlm(
  *,
  width=0.25,
  depth=1.0,
  shared='embeddings',
  temperature=1.0,
  disallow_correct=False,
  generator_weight=1.0,
):
  """As replace_mlm, predicting every token, with a copy mechanism (Clark et al. 2020 §3.5)."""
  return _part('all_tokens_mlm', locals())


# --- optimizer and schedule ---


def adamw(
  *,
  b1=0.9,
  b2=0.98,
  eps=1e-6,
  weight_decay=0.01,
  no_decay=(),
  clip_norm=0.0,
  rates=(),
  clip_groups=(),
):
  """Adam with bias correction and decoupled decay, as fairseq has it (Liu et al. 2019, Table 9).

  no_decay: path regexes of parameters that do not decay.
  clip_norm: largest gradient norm, 0 for no clipping.
  rates: ordered (path regex, multiplier of the learning rate), first match wins.
  clip_groups: ordered path regexes. Parameters that match the same one first are clipped together
    by their own norm, and so is the rest; () clips all together.
  A regex may name a layer: encoder/layers/11/.
  """
  return _part('adamw', locals())


def adamw_uncorrected(
  *,
  b1=0.9,
  b2=0.999,
  eps=1e-6,
  weight_decay=0.01,
  no_decay=(r'norm/', r'bias$'),
  clip_norm=1.0,
  rates=(),
  clip_groups=(),
):
  """Adam without bias correction and with decoupled decay, as in Google's BERT (code of the
  release). The fields: see adamw.
  """
  return _part('adamw_uncorrected', locals())


def lamb(
  *,
  b1=0.9,
  b2=0.999,
  eps=1e-6,
  weight_decay=0.01,
  no_decay=(r'norm/', r'bias$'),
  no_adaptation=(r'norm/', r'bias$'),
  clip_norm=1.0,
  rates=(),
  clip_groups=(),
):
  """LAMB without bias correction, as in Google's code (You et al. 2020; ALBERT's release).

  no_adaptation: path regexes of parameters without a trust ratio.
  The others: see adamw.
  """
  return _part('lamb', locals())


def linear_from_start(*, learning_rate=1e-4, warmup=10_000, across_phases='continue'):
  """Warmup peak·s/W, then the line peak·(1 − s/T) measured from step 0, with its jump at W
  (Google's BERT).

  across_phases: continue (one schedule over the run) | restart (each phase runs its own warmup and
    decay).
  """
  return _part('linear_from_start', locals())


def linear_after_warmup(*, learning_rate=6e-4, warmup=24_000, across_phases='continue'):
  """Warmup to the peak, then linear to 0 counted from the end of warmup (fairseq)."""
  return _part('linear_after_warmup', locals())


def linear_jump(*, learning_rate=1e-4, warmup=10_000, across_phases='continue'):
  """As linear_from_start, but the very first update already has peak/W (older fairseq)."""
  return _part('linear_jump', locals())


def linear_product(*, learning_rate=5e-4, warmup=10_000, across_phases='continue'):
  """The product of the line peak·(1 − s/T) from step 0 and min(1, s/W) (Google's ELECTRA)."""
  return _part('linear_product', locals())


def linear_to_floor(*, learning_rate=4e-4, warmup=40_000, end_share=1e-3, across_phases='continue'):
  """Warmup peak·s/W, then linear from the peak at W to end_share·peak at the end (code of XLNet).

  end_share: rate of the last update as a share of the peak.
  """
  return _part('linear_to_floor', locals())


# --- machinery ---


def run(
  *,
  mesh=(-1, 1, 1),
  dtype='bfloat16',
  accumulation=1,
  unroll=1,
  remat='none',
  kernels='auto',
  log_every=100,
  eval_every=10_000,
  eval_batches=50,
  save_minutes=20.0,
  hang_minutes=30.0,
  keep=3,
  keep_every=0,
  on_nonfinite='stop',
  on_spike='report',
  tensorboard=True,
  wandb='',
  compile_cache='~/.cache/bertzoo_jax/xla',
  corpus_cache='disk',
):
  """Machinery: how a run is executed. It changes only rounding and, with other kernels, the draw of
  dropout.

  mesh: devices along (data, fsdp, tensor); -1 takes those that are left. data and fsdp split the
    rows of a batch. fsdp also splits the parameters and the optimizer's state (a network too large
    for one device). tensor splits the heads, the feed-forward and the vocabulary.
  dtype: of matrix products.
  accumulation: microbatches per step.
  unroll: layers per turn of the scan, 0 for all of them (faster on TPUs, and longer to compile).
  remat: which activations of a layer are saved, from most to least: none (all) | sublayers |
    feed_forward (its result) | full (nothing).
  kernels, of attention and norms: auto (fused on TPUs, cuDNN or XLA on GPUs, else XLA) | xla |
    fused | fused_hashed (a TPU's dropout as any machine draws it) | cudnn.
  log_every, eval_every: steps; eval_every 0 evaluates at the end only.
  eval_batches: of held-out rows, at most.
  save_minutes: between checkpoints.
  hang_minutes: after which a step, evaluation or save that has not finished ends the run with exit
    code 75; ten times that for the first of each, which compile; 0: never.
  keep: newest checkpoints kept.
  keep_every: steps between checkpoints that are kept for good; 0: none.
  on_nonfinite: stop | skip (leave the update out and count it).
  on_spike, of loss or gradient norm (training/spikes.py): report | stop | rewind (go back to the
    last checkpoint before it and leave these steps out; skipped.json in the workdir lists them).
  wandb: project name, empty for none.
  compile_cache: folder of compiled programs; JAX_COMPILATION_CACHE_DIR overrides it.
  corpus_cache: disk (tokens are read as they are needed) | ram (all at the start).
  """
  return ml_collections.ConfigDict(locals())


# --- an experiment ---

# The parts that each swappable section may be.
SECTIONS = {
  'tokenizer': (wordpiece, byte_bpe, sentencepiece),
  'format': (
    full_sentences,
    doc_sentences,
    token_blocks,
    segment_pairs,
    sentence_pairs,
    adjacent_segments,
    memory_segments,
  ),
  'masking': (token, whole_word, ngram, span, ngram_windows, permutation, in_order),
  'encoder': (transformer, disentangled, two_stream),
  'objective': (
    mlm,
    mlm_pair,
    mlm_span_boundary,
    left_to_right,
    permutation_lm,
    memory_mlm,
    replaced_token,
    replaced_token_adversarial,
    generator_mlm,
    replaced_token_frozen,
    corruption_detection,
    replace_mlm,
    all_tokens_mlm,
  ),
  'optimizer': (adamw, adamw_uncorrected, lamb),
  'schedule': (
    linear_from_start,
    linear_after_warmup,
    linear_jump,
    linear_product,
    linear_to_floor,
  ),
}

# An encoder that takes the place of another one keeps these.
SIZES_OF_ENCODERS = (
  'num_layers',
  'hidden_size',
  'num_heads',
  'intermediate_size',
  'embedding_size',
  'max_positions',
  'dropout',
  'attention_dropout',
  'initializer_range',
)


def experiment(
  *,
  tokenizer,
  corpus,
  format,
  masking,
  encoder,
  objective,
  optimizer,
  schedule,
  length,
  phases,
  hf,
  run,
  batch_size=0,
  batch_tokens=0,
  seed=0,
):
  """The complete config of one experiment.

  length: tokens per row.
  batch_size: rows of the global batch; 0 if batch_tokens is set.
  batch_tokens: tokens of the global batch, which has batch_tokens // length rows; 0 if batch_size
    is set.
  phases: ((steps, overrides), …); overrides are {'length': 512, 'batch_size': 384, 'masking.rate':
    0.2, 'objective': parts.mlm(), 'run.accumulation': 2}. batch_tokens of a phase overrides the
    experiment's batch_size, and the reverse.
  hf: the Hugging Face class that `export` writes.
  """
  return ml_collections.ConfigDict(
    dict(
      seed=seed,
      length=length,
      batch_size=batch_size,
      batch_tokens=batch_tokens,
      phases=phases,
      tokenizer=tokenizer,
      corpus=corpus,
      format=format,
      masking=masking,
      encoder=encoder,
      objective=objective,
      optimizer=optimizer,
      schedule=schedule,
      hf=hf,
      run=run,
    )
  )


def argument(text, build):
  """The config for `FILE.py:SIZE[,section=part][,steps=N]`.

  Args:
    text: the part after the colon.
    build: {size: function that returns an experiment}.

  Returns:
    The experiment, with sections swapped and phases scaled. A swapped encoder keeps the sizes and
    the dropout of the one before.

  Raises:
    ValueError: an unknown size, section or part; the message lists those that exist.
  """
  size, *changes = (text or '').split(',')
  if size not in build:
    raise ValueError(
      f'no size {size!r}: write FILE.py:SIZE with SIZE one of '
      f'{", ".join(build)}.{_near(size, build)}'
    )
  swapped = [change.partition('=')[0] for change in changes]
  if twice := [key for key in swapped if swapped.count(key) > 1]:
    raise ValueError(f'{twice[0]} is set twice in {text!r}: write it once.')
  config = build[size]()
  # scaling comes last: it also scales a new schedule's warmup
  for change in sorted(changes, key=lambda c: c.startswith('steps=')):
    key, _, value = change.partition('=')
    if key == 'steps':
      _scale(config, value)
    elif key in SECTIONS:
      parts = {f.__name__: f for f in SECTIONS[key]}
      if ':' in value:
        config[key] = part(value)
        continue
      if value not in parts:
        raise ValueError(
          f'no {key} is called {value!r}; there is {", ".join(parts)}.{_near(value, parts)}'
        )
      before, config[key] = config[key], parts[value]()
      if key == 'encoder':
        config[key].update(
          {f: before[f] for f in SIZES_OF_ENCODERS if f in before and f in config[key]}
        )
    else:
      known = (*SECTIONS, 'steps')
      raise ValueError(
        f'{change!r} swaps nothing: write section=part with section one of '
        f'{", ".join(known)}.{_near(key, known)}'
      )
  return config


def _scale(config, value):
  if not value.isdecimal() or not int(value):
    raise ValueError(f'steps={value!r}: a number of steps above 0 is needed.')
  share = int(value) / sum(steps for steps, _ in config.phases)
  ends = [
    round(share * sum(steps for steps, _ in config.phases[: i + 1]))
    for i in range(len(config.phases))
  ]
  if 0 in ends or len(set(ends)) < len(ends):
    raise ValueError(f'steps={value}: too few for {len(ends)} phases.')
  if 'warmup' in config.schedule:  # a schedule of your own may have none
    config.schedule.warmup = round(share * config.schedule.warmup)
  config.phases = tuple(
    (end - start, _scaled(overrides, share))
    for start, end, (_, overrides) in zip([0, *ends], ends, config.phases)
  )


def _scaled(overrides, share):
  """A phase's overrides with the warmup they set, if any, scaled."""
  overrides = dict(overrides)
  if 'schedule.warmup' in overrides:
    overrides['schedule.warmup'] = round(share * overrides['schedule.warmup'])
  if 'warmup' in overrides.get('schedule', ()):
    overrides['schedule'] = ml_collections.ConfigDict(
      {**overrides['schedule'], 'warmup': round(share * overrides['schedule']['warmup'])}
    )
  return overrides


def _near(word, known):
  near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
  return f' Did you mean {near[0]!r}?' if near else ''
