"""BERT (Devlin et al. 2018), and its left-to-right baseline."""

from bertzoo_jax.hf import row_heads
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf import verify
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architectures import bert_like


def build(name, model_type, *heads, vocabulary_head='mlm_head', **rest):
  """A class with BERT's layers, its vocabulary head and `heads`.

  vocabulary_head: our name of that head. rest: arguments of bert_like.build.
  """
  rows = (
    *bert_like.encoder(model_type, 2),
    *bert_like.dense(f'{vocabulary_head}/transform', 'cls.predictions.transform.dense'),
    *bert_like.norm(f'{vocabulary_head}/norm', 'cls.predictions.transform.LayerNorm'),
    Row(f'{vocabulary_head}/bias', 'cls.predictions.bias'),
    *heads,
  )
  tied = {
    'cls.predictions.decoder.weight': f'{model_type}.embeddings.word_embeddings.weight',
    'cls.predictions.decoder.bias': 'cls.predictions.bias',
  }
  # Two segment rows although they are zeros: tokenizers of BERT's kind send segment 1 for the
  # second text.
  return bert_like.build(name, model_type, rows, segments=2, tied=tied, **rest)


def pretraining(name, model_type, **rest):
  """A class with BERT's layers, its vocabulary head and its pair head. Arguments: see `build`."""
  return build(
    name,
    model_type,
    *bert_like.dense('pair_head/pooler', f'{model_type}.pooler.dense'),
    *bert_like.dense('pair_head/classifier', 'cls.seq_relationship'),
    heads='The pair head (`cls.seq_relationship`) tells how the second text relates to the first.',
    **rest,
  )


def masked_lm(name, model_type, **rest):
  """A class with BERT's layers and its vocabulary head alone. Arguments: see `build`."""
  return build(name, model_type, heads=bert_like.NO_PAIR_HEAD, reads=False, **rest)


def classification(name, model_type, **rest):
  """A class with BERT's layers that scores rows. rest: arguments of bert_like.build."""
  rows = (
    *bert_like.encoder(model_type, 2),
    *row_heads.rows('tanh', f'{model_type}.pooler.dense', 'classifier'),
  )
  return bert_like.classification(name, model_type, rows, segments=2, **rest)


def questions(name, model_type, **rest):
  """A class with BERT's layers that finds answers. rest: arguments of bert_like.build."""
  return bert_like.questions(name, model_type, bert_like.encoder(model_type, 2), segments=2, **rest)


def tagging(name, model_type, **rest):
  """A class with BERT's layers that tags tokens. rest: arguments of bert_like.build."""
  return bert_like.tagging(name, model_type, bert_like.encoder(model_type, 2), segments=2, **rest)


def choice(name, model_type, **rest):
  """A class with BERT's layers that scores options. rest: arguments of bert_like.build."""
  rows = (
    *bert_like.encoder(model_type, 2),
    *task_heads.choice_rows('tanh', f'{model_type}.pooler.dense'),
  )
  return bert_like.choice(name, model_type, rows, segments=2, **rest)


def _next_logits(directory, batch):
  """As verify.logits: logits of the token that follows each token."""
  network, unloaded = verify.reloaded(directory, LEFT_TO_RIGHT.name)
  return {'next': verify.outputs(network, batch).logits.numpy(), 'unloaded': unloaded}


PRETRAINING = pretraining('BertForPreTraining', 'bert')
MASKED_LM = masked_lm('BertForMaskedLM', 'bert')
LEFT_TO_RIGHT = build(
  'BertLMHeadModel',
  'bert',
  vocabulary_head='next_head',
  decoder=True,
  heads='Tokens see no later ones (`is_decoder`), and `cls.predictions` predicts the next token: '
  'this network fills no masks. A tokenizer ends a text with a separator: leave it out before you '
  f'generate text. {bert_like.NO_PAIR_HEAD}',
  pipeline='',
  logits=_next_logits,
)
CLASSIFICATION = classification('BertForSequenceClassification', 'bert')
QUESTIONS = questions('BertForQuestionAnswering', 'bert')
TAGS = tagging('BertForTokenClassification', 'bert')
CHOICES = choice('BertForMultipleChoice', 'bert')
