"""RoBERTa (Liu et al. 2019, arXiv:1907.11692): BERT's network on full sentences, masks drawn anew,
larger batches, no pairs.

    python -m bertzoo_jax.pretrain --config configs/roberta.py:base \
      --corpus CORPUS --workdir WORKDIR

Sizes: tiny (for a laptop and the tests), base, large. Hyperparameters of Table 9: 500,000 steps of
8,192 rows of 512 tokens; peak 6e-4 and warmup 24,000 (base), 4e-4 and 30,000 (large); Adam with b2
0.98 and eps 1e-6, decay 0.01 on every parameter as fairseq applies it, no clipping. 160 GB of text;
large took about a day per 100,000 steps on 1,024 V100s.

The paper's own studies (Tables 1 to 3) keep BERT-base's shape and settings, so they start from
`configs/bert.py:base,tokenizer=byte_bpe`: see docs/systems.md. Static masking is
--config.masking.repeat=10.
Not as there: sentences inside a document are not separated (fairseq's lines are:
--config.format.sentence_separators=True). No results of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments


def _roberta(num_layers, hidden_size, learning_rate, warmup, dropout=0.1, **fields):
  return parts.experiment(
    **{
      **dict(
        tokenizer=parts.byte_bpe(),
        corpus=parts.corpus(),
        format=parts.full_sentences(),
        masking=parts.token(
          rounding='random', maskable='all_but_padding', random_tokens='no_specials'
        ),
        encoder=parts.transformer(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=hidden_size // 64,
          intermediate_size=4 * hidden_size,
          type_vocab_size=0,
          activation='gelu',
          norm_eps=1e-5,
          initializer='normal',
          dropout=dropout,
          attention_dropout=dropout,
        ),
        objective=parts.mlm(),
        optimizer=parts.adamw(),
        schedule=parts.linear_after_warmup(learning_rate=learning_rate, warmup=warmup),
        length=512,
        batch_size=8192,
        phases=((500_000, {}),),
        hf='RobertaForMaskedLM',
        run=parts.run(accumulation=8),
      ),
      **fields,
    }
  )


def _tiny():
  """Two layers of 128 on the shipped sample, minutes on a laptop: short rows and no dropout, so
  that it soon knows more than word counts.
  """
  return _roberta(
    2,
    128,
    1e-3,
    200,
    dropout=0.0,
    tokenizer=parts.byte_bpe(vocab_size=4096),
    corpus=parts.corpus(held_out=0.06),
    length=32,
    batch_size=64,
    phases=((2000, {}),),
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {
  'tiny': _tiny,
  'base': lambda: _roberta(12, 768, 6e-4, 24_000),
  'large': lambda: _roberta(24, 1024, 4e-4, 30_000),
}

# Hugging Face's counts without its two rows of padding positions and its one of segments.
PARAMETERS = {
  'tiny': 1_007_488,
  'base': 124_697_433 - 3 * 768,
  'large': 355_412_057 - 3 * 1024,
}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
