"""Questions with several options: RACE (Lai et al. 2017), DREAM (Sun et al. 2019), MCTest.

    python -m bertzoo_jax.finetune --config configs/tasks/choices.py:race --init I --workdir F \\
      --task_dir RACE

| task | layout | files |
|---|---|---|
| race | a JSON object per text: article, questions, options, answers | train/middle/N.txt, … |
| race_middle, race_high | one of the two levels | the same |
| dream | a JSON array of dialogues | {train,dev,test}.json |
| mctest | stories as text or as a table, and answers (.ans) | mc500.{train,dev,test}.{txt,tsv} |

race scores dev as a whole, and dev_middle and dev_high apart. Test files are predicted, and scored
if they have labels. The dev score is the accuracy.

Rows as in the code of ALBERT's release: the article, then the question with the option in place of
its blank "_" or behind it, of which the last 128 tokens are kept; the article is cut to fit 512
tokens. XLNet's and BERT's rows are the same but for their special tokens. RoBERTa's have the
question and option first, cut at their end [mem]: --config.features.order=options_first
--config.features.option_cut=end.

Values of RACE without a recipe are XLNet's (Yang et al. 2019, Table 8): 32 questions, 2e-5, 12,000
steps, 1,000 of warmup; ALBERT's Table 14 has the same. DREAM has them for 3 epochs: chosen here.
MCTest is in none of the papers; it has BERT's values of §4.1, with 10 epochs, chosen here.
`,recipe=NAME` takes another paper's.

Read from real files: dream, and train and dev of mctest as text. RACE's layout and mctest's table
were never read from a real file.
"""

import functools

from bertzoo_jax import parts
from bertzoo_jax.configs.tasks import arguments


def _task(files, layout, **fields):
  return dict(
    sources={'choices': functools.partial(parts.choices, files=files, layout=layout)},
    objective=parts.choice,
    features=parts.choice_rows,
    metrics=('accuracy',),
    length=512,
    **fields,
  )


def _race(level='', **more):
  folder = lambda split: f'{split}/{level}' if level else split
  files = dict(train=folder('train'), dev=folder('dev'), **more, test=f'{folder("test")}?')
  return _task(
    files,
    'race',
    batch_size=32,
    steps=12_000,
    warmup=1000,
    schedule=functools.partial(parts.linear_from_start, learning_rate=2e-5, warmup=0),
  )


def _files(name):
  """Text or table."""
  return {
    split: f'{name}.{split}.txt|{name}.{split}.tsv{more}'
    for split, more in (('train', ''), ('dev', ''), ('test', '?'))
  }


TASKS = {
  'race': _race(dev_middle='dev/middle', dev_high='dev/high'),
  'race_middle': _race('middle'),
  'race_high': _race('high'),
  'dream': _task(
    dict(train='train.json', dev='dev.json', test='test.json?'),
    'dream',
    batch_size=32,
    epochs=3.0,
    schedule=functools.partial(parts.linear_from_start, learning_rate=2e-5, warmup=0),
  ),
  'mctest': _task(_files('mc500'), 'mctest', batch_size=16, epochs=10.0),
}


def get_config(argument='race'):
  return arguments.config(argument, TASKS)
