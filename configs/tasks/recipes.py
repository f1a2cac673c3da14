"""How the papers fine-tune: rates, batches, epochs and dropout per system, size and task.

    fine_tuning(source=…, metrics=…, **recipe('electra_base', 'rte'))

A recipe is a dict {'default': fields, task: fields}. Fields are arguments of
`parts.fine_tuning`; a task's fields override the default ones. `objective` holds the
fields of an objective's constructor, not a section: the same recipe serves classes and scores.

Each recipe names its source. [code]: file of the release. [3rd]: read in someone's notes on the
paper. [mem]: from memory, not checked. "Chosen here": nothing is published.

Not in any recipe: ELECTRA doubles the training rows of MRPC and STS-B by swapping the two
sentences, and RoBERTa and ALBERT stop at the best score on dev.
"""

import copy

from bertzoo_jax import parts
from bertzoo_jax.configs.arguments import near
from bertzoo_jax.configs.tasks import deberta_recipes
from bertzoo_jax.configs.tasks import question_recipes

_RATE = 'schedule.learning_rate'
_constant, _xlnet_adam = question_recipes.constant, question_recipes.xlnet_adam
_RACE = ('race', 'race_middle', 'race_high')
_TAGS = ('conll2003', 'wikiann', 'ud_pos', 'msra_ner', 'tag')


def recipe(name, task, objective=None, length=0) -> dict:
  """Fields for `parts.fine_tuning`: all but source and metrics.

  Args:
    name: of a recipe in RECIPES.
    task: name of a task ('rte'); a task that the recipe does not have gets its default.
    objective: constructor (`parts.classification`, `regression`, `multilabel`, `span`); None
      for regression for stsb, else classification.
    length: tokens per row that the task sets itself; 0 for none. The recipe's length for this task
      replaces it, its default length only if that is not shorter.

  Raises:
    ValueError: no such recipe; the message lists those that exist.
  """
  if name not in RECIPES:
    raise ValueError(
      f'no recipe is called {name!r}; there is {", ".join(RECIPES)}.{near(name, RECIPES)}'
    )
  own = RECIPES[name]
  if objective in (parts.answer_span, parts.span_conditional):
    return question_recipes.of(name, task, copy.deepcopy(own['default']), objective, length)
  usual = {**own['default'], 'length': max(own['default']['length'], length)}
  fields = copy.deepcopy({**usual, **(own[task] if task in own else {})})
  make = objective or (parts.regression if task == 'stsb' else parts.classification)
  # a recipe names rates of the head, which not every objective has
  known = make()
  own_fields = {k: v for k, v in fields['objective'].items() if k in known}
  return {**fields, 'objective': make(**own_fields)}


def _encoder(dropout):
  return dict(dropout=dropout, attention_dropout=dropout)


def _rates(*rates):
  return ((_RATE, rates),)


# --- BERT: Devlin et al. 2018 §4.1, A.3; README and code of the release ---

# The grid and 3 epochs of 32 rows: §4.1. Length and warmup: the README's command for MRPC, [code]
# run_classifier.py.
_BERT = dict(
  optimizer=parts.adamw_uncorrected(),
  schedule=parts.linear_from_start(learning_rate=3e-5, warmup=0),
  grid=_rates(5e-5, 4e-5, 3e-5, 2e-5),
  batch_size=32,
  epochs=3.0,
  warmup=0.1,
  length=128,
  encoder=_encoder(0.1),
  objective=dict(dropout=0.1),
)
# §4.1: several restarts, with other row orders and heads. Five: chosen here.
_BERT_LARGE = {**_BERT, 'seeds': tuple(range(5))}
# README of the release, on the 24 smaller models.
_BERT_COMPACT = {
  **_BERT,
  'grid': (('batch_size', (8, 16, 32, 64, 128)), (_RATE, (3e-4, 1e-4, 5e-5, 3e-5))),
  'epochs': 4.0,
}

# --- RoBERTa: Liu et al. 2019, Table 10 and §5.1; configurations of fairseq's examples ---

# Table 10. Classifier without dropout: pooler_dropout is 0 [code].
# Heads start as all weights, normal with deviation 0.02; fairseq's with torch's uniform default.
_ROBERTA = dict(
  optimizer=parts.adamw(b2=0.98, eps=1e-6, weight_decay=0.1),
  schedule=parts.linear_after_warmup(learning_rate=2e-5, warmup=0),
  grid=(*_rates(1e-5, 2e-5, 3e-5), ('batch_size', (16, 32))),
  seeds=tuple(range(5)),
  batch_size=16,
  epochs=10.0,
  warmup=0.06,
  length=512,
  encoder=_encoder(0.1),
  objective=dict(dropout=0.0),
)


def _roberta_release(batch_size, rate, warmup, steps):
  return dict(
    batch_size=batch_size,
    steps=steps,
    warmup=warmup,
    schedule=parts.linear_after_warmup(learning_rate=rate, warmup=0),
  )


# Table 10, one setting. The release has another.
_ROBERTA_RACE = dict(
  grid=(),
  batch_size=16,
  epochs=4.0,
  schedule=parts.linear_after_warmup(learning_rate=1e-5, warmup=0),
)

# README.race.md of the release [code]: a constant rate, without warmup. 16 rows: 2 devices with 8
# microbatches each, of one question [mem].
_ROBERTA_RELEASE_RACE = dict(
  optimizer=parts.adamw(b2=0.98, eps=1e-6, weight_decay=0.01),
  schedule=_constant(1e-5),
  batch_size=16,
  epochs=5.0,
  warmup=0,
)

# examples/roberta/config/finetuning/*.yaml [code]: rows, rate, warmup, steps.
_ROBERTA_RELEASE = {
  'default': {**_ROBERTA, 'grid': (), 'seeds': ()},
  'mnli': _roberta_release(32, 1e-5, 7432, 123873),
  'qnli': _roberta_release(32, 1e-5, 1986, 33112),
  'qqp': _roberta_release(32, 1e-5, 28318, 113272),
  'rte': _roberta_release(16, 2e-5, 122, 2036),
  'sst2': _roberta_release(32, 1e-5, 1256, 20935),
  'mrpc': _roberta_release(16, 1e-5, 137, 2296),
  'cola': _roberta_release(16, 1e-5, 320, 5336),
  'stsb': _roberta_release(16, 2e-5, 214, 3598),
  **dict.fromkeys(_RACE, _ROBERTA_RELEASE_RACE),
}

# --- ALBERT: Lan et al. 2019, Table 14 ---


def _albert_task(rate, batch_size, dropout, steps, warmup, init=''):
  return dict(
    schedule=parts.linear_from_start(learning_rate=rate, warmup=0),
    batch_size=batch_size,
    encoder=_encoder(dropout),
    steps=steps,
    warmup=warmup,
    init=init,
  )


# Table 14 has one row per task and no sizes. The default, for other tasks: chosen here.
_ALBERT = {
  'default': dict(
    optimizer=parts.adamw_uncorrected(),
    schedule=parts.linear_from_start(learning_rate=2e-5, warmup=0),
    batch_size=32,
    epochs=3.0,
    warmup=0.1,
    length=512,
    encoder=_encoder(0.0),
    objective=dict(dropout=0.1),
  ),
  # footnote 4: final runs of RTE, STS-B and MRPC begin with the network of MNLI
  'cola': _albert_task(1e-5, 16, 0.0, 5336, 320),
  'stsb': _albert_task(2e-5, 16, 0.0, 3598, 214, init='mnli'),
  'sst2': _albert_task(1e-5, 32, 0.0, 20935, 1256),
  'mnli': _albert_task(3e-5, 128, 0.0, 10000, 1000),
  'qnli': _albert_task(1e-5, 32, 0.0, 33112, 1986),
  'qqp': _albert_task(5e-5, 128, 0.1, 14000, 1000),
  'rte': _albert_task(3e-5, 32, 0.1, 800, 200, init='mnli'),
  'mrpc': _albert_task(2e-5, 32, 0.0, 800, 200, init='mnli'),
  'wnli': _albert_task(2e-5, 16, 0.1, 2000, 250),
  **dict.fromkeys(_RACE, _albert_task(2e-5, 32, 0.1, 12000, 1000)),
}
# README of the release: RACE with the setting of v1 diverges. All else: Table 14.
_ALBERT_V2 = {**_ALBERT, **dict.fromkeys(_RACE, _albert_task(1e-5, 32, 0.0, 12000, 1000))}

# --- ELECTRA: Clark et al. 2020; configure_finetuning.py of the release ---


def _electra(rate, layer_decay):
  """[code], which decays weights by 0.01; the paper's Table 7 says 0 [3rd]. Paper: median of ten.

  Not as there: the heads start as all weights, not after Glorot.

  The paper's search [3rd]: small 1e-4, 2e-4, 3e-4, 5e-3; base and large 3e-5, 5e-5, 1e-4, 1.5e-4
  and layer decay 0.9, 0.8, 0.7 [mem].
  """
  return {
    'default': dict(
      optimizer=parts.adamw_uncorrected(),
      schedule=parts.linear_product(learning_rate=rate, warmup=0),
      seeds=tuple(range(10)),
      batch_size=32,
      epochs=3.0,
      warmup=0.1,
      layer_decay=layer_decay,
      layer_decay_form='released',
      length=128,
      encoder=_encoder(0.1),
      objective=dict(head='linear', dropout=0.1),
    ),
    'rte': dict(epochs=10.0),
    'stsb': dict(epochs=10.0),
    # "chunking" in the release; its head has no dropout
    **dict.fromkeys(_TAGS, dict(length=256, objective=dict(dropout=0.0))),
  }


# --- SpanBERT: Joshi et al. 2020, appendix B; code of the release ---

_SPANBERT = {
  'default': dict(
    # BertAdam [code]. It clips each tensor's gradient by itself; here all are clipped together.
    optimizer=parts.adamw_uncorrected(),
    schedule=parts.linear_from_start(learning_rate=2e-5, warmup=0),
    grid=(*_rates(5e-6, 1e-5, 2e-5, 3e-5, 5e-5), ('batch_size', (16, 32))),
    batch_size=32,
    epochs=10.0,
    warmup=0.1,
    length=128,
    encoder=_encoder(0.1),
    objective=dict(dropout=0.1),
  ),
  'cola': dict(epochs=4.0),
}

# --- XLNet: Yang et al. 2019, Table 8; scripts of the release ---


def _xlnet_task(rate, batch_size, steps, warmup, length, **fields):
  return dict(
    fields,
    schedule=parts.linear_to_floor(learning_rate=rate, warmup=0, end_share=0.0),
    batch_size=batch_size,
    steps=steps,
    warmup=warmup,
    length=length,
  )


# Table 8 has decay 0.01 and epsilon 1e-6; with a decay, the release's Adam is the uncorrected one.
# Layer-wise decay (0.75) is for SQuAD only. The rate falls to 0 in fine-tuning [code]. The default,
# for other tasks, has MNLI's rate; 32 rows and 3 epochs are chosen here, and so is MNLI's and
# Yelp's warmup.
_XLNET_LARGE = {
  'default': dict(
    optimizer=parts.adamw_uncorrected(),
    schedule=parts.linear_to_floor(learning_rate=2e-5, warmup=0, end_share=0.0),
    batch_size=32,
    epochs=3.0,
    warmup=0.1,
    length=128,
    encoder=_encoder(0.1),
    objective=dict(dropout=0.1),
  ),
  'mnli': _xlnet_task(2e-5, 128, 10_000, 1000, 128),  # Table 8
  'yelp5': _xlnet_task(1e-5, 128, 10_000, 1000, 512),  # Table 8
  # README of the release; run_classifier.py's decay and epsilon [code]
  'imdb': _xlnet_task(2e-5, 32, 4000, 500, 512, optimizer=_xlnet_adam(1e-8)),
  'stsb': _xlnet_task(5e-5, 32, 1200, 120, 128, optimizer=_xlnet_adam(1e-8)),
  # Table 8; its warmup: [code]. The release's script has no decay, as _xlnet_adam(1e-6).
  **dict.fromkeys(_RACE, _xlnet_task(2e-5, 32, 12_000, 1000, 512)),
}

# The release has a script for SQuAD alone. The default is that of the large network: chosen here.
_XLNET_BASE = {'default': _XLNET_LARGE['default']}

# --- Chinese: Cui et al. 2021 (arXiv:1906.08101 v3), Table 4 ---


def _chinese_task(length, epochs, rate):
  return dict(
    length=length,
    epochs=float(epochs),
    schedule=parts.linear_from_start(learning_rate=rate, warmup=0),
  )


# The same rates for all networks like BERT: tuned on bert-base-chinese, from 1e-5 to 5e-5. Ten
# runs. Neither batch nor optimizer is stated: BERT's, and 32 rows.
_BERT_WWM = {
  'default': {**_BERT, 'grid': (), 'seeds': tuple(range(10)), **_chinese_task(128, 3, 2e-5)},
  'chnsenticorp': _chinese_task(256, 3, 2e-5),
  'thucnews': _chinese_task(512, 3, 2e-5),
  'tnews': _chinese_task(128, 3, 2e-5),
  'xnli': _chinese_task(128, 2, 3e-5),
  'lcqmc': _chinese_task(128, 3, 2e-5),
  'bq': _chinese_task(128, 3, 3e-5),
  'ocnli': _chinese_task(128, 3, 2e-5),
}

# --- ERNIE 1.0: scripts of the release; the default's rate of Cui et al. 2021, Table 4 ---

# Without a warmup the release's rate is constant (optimization.py) [code].


def _ernie_task(length, epochs, rate, batch_size, **fields):
  return dict(
    length=length, epochs=float(epochs), batch_size=batch_size, schedule=_constant(rate), **fields
  )


def _paddle_adam(weight_decay):
  """[code]; eps is Paddle's default [mem]."""
  return parts.adamw(
    b2=0.999,
    eps=1e-8,
    weight_decay=weight_decay,
    no_decay=(r'norm/', r'bias$'),
    clip_norm=1.0,
  )


_ERNIE = {
  'default': dict(
    optimizer=_paddle_adam(0.01),
    schedule=_constant(5e-5),
    batch_size=32,
    epochs=3.0,
    warmup=0,
    length=128,
    encoder=_encoder(0.1),
    objective=dict(dropout=0.1),
  ),
  # 8 devices × 8,192 tokens there, in rows of up to 512; here as many tokens in rows of 128
  'xnli': _ernie_task(128, 3, 1e-4, 512),
  'chnsenticorp': _ernie_task(256, 10, 5e-5, 24),
  'lcqmc': _ernie_task(128, 3, 2e-5, 32, optimizer=_paddle_adam(0.0)),
  'bq': _ernie_task(128, 3, 3e-5, 64),
  'thucnews': _ernie_task(512, 3, 3e-5, 64),  # 8 devices with 8 rows
  'msra_ner': _ernie_task(256, 3, 5e-5, 16),
  'dbqa': _ernie_task(512, 3, 2e-5, 64),
}

RECIPES = {
  'bert': {'default': _BERT},
  'bert_large': {'default': _BERT_LARGE},
  'bert_compact': {'default': _BERT_COMPACT},
  # §5.1: the submitted runs of RTE, STS-B and MRPC begin with the network of MNLI
  'roberta': {
    'default': _ROBERTA,
    **{task: dict(init='mnli') for task in ('rte', 'stsb', 'mrpc')},
    **dict.fromkeys(_RACE, _ROBERTA_RACE),
  },
  'roberta_release': _ROBERTA_RELEASE,
  'albert_base': _ALBERT,
  'albert_xxlarge': _ALBERT,
  'albert_v2': _ALBERT_V2,
  'electra_small': _electra(1e-4, 0.8),
  'electra_base': _electra(1e-4, 0.8),
  'electra_large': _electra(5e-5, 0.9),
  **deberta_recipes.PLAIN,
  **deberta_recipes.SIFT,
  'spanbert': _SPANBERT,
  'xlnet_base': _XLNET_BASE,
  'xlnet_large': _XLNET_LARGE,
  'bert_wwm': _BERT_WWM,
  'macbert': _BERT_WWM,
  'ernie': _ERNIE,
}
