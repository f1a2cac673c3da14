"""XLNet (Yang et al. 2019, arXiv:1906.08237): its rows. The two-stream network and its memory are
still to be written.

    python -m bertzoo_jax.show --config configs/xlnet.py:tiny --corpus CORPUS

Cased SentencePiece of 32,000 pieces; rows of a reused part and two segments, [reused] A [SEP] B
[SEP] [CLS]. Each lane of the batch is one stream, which continues from row to row; half of the
lanes are read from right to left (§2.5, §3.1; code of the release). One in six tokens is predicted,
in spans of up to 5 words, in a random order within each half.

Not as in the released code: every other lane is mirrored, not the second half of a host's rows; a
separator or classifier is never picked as a target; a span is n words, not n pieces from a word's
start (--config.masking.span_units=pieces).
"""

from configs import parts


def _tiny():
  """Rows of 64 tokens of the English sample."""
  return parts.experiment(
    tokenizer=parts.sentencepiece(
      vocab_size=4096, specials='angled', lowercase=False, straight_quotes=True, word_starts='ascii'
    ),
    corpus=parts.corpus(held_out=0.06),
    format=parts.memory_segments(reuse_length=32),
    masking=parts.permutation(num_predictions=10, block=32),
    encoder=parts.transformer(
      num_layers=2,
      hidden_size=128,
      num_heads=2,
      intermediate_size=512,
      dropout=0.0,
      attention_dropout=0.0,
    ),
    objective=parts.input_only(
      reads=('masked_positions', 'masked_targets', 'masked_weights', 'order', 'direction', 'resets')
    ),
    optimizer=parts.adamw_uncorrected(),
    schedule=parts.linear_from_start(learning_rate=1e-3, warmup=200),
    length=64,
    batch_size=64,
    phases=((2000, {}),),
    hf='XLNetLMHeadModel',
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {'tiny': _tiny}
PARAMETERS = {}


def get_config(argument='tiny'):
  return parts.argument(argument, SIZES)
