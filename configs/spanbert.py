"""SpanBERT (Joshi et al. 2019, arXiv:1907.10529): its rows. The span-boundary objective is still to
be written.

    python -m bertzoo_jax.show --config configs/spanbert.py:tiny --corpus CORPUS

Cased WordPiece; one segment of contiguous sentences of one document (the ends of documents share
rows, blind to each other); spans of whole words with lengths from a geometric distribution, p =
0.2, up to 10 words (§3.1), 15 % of the text's tokens, a whole span masked, replaced or kept
together; no sentence pairs (§3.3). With `,objective=mlm` it trains now: "span masking (1seq)" of
Table 7.

Not as in the released code: a sentence that no row can hold is cut, not dropped
(--config.format.long_sentences=drop), and a span ends with a whole word
(--config.masking.overflow=cut).
"""

from configs import parts


def _tiny():
  """Rows of 64 tokens of the English sample."""
  return parts.experiment(
    tokenizer=parts.wordpiece(vocab_size=4096, lowercase=False, strip_accents=False),
    corpus=parts.corpus(held_out=0.06),
    format=parts.doc_sentences(),
    masking=parts.span(),
    encoder=parts.transformer(
      num_layers=2,
      hidden_size=128,
      num_heads=2,
      intermediate_size=512,
      dropout=0.0,
      attention_dropout=0.0,
    ),
    objective=parts.input_only(
      reads=(
        'masked_positions',
        'masked_targets',
        'masked_weights',
        'span_left',
        'span_right',
        'span_offset',
      )
    ),
    optimizer=parts.adamw(b2=0.999, eps=1e-8, weight_decay=0.1, clip_norm=1.0),
    schedule=parts.linear_jump(learning_rate=1e-3, warmup=200),
    length=64,
    batch_size=64,
    phases=((2000, {}),),
    hf='BertForMaskedLM',
    run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
  )


SIZES = {'tiny': _tiny}
PARAMETERS = {}


def get_config(argument='tiny'):
  return parts.argument(argument, SIZES)
