"""An encoder for the BabyLM challenge (babylm.github.io): at most 10 M words (strict_small) or
100 M (strict), read at most ten times.

    python -m bertzoo_jax.prepare --config configs/babylm.py:strict_small \
      --source 'train_10M/*.train' --out CORPUS
    python -m bertzoo_jax.pretrain --config configs/babylm.py:strict_small \
      --corpus CORPUS --workdir WORKDIR

Sizes: tiny (for a laptop and the tests), strict_small (12 layers of 384), strict (12 of 768).

`epochs` ends the run before any text is read an eleventh time, and `run.keep_words` keeps the
checkpoints that the challenge asks for: after 1 … 10, 20 … 100 and 200 … 1,000 M words seen. The
run says at which steps; `export --all_checkpoints` writes each one as `chck_1M` …, and `evaluate
--babylm` scores them (docs/babylm.md). The held-out share counts as words, too, and `prepare`
prints the words of each split.

Disentangled attention without absolute positions, a vocabulary of 16,384 and rows of 128 tokens
follow LTG-BERT (Samuel et al. 2023, arXiv:2303.09859). The masking rate that falls from 30 % to
15 % follows GPT-BERT (Charpentier & Samuel 2024, arXiv:2410.24159). Not as there: no gated
feed-forward, StableAdamW in place of LAMB, smaller batches. Learning rates were not searched. No
results of a full run yet.

The steps in `phases`, `moving` and `schedule` are for 1.35 tokens per word.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments


def _babylm(hidden_size, *, steps, learning_rate=1e-3, num_layers=12, dropout=0.1, **fields):
  return parts.experiment(
    **{
      **dict(
        tokenizer=parts.byte_bpe(vocab_size=16_384),
        corpus=parts.corpus(splitter='lines'),
        format=parts.full_sentences(),
        masking=parts.token(),
        encoder=parts.disentangled(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=hidden_size // 64,
          intermediate_size=4 * hidden_size,
          absolute_positions='none',
          buckets=0,
          max_distance=128,
          max_positions=512,
          norm_relative=False,
          shared_projections=False,
          key_bias=False,
          dropout=dropout,
          attention_dropout=dropout,
        ),
        objective=parts.mlm(),
        optimizer=parts.stable_adamw(weight_decay=0.1, clip_norm=2.0),
        schedule=parts.warmup_stable_decay(
          learning_rate=learning_rate, warmup=steps // 50, decay=steps // 5
        ),
        length=128,
        batch_size=256,
        phases=((steps, {}),),
        epochs=10.0,
        moving=(('masking.rate', 0.3, 0.15, 0, steps, 'linear'),),
        hf='DebertaForMaskedLM',
        run=parts.run(eval_every=500, keep_words='1M..1G'),
      ),
      **fields,
    }
  )


def _tiny():
  """Two layers of 128 on rows of 64 tokens of the English sample, minutes on a laptop."""
  return _babylm(
    128,
    steps=400,
    num_layers=2,
    dropout=0.0,
    tokenizer=parts.byte_bpe(vocab_size=4096),
    corpus=parts.corpus(held_out=0.06),
    length=64,
    batch_size=64,
    run=parts.run(
      dtype='float32', log_every=50, eval_every=100, save_minutes=1.0, keep_words='100k..1M'
    ),
  )


SIZES = {
  'tiny': _tiny,
  'strict_small': lambda: _babylm(384, steps=4_000),
  'strict': lambda: _babylm(768, steps=10_000, learning_rate=6e-4, batch_size=1024),
}

PARAMETERS = {'tiny': 1_040_256, 'strict_small': 31_388_032, 'strict': 112_599_808}


def get_config(argument='strict_small'):
  return arguments.config(argument, SIZES)
