"""XLNet (Yang et al. 2019, arXiv:1906.08237): permutation language modelling with two streams, over
a memory.

    python -m bertzoo_jax.pretrain --config configs/xlnet.py:base --corpus CORPUS --workdir WORKDIR

Sizes: tiny (for a laptop and the tests), base, large.

Cased SentencePiece of 32,000 pieces; rows of a reused part and two segments, [reused] A [SEP] B
[SEP] [CLS]. Each lane of the batch is one stream, which continues from row to row. Half of the
lanes are read from right to left (§2.5, §3.1; code of the release). One in six tokens is predicted,
in spans of up to 5 words, in a random order within each half. The memory has 384 tokens. A step
moves on by 256.

The paper's runs: large, on 32.9 G pieces of five corpora: 500,000 steps of 8,192 rows of 512,
learning rate 4e-4, warmup 40,000 (Table 7), 5.5 days on 512 TPU v3 chips. Base (Table 6): BERT's
hyperparameters and corpora, here 1,000,000 steps of 256 rows of 512.

docs/xlnet.md has the flags for the comparisons of Table 6.

Not as in the released code:

* Every other lane is read from right to left, not the second half of a host's rows.
* A separator or classifier is never predicted.
* A span is n words, as the release's authors meant it. In the release it is n pieces from a word's
  start (--config.masking.span_units=pieces), in the paper n tokens (§3.1).
* Dropout of the positions is drawn once per step, the same for all rows and layers; in the release
  once per row.
* There is no dropout between activation and second product of the feed-forward. Table 7 has a rate
  of 0 there, the code the usual one.
* Norm of the gradient and loss are the whole batch's, not each core's.
* The vector that the query stream starts as is drawn as all weights are, not after Glorot.

No results of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments


def _xlnet(
  num_layers, hidden_size, *, learning_rate, warmup, steps, memory=384, reuse=256, **fields
):
  return parts.experiment(
    **{
      **dict(
        tokenizer=parts.sentencepiece(
          vocab_size=32_000,
          specials='angled',
          lowercase=False,
          straight_quotes=True,
          word_starts='ascii',
        ),
        corpus=parts.corpus(),
        format=parts.memory_segments(reuse_length=reuse),
        masking=parts.permutation(),
        encoder=parts.two_stream(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=hidden_size // 64,
          intermediate_size=4 * hidden_size,
          memory_length=memory,
          reuse_length=reuse,
        ),
        objective=parts.permutation_lm(),
        optimizer=parts.adamw_uncorrected(),
        schedule=parts.linear_to_floor(learning_rate=learning_rate, warmup=warmup),
        length=512,
        batch_size=256,
        phases=((steps, {}),),
        hf='XLNetLMHeadModel',
        run=parts.run(),
      ),
      **fields,
    }
  )


def _tiny():
  """Rows of 64 tokens of the English sample, a memory of 48, no dropout."""
  config = _xlnet(
    2,
    128,
    learning_rate=1e-3,
    warmup=200,
    steps=2000,
    memory=48,
    reuse=32,
    corpus=parts.corpus(held_out=0.06),
    masking=parts.permutation(num_predictions=10, block=32),
    length=64,
    batch_size=64,
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )
  config.tokenizer.vocab_size = 4096
  config.encoder.update(dropout=0.0, attention_dropout=0.0)
  return config


SIZES = {
  'tiny': _tiny,
  'base': lambda: _xlnet(12, 768, learning_rate=1e-4, warmup=10_000, steps=1_000_000),
  'large': lambda: _xlnet(
    24, 1024, learning_rate=4e-4, warmup=40_000, steps=500_000, batch_size=8192
  ),
}

# As XLNetLMHeadModel counts them.
PARAMETERS = {'tiny': 958_080, 'base': 116_750_336, 'large': 360_300_800}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
