"""ALBERT (Lan et al. 2019, arXiv:1909.11942): its rows. The factorised, shared network and LAMB are still to be written.

    python -m bertzoo_jax.show --config configs/albert.py:tiny --corpus CORPUS

SentencePiece of 30,000 lower-cased pieces (§4.1), two segments in true or swapped order (sentence-order prediction, §3.1),
n-gram masking with p(n) ∝ 1/n up to 3 words (§4.1, eq. 1), 512 tokens a row from the start.

Not as in the released code: a chunk of one sentence makes no row (the release gives it a random partner, labelled as
swapped: --config.format.lone_sentences=random); predictions are not cut at 20 a row
(--config.masking.max_predictions=20), are drawn anew in every epoch, and no n-gram crosses a separator.
"""

from configs import parts


def _tiny():
  """Rows of 64 tokens of the English sample."""
  return parts.experiment(
      tokenizer=parts.sentencepiece(vocab_size=4096),
      corpus=parts.corpus(held_out=0.06),
      format=parts.segment_pairs(pairs='sop', lone_sentences='skip'),
      masking=parts.ngram(),
      encoder=parts.transformer(num_layers=2, hidden_size=128, num_heads=2, intermediate_size=512, dropout=0.0, attention_dropout=0.0),
      objective=parts.input_only(reads=('masked_positions', 'masked_targets', 'masked_weights', 'pair_labels')),
      optimizer=parts.adamw_uncorrected(),
      schedule=parts.linear_from_start(learning_rate=1e-3, warmup=200),
      length=64,
      batch_size=64,
      phases=((2000, {}),),
      hf='AlbertForPreTraining',
      run=parts.run(dtype='float32', prng='threefry2x32', log_every=50, eval_every=500, save_minutes=1.0))


SIZES = {'tiny': _tiny}


def get_config(argument='tiny'):
  return parts.argument(argument, SIZES)
