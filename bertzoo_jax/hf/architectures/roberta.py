"""RoBERTa (Liu et al. 2019)."""

from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf import tokenizer
from bertzoo_jax.hf.architectures import bert_like

_ZEROS = 'Position and segment rows that the class demands and training had no use for are zeros.'
_PAIR = 'cls:0 A:0 sep:0 sep:{} B:{} sep:{}'


def _build(name, *rows, config=(), **rest):
  return bert_like.build(
    name,
    'roberta',
    (*bert_like.encoder('roberta', 1), *rows),
    segments=1,
    unsaid=dict(initializer='normal'),  # fairseq's, where BERT's is truncated
    sizes=lambda encoder, special: architecture.grouped_sizes(encoder)._replace(
      position_offset=special['pad'] + 1
    ),
    config=(bert_like.BEHIND_PADDING, *keys.BEGIN_AND_END, *config),
    tokens=tokenizer.Shape(pair=_PAIR, bos='cls', eos='sep', byte_level='RobertaTokenizer'),
    **rest,
  )


MASKED_LM = _build(
  'RobertaForMaskedLM',
  *bert_like.vocabulary_head('lm_head', 'lm_head', norms='layer_norm'),
  head_activation='gelu',
  tied=bert_like.tied('lm_head', 'roberta'),
  heads=f'{_ZEROS} {bert_like.NO_POOLER}',
)
_RATES = ('classifier_dropout',)
_ROW = {'pooler': 'classifier.dense', 'classifier': 'classifier.out_proj'}
_CHOICE = {'pooler': 'roberta.pooler.dense', 'classifier': 'classifier'}
TASKS = task_heads.classes(
  _build,
  'Roberta',
  bert_like.forms(
    task_heads.Form(_ROW, _RATES, note=_ZEROS),
    task_heads.Form(_CHOICE, note=_ZEROS),  # config.hidden_dropout_prob, as in the encoder
    _RATES,
    _ZEROS,
  ),
)
MODEL = bert_like.bare(_build, 'RobertaModel', _ZEROS, load_args=bert_like.WITHOUT_POOLER)
