"""SpanBERT (Joshi et al. 2020, arXiv:1907.10529): BERT's network on single segments, masked spans,
and the span boundary objective.

    python -m bertzoo_jax.pretrain --config configs/spanbert.py:base \
      --corpus CORPUS --workdir WORKDIR

Sizes: tiny (for a laptop and the tests), base, large.

* Cased WordPiece. A row is one segment of contiguous sentences of one document, without sentence
  pairs (§3.3). The ends of documents share rows and do not see each other.
* Spans of whole words, 15 % of the text's tokens. Lengths are geometric with p = 0.2, up to 10
  words (§3.1). A whole span is masked, replaced or kept together.
* The boundary objective, for the first 15 tokens of a span (§3.2).

The paper's run is large: BooksCorpus + English Wikipedia, 2,400,000 steps of 256 rows of 512
tokens, learning rate 1e-4, warmup 10,000, decay 0.1 on every parameter (0.01 in the release's
README), 15 days on 32 V100s (§4.2). Base is not in the paper: the authors named 2,048 rows,
300,000 steps and 5e-4 (issue 6 of the release); its warmup is chosen here.

Rows of the paper's Table 7, all after 1,200,000 steps, are
`configs/spanbert.py:large` with
* `,objective=mlm`: span masking (1seq);
* `,objective=mlm_pair,format=segment_pairs`: span masking (2seq) + NSP, with
  --config.format.short_rate=0.0, since the paper has no short rows (§4.2).

Not as in the released code: a sentence that is longer than a row is cut, not dropped
(--config.format.long_sentences=drop), and a span ends with a whole word
(--config.masking.overflow=cut). The release divides the gradient a second time, by the about 614
predictions per GPU. So its eps of 1e-8 acts as 6e-6, and its clipping never acts
(--config.optimizer.eps=6e-6 --config.optimizer.clip_norm=0.0). No results of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments


def _spanbert(num_layers, hidden_size, dropout=0.1, initializer_range=0.02, **fields):
  return parts.experiment(
    **{
      **dict(
        tokenizer=parts.wordpiece(vocab_size=28996, lowercase=False, strip_accents=False),
        corpus=parts.corpus(),
        format=parts.doc_sentences(),
        masking=parts.span(),
        encoder=parts.transformer(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=hidden_size // 64,
          intermediate_size=4 * hidden_size,
          activation='gelu',
          initializer='normal',
          initializer_range=initializer_range,
          dropout=dropout,
          attention_dropout=dropout,
        ),
        objective=parts.mlm_span_boundary(),
        optimizer=parts.adamw(b2=0.999, eps=1e-8, weight_decay=0.1, clip_norm=1.0),
        schedule=parts.linear_jump(),
        length=512,
        batch_size=256,
        phases=((2_400_000, {}),),
        hf='BertForMaskedLM',
        run=parts.run(accumulation=2),
      ),
      **fields,
    }
  )


def _tiny():
  """Two layers of 128 on the English sample, minutes on a laptop: rows of 64 tokens, no dropout,
  initial weights as in configs/bert.py:tiny.
  """
  return _spanbert(
    2,
    128,
    dropout=0.0,
    initializer_range=0.05,
    tokenizer=parts.wordpiece(vocab_size=4096, lowercase=False, strip_accents=False),
    corpus=parts.corpus(held_out=0.06),
    schedule=parts.linear_jump(learning_rate=1e-3, warmup=200),
    length=64,
    batch_size=64,
    phases=((2000, {}),),
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {
  'tiny': _tiny,
  'base': lambda: _spanbert(
    12,
    768,
    schedule=parts.linear_jump(learning_rate=5e-4),
    batch_size=2048,
    phases=((300_000, {}),),
    run=parts.run(accumulation=4),
  ),
  'large': lambda: _spanbert(24, 1024),
}

# Encoder, head of masked tokens, boundary head.
PARAMETERS = {
  'tiny': 1_090_360,
  'base': 107_719_680 + 621_124 + 1_959_676,
  'large': 332_529_664 + 1_080_644 + 3_388_668,
}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
