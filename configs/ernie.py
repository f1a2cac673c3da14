"""ERNIE 1.0 (Sun et al. 2019, arXiv:1904.09223): knowledge masking in three stages. Sizes beyond
tiny are to come.

    python -m bertzoo_jax.pretrain --config configs/ernie.py:tiny --corpus CORPUS --workdir WORKDIR

Chinese characters; 15 % masked as single characters, then as whole phrases, then as whole entities
(§3.2), a phase each; how long each stage lasted is not published (here a third each). ReLU, norm
epsilon 1e-5. Network and objective are BERT's, so it trains now; the dialogue objective (§3.3) is
not there.

Not as there: traditional characters stay; in the later stages jieba's words are the units of the
text that lies in no phrase or entity; phrases and entities come from jieba's parts of speech, or
from lexicons of your own (--config.corpus.entities=lexicon and prepare's --entities FILE); Baidu's
segmenter was not released. The released code draws a coin for every unit and has no budget
(--config.masking.selection=independent), draws random ids from 1 on and takes false second halves
from the next row (--config.format.negatives=neighbours).
"""

from configs import parts


def _tiny():
  """Rows of 64 tokens of the Chinese sample, in three stages.

  The vocabulary holds the most frequent characters of any Chinese text; prepare prints the share of
  the text that they cover.
  """
  return parts.experiment(
    tokenizer=parts.wordpiece(vocab_size=2650, coverage=0.99),
    corpus=parts.corpus(
      splitter='rules:zh', held_out=0.06, words='jieba', phrases='jieba', entities='jieba'
    ),
    format=parts.segment_pairs(),
    masking=parts.whole_word(level='entity'),
    encoder=parts.transformer(
      num_layers=2,
      hidden_size=128,
      num_heads=2,
      intermediate_size=512,
      activation='relu',
      norm_eps=1e-5,
      dropout=0.0,
      attention_dropout=0.0,
    ),
    objective=parts.mlm_pair(),
    optimizer=parts.adamw_uncorrected(),
    schedule=parts.linear_from_start(learning_rate=1e-3, warmup=200),
    length=64,
    batch_size=64,
    phases=(
      (700, {'masking': parts.token()}),
      (700, {'masking': parts.whole_word(level='phrase')}),
      (700, {}),
    ),
    hf='BertForPreTraining',
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {'tiny': _tiny}
PARAMETERS = {'tiny': 837_980}


def get_config(argument='tiny'):
  return parts.argument(argument, SIZES)
