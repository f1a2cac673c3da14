"""DeBERTa v2 (He et al. 2020, arXiv:2006.03654 v6 and code of the release): its rows. The network
is still to be written.

    python -m bertzoo_jax.show --config configs/deberta_v2.py:tiny --corpus CORPUS

As configs/deberta.py, with SentencePiece of 128,000 pieces and [MASK] behind them.
"""

from configs import parts


def _tiny():
  """Rows of 64 tokens of the English sample."""
  return parts.experiment(
    tokenizer=parts.sentencepiece(
      vocab_size=4096,
      specials='mask_last',
      lowercase=False,
      strip_accents=False,
      digit_commas='keep',
      word_starts='unicode',
    ),
    corpus=parts.corpus(held_out=0.06),
    format=parts.full_sentences(),
    masking=parts.ngram_windows(),
    encoder=parts.disentangled(
      num_layers=2,
      hidden_size=128,
      num_heads=2,
      intermediate_size=512,
      dropout=0.0,
      attention_dropout=0.0,
      convolution_size=3,
    ),
    objective=parts.mlm(),
    optimizer=parts.adamw_uncorrected(),
    schedule=parts.linear_from_start(learning_rate=1e-3, warmup=200),
    length=64,
    batch_size=64,
    phases=((2000, {}),),
    hf='DebertaV2ForMaskedLM',
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {'tiny': _tiny}
PARAMETERS = {'tiny': 1_122_816}


def get_config(argument='tiny'):
  return parts.argument(argument, SIZES)
