"""ALBERT (Lan et al. 2019, arXiv:1909.11942): tables of width 128, one set of parameters for all
layers, sentence order, LAMB.

    python -m bertzoo_jax.pretrain --config configs/albert.py:base --corpus CORPUS --workdir WORKDIR

Sizes: tiny (for a laptop and the tests); base, large, xlarge, xxlarge (Table 1); base_v2, large_v2,
xlarge_v2, xxlarge_v2 (README of the release: no dropout, more text, 3,000,000 steps, of base
10,000,000).

The paper's run (§4.1): BooksCorpus + English Wikipedia, SentencePiece of 30,000 lower-cased pieces,
125,000 steps of 4,096 rows of 512 tokens, LAMB with learning rate 0.00176, 64 to 512 Cloud TPU v3.
With a smaller batch lower the learning rate and the warmup, or the loss stays where it is. Table
4's sharing: --config.encoder.sharing=all | attention | feed_forward | none, and
--config.encoder.embedding_size=128 | 0 (0: as wide as the layers, no projection). Table 5's
sentence loss: --config.format.pairs=sop | nsp, or objective=mlm with pairs=none. Table 11: a deeper
net begins with a shallower one's weights by --config.encoder.num_layers=6 --init
WORKDIR_OF_3_LAYERS, since no shape depends on depth.

xlarge has 16 heads, as published; the paper's rule (§3.1, H/64) gives 32. xxlarge has no dropout at
all. The paper takes it away after 1,000,000 steps only (§4.8), and the released v1 had 1,500,000.

Not as in the released code: a chunk of one sentence makes no row (the release gives it a random
partner, labelled as swapped: --config.format.lone_sentences=random); 77 predictions per row, 15 %
of 512 (the release's default is 20, --config.masking.max_predictions=20; what the paper's runs had
is not known), drawn anew in every epoch, and no n-gram crosses a separator. Where fewer than three
words follow, the lengths that fit share the whole probability; in the release longer ones are
shortened to them. Norm of the gradient and loss are the whole batch's, not each core's. No results
of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments


def _albert(num_layers, hidden_size, num_heads, *, dropout=0.1, steps=125_000, **fields):
  return parts.experiment(
    **{
      **dict(
        tokenizer=parts.sentencepiece(vocab_size=30000),
        corpus=parts.corpus(),
        format=parts.segment_pairs(pairs='sop', lone_sentences='skip'),
        masking=parts.ngram(),
        encoder=parts.transformer(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=num_heads,
          intermediate_size=4 * hidden_size,
          embedding_size=128,
          sharing='all',
          dropout=dropout,
          attention_dropout=dropout,
        ),
        objective=parts.mlm_pair(),
        optimizer=parts.lamb(),
        schedule=parts.linear_from_start(learning_rate=0.00176, warmup=3125),
        length=512,
        batch_size=4096,
        phases=((steps, {}),),
        hf='AlbertForPreTraining',
        run=parts.run(),
      ),
      **fields,
    }
  )


def _tiny():
  """Two layers of 128 with tables of 64, for rows of 64 tokens of the English sample; minutes on a
  laptop.
  """
  return _albert(
    2,
    128,
    2,
    dropout=0.0,
    steps=2000,
    tokenizer=parts.sentencepiece(vocab_size=4096),
    corpus=parts.corpus(held_out=0.06),
    encoder=parts.transformer(
      num_layers=2,
      hidden_size=128,
      num_heads=2,
      intermediate_size=512,
      embedding_size=64,
      sharing='all',
      dropout=0.0,
      attention_dropout=0.0,
    ),
    schedule=parts.linear_from_start(learning_rate=5e-3, warmup=200),
    length=64,
    batch_size=64,
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


_LARGE = dict(run=parts.run(accumulation=8))

SIZES = {
  'tiny': _tiny,
  'base': lambda: _albert(12, 768, 12),
  'large': lambda: _albert(24, 1024, 16),
  'xlarge': lambda: _albert(24, 2048, 16, **_LARGE),
  'xxlarge': lambda: _albert(12, 4096, 64, dropout=0.0, **_LARGE),
  'base_v2': lambda: _albert(12, 768, 12, dropout=0.0, steps=10_000_000),
  'large_v2': lambda: _albert(24, 1024, 16, dropout=0.0, steps=3_000_000),
  'xlarge_v2': lambda: _albert(24, 2048, 16, dropout=0.0, steps=3_000_000, **_LARGE),
  'xxlarge_v2': lambda: _albert(12, 4096, 64, dropout=0.0, steps=3_000_000, **_LARGE),
}

# With both heads (Table 1 rounds them to 12, 18, 60 and 235 million).
PARAMETERS = {
  'tiny': 531_010,
  'base': 11_813_810,
  'large': 17_847_474,
  'xlarge': 59_021_490,
  'xxlarge': 223_158_450,
  'base_v2': 11_813_810,
  'large_v2': 17_847_474,
  'xlarge_v2': 59_021_490,
  'xxlarge_v2': 223_158_450,
}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
