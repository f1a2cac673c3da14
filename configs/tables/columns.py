"""Columns that several tables have: tasks in the order in which the papers print their numbers.

recipe: of configs/tasks/recipes.py.
"""

from bertzoo_jax.configs.tables import paper

GLUE = {
  'cola': 'CoLA',
  'sst2': 'SST-2',
  'mrpc': 'MRPC',
  'stsb': 'STS-B',
  'qqp': 'QQP',
  'mnli': 'MNLI-m',
  'qnli': 'QNLI',
  'rte': 'RTE',
}


def glue(task, recipe, title=''):
  """A task of GLUE, by its dev score; of MNLI the matched one."""
  return paper.task(title or GLUE[task], f'glue:{task},recipe={recipe}')


def mnli_both(recipe, title='MNLI-m/mm'):
  """MNLI's matched and mismatched accuracy."""
  return paper.task(title, f'glue:mnli,recipe={recipe}', 'dev accuracy', 'dev_mismatched accuracy')


def glue_average(recipe, title='GLUE', but=()):
  """The mean over the eight tasks, then the tasks, whose numbers tables leave out.

  but: tasks that are columns of the table already.
  """
  return (
    paper.average(title, *GLUE.values()),
    *(glue(task, recipe) for task in GLUE if task not in but),
  )


def squad1(recipe, title='SQuAD1.1', both=True):
  """SQuAD 1.1's F1/EM. both: False for F1 alone."""
  return paper.task(title, f'questions:squad,recipe={recipe}', *('f1', 'exact_match')[: 1 + both])


def squad2(recipe, title='SQuAD2.0', both=True):
  """SQuAD 2.0's F1/EM at the best threshold for no answer. both: False for F1 alone."""
  scores = ('best_f1', 'best_exact_match')[: 1 + both]
  return paper.task(title, f'questions:squad2,recipe={recipe}', *scores)


def mrqa(title, recipe):
  """F1 on a set of MRQA, whose files are SET.train.jsonl.gz and SET.dev.jsonl.gz."""
  files = {f'source.files.{split}': f'{title}.{split}.jsonl.gz' for split in ('train', 'dev')}
  return paper.task(title, f'questions:mrqa,recipe={recipe}', 'f1', **files)


def chinese_questions(title, task, recipe, *splits):
  """EM/F1 of CMRC2018, DRCD or CJRC on each split."""
  scores = (f'{split} {score}' for split in splits for score in ('exact_match_zh', 'f1_zh'))
  return paper.task(title, f'questions:{task},recipe={recipe}', *scores)


def race(recipe, title='RACE'):
  return paper.task(title, f'choices:race,recipe={recipe}')


def conll2003(recipe, title):
  """F1 of entities on dev."""
  return paper.task(title, f'tags:conll2003,recipe={recipe}')


def chinese(title, task, recipe, *splits):
  """Accuracy of a Chinese classification on each split."""
  scores = (f'{split} accuracy' for split in splits)
  return paper.task(title, f'chinese:{task},recipe={recipe}', *scores)


def sift(title, task, recipe, *metrics):
  """A task of GLUE by a recipe with SiFT or without it."""
  return paper.task(title, f'glue:{task},recipe={recipe}', *metrics)


def coreference():
  return paper.not_supported('Coref.', 'coreference resolution over documents (OntoNotes)')
