"""The fine-tuning of the BabyLM challenge: seven tasks of GLUE and SuperGLUE, in its own files.

    python -m bertzoo_jax.finetune --config configs/tasks/babylm.py:all --init I --workdir F \\
      --task_dir glue_filtered

glue_filtered is the folder of the evaluation data (boolq.train.jsonl, boolq.valid.jsonl, …). Texts
and values are those of the pipeline (babylm-org/babylm-eval at 45fe2c1: eval_finetuning.sh and
finetune/): AdamW, a cosine to a tenth, the best epoch by accuracy (MRPC and QQP: F1), seed 42. F1
is of the label 1, which is not_entailment in RTE. `evaluate --babylm … --glue F` submits F.

Not as there: the head lacks the first of two norms, and the other has parameters; the rows at the
end of an epoch that fill no batch are kept. No layout of this file was ever read from a real file.
"""

import functools

from bertzoo_jax import parts
from bertzoo_jax.configs.tasks import arguments

_SCORES, _F1 = ('accuracy', 'f1', 'matthews'), ('f1', 'accuracy', 'matthews')
_WSC = 'Does "{span2_text}" refer to "{span1_text}" in this passage?'
_PIPELINE = dict(
  seed=42,
  length=512,
  warmup=0.06,
  choose='best',
  encoder={},
  objective=functools.partial(parts.classification, head='transform', dropout=0.1),
  optimizer=functools.partial(parts.adamw, b2=0.999, eps=1e-8, weight_decay=0.01),
  schedule=functools.partial(parts.cosine, learning_rate=3e-5, warmup=0, end_share=0.1),
)


def _task(name, *texts, metrics=_SCORES, labels=('0', '1'), batch_size=32, epochs=10.0):
  columns = dict(zip(('text_a', 'text_b'), texts), labels=labels)
  files = dict(train=f'{name}.train.jsonl', dev=f'{name}.valid.jsonl')
  sources = {'table': functools.partial(parts.table, files=files, **columns)}
  fields = dict(sources=sources, metrics=metrics, batch_size=batch_size, epochs=epochs)
  return dict(_PIPELINE, submission=dict(dev=f'{name}.tsv'), **fields)


TASKS = {
  'boolq': _task('boolq', 'question', 'passage', batch_size=16),
  'multirc': _task('multirc', 'Question: {question} Answer: {answer}', 'paragraph', batch_size=16),
  'rte': _task('rte', 'sentence1', 'sentence2'),
  'wsc': _task('wsc', _WSC, 'text', epochs=30.0),
  'mrpc': _task('mrpc', 'sentence1', 'sentence2', metrics=_F1),
  'qqp': _task('qqp', 'question1', 'question2', metrics=_F1),
  'mnli': _task('mnli', 'premise', 'hypothesis', metrics=('accuracy',), labels=('0', '1', '2')),
}


def get_config(argument='boolq'):
  return arguments.config(argument, TASKS, suite=tuple(TASKS))
