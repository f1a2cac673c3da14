"""BERT (Devlin et al. 2018), and its left-to-right baseline."""

import functools

from bertzoo_jax.hf import keys
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf.architectures import bert_like


def build(model_type, name, *rows, family=(), config=(), **rest):
  """A class with BERT's layers. rows: of its heads; family, config: rows of config.json; rest: of
  bert_like.build.
  """
  # Two segment rows although they are zeros: tokenizers of BERT's kind send segment 1 for the
  # second text.
  body = bert_like.encoder(model_type, 2)
  return bert_like.build(
    name, model_type, (*body, *rows), segments=2, config=(*family, *config), **rest
  )


def with_vocabulary(model_type, name, *rows, head='mlm_head', **rest):
  """Like `build`, with a vocabulary head. head: our name of it."""
  head_rows = bert_like.vocabulary_head('cls.predictions.transform', 'cls.predictions', head)
  tied = bert_like.tied('cls.predictions', model_type)
  return build(model_type, name, *head_rows, *rows, tied=tied, **rest)


def family(model_type, name, **rest):
  """(class with both heads, with the vocabulary head, {head: class for a task}, class without a
  head). name: prefix of their names. rest: arguments of bert_like.build.
  """
  pooler = f'{model_type}.pooler.dense'
  rates = ('classifier_dropout',)
  pooled = task_heads.Form({'pooler': pooler, 'classifier': 'classifier'}, rates)
  build_task = functools.partial(build, model_type, **rest)
  return (
    with_vocabulary(
      model_type,
      f'{name}ForPreTraining',
      *task_heads.rows('pair_head', pooler=pooler, classifier='cls.seq_relationship'),
      heads='The pair head (`cls.seq_relationship`) tells how the second text relates to the '
      'first.',
      **rest,
    ),
    with_vocabulary(
      model_type, f'{name}ForMaskedLM', heads=bert_like.NO_PAIR_HEAD, reads=False, **rest
    ),
    task_heads.classes(build_task, name, bert_like.forms(pooled, pooled, rates)),
    bert_like.bare(build_task, f'{name}Model', load_args=bert_like.WITHOUT_POOLER),
  )


PRETRAINING, MASKED_LM, TASKS, MODEL = family('bert', 'Bert')
LEFT_TO_RIGHT = with_vocabulary(
  'bert',
  'BertLMHeadModel',
  head='next_head',
  config=(keys.fixed('is_decoder', True, usual=False),),
  heads='Tokens see no later ones (`is_decoder`), and `cls.predictions` predicts the next token: '
  'this network fills no masks. A tokenizer ends a text with a separator: leave it out before you '
  f'generate text. {bert_like.NO_PAIR_HEAD}',
  pipeline='',
)
