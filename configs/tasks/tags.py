"""Tags of words: named entities and parts of speech.

    python -m bertzoo_jax.finetune --config configs/tasks/tags.py:conll2003 --init I --workdir F \\
      --task_dir CONLL2003

| task | layout | files |
|---|---|---|
| conll2003 | four columns, the last one the entity | {train,valid,test}.txt, eng.train, … |
| wikiann | two columns, words as en:WORD (`source.prefix`) | {train,dev,test} |
| ud_pos | CoNLL-U, the column UPOS | {train,dev,test}.conllu |
| msra_ner | a character per line, or a table with U+0002 between | {train,dev,test}.{txt,tsv} |

`,source=tfds_tags` reads conll2003, wikiann (English; --config.source.dataset=wikiann/de for
another language) and universal_dependencies/en_ewt of tensorflow-datasets.

Values. conll2003: BERT (Devlin et al. 2018 §5.3) scores the first token of a word, without a CRF;
its best rate of 5e-5, 3e-5, 2e-5 and 3 or 4 epochs is not printed for this task, so they are those
of §4.1. Cased vocabularies are meant. BERT adds the sentences around one as context, which is not
here. msra_ner: code of ERNIE 1.0's release, 16 rows, 3 epochs, 5e-5, 256 tokens, no warmup. wikiann
and ud_pos are in none of the papers and have BERT's values. `,recipe=NAME` takes another paper's.

The dev score is the F1 of entities (`entity_f1`), for ud_pos the accuracy. Test files are
predicted, and scored if they have tags: TASK/test.jsonl, and submission/TASK.conll, whose last
column is the prediction.

Read from real files: conll2003 with eng.train, eng.testa and eng.testb; msra_test_bio.txt; dev and
test of UD English-EWT. WikiANN's layout, and MSRA's as a table, were never read from a real file.
"""

import functools

from bertzoo_jax import parts
from bertzoo_jax.configs.tasks import arguments

_ENTITIES = ('entity_f1', 'entity_precision', 'entity_recall', 'accuracy')
_SPLITS = dict(train='train', dev='validation', test='test')


def _task(name, files, dataset='', metrics=_ENTITIES, feature='tags', columns=(), **fields):
  sources = {'conll': functools.partial(parts.conll, files=files, **dict(columns))}
  if dataset:
    # the universal dependencies call their splits as others do not
    splits = _SPLITS if 'universal' not in dataset else {**_SPLITS, 'dev': 'dev'}
    sources['tfds_tags'] = functools.partial(
      parts.tfds_tags, dataset=dataset, splits=splits, tags=feature
    )
  return dict(
    sources=sources,
    objective=parts.tagging,
    features=parts.words,
    metrics=metrics,
    submission=dict(test=f'{name}.conll'),
    **fields,
  )


TASKS = {
  'conll2003': _task(
    'conll2003',
    dict(
      train='eng.train|train.txt|train.conll',
      dev='eng.testa|valid.txt|dev.txt|dev.conll',
      test='eng.testb|test.txt|test.conll?',
    ),
    dataset='conll2003',
    feature='ner',
  ),
  'wikiann': _task(
    'wikiann',
    dict(train='train|train.txt', dev='dev|dev.txt', test='test|test.txt?'),
    dataset='wikiann/en',
    columns=dict(prefix='en:'),
  ),
  'ud_pos': _task(
    'ud_pos',
    dict(train='train.conllu', dev='dev.conllu', test='test.conllu?'),
    dataset='universal_dependencies/en_ewt',
    metrics=('accuracy',),
    feature='upos',
    columns=dict(word=1, tag=3, scheme='none'),
  ),
  'msra_ner': _task(
    'msra_ner',
    dict(
      train='train.tsv|train.txt|msra_train_bio.txt',
      dev='dev.tsv|dev.txt?',
      test='test.tsv|test.txt|msra_test_bio.txt?',
    ),
    length=256,
    batch_size=16,
    epochs=3.0,
    warmup=0,
    schedule=functools.partial(parts.linear_from_start, learning_rate=5e-5, warmup=0),
  ),
}


def get_config(argument='conll2003'):
  return arguments.config(argument, TASKS)
