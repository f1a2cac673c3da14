"""Fine-tuning on your own labels: one config per shape of data.

    python -m bertzoo_jax.finetune --config configs/tasks/own.py:classify --init I --workdir F \\
      --config.source.files.train=reviews.csv --config.source.text_a=review \\
      --config.source.label=stars

| argument | a row has |
|---|---|
| classify | a text and one of several labels |
| pairs | two texts (text_a, text_b) and one of several labels |
| regress | a text and a number; two texts with --config.source.text_b=NAME |
| multilabel | a text and several columns of 0 and 1: --config.source.label=toxic,insult,threat |
| qa | a question and its answer in a passage: SQuAD's JSON; a table with `,source=table` |
| similar | two texts (text_a, text_b) and a score of their likeness |
| positives | a query (text_a) and a text that fits it (text_b); negatives if you have some |
| choice | a text, a question, its options (as many columns, or a list), and the right one |
| tag | a word and its tag; an empty line ends a sentence (CoNLL's columns) |

Files: tsv, csv, jsonl, json or parquet, by the end of the name; a path, or a name in --task_dir.
`files.dev` is scored; without one, `dev_share` of the train file is. `files.test` is predicted.
Columns are called text (text_a and text_b of pairs), label or score unless you name others. The
labels are those of the train file. `,source=tfds` reads a dataset of tensorflow-datasets
(--config.source.dataset=imdb_reviews).

`choice` has the columns text, question, options and label. --config.source.options=a,b,c names one
column for each option; a single one has lists (jsonl). A label is the letter, the number or the
text of the right option. Without a text, --config.source.text='', the question stands beside each
option.

`similar` and `positives` learn vectors of texts, which `encode` and `export` then make. `similar`
gives cosines the order of the scores; with `,objective=cosine_regression` their values.
--config.source.negatives=a,b names columns of texts that do not fit the query.

`tag` reads text files with columns: the word is in the first one (--config.source.word=0), the tag
in the last (--config.source.tag=-1). Its metrics are of entities (B-PER, I-PER, …); for tags
without such prefixes, as parts of speech, set --config.metrics="('accuracy',)".
"""

from bertzoo_jax import parts
from bertzoo_jax.configs.tasks import arguments

_FILES = dict(train='', dev='', test='')


def _columns(text_a='text', text_b='', label='label'):
  """{source: function that returns its section} with these columns."""
  names = dict(text_a=text_a, text_b=text_b, label=label)
  return {
    'table': lambda: parts.table(files=_FILES, **names),
    'tfds': lambda: parts.tfds(dataset='', splits={**_FILES, 'train': 'train'}, **names),
  }


def _vectors(objective, label, *metrics):
  columns = dict(files=_FILES, text_a='text_a', text_b='text_b', label=label)
  sources = {'text_tuples': lambda: parts.text_tuples(**columns)}
  return dict(sources=sources, objective=objective, features=parts.text_rows, metrics=metrics)


TASKS = {
  'classify': dict(sources=_columns(), metrics=('accuracy', 'macro_f1')),
  'pairs': dict(sources=_columns('text_a', 'text_b'), metrics=('accuracy', 'macro_f1')),
  'regress': dict(
    sources=_columns(label='score'),
    objective=parts.regression,
    metrics=('spearman', 'pearson'),
  ),
  'similar': _vectors(parts.cosent, 'score', 'spearman', 'pearson'),
  'positives': _vectors(parts.in_batch_negatives, '', 'recall@1', 'recall@10', 'mrr'),
  'multilabel': dict(
    sources=_columns(),
    objective=parts.multilabel,
    metrics=('micro_f1', 'macro_f1', 'accuracy'),
  ),
  'choice': dict(
    sources={'choices': lambda: parts.choices(files=_FILES)},
    objective=parts.choice,
    features=parts.choice_rows,
    metrics=('accuracy',),
  ),
  'tag': dict(
    sources={
      'conll': lambda: parts.conll(files=_FILES),
      'tfds_tags': lambda: parts.tfds_tags(dataset='', splits={**_FILES, 'train': 'train'}),
    },
    objective=parts.tagging,
    features=parts.words,
    metrics=('entity_f1', 'entity_precision', 'entity_recall', 'accuracy'),
    submission=dict(test='test.conll'),
  ),
}


_QUESTIONS = {
  'squad': lambda: parts.squad(files=_FILES),
  'table': lambda: parts.question_table(files=_FILES),
}
TASKS['qa'] = dict(
  sources=_QUESTIONS,
  features=parts.question_windows,
  objective=parts.answer_span,
  metrics=('f1', 'exact_match'),
  submission=dict(dev='qa.json', test='qa_test.json'),
  length=384,
)


def get_config(argument='classify'):
  return arguments.config(argument, TASKS)
