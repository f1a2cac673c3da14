"""ERNIE 1.0 (Sun et al. 2019, arXiv:1904.09223): knowledge masking in three stages.

    python -m bertzoo_jax.pretrain --config configs/ernie.py:base --corpus CORPUS --workdir WORKDIR

Chinese characters; 15 % masked as single characters, then as whole phrases, then as whole entities
(§3.2), a phase each. BERT's network with ReLU, norm epsilon 1e-5 and 513 positions, without task
ids (code of the release: PaddlePaddle/ERNIE, 2019-03 to -04). Its numbers are base's: 1,000,000
steps of 65,536 tokens (8 GPUs with 8,192 each), Adam with decoupled decay 0.01, gradient norm at
most 1, learning rate 1e-4 with 5,000 steps of warmup and linear decay. The paper's text: Chinese
Wikipedia, Baidu Baike, news and Tieba, 173 M sentences; neither hours nor hardware are published.

As in the release's code, each unit is chosen independently, without a budget
(masking.selection=independent). Each of its characters is masked, random or kept by its own draw. A
false second half is a segment of another row of a shuffled pool of 1,000 (format.negatives=pool).
The release makes such pairs with --generate_neg_sample only; by default its files bring the labels,
and those files were not published.

Chosen here, since it is not published: a third of the steps for each stage, and one schedule over
all of them. Adam's epsilon of 1e-8 is Paddle's default.

Not as there:

* There are no dialogue segments and no loss on them (§3.3); the release has none either.
* Traditional characters stay.
* A row is true or false by a coin. There each pair is a true row and its first half also begins a
  false one, so an epoch has twice as many rows.
* The first stage masks BERT's fixed number of single characters.
* Baidu's segmenter was not released. Phrases and entities come from jieba's parts of speech, or
  from lexicons of your own (--config.corpus.entities=lexicon and prepare's --entities FILE). In the
  later stages the other text is masked in jieba's words.
* Random ids are drawn from 0 on, not from 1.
* All rows have 512 tokens. There a batch has as many rows as its tokens allow.

The released vocabulary has 17,964 pieces in a table of 18,000. No results of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments


def _ernie(num_layers, hidden_size, steps, vocabulary, marks, select, encoder, **fields):
  phrase, entity = (parts.whole_word(level=level, **select) for level in ('phrase', 'entity'))
  third = steps // 3
  return parts.experiment(
    tokenizer=parts.wordpiece(**vocabulary),
    corpus=parts.corpus(
      splitter='rules:zh', words='jieba', phrases='jieba', entities='jieba', **marks
    ),
    masking=entity,
    encoder=parts.transformer(
      num_layers=num_layers,
      hidden_size=hidden_size,
      num_heads=hidden_size // 64,
      intermediate_size=4 * hidden_size,
      activation='relu',
      norm_eps=1e-5,
      **encoder,
    ),
    objective=parts.mlm_pair(),
    phases=(
      (third, {'masking': parts.token()}),
      (third, {'masking': phrase}),
      (steps - 2 * third, {}),
    ),
    hf='ErnieForPreTraining',
    **fields,
  )


def _tiny():
  """Rows of 64 tokens of the Chinese sample, in three stages.

  The vocabulary holds the most frequent characters of any Chinese text; prepare prints the share of
  the text that they cover.
  """
  return _ernie(
    2,
    128,
    steps=2100,
    vocabulary=dict(vocab_size=2650, coverage=0.99),
    marks=dict(held_out=0.06),
    select={},
    encoder=dict(dropout=0.0, attention_dropout=0.0, initializer_range=0.05),
    format=parts.segment_pairs(),
    optimizer=parts.adamw(),
    schedule=parts.linear_after_warmup(learning_rate=3e-3, warmup=100),
    length=64,
    batch_tokens=4096,
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


def _base():
  return _ernie(
    12,
    768,
    steps=1_000_000,
    vocabulary=dict(vocab_size=18000),
    marks={},
    select=dict(selection='independent'),
    encoder=dict(max_positions=513),
    format=parts.segment_pairs(negatives='pool'),
    optimizer=parts.adamw(b2=0.999, eps=1e-8, no_decay=(r'norm/', r'bias$'), clip_norm=1.0),
    schedule=parts.linear_from_start(learning_rate=1e-4, warmup=5000),
    length=512,
    batch_tokens=65_536,
    run=parts.run(),
  )


SIZES = {'tiny': _tiny, 'base': _base}
PARAMETERS = {
  'tiny': 837_980,
  # ErnieModel, the head of masked words, that of pairs
  'base': 99_866_112 + 768 * 769 + 2 * 768 + 18000 + 2 * 769,
}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
