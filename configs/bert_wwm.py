"""BERT-wwm, BERT-wwm-ext, RoBERTa-wwm-ext (Cui et al. 2019, arXiv:1906.08101): whole-word masking
for Chinese.

    python -m bertzoo_jax.pretrain --config configs/bert_wwm.py:base --corpus CORPUS \
      --workdir WORKDIR --init hf:google-bert/bert-base-chinese

BERT's network and objectives. The characters of a chosen word are masked together, each with its
own draw of mask, random or kept (Google's whole-word code, which the release used).

| size | text | steps @ tokens, rows | optimizer | begins with |
|---|---|---|---|---|
| base | Chinese Wikipedia, 0.4 G words | 100,000 @ 128, 2,560; 100,000 @ 512, 384 | LAMB | BERT |
| ext_base | 5.4 G words | 1,000,000 @ 128, 2,560; 400,000 @ 512, 384 | LAMB | BERT |
| roberta_ext_base | 5.4 G words | 1,000,000 @ 512, 384 | AdamW | BERT |
| roberta_ext_large | 5.4 G words | 2,000,000 @ 512, 512 | AdamW | random weights |

The table is the release's (README of ymcui/Chinese-BERT-wwm). The paper's Table 3 has other numbers
for BERT-wwm. Base took 1.5 days on a TPU v3 with 8 cores. RoBERTa-wwm-ext keeps the pairs and drops
their loss (§III). To begin with BERT give --init, as above. Prepare the text with BERT's
vocabulary: --tokenizer and the folder of its vocab.txt.

Chosen here, since it is not published: learning rates and warmup. With LAMB each phase has its own
schedule, with You et al. 2020's rate of 6.25e-4·√(rows/512) and a warmup of rows/163,840 of its
steps. With AdamW they are BERT's 1e-4 and 10,000 steps. Masks are drawn for 10 copies of the text:
static masking is published, the number is Google's default.

Not as there: jieba segments (LTP there; the corpus names segmenter and version); a row may have
more than 20 predictions; norm of the gradient and loss are the whole batch's, not each core's. No
results of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments


def _wwm(num_layers, hidden_size, pairs=True, **fields):
  return parts.experiment(
    **{
      **dict(
        tokenizer=parts.wordpiece(vocab_size=21128),
        corpus=parts.corpus(splitter='rules:zh', words='jieba'),
        format=parts.segment_pairs(pairs='nsp' if pairs else 'none'),
        masking=parts.whole_word(repeat=10),
        encoder=parts.transformer(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=hidden_size // 64,
          intermediate_size=4 * hidden_size,
        ),
        objective=parts.mlm_pair() if pairs else parts.mlm(),
        optimizer=parts.adamw_uncorrected(),
        schedule=parts.linear_from_start(),
        length=512,
        hf='BertForPreTraining' if pairs else 'BertForMaskedLM',
        run=parts.run(),
      ),
      **fields,
    }
  )


def _two_phases(short_steps, long_steps):
  """Rows of 128 tokens, then of 512, each with a batch and a rate of its own."""
  short = {'length': 128, 'batch_size': 2560, 'run.accumulation': 2}
  rate = {'schedule.learning_rate': 1.4e-3, 'schedule.warmup': short_steps // 64}
  return _wwm(
    12,
    768,
    optimizer=parts.lamb(),
    schedule=parts.linear_from_start(
      learning_rate=5.4e-4, warmup=long_steps // 427, across_phases='restart'
    ),
    batch_size=384,
    phases=((short_steps, {**short, **rate}), (long_steps, {})),
  )


def _tiny():
  """Rows of 64 tokens of the Chinese sample. The vocabulary holds the most frequent
  characters of any Chinese text; prepare prints the share of the text that they cover.
  """
  return _wwm(
    2,
    128,
    tokenizer=parts.wordpiece(vocab_size=2650, coverage=0.99),
    corpus=parts.corpus(splitter='rules:zh', held_out=0.06, words='jieba'),
    masking=parts.whole_word(),
    encoder=parts.transformer(
      num_layers=2,
      hidden_size=128,
      num_heads=2,
      intermediate_size=512,
      dropout=0.0,
      attention_dropout=0.0,
      initializer_range=0.05,
    ),
    optimizer=parts.adamw(),
    schedule=parts.linear_after_warmup(learning_rate=3e-3, warmup=100),
    length=64,
    batch_size=64,
    phases=((2000, {}),),
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {
  'tiny': _tiny,
  'base': lambda: _two_phases(100_000, 100_000),
  'ext_base': lambda: _two_phases(1_000_000, 400_000),
  'roberta_ext_base': lambda: _wwm(12, 768, pairs=False, batch_size=384, phases=((1_000_000, {}),)),
  'roberta_ext_large': lambda: _wwm(
    24, 1024, pairs=False, batch_size=512, phases=((2_000_000, {}),), run=parts.run(accumulation=2)
  ),
}


def _parameters(body, width, pairs):
  """The number of parameters, with the heads that are trained. body: of BertModel, pooler included
  (published: 102 and 325 million).
  """
  pooler = width * (width + 1)
  return body + pooler + 2 * width + 21128 + (2 * (width + 1) if pairs else -pooler)


PARAMETERS = {
  'tiny': 837_980,
  'base': _parameters(102_267_648, 768, pairs=True),
  'ext_base': _parameters(102_267_648, 768, pairs=True),
  'roberta_ext_base': _parameters(102_267_648, 768, pairs=False),
  'roberta_ext_large': _parameters(325_522_432, 1024, pairs=False),
}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
