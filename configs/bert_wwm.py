"""BERT-wwm (Cui et al. 2019, arXiv:1906.08101): whole-word masking for Chinese. Sizes beyond tiny
are to come.

    python -m bertzoo_jax.pretrain --config configs/bert_wwm.py:tiny \
      --corpus CORPUS --workdir WORKDIR

BERT with the characters of a chosen word masked together, each with its own draw of mask, random or
kept (Google's whole-word code, which the release used). Its network and objective are BERT's, so it
trains now, with AdamW (RoBERTa-wwm's optimizer; BERT-wwm used LAMB: ,optimizer=lamb).

Not as there: jieba segments (LTP there; the corpus names segmenter and version), words are drawn
anew in every epoch (--config.masking.repeat=10 for static masks). RoBERTa-wwm keeps pairs without
their loss: --config.format.pairs=none with ,objective=mlm.
"""

from configs import parts


def _tiny():
  """Rows of 64 tokens of the Chinese sample. The vocabulary holds the most frequent
  characters of any Chinese text; prepare prints the share of the text that they cover.
  """
  return parts.experiment(
    tokenizer=parts.wordpiece(vocab_size=2650, coverage=0.99),
    corpus=parts.corpus(splitter='rules:zh', held_out=0.06, words='jieba'),
    format=parts.segment_pairs(),
    masking=parts.whole_word(),
    encoder=parts.transformer(
      num_layers=2,
      hidden_size=128,
      num_heads=2,
      intermediate_size=512,
      dropout=0.0,
      attention_dropout=0.0,
    ),
    objective=parts.mlm_pair(),
    optimizer=parts.adamw_uncorrected(),
    schedule=parts.linear_from_start(learning_rate=1e-3, warmup=200),
    length=64,
    batch_size=64,
    phases=((2000, {}),),
    hf='BertForPreTraining',
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {'tiny': _tiny}
PARAMETERS = {'tiny': 837_980}


def get_config(argument='tiny'):
  return parts.argument(argument, SIZES)
