"""RoBERTa (Liu et al. 2019)."""

from bertzoo_jax.hf import row_heads
from bertzoo_jax.hf import span_heads
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf import tokenizer
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architectures import bert_like

_FIELDS = dict(
  segments=1,
  unsaid=dict(initializer='normal'),  # fairseq's, where BERT's is truncated
  positions_after_padding=True,
  more=lambda encoder, special, sizes: {
    'bos_token_id': special['cls'],
    'eos_token_id': special['sep'],
  },
  tokens=tokenizer.Shape(pair='cls:0 A:0 sep:0 sep:{} B:{} sep:{}', bos='cls', eos='sep'),
)
_ZEROS = 'Position and segment rows that the class demands and training had no use for are zeros.'
MASKED_LM = bert_like.build(
  'RobertaForMaskedLM',
  'roberta',
  (
    *bert_like.encoder('roberta', 1),
    *bert_like.dense('mlm_head/transform', 'lm_head.dense'),
    *bert_like.norm('mlm_head/norm', 'lm_head.layer_norm'),
    Row('mlm_head/bias', 'lm_head.bias'),
  ),
  head_activation='gelu',
  tied={
    'lm_head.decoder.weight': 'roberta.embeddings.word_embeddings.weight',
    'lm_head.decoder.bias': 'lm_head.bias',
  },
  heads=f'{_ZEROS} There is no pooler: transformers starts one at random if asked.',
  **_FIELDS,
)
CLASSIFICATION = bert_like.classification(
  'RobertaForSequenceClassification',
  'roberta',
  (
    *bert_like.encoder('roberta', 1),
    *row_heads.rows('tanh', 'classifier.dense', 'classifier.out_proj'),
  ),
  heads=f'{bert_like.SCORES_ROWS} {_ZEROS}',
  **_FIELDS,
)
QUESTIONS = bert_like.questions(
  'RobertaForQuestionAnswering',
  'roberta',
  bert_like.encoder('roberta', 1),
  heads=f'{span_heads.SAID} {_ZEROS}',
  **_FIELDS,
)
TAGS = bert_like.tagging(
  'RobertaForTokenClassification',
  'roberta',
  bert_like.encoder('roberta', 1),
  heads=f'{task_heads.SAID_OF_TAGS} {_ZEROS}',
  **_FIELDS,
)
CHOICES = bert_like.choice(
  'RobertaForMultipleChoice',
  'roberta',
  (
    *bert_like.encoder('roberta', 1),
    *task_heads.choice_rows('tanh', 'roberta.pooler.dense'),
  ),
  heads=f'{task_heads.SAID_OF_CHOICES} {_ZEROS}',
  head_dropouts=(),  # config.hidden_dropout_prob, as in the encoder
  **_FIELDS,
)
