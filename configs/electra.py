"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): its rows. Generator, discriminator and their objective are still to be written.

    python -m bertzoo_jax.show --config configs/electra.py:tiny --corpus CORPUS

BERT's uncased WordPiece; running text in one or two segments, never a false pair (code of the release,
build_pretraining_dataset.py); 15 % of the tokens are chosen, of which 85 % become [MASK] and 15 % stay, none a random token
(pretrain_helpers.py).

Not as in the released code: positions are drawn without replacement, so that no prediction counts twice
(--config.masking.sampling=independent draws as there).
"""

from configs import parts


def _tiny():
  """Rows of 64 tokens of the English sample."""
  return parts.experiment(
      tokenizer=parts.wordpiece(vocab_size=4096),
      corpus=parts.corpus(held_out=0.06),
      format=parts.adjacent_segments(),
      masking=parts.token(corruption=(0.85, 0.0, 0.15)),
      encoder=parts.transformer(num_layers=2, hidden_size=128, num_heads=2, intermediate_size=512, dropout=0.0, attention_dropout=0.0),
      objective=parts.input_only(),
      optimizer=parts.adamw_uncorrected(),
      schedule=parts.linear_product(learning_rate=1e-3, warmup=200),
      length=64,
      batch_size=64,
      phases=((2000, {}),),
      hf='ElectraForPreTraining',
      run=parts.run(dtype='float32', prng='threefry2x32', log_every=50, eval_every=500, save_minutes=1.0))


SIZES = {'tiny': _tiny}


def get_config(argument='tiny'):
  return parts.argument(argument, SIZES)
