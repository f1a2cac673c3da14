"""GLUE (Wang et al. 2018, arXiv:1804.07461): nine tasks and the diagnostic set AX.

    python -m bertzoo_jax.finetune --config configs/tasks/glue.py:rte --init I --workdir F \\
      --task_dir GLUE

GLUE is the folder that holds CoLA, SST-2, … as gluebenchmark.com gives them; the folder of the task
alone will do, too. `,source=tfds` reads glue/TASK of tensorflow-datasets. `,recipe=NAME` takes a
paper's hyperparameters (configs/tasks/recipes.py). Without one the epochs, rows and warmup are
those of Devlin et al. 2018, §4.1: 3 epochs of 32 rows, here with one learning rate, 3e-5. The
optimizer is then parts.adamw(), which is not BERT's. `:all` is the suite; where a recipe begins
RTE, STS-B and MRPC with MNLI's best run, MNLI is run before them. --config.FIELD sets a field of
every task of the suite.

The dev score, by which a grid's best run is chosen, is Matthews' correlation for CoLA, Spearman's
for STS-B, else accuracy; F1 is beside it for MRPC and QQP, Pearson's correlation for STS-B. AX has
no training data: MNLI's model predicts it, as the split test_ax. WNLI's dev sentences repeat those
of train with the other label, so a model that learns does worse than chance (the benchmark's FAQ).

Layouts. Read from real files: train and dev of CoLA, SST-2, MRPC, WNLI; RTE in another split. Never
read from a real file: test of the others; STS-B, QQP, MNLI, QNLI, AX; the dataset of
tensorflow-datasets.
"""

import functools

from bertzoo_jax import parts
from bertzoo_jax.configs.tasks import arguments

_ENTAILMENT = ('entailment', 'not_entailment')
_BINARY = ('0', '1')


def _files(folder, train='train.tsv', dev='dev.tsv', **more):
  """{split: file}, in GLUE's folder or in that of the task. Test files may be absent."""
  files = dict(train=train, dev=dev, **{'test': 'test.tsv?', **more})
  return {split: f'{folder}/{name.rstrip("?")}|{name}' for split, name in files.items()}


def _sources(folder, dataset, splits=None, features=(), labels=(), **columns):
  """{source: function that returns its section}.

  folder: of GLUE's download, or {split: file}. dataset: of tensorflow-datasets. splits: its splits.
  features: names of the dataset's texts, and of the files' columns unless `columns` has others.
  labels: as the files spell them, in the order of the dataset's classes; () for the dataset's
  names, if files spell them alike.
  """
  a, b = (*features, '')[:2]
  return {
    'table': functools.partial(
      parts.table,
      files=_files(folder) if isinstance(folder, str) else folder,
      labels=labels,
      **{'example': 'index?', 'text_a': a, 'text_b': b, **columns},
    ),
    'tfds': functools.partial(
      parts.tfds,
      dataset=f'glue/{dataset}',
      splits=splits or dict(train='train', dev='validation', test='test'),
      text_a=a,
      text_b=b,
      example='idx',
      labels=labels,
    ),
  }


TASKS = {
  'mnli': dict(
    sources=_sources(
      {
        **_files(
          'MNLI',
          dev='dev_matched.tsv',
          dev_mismatched='dev_mismatched.tsv?',
          test='test_matched.tsv?',
          test_mismatched='test_mismatched.tsv?',
        ),
        'test_ax': 'diagnostic/diagnostic.tsv|AX/diagnostic.tsv|AX/AX.tsv|AX.tsv|diagnostic.tsv?',
      },
      'mnli',
      splits=dict(
        train='train',
        dev='validation_matched',
        dev_mismatched='validation_mismatched',
        test='test_matched',
        test_mismatched='test_mismatched',
        test_ax='glue/ax:test',
      ),
      features=('premise', 'hypothesis'),
      text_a='sentence1',
      text_b='sentence2',
      label='gold_label',
      leave_out=('-',),
    ),
    metrics=('accuracy',),
    submission=dict(test='MNLI-m.tsv', test_mismatched='MNLI-mm.tsv', test_ax='AX.tsv'),
  ),
  'qqp': dict(
    sources=_sources(
      'QQP',
      'qqp',
      features=('question1', 'question2'),
      labels=_BINARY,
      label='is_duplicate',
      example='id?',
    ),
    metrics=('accuracy', 'f1'),
    submission=dict(test='QQP.tsv'),
  ),
  'qnli': dict(
    sources=_sources('QNLI', 'qnli', features=('question', 'sentence'), labels=_ENTAILMENT),
    metrics=('accuracy',),
    submission=dict(test='QNLI.tsv'),
  ),
  'sst2': dict(
    sources=_sources('SST-2', 'sst2', features=('sentence',), labels=_BINARY),
    metrics=('accuracy',),
    submission=dict(test='SST-2.tsv'),
  ),
  'cola': dict(
    sources=_sources(
      'CoLA',
      'cola',
      features=('sentence',),
      labels=_BINARY,
      columns=('source', 'label', 'star', 'sentence'),
    ),
    metrics=('matthews', 'accuracy'),
    submission=dict(test='CoLA.tsv'),
  ),
  'stsb': dict(
    sources=_sources('STS-B', 'stsb', features=('sentence1', 'sentence2'), label='score'),
    objective=parts.regression,
    metrics=('spearman', 'pearson'),
    submission=dict(test='STS-B.tsv'),
  ),
  'mrpc': dict(
    sources=_sources(
      dict(
        train='MRPC/train.tsv|train.tsv|MRPC/msr_paraphrase_train.txt|msr_paraphrase_train.txt',
        # the original corpus has no dev split: a share of train is taken
        dev='MRPC/dev.tsv|dev.tsv?',
        test='MRPC/test.tsv|test.tsv|MRPC/msr_paraphrase_test.txt|msr_paraphrase_test.txt?',
      ),
      'mrpc',
      features=('sentence1', 'sentence2'),
      labels=_BINARY,
      text_a='#1 String',
      text_b='#2 String',
      label='Quality',
    ),
    metrics=('accuracy', 'f1'),
    submission=dict(test='MRPC.tsv'),
  ),
  'rte': dict(
    sources=_sources('RTE', 'rte', features=('sentence1', 'sentence2'), labels=_ENTAILMENT),
    metrics=('accuracy',),
    submission=dict(test='RTE.tsv'),
  ),
  'wnli': dict(
    sources=_sources('WNLI', 'wnli', features=('sentence1', 'sentence2'), labels=_BINARY),
    metrics=('accuracy',),
    submission=dict(test='WNLI.tsv'),
  ),
}


def get_config(argument='rte'):
  if (argument or '').split(',')[0] == 'ax':
    raise ValueError(
      'AX has no training data: fine-tune mnli, whose run predicts AX as the split test_ax.'
    )
  return arguments.config(argument, TASKS, suite=tuple(TASKS))
