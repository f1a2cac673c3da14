"""English text classification of XLNet's Table 4 (Yang et al. 2019, arXiv:1906.08237): IMDB, and
the sets of Zhang et al. 2015 (arXiv:1509.01626).

    python -m bertzoo_jax.finetune --config configs/tasks/english.py:yelp5 --init I --workdir F \\
      --task_dir yelp_review_full_csv

Length, batch and learning rate are XLNet's for Yelp-5 (its Table 8): 512 tokens, 128 rows, 1e-5,
10,000 steps; AG's short texts have 128 tokens. The papers report the error on test, which
is read with its labels; dev is a tenth of train. IMDB comes from tensorflow-datasets.

No layout of this file was ever read from a real file.
"""

import functools

from bertzoo_jax import parts
from bertzoo_jax.configs.tasks import arguments

_FILES = dict(train='train.csv', dev='', test='test.csv')


def _task(source, length=512):
  return dict(
    sources={'tfds' if 'dataset' in source.keywords else 'table': source},
    metrics=('accuracy',),
    length=length,
    batch_size=128,
    steps=10_000,
    schedule=functools.partial(parts.linear_from_start, learning_rate=1e-5, warmup=0),
  )


def _csv(*columns, text_a='text', text_b=''):
  return functools.partial(
    parts.table, files=_FILES, columns=('label', *columns), text_a=text_a, text_b=text_b
  )


_REVIEW = _csv('text')
_TITLED = _csv('title', 'text', text_a='title', text_b='text')

TASKS = {
  'imdb': _task(
    functools.partial(
      parts.tfds,
      dataset='imdb_reviews',
      splits=dict(train='train', dev='', test='test'),
      text_a='text',
    )
  ),
  'yelp2': _task(_REVIEW),
  'yelp5': _task(_REVIEW),
  'dbpedia': _task(_TITLED),
  'ag': _task(_TITLED, length=128),
  'amazon2': _task(_TITLED),
  'amazon5': _task(_TITLED),
}


def get_config(argument='yelp5'):
  return arguments.config(argument, TASKS)
