"""DeBERTa v1 (He et al. 2020, arXiv:2006.03654): attention with terms of relative position, and a
decoder that reads absolute positions.

    python -m bertzoo_jax.pretrain --config configs/deberta.py:base \
      --corpus CORPUS --workdir WORKDIR

* tiny: for a laptop and the tests.
* base, large (Table 8): 1,000,000 steps of 2,048 rows of 512 tokens, peak 2e-4, warmup 10,000, 78
  GB of text. Base took 10 days on 64 V100s, large 20 days on 96.
* base_ablation (Tables 4 and 8): 256 rows, peak 1e-4, BooksCorpus + English Wikipedia, 7 days on
  16.
* xlarge: a released model of 48 layers of 1,024. The paper has no table of it; it has large's
  settings here.

GPT-2's byte-level BPE; contiguous full sentences; n-grams of up to 3 words, p(n) ∝ 1/n, one in each
window of 6n words (A.3; code of the release); AdamW without bias correction, decay 0.01, gradients
clipped at 1; the rate is the release's warmup_linear.

docs/deberta.md has the flags for the ablations of Tables 4 and 13. Without the mask decoder (−EMD)
there are no absolute positions anywhere; the paper does not say it. DeBERTa-AP of Table 10 is
--config.encoder.absolute_positions=input.

Not as in the released code:

* Windows go round the row from a random word and are taken in random order until 15 % are chosen.
  The release walks from left to right (--config.masking.scan=left_to_right), so the tail of a full
  row is hardly ever masked. An n-gram that would exceed the 15 % loses its last words; the release
  masks the word that crosses the bound and stops there.
* Rows end with a sentence and have a separator between documents. The release cuts one stream of
  tokens (…,format=token_blocks).
* Special pieces have RoBERTa's ids. 1 % of the documents is held out, not 5 %.

No results of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments


def _deberta(num_layers, hidden_size, *, learning_rate=2e-4, dropout=0.1, **fields):
  return parts.experiment(
    **{
      **dict(
        tokenizer=parts.byte_bpe(),
        corpus=parts.corpus(),
        format=parts.full_sentences(),
        masking=parts.ngram_windows(),
        encoder=parts.disentangled(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=hidden_size // 64,
          intermediate_size=4 * hidden_size,
          buckets=0,
          norm_relative=False,
          shared_projections=False,
          key_bias=False,
          dropout=dropout,
          attention_dropout=dropout,
        ),
        objective=parts.mlm(),
        optimizer=parts.adamw_uncorrected(),
        schedule=parts.linear_from_start(learning_rate=learning_rate, warmup=10_000),
        length=512,
        batch_size=2048,
        phases=((1_000_000, {}),),
        hf='DebertaForMaskedLM',
        run=parts.run(accumulation=4),
      ),
      **fields,
    }
  )


def _tiny():
  """Two layers of 128 on rows of 64 tokens of the English sample, minutes on a laptop."""
  return _deberta(
    2,
    128,
    dropout=0.0,
    tokenizer=parts.byte_bpe(vocab_size=4096),
    corpus=parts.corpus(held_out=0.06),
    schedule=parts.linear_from_start(learning_rate=1e-3, warmup=200),
    length=64,
    batch_size=64,
    phases=((2000, {}),),
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {
  'tiny': _tiny,
  'base': lambda: _deberta(12, 768),
  'base_ablation': lambda: _deberta(12, 768, learning_rate=1e-4, batch_size=256, run=parts.run()),
  'large': lambda: _deberta(24, 1024),
  'xlarge': lambda: _deberta(48, 1024, run=parts.run(accumulation=8)),
}

# transformers' base models have neither the decoder's positions nor the vocabulary's head.
_HEAD_768 = 512 * 768 + (768 * 768 + 768) + 2 * 768 + 50_265
_HEAD_1024 = 512 * 1024 + (1024 * 1024 + 1024) + 2 * 1024 + 50_265
PARAMETERS = {
  'tiny': 1_204_096,
  'base': 138_601_728 + _HEAD_768,
  'base_ablation': 138_601_728 + _HEAD_768,
  'large': 405_163_008 + _HEAD_1024,
  'xlarge': 757_804_032 + _HEAD_1024,
}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
