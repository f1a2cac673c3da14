"""MacBERT (Cui et al. 2020, arXiv:2004.13922; 2021, arXiv:1906.08101 v3): masked tokens become
similar words.

    python -m bertzoo_jax.pretrain --config configs/macbert.py:base --corpus CORPUS \
      --workdir WORKDIR --init hf:google-bert/bert-base-chinese

BERT's network. Whole words in n-grams of 1 to 4 with shares .4, .3, .2, .1; a chosen word becomes a
similar word in 80 % of cases, a random one in 10 %, itself in 10 %, never [MASK] (§IV); sentence
order as second objective. Table 3: LAMB, rows of 512 tokens throughout, 5.4 G words; base begins
with BERT and has 1,000,000 steps, large begins with random weights and has 2,000,000 of 512 rows at
1e-4; TPU v3-8 and v3-32.

Chosen here, since it is not published: base's 384 rows (RoBERTa-wwm-ext's) and 1e-4 (large's), and
10,000 steps of warmup. Also chosen: a similar word has as many pieces as the word it replaces.

Not as there:

* Similar words come from vectors trained on the corpus itself, since the paper's toolkit needs a
  licence. --config.corpus.similar takes word vectors or a thesaurus of your own.
* A word without a similar one gets a random one. The paper's limit of 10 % for these is not
  enforced; in the small sample a fifth of the words has no similar one.
* 15 % counts the row's special tokens, too, and is rounded to the nearest number (down there).
  Masks are drawn anew in every epoch (there once). jieba segments (LTP there).
* Norm of the gradient and loss are the whole batch's, not each core's.

No results of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments


def _macbert(num_layers, hidden_size, **fields):
  return parts.experiment(
    **{
      **dict(
        tokenizer=parts.wordpiece(vocab_size=21128),
        corpus=parts.corpus(splitter='rules:zh', words='jieba', similar='trained'),
        format=parts.segment_pairs(pairs='sop', lone_sentences='skip'),
        masking=parts.ngram(
          weights=(4, 3, 2, 1), order='left_to_right', corrupted='units', substitute='similar'
        ),
        encoder=parts.transformer(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=hidden_size // 64,
          intermediate_size=4 * hidden_size,
        ),
        objective=parts.mlm_pair(),
        optimizer=parts.lamb(),
        schedule=parts.linear_from_start(learning_rate=1e-4, warmup=10_000),
        length=512,
        hf='BertForPreTraining',
        run=parts.run(),
      ),
      **fields,
    }
  )


def _tiny():
  """Rows of 64 tokens of the Chinese sample, with AdamW. The vocabulary holds the most frequent
  characters of any Chinese text; prepare prints the share of the text that they cover.
  """
  return _macbert(
    2,
    128,
    tokenizer=parts.wordpiece(vocab_size=2650, coverage=0.99),
    corpus=parts.corpus(splitter='rules:zh', held_out=0.06, words='jieba', similar='trained'),
    encoder=parts.transformer(
      num_layers=2,
      hidden_size=128,
      num_heads=2,
      intermediate_size=512,
      dropout=0.0,
      attention_dropout=0.0,
      initializer_range=0.05,
    ),
    optimizer=parts.adamw(),
    schedule=parts.linear_after_warmup(learning_rate=3e-3, warmup=100),
    length=64,
    batch_size=64,
    phases=((2000, {}),),
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {
  'tiny': _tiny,
  'base': lambda: _macbert(12, 768, batch_size=384, phases=((1_000_000, {}),)),
  'large': lambda: _macbert(
    24, 1024, batch_size=512, phases=((2_000_000, {}),), run=parts.run(accumulation=2)
  ),
}
# BertModel (published: 102 and 324 million), the head of masked words, that of pairs.
PARAMETERS = {
  'tiny': 837_980,
  'base': 102_267_648 + 768 * 769 + 2 * 768 + 21128 + 2 * 769,
  'large': 325_522_432 + 1024 * 1025 + 2 * 1024 + 21128 + 2 * 1025,
}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
