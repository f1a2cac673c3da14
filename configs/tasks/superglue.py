"""SuperGLUE (Wang et al. 2019, arXiv:1905.00537): its eight tasks from its own files.

    python -m bertzoo_jax.finetune --config configs/tasks/superglue.py:boolq --init I --workdir F \\
      --task_dir SUPERGLUE

SUPERGLUE is the folder that holds BoolQ, CB, … as super.gluebenchmark.com gives them, or the folder
of the task. RTE's model also predicts AX-b and AX-g. The leaderboard's score of a task with two
metrics is their mean.

Rows: the question before the passage, as BabyLM has it (in multirc with one answer); copa's
question in jiant's words; record's query with an entity in its gap, a row per entity. wic has the
word in quotation marks (GlossBERT, Huang et al. 2019), wsc * noun * and # pronoun # (T5, Raffel et
al. 2020). Values without a recipe are those of glue.py, with 512 tokens; the epochs, and record's 4
questions per batch, are chosen here. No layout of this file was ever read from a real file.
"""

import functools

from bertzoo_jax import parts
from bertzoo_jax.configs.tasks import arguments

_BOTH, _AND_F1 = ('f1', 'exact_match'), ('accuracy', 'macro_f1')
_CB, _RTE = ('entailment', 'contradiction', 'neutral'), ('entailment', 'not_entailment')
_AX = dict(test_axb='AX-b/AX-b.jsonl?', test_axg='AX-g/AX-g.jsonl?')
_COPA = dict(text='premise', options='choice1,choice2', label_form='from_0')
_RECORD = dict(answers='answers', label_form='text', batch_size=4)
_MULTIRC = 'Question: {question} Answer: {answer}'


def _task(folder, source, metrics, epochs, columns, more=(), **fields):
  """more: further files."""
  files = dict(train='train.jsonl', dev='val.jsonl', test='test.jsonl?')
  files = {split: f'{folder}/{name.rstrip("?")}|{name}' for split, name in files.items()}
  source = functools.partial(source, files=files | dict(more), example='idx?', **columns)
  return dict(sources={'files': source}, metrics=metrics, length=512, epochs=epochs, **fields)


def _rows(folder, *texts, metrics=('accuracy',), epochs=10.0, layout='rows', more=(), labels=None):
  columns = dict(zip(('text_a', 'text_b'), texts), layout=layout)
  columns['labels'] = labels or ('false|0', 'true|1')
  return _task(folder, parts.table, metrics, epochs, columns, more)


def _choices(folder, layout, metrics, epochs, batch_size=32, **columns):
  features = functools.partial(parts.choice_rows, blank='@placeholder')
  fields = dict(objective=parts.choice, features=features, batch_size=batch_size)
  return _task(folder, parts.choices, metrics, epochs, dict(columns, layout=layout), **fields)


TASKS = {
  'boolq': _rows('BoolQ', 'question', 'passage', epochs=3.0),
  'cb': _rows('CB', 'premise', 'hypothesis', metrics=_AND_F1, labels=_CB),
  'copa': _choices('COPA', 'copa', ('accuracy',), 10.0, **_COPA),
  'multirc': _rows('MultiRC', _MULTIRC, 'passage', metrics=_BOTH, epochs=3.0, layout='multirc'),
  'record': _choices('ReCoRD', 'record', _BOTH, 2.0, **_RECORD),
  'rte': _rows('RTE', 'premise|sentence1', 'hypothesis|sentence2', more=_AX, labels=_RTE),
  'wic': _rows('WiC', 'sentence1', 'sentence2', layout='wic'),
  'wsc': _rows('WSC', 'text', layout='wsc'),
}
TASKS['rte']['metrics'] = ('accuracy', 'matthews')


def get_config(argument='boolq'):
  return arguments.config(argument, TASKS, suite=tuple(TASKS))
