"""DeBERTaV3 (He et al. 2021, arXiv:2111.09543): its rows. Both networks, replaced-token detection
and the shared embeddings are still to be written.

    python -m bertzoo_jax.show --config configs/deberta_v3.py:tiny --corpus CORPUS

SentencePiece as v2; contiguous full sentences; single tokens, 15 %, all of them [MASK], none random
or kept (rtd_task.py of the release), one in each window of 6 as in configs/deberta.py, with its
differences from the release. b2 is the paper's 0.98.
"""

from configs import parts


def _tiny():
  """Two layers of 128 and a generator of one on the English sample, minutes on a laptop: short
  rows, no dropout, initial weights of deviation 0.05 and a high rate, as configs/bert.py:tiny.
  """
  return parts.experiment(
    tokenizer=parts.sentencepiece(
      vocab_size=2048,
      specials='mask_last',
      lowercase=False,
      strip_accents=False,
      digit_commas='keep',
      word_starts='unicode',
    ),
    corpus=parts.corpus(held_out=0.06),
    format=parts.full_sentences(),
    masking=parts.ngram_windows(max_gram=1, corruption=(1.0, 0.0, 0.0)),
    encoder=parts.disentangled(
      num_layers=2,
      hidden_size=128,
      num_heads=2,
      intermediate_size=512,
      dropout=0.0,
      attention_dropout=0.0,
      initializer_range=0.05,
    ),
    objective=parts.replaced_token(width=1.0, depth=0.5, shared='added', head='token_and_row'),
    optimizer=parts.adamw_uncorrected(
      b2=0.98, clip_groups=('^generator/',), rates=(('^generator/', 0.5),)
    ),
    schedule=parts.linear_from_start(learning_rate=3e-3, warmup=100),
    length=32,
    batch_size=64,
    phases=((800, {}),),
    hf='DebertaV2Model',
    run=parts.run(dtype='float32', log_every=50, eval_every=100, save_minutes=1.0),
  )


SIZES = {'tiny': _tiny}
PARAMETERS = {'tiny': 1_352_449}


def get_config(argument='tiny'):
  return parts.argument(argument, SIZES)
