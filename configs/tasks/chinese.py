"""Chinese classification: the tables of Cui et al. 2021 (arXiv:1906.08101), the classification
tasks of ERNIE 1.0 and of CLUE (Xu et al. 2020, arXiv:2004.05986).

    python -m bertzoo_jax.finetune --config configs/tasks/chinese.py:chnsenticorp --init I \\
      --workdir F --task_dir chnsenticorp

Length, epochs and learning rate are those of Cui et al., Table 4; the paper gives no batch size,
here it is 32. DBQA has ERNIE's values. AFQMC, CMNLI, CSL and iFLYTEK are in neither paper and have
those of LCQMC. XNLI scores dev and reads test, as the tables do. `,recipe=NAME` takes another
recipe. Not here: CLUEWSC2020, whose two spans need features of their own.

The dev score of dbqa is the mean reciprocal rank (MRR) of each question's first right answer.

| task | layout | files |
|---|---|---|
| chnsenticorp | ERNIE's task data: label, text_a | {train,dev,test}.tsv |
| lcqmc, bq | text_a, text_b, label, with or without a header | {train,dev,test}.{tsv,txt} |
| xnli | XNLI-MT-1.0, XNLI-1.0 (rows of language zh) | multinli.train.zh.tsv, xnli.{dev,test}.tsv |
| thucnews | cnews, ten classes: label, text, no header | cnews.{train,val,test}.txt |
| dbqa | ERNIE's task data: qid, text_a, text_b, label | {train,dev,test}.tsv |
| afqmc, cmnli, csl, iflytek, ocnli, tnews | CLUE's JSON lines | T_public/{train,dev,test}.json |

Read from real files: chnsenticorp; dev and test of lcqmc and bq; ocnli with train.3k.json; dev of
afqmc. All other layouts were never read from a real file.
"""

import functools

from bertzoo_jax import parts
from bertzoo_jax.configs.tasks import arguments


def _task(
  files,
  text_a,
  text_b='',
  epochs=3.0,
  learning_rate=2e-5,
  length=128,
  metrics=None,
  batch_size=32,
  **source,
):
  return dict(
    sources={
      'table': functools.partial(parts.table, files=files, text_a=text_a, text_b=text_b, **source)
    },
    metrics=metrics or ('accuracy',),
    length=length,
    epochs=epochs,
    batch_size=batch_size,
    schedule=functools.partial(parts.linear_from_start, learning_rate=learning_rate, warmup=0),
  )


def _files(train='train', dev='dev', test='test', endings=('tsv',)):
  return {
    split: '|'.join(f'{name}.{ending}' for ending in endings) + more
    for split, name, more in (('train', train, ''), ('dev', dev, ''), ('test', test, '?'))
  }


def _clue(name, train='train'):
  """The files of a task of CLUE, in the folder of its archive or above it."""
  return {
    split: f'{name}_public/{file}.json|{file}.json{more}'
    for split, file, more in (('train', train, ''), ('dev', 'dev', ''), ('test', 'test', '?'))
  }


_PAIRS = dict(text_a='text_a', text_b='text_b', columns=('text_a', 'text_b', 'label'))
_SENTENCES = dict(text_a='sentence1', text_b='sentence2', example='id?')
_NLI = dict(labels=('contradiction|contradictory', 'entailment', 'neutral'), leave_out=('-',))

TASKS = {
  'chnsenticorp': _task(_files(), 'text_a', length=256),
  'lcqmc': _task(_files(endings=('tsv', 'txt')), **_PAIRS),
  'bq': _task(_files(endings=('tsv', 'txt')), learning_rate=3e-5, **_PAIRS),
  'xnli': _task(
    dict(
      train='XNLI-MT-1.0/multinli/multinli.train.zh.tsv|multinli.train.zh.tsv|train.tsv',
      dev='XNLI-1.0/xnli.dev.tsv|xnli.dev.tsv|dev.tsv',
      test='XNLI-1.0/xnli.test.tsv|xnli.test.tsv|test.tsv?',
    ),
    text_a='premise|sentence1|text_a',
    text_b='hypo|sentence2|text_b',
    label='gold_label|label',
    where=(('language?', 'zh'),),
    epochs=2.0,
    learning_rate=3e-5,
    **_NLI,
  ),
  'thucnews': _task(
    dict(
      train='cnews.train.txt|train.txt|train.tsv',
      dev='cnews.val.txt|dev.txt|dev.tsv',
      test='cnews.test.txt|test.txt|test.tsv?',
    ),
    'text|text_a',
    columns=('label', 'text'),
    length=512,
  ),
  'dbqa': _task(
    _files(),
    'text_a',
    'text_b',
    length=512,
    batch_size=64,
    metrics=('mrr', 'map', 'f1', 'accuracy'),
    example='qid',
  ),
  'afqmc': _task(_clue('afqmc'), **_SENTENCES),
  'tnews': _task(_clue('tnews'), 'sentence', example='id?'),
  'ocnli': _task(_clue('ocnli', 'train.50k'), **_SENTENCES, **_NLI),
  'cmnli': _task(_clue('cmnli'), **_SENTENCES, **_NLI),
  'csl': _task(_clue('csl'), 'keyword', 'abst', example='id?'),
  'iflytek': _task(_clue('iflytek'), 'sentence', example='id?'),
}


def get_config(argument='chnsenticorp'):
  return arguments.config(argument, TASKS)
