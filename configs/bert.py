"""BERT (Devlin et al. 2018, arXiv:1810.04805), with the released code's optimizer and data
construction.

    python -m bertzoo_jax.pretrain --config configs/bert.py:base --corpus CORPUS --workdir WORKDIR

Sizes: tiny (for a laptop and the tests), small (4 × 512, of the compact models), base, large.

The paper's run: BooksCorpus + English Wikipedia (3.3 G words), 1,000,000 steps of 256 rows,
learning rate 1e-4, warmup 10,000; 128 tokens per row for 90 % of the steps, 512 for the rest (§3.1,
A.2). Base took 4 days on 4 Cloud TPUs, large 4 days on 16.

The paper's comparison of objectives (Table 5): "No NSP" is `,objective=mlm`, "LTR & No NSP", which
sees left context only, is `,objective=left_to_right`, both with --config.format.pairs=none.

Not as there: the loss is normalised and the gradient clipped over the whole global batch (the
released code does both on each TPU core); rows are drawn anew in every epoch (the release wrote 10
copies: --config.masking.repeat=10). What the paper leaves open: the learning rate at 512 (here one
schedule continues), the batch at 128 (here 256 throughout). No results of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments


def _bert(num_layers, hidden_size, dropout=0.1, initializer_range=0.02, **fields):
  return parts.experiment(
    **{
      **dict(
        tokenizer=parts.wordpiece(vocab_size=30522),
        corpus=parts.corpus(),
        format=parts.segment_pairs(),
        masking=parts.token(),
        encoder=parts.transformer(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=hidden_size // 64,
          intermediate_size=4 * hidden_size,
          dropout=dropout,
          attention_dropout=dropout,
          initializer_range=initializer_range,
        ),
        objective=parts.mlm_pair(),
        optimizer=parts.adamw_uncorrected(),
        schedule=parts.linear_from_start(),
        length=512,
        batch_size=256,
        phases=((900_000, {'length': 128}), (100_000, {})),
        hf='BertForPreTraining',
        run=parts.run(),
      ),
      **fields,
    }
  )


def _tiny():
  """Two layers of 128 on the shipped sample, minutes on a laptop: short rows and no dropout.

  Initial weights have deviation 0.05. With BERT's 0.02 masked tokens alone take 1,550 steps to be 1
  nat below the unigram entropy, with 0.05 they take 510 (one run each, docs/settings.md).
  """
  return _bert(
    2,
    128,
    dropout=0.0,
    initializer_range=0.05,
    tokenizer=parts.wordpiece(vocab_size=2048),
    corpus=parts.corpus(held_out=0.06),
    optimizer=parts.adamw(),
    schedule=parts.linear_after_warmup(learning_rate=3e-3, warmup=100),
    length=32,
    batch_size=64,
    phases=((2500, {}),),
    run=parts.run(dtype='float32', log_every=50, eval_every=125, save_minutes=1.0),
  )


SIZES = {
  'tiny': _tiny,
  'small': lambda: _bert(4, 512),
  'base': lambda: _bert(12, 768),
  'large': lambda: _bert(24, 1024, run=parts.run(accumulation=2)),
}

# With both heads (Devlin et al. 2018 §3 rounds them to 110 and 340 million).
PARAMETERS = {
  'tiny': 760_322,
  'small': 29_058_876,
  'base': 110_106_428,
  'large': 336_226_108,
}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
