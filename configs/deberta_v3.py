"""DeBERTaV3 (He et al. 2021, arXiv:2111.09543): v2's network learns which tokens a generator
replaced. Its word vectors are the generator's plus a table of its own.

    python -m bertzoo_jax.pretrain --config configs/deberta_v3.py:base \
      --corpus CORPUS --workdir WORKDIR

Sizes: tiny (for a laptop and the tests); xsmall, small, base, large; mdeberta_base (multilingual);
base_ablation (the comparison of ways to share, BooksCorpus + English Wikipedia: 125,000 steps of
2,048 rows).

A generator of the same width and half the depth predicts the masked tokens by the enhanced mask
decoder. The discriminator has no decoder. Its head reads each token's vector and the row's first
one. Its loss has the weight 50. 500,000 steps of 8,192 rows of 512 tokens, warmup 10,000, b2 0.98,
dropout 0.1. 15 % of the tokens are chosen singly, and all become [MASK]. 160 GB of text
(mdeberta_base: CC100, 2.5 TB).

The paper itself was not read. Its settings come from two people's notes on it, the network and the
masking from the released code. Chosen here:

* The peak of xsmall, small and base is 5e-4, as in the notes on the text. The notes on the appendix
  have 6e-4: --config.schedule.learning_rate=6e-4. The peak of large is 3e-4.
* mdeberta_base has base's settings, since no notes have its rate. Its tokenizer has 250,000 pieces
  and [MASK], in a table of 251,000 rows.

docs/deberta.md explains the ways to share word vectors (GDES, the default; ES; NES).

Not as in the released code:

* Both networks are updated at once, from the same word vectors. The release updates the generator
  first, so its discriminator sees the new ones.
* The detection head's output layer starts uniform, after Glorot; there normal with deviation 0.02.
* Windows, rows and held-out documents are those of configs/deberta.py. Windows have 6 words.

As in the released code, the gradients of the two networks are clipped separately. The release's
example (rtd.sh: WikiText-103, weight 10, b2 0.999, 64 to 256 rows) is another recipe. No results of
a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments
from bertzoo_jax.configs import deberta_v2


def _v3(
  num_layers,
  hidden_size,
  *,
  learning_rate=5e-4,
  dropout=0.1,
  initializer_range=0.02,
  vocab_multiple=100,
  **fields,
):
  return parts.experiment(
    **{
      **dict(
        tokenizer=deberta_v2.pieces(128_001),
        corpus=parts.corpus(),
        format=parts.full_sentences(),
        masking=parts.ngram_windows(max_gram=1, corruption=(1.0, 0.0, 0.0)),
        encoder=parts.disentangled(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=hidden_size // 64,
          intermediate_size=4 * hidden_size,
          vocab_multiple=vocab_multiple,
          dropout=dropout,
          attention_dropout=dropout,
          initializer_range=initializer_range,
        ),
        objective=parts.replaced_token(
          width=1.0, depth=0.5, shared='added', head='token_and_row', discriminator_weight=50.0
        ),
        optimizer=parts.adamw_uncorrected(b2=0.98, clip_groups=('^generator/',)),
        schedule=parts.linear_from_start(learning_rate=learning_rate, warmup=10_000),
        length=512,
        batch_size=8192,
        phases=((500_000, {}),),
        hf='DebertaV2Model',
        run=parts.run(accumulation=16),
      ),
      **fields,
    }
  )


def _tiny():
  """Two layers of 128 and a generator of one on the English sample, minutes on a laptop: short
  rows, no dropout, initial weights of deviation 0.05 and a high rate, as configs/bert.py:tiny.

  The generator learns at a fifth of the rate. At half of the rate, in one seed of three, it filled
  masks well too early: the discriminator called every token original.
  """
  return _v3(
    2,
    128,
    dropout=0.0,
    initializer_range=0.05,
    vocab_multiple=1,
    tokenizer=deberta_v2.pieces(2048),
    corpus=parts.corpus(held_out=0.06),
    optimizer=parts.adamw_uncorrected(
      b2=0.98, clip_groups=('^generator/',), rates=(('^generator/', 0.2),)
    ),
    schedule=parts.linear_from_start(learning_rate=3e-3, warmup=100),
    length=32,
    batch_size=64,
    phases=((600, {}),),
    run=parts.run(dtype='float32', log_every=50, eval_every=100, save_minutes=1.0),
  )


SIZES = {
  'tiny': _tiny,
  'xsmall': lambda: _v3(12, 384),
  'small': lambda: _v3(6, 768),
  'base': lambda: _v3(12, 768),
  'base_ablation': lambda: _v3(
    12, 768, batch_size=2048, phases=((125_000, {}),), run=parts.run(accumulation=4)
  ),
  'large': lambda: _v3(24, 1024, learning_rate=3e-4),
  'mdeberta_base': lambda: _v3(
    12,
    768,
    vocab_multiple=1000,
    tokenizer=deberta_v2.pieces(250_001),
    corpus=parts.corpus(splitter='rules:generic'),
  ),
}

# Both networks, with both tables of word vectors.
PARAMETERS = {
  'tiny': 1_352_449,
  'xsmall': 131_339_749,
  'small': 263_051_365,
  'base': 326_842_213,
  'base_ablation': 326_842_213,
  'large': 719_626_341,
  'mdeberta_base': 515_739_513,
}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
