"""ELECTRA (Clark et al. 2020): the discriminator and the generator."""

from bertzoo_jax.hf import keys
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf.architecture import dense
from bertzoo_jax.hf.architectures import bert_like

_KEYS = (
  keys.Key('embedding_size', usual=128, write=lambda at: at.sizes.embedding_width),
  keys.Key('hidden_size', 'hidden_size', 256),
  keys.Key('num_attention_heads', 'num_heads', 4),
  keys.Key('intermediate_size', 'intermediate_size', 1024),
)


def _build(name, *rows, config=(), **rest):
  none = lambda sizes: None
  return bert_like.build(
    name,
    'electra',
    (
      *bert_like.encoder('electra', 2),
      *bert_like.projection('electra.embeddings_project', none, none),
      *rows,
    ),
    segments=2,
    config=(*_KEYS, *config),
    **rest,
  )


PRETRAINING = _build(
  'ElectraForPreTraining',
  *dense('replaced_head/dense', 'discriminator_predictions.dense'),
  *dense('replaced_head/score/classifier', 'discriminator_predictions.dense_prediction'),
  heads='This is the discriminator: its logits, one per token, are above 0 where it takes a token '
  'for replaced. Fine-tune this one. There is no pooler; the classes for fine-tuning start their '
  'heads at random.',
  pipeline='feature-extraction',
)
MASKED_LM = _build(
  'ElectraForMaskedLM',
  *bert_like.vocabulary_head('generator_predictions', 'generator_lm_head'),
  head_activation='gelu',
  tied={'generator_lm_head.weight': 'electra.embeddings.word_embeddings.weight'},
  heads='This network fills masks. If it was the generator of a discriminator, fine-tune the '
  'discriminator.',
)
_RATES = ('classifier_dropout',)
# The form of the head in ElectraForMultipleChoice, in config.json.
_SUMMARY = {
  'summary_type': 'first',
  'summary_use_proj': True,
  'summary_activation': 'gelu',
  'summary_proj_to_labels': False,
}
TASKS = task_heads.classes(
  _build,
  'Electra',
  bert_like.forms(
    task_heads.Form({'dense': 'classifier.dense', 'classifier': 'classifier.out_proj'}, _RATES),
    task_heads.Form(
      {'dense': 'sequence_summary.summary', 'classifier': 'classifier'},
      ('summary_last_dropout', 'summary_first_dropout'),
      _SUMMARY,
    ),
    _RATES,
  ),
)
MODEL = bert_like.bare(_build, 'ElectraModel')
