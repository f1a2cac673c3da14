"""BERT (Devlin et al. 2018)."""

from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architectures import bert_like


def _build(name, *heads, **rest):
  rows = (
    *bert_like.encoder('bert', 2),
    *bert_like.dense('mlm_head/transform', 'cls.predictions.transform.dense'),
    *bert_like.norm('mlm_head/norm', 'cls.predictions.transform.LayerNorm'),
    Row('mlm_head/bias', 'cls.predictions.bias'),
    *heads,
  )
  tied = {
    'cls.predictions.decoder.weight': 'bert.embeddings.word_embeddings.weight',
    'cls.predictions.decoder.bias': 'cls.predictions.bias',
  }
  # Two segment rows although they are zeros: tokenizers of BERT's kind send segment 1 for the
  # second text.
  return bert_like.build(name, 'bert', rows, segments=2, tied=tied, **rest)


PRETRAINING = _build(
  'BertForPreTraining',
  *bert_like.dense('pair_head/pooler', 'bert.pooler.dense'),
  *bert_like.dense('pair_head/classifier', 'cls.seq_relationship'),
  heads='The pair head (`cls.seq_relationship`) tells how the second text relates to the first.',
)
MASKED_LM = _build('BertForMaskedLM', heads=bert_like.NO_PAIR_HEAD, reads=False)
