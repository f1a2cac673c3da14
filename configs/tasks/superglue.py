"""SuperGLUE (Wang et al. 2019, arXiv:1905.00537): its eight tasks from its own files.

    python -m bertzoo_jax.finetune --config configs/tasks/superglue.py:boolq --init I --workdir F \\
      --task_dir SUPERGLUE

SUPERGLUE is the folder that holds BoolQ, CB, … as super.gluebenchmark.com gives them, or the folder
of the task. `:all` is the suite. RTE's model also predicts AX-b and AX-g. The leaderboard's score
of a task with two metrics is their mean.

Rows: the question before the passage, as BabyLM has it (in multirc with one answer); copa's
question in jiant's words; record's query with an entity in its gap, a row per entity. wic has the
word in quotation marks (GlossBERT, Huang et al. 2019), wsc * noun * and # pronoun # (T5, Raffel et
al. 2020). Values without a recipe are those of glue.py, with 512 tokens; the epochs, and record's 4
questions per batch, are chosen here. No layout of this file was ever read from a real file.
"""

import functools

from bertzoo_jax import parts
from bertzoo_jax.configs.tasks import arguments

_BOTH = ('f1', 'exact_match')
_TEXTS = functools.partial(parts.table, labels=('false', 'true'))
_CHOICE = dict(
  objective=parts.choice, features=functools.partial(parts.choice_rows, blank='@placeholder')
)


def _task(folder, source=_TEXTS, metrics=('accuracy',), epochs=10.0, more=(), fields=(), **columns):
  """more: further files. fields: of the task. columns: of the source."""
  files = dict(train='train.jsonl', dev='val.jsonl', test='test.jsonl?')
  files = {split: f'{folder}/{name.rstrip("?")}|{name}' for split, name in files.items()}
  source = functools.partial(source, files=files | dict(more), example='idx?', **columns)
  about = dict(metrics=metrics, length=512, epochs=epochs)
  return dict(sources={'files': source}, **about, **dict(fields))


TASKS = {
  'boolq': _task('BoolQ', epochs=3.0, text_a='question', text_b='passage'),
  'cb': _task(
    'CB',
    metrics=('accuracy', 'macro_f1'),
    text_a='premise',
    text_b='hypothesis',
    labels=('entailment', 'contradiction', 'neutral'),
  ),
  'copa': _task(
    'COPA',
    parts.choices,
    fields=_CHOICE,
    layout='copa',
    text='premise',
    options='choice1,choice2',
    label_form='from_0',
  ),
  'multirc': _task(
    'MultiRC',
    metrics=_BOTH,
    epochs=3.0,
    layout='multirc',
    text_a='Question: {question} Answer: {answer}',
    text_b='passage',
    labels=('0', '1'),
  ),
  'record': _task(
    'ReCoRD',
    parts.choices,
    _BOTH,
    2.0,
    fields=dict(_CHOICE, batch_size=4),
    layout='record',
    answers='answers',
    label_form='text',
  ),
  'rte': _task(
    'RTE',
    metrics=('accuracy', 'matthews'),
    more=dict(test_axb='AX-b/AX-b.jsonl?', test_axg='AX-g/AX-g.jsonl?'),
    text_a='premise|sentence1',
    text_b='hypothesis|sentence2',
    labels=('entailment', 'not_entailment'),
  ),
  'wic': _task('WiC', layout='wic', text_a='sentence1', text_b='sentence2'),
  'wsc': _task('WSC', layout='wsc', text_a='text'),
}


def get_config(argument='boolq'):
  return arguments.config(argument, TASKS, suite=tuple(TASKS))
