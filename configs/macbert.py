"""MacBERT (Cui et al. 2020, arXiv:2004.13922): masked tokens become similar words. Sizes beyond
tiny are to come.

    python -m bertzoo_jax.pretrain --config configs/macbert.py:tiny \
      --corpus CORPUS --workdir WORKDIR

Whole words in n-grams of 1 to 4 with shares .4, .3, .2, .1; a chosen word becomes a similar word in
80 % of cases, a random one in 10 %, itself in 10 %, never [MASK] (arXiv:1906.08101 v3, §IV);
sentence order as second objective. Network and objective are BERT's, so it trains now, with AdamW
(LAMB there: ,optimizer=lamb).

Not as there: similar words come from vectors trained on this very text (the paper's toolkit needs a
licence; --config.corpus.similar takes word vectors or a thesaurus of your own), and have as many
pieces as the word they replace, a rule the paper leaves open; the paper's limit of 10 % for words
without a similar one, which get a random one, is not enforced (in this small sample a fifth of the
words has none). 15 % counts the row's special tokens too. jieba segments (LTP there).
"""

from configs import parts


def _tiny():
  """Rows of 64 tokens of the Chinese sample. The vocabulary holds the most frequent
  characters of any Chinese text; prepare prints the share of the text that they cover.
  """
  return parts.experiment(
    tokenizer=parts.wordpiece(vocab_size=2650, coverage=0.99),
    corpus=parts.corpus(splitter='rules:zh', held_out=0.06, words='jieba', similar='trained'),
    format=parts.segment_pairs(pairs='sop', lone_sentences='skip'),
    masking=parts.ngram(
      weights=(4, 3, 2, 1), order='left_to_right', corrupted='units', substitute='similar'
    ),
    encoder=parts.transformer(
      num_layers=2,
      hidden_size=128,
      num_heads=2,
      intermediate_size=512,
      dropout=0.0,
      attention_dropout=0.0,
    ),
    objective=parts.mlm_pair(),
    optimizer=parts.adamw_uncorrected(),
    schedule=parts.linear_from_start(learning_rate=1e-3, warmup=200),
    length=64,
    batch_size=64,
    phases=((2000, {}),),
    hf='BertForPreTraining',
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {'tiny': _tiny}
PARAMETERS = {'tiny': 837_980}


def get_config(argument='tiny'):
  return parts.argument(argument, SIZES)
