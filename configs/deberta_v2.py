"""DeBERTa v2 (He et al. 2020, arXiv:2006.03654 v6; code of the release): v1 with 128,000 pieces,
log buckets of distance, projections that contents and positions share, and a convolution.

    python -m bertzoo_jax.pretrain --config configs/deberta_v2.py:xxlarge \
      --corpus CORPUS --workdir WORKDIR

Sizes: tiny (for a laptop and the tests); xlarge (900M: 24 layers of 1,536), xxlarge (1.5B: 48
layers); base_ablation (the last row of Table 13: all changes on v1's base, 256 rows, peak 1e-4).

The paper's run of 1.5B (Table 8): 1,000,000 steps of 2,048 rows of 512 tokens, peak 1.5e-4, warmup
10,000, 160 GB of text, 30 days on 256 V100s. The paper has no settings of xlarge; it has xxlarge's
here. Masking, optimizer and schedule are those of configs/deberta.py, with the same differences
from the release. docs/deberta.md has the flags for the ablations.

[MASK] follows the 128,000 pieces of SentencePiece. The word table has 128,100 rows, as in the
release; 99 belong to no piece (none with --config.encoder.vocab_multiple=1). The convolution's
weights start as all others; the release has torch's uniform default. Parameters and the optimizer's
state are 10.7 GB (xlarge) and 18.8 GB (xxlarge), so the mesh splits them over 8 devices. With fewer
devices set --config.run.mesh='(-1, 1, 1)'. No results of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments


def _v2(
  num_layers, hidden_size, *, learning_rate=1.5e-4, dropout=0.1, vocab_multiple=100, **fields
):
  return parts.experiment(
    **{
      **dict(
        tokenizer=pieces(128_001),
        corpus=parts.corpus(),
        format=parts.full_sentences(),
        masking=parts.ngram_windows(),
        encoder=parts.disentangled(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=hidden_size // 64,
          intermediate_size=4 * hidden_size,
          vocab_multiple=vocab_multiple,
          convolution_size=3,
          dropout=dropout,
          attention_dropout=dropout,
        ),
        objective=parts.mlm(),
        optimizer=parts.adamw_uncorrected(),
        schedule=parts.linear_from_start(learning_rate=learning_rate, warmup=10_000),
        length=512,
        batch_size=2048,
        phases=((1_000_000, {}),),
        hf='DebertaV2ForMaskedLM',
        run=parts.run(mesh=(-1, 8, 1), accumulation=8),
      ),
      **fields,
    }
  )


def pieces(vocab_size):
  """The tokenizer of v2 and V3. vocab_size: number of pieces, [MASK] among them."""
  return parts.sentencepiece(
    vocab_size=vocab_size,
    specials='mask_last',
    lowercase=False,
    strip_accents=False,
    digit_commas='keep',
    word_starts='unicode',
  )


def _tiny():
  """Two layers of 128 on rows of 64 tokens of the English sample, minutes on a laptop."""
  return _v2(
    2,
    128,
    dropout=0.0,
    vocab_multiple=1,
    tokenizer=pieces(4096),
    corpus=parts.corpus(held_out=0.06),
    schedule=parts.linear_from_start(learning_rate=1e-3, warmup=200),
    length=64,
    batch_size=64,
    phases=((2000, {}),),
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {
  'tiny': _tiny,
  'base_ablation': lambda: _v2(12, 768, learning_rate=1e-4, batch_size=256, run=parts.run()),
  'xlarge': lambda: _v2(24, 1536),
  'xxlarge': lambda: _v2(48, 1536),
}

# transformers' base models have neither the decoder's positions nor the vocabulary's head.
_HEAD_1536 = 512 * 1536 + (1536 * 1536 + 1536) + 2 * 1536 + 128_100
PARAMETERS = {
  'tiny': 1_122_816,
  'base_ablation': 186_716_772,
  'xlarge': 884_593_152 + _HEAD_1536,
  'xxlarge': 1_564_549_632 + _HEAD_1536,
}


def get_config(argument='xlarge'):
  return arguments.config(argument, SIZES)
