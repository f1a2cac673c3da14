"""DeBERTa (He et al. 2020, arXiv:2006.03654): its rows. Disentangled attention and the enhanced
mask decoder are still to be written.

    python -m bertzoo_jax.show --config configs/deberta.py:tiny --corpus CORPUS

GPT-2's byte-level BPE; contiguous full sentences; n-grams of up to 3 words, p(n) ∝ 1/n, one in each
window of 6n words (A.3; code of the release).

Not as in the released code: windows go round the row from a random word and are taken in random
order until 15 % are chosen (the release walks from left to right, so that the tail of a full row is
hardly ever masked: --config.masking.scan=left_to_right); an n-gram that would exceed the 15 % loses
its last words; rows end with a sentence and have a separator between documents
(…,format=token_blocks cuts one stream of tokens).
"""

from configs import parts


def _tiny():
  """Rows of 64 tokens of the English sample."""
  return parts.experiment(
    tokenizer=parts.byte_bpe(vocab_size=4096),
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
      buckets=0,
      norm_relative=False,
      shared_projections=False,
      key_bias=False,
    ),
    objective=parts.mlm(),
    optimizer=parts.adamw_uncorrected(),
    schedule=parts.linear_from_start(learning_rate=1e-3, warmup=200),
    length=64,
    batch_size=64,
    phases=((2000, {}),),
    hf='DebertaForMaskedLM',
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {'tiny': _tiny}
PARAMETERS = {'tiny': 1_204_096}


def get_config(argument='tiny'):
  return parts.argument(argument, SIZES)
