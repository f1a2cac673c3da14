"""The papers' changes for questions with answers in a passage, beside configs/tasks/recipes.py.

QUESTIONS has an entry for each recipe with figures of its own: {'default': fields for all such
tasks, task: fields}. They override the recipe's default, of which the grid and the objective are
left out. `objective` has `make`, a constructor, where the paper's head is not the one that the
config asks for. Sources: as there.

Not in any recipe: RoBERTa's second head for questions without an answer (its losses are added), and
BERT's training on TriviaQA before SQuAD 1.1.
"""

import copy
import functools

from bertzoo_jax import parts

_RATE = 'schedule.learning_rate'


def constant(rate):
  """A rate that does not fall."""
  return parts.linear_to_floor(learning_rate=rate, warmup=0, end_share=1.0)


def xlnet_adam(eps):
  """[code]: without a decay the release has TensorFlow's Adam, which corrects its moments."""
  return parts.adamw(b2=0.999, eps=eps, weight_decay=0.0, clip_norm=1.0)


def _linear(rate):
  return parts.linear_from_start(learning_rate=rate, warmup=0)


def _windows(**fields):
  return functools.partial(parts.question_windows, **fields)


# --- BERT: Devlin et al. 2018 §4.2, 4.3; length and stride: README of the release ---

_BERT = {
  'default': dict(schedule=_linear(5e-5), batch_size=32, epochs=3.0, length=384, seeds=()),
  'squad2': dict(batch_size=48, epochs=2.0),
}

# --- RoBERTa: Liu et al. 2019, Table 10 ---

_ROBERTA = {
  'default': dict(
    optimizer=parts.adamw(b2=0.98, eps=1e-6, weight_decay=0.01),
    schedule=parts.linear_after_warmup(learning_rate=1.5e-5, warmup=0),
    batch_size=48,
    epochs=2.0,
    warmup=0.06,
    length=512,
    init='',
  )
}

# --- ALBERT: Lan et al. 2019, Table 14; squad_utils.py of the release ---

_ALBERT = {
  # README of the release, for both
  'default': dict(schedule=_linear(5e-5), batch_size=48, epochs=2.0, warmup=0.1, length=384),
  'squad': dict(steps=3649, warmup=365),
  'squad2': dict(
    schedule=_linear(3e-5),
    steps=8144,
    warmup=814,
    length=512,
    objective=dict(make=parts.span_conditional, head='tanh', dropout=0.1),
  ),
}

# --- ELECTRA: Clark et al. 2020; configure_finetuning.py and qa_tasks.py of the release ---

# Not as there: the release trains answerability on SQuAD 1.1, too, where all has an answer.

_ELECTRA_HEAD = dict(
  make=parts.span_conditional, head='gelu', hidden_size=512, answerable_weight=0.0, dropout=0.0
)
_ELECTRA = {
  'default': dict(epochs=2.0, length=512, features=_windows(beam=20), objective=_ELECTRA_HEAD),
  'squad2': dict(
    features=_windows(beam=20, no_answer_threshold=-2.75),
    objective={**_ELECTRA_HEAD, 'answerable_weight': 0.5},
  ),
}

# --- DeBERTa: nothing but the ranges of Table 9; the length is chosen here ---

_DEBERTA = {'default': dict(length=384)}


def _with_sift(weight):
  """The recipe with SiFT, of this weight in the loss."""
  return {'default': dict(length=384, objective=dict(sift=dict(weight=weight)))}


# --- SpanBERT: Joshi et al. 2020, appendix B and §4.1 (the passage is first) ---

_SPANBERT = {
  'default': dict(
    grid=((_RATE, (5e-6, 1e-5, 2e-5, 3e-5, 5e-5)), ('batch_size', (16, 32))),
    epochs=4.0,
    length=512,
    features=_windows(order='passage_first'),
  )
}

# --- XLNet: Yang et al. 2019, Table 8; scripts of the release ---

# All of the paper. The release multiplies clipped gradients by the decay by layer, which Adam
# undoes, and its script has no decay of weights, as xlnet_adam(1e-6).
_XLNET = {
  'default': dict(
    schedule=parts.linear_to_floor(learning_rate=3e-5, warmup=0, end_share=0.0),
    batch_size=48,
    steps=8000,
    warmup=1000,
    length=512,
    layer_decay=0.75,
    layer_decay_form='corrected',
    features=_windows(max_answer=64),
    objective=dict(make=parts.span_conditional, head='tanh', dropout=0.1),
  )
}

# scripts/gpu_squad_base.sh [code], of SQuAD 2.0: 3 devices with 8 rows each, no decay of weights.
# run_squad.py's decay by layer, 0.75 unless set, scales gradients, which Adam undoes: here 1.
_XLNET_BASE = {
  'default': {
    **_XLNET['default'],
    'optimizer': xlnet_adam(1e-6),
    'schedule': parts.linear_to_floor(learning_rate=2e-5, warmup=0, end_share=0.0),
    'batch_size': 24,
    'steps': 12_000,
    'layer_decay': 1.0,
  }
}

# --- Chinese: Cui et al. 2021, Table 4; ERNIE: README of the release, CJRC's rate of Cui et al. ---

_BERT_WWM = {
  'default': dict(schedule=_linear(3e-5), epochs=2.0, length=512),
  'cjrc': dict(schedule=_linear(4e-5)),
}
_ERNIE = {
  'default': dict(schedule=constant(3e-5), batch_size=64, epochs=2.0, warmup=0, length=512),
  'drcd': dict(schedule=constant(5e-5)),
  'cjrc': dict(schedule=constant(8e-5)),
}

QUESTIONS = {
  'bert': _BERT,
  'bert_large': _BERT,
  'bert_compact': _BERT,
  'roberta': _ROBERTA,
  'roberta_release': _ROBERTA,
  'albert_base': _ALBERT,
  'albert_xxlarge': _ALBERT,
  'albert_v2': _ALBERT,
  **dict.fromkeys(('electra_small', 'electra_base', 'electra_large'), _ELECTRA),
  **dict.fromkeys(('deberta_base', 'deberta_large', 'deberta_xlarge'), _DEBERTA),
  **dict.fromkeys(('deberta_v2_xlarge', 'deberta_v2_xxlarge'), _DEBERTA),
  **dict.fromkeys(('deberta_v3_xsmall', 'deberta_v3_small'), _DEBERTA),
  **dict.fromkeys(('deberta_v3_base', 'deberta_v3_large'), _DEBERTA),
  **dict.fromkeys(('deberta_base_sift', 'deberta_v2_xxlarge_sift'), _with_sift(5.0)),
  'deberta_v3_xsmall_sift': _with_sift(3.0),
  **dict.fromkeys(('deberta_v3_small_sift', 'deberta_v3_base_sift'), _with_sift(5.0)),
  'spanbert': _SPANBERT,
  'xlnet_base': _XLNET_BASE,
  'xlnet_large': _XLNET,
  'bert_wwm': _BERT_WWM,
  'macbert': _BERT_WWM,
  'ernie': _ERNIE,
}


def of(name, task, default, make, length=0) -> dict:
  """Fields of a recipe for a task of questions, its sections made.

  Args:
    name: of the recipe; NAME_sift is NAME with SiFT.
    task: its name.
    default: the recipe's fields for any task.
    make: constructor of the objective that the config asks for.
    length: see `recipes.recipe`.
  """
  own = copy.deepcopy(QUESTIONS[name.removesuffix('_sift')])
  usual = own['default']
  of_task = own[task] if task in own else {}
  longer = {'length': max(usual['length'] if 'length' in usual else default['length'], length)}
  changes = {**usual, **longer, **of_task}
  objective = dict(changes.pop('objective', {}))
  chosen = objective.pop('make', make)
  if 'sift' in default['objective']:
    objective['sift'] = default['objective']['sift']
  features = changes.pop('features', parts.question_windows)
  fields = {**default, 'grid': (), **changes}
  return {**fields, 'features': features(), 'objective': chosen(**objective)}
