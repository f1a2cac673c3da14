"""How DeBERTa v1, v2 and V3 are fine-tuned, without SiFT and with it.

Part of configs/tasks/recipes.py, which explains recipes and the marks of sources.
"""

from bertzoo_jax import parts

_RATE = 'schedule.learning_rate'
_RACE = ('race', 'race_middle', 'race_high')


# --- DeBERTa: He et al. 2020, Table 9; experiments/glue/*.sh of the release ---

# Table 9 also searches dropout of the classifier (0, 0.1, 0.15), warmup (50, 100, 500, 1000) and
# rows (16, 32, 48, 64), at most 10 epochs. The grids here have its rates only.
_BASE_RATES, _LARGE_RATES = (1.5e-5, 2e-5, 3e-5, 4e-5), (5e-6, 8e-6, 9e-6, 1e-5)
# Epochs/warmup/rate/rows/dropout of the classifier, and the most tokens of a row [code].
_V1 = {  # base, large, xlarge
  'mnli': ('3/1000/3e-5/64/.1', '3/1000/1e-5/64/.2', '3/1000/5e-6/64/.3', 256),
  'qqp': ('8/500/2e-5/64/.15', '8/500/1e-5/64/.15', '8/500/7e-6/64/.2', 320),
  'qnli': ('4/500/2e-5/32/.15', '4/500/1e-5/32/.15', '4/500/7e-6/32/.2', 512),
  'sst2': ('6/500/2e-5/32/.15', '6/500/1e-5/32/.15', '6/500/3e-6/32/.2', 128),
  'cola': ('6/100/2e-5/32/.15', '6/100/7e-6/32/.15', '8/100/5e-6/32/.2', 64),
  'mrpc': ('6/50/2e-5/32/.15', '6/50/1e-5/32/.15', '8/50/7e-6/32/.3', 128),
  'rte': ('6/100/2e-5/32/.2', '6/50/1e-5/32/.2', '6/50/5e-6/48/.2', 320),
  'stsb': ('6/100/2e-5/32/.15', '4/100/7e-6/32/.15', '4/100/7e-6/32/.2', 128),
  'conll2003': ('15/.1/2e-5/16/0', '15/.1/1e-5/16/0', '15/.1/7e-6/16/0', 512),
}
_V2 = {  # v2 xlarge, v2 xxlarge, V3 large
  'mnli': ('3/1000/4e-6/64/.25', '3/1000/3e-6/64/.3', '2/500/7e-6/64/.3', 256),
  'qqp': ('10/1000/4e-6/64/.2', '10/1000/3e-6/64/.2', '6/1000/1e-5/64/.2', 320),
  'qnli': ('4/500/4e-6/64/.2', '4/500/3e-6/64/.2', '6/200/7e-6/64/.2', 512),
  'sst2': ('4/500/4e-6/32/.2', '4/500/3e-6/32/.2', '8/500/6e-6/32/.1', 128),
  'cola': ('8/100/3e-6/32/.2', '10/100/2.5e-6/32/.2', '10/50/5.5e-6/32/.1', 64),
  'mrpc': ('6/50/3.5e-6/32/.2', '6/50/2e-6/32/.2', '6/50/6e-6/32/.2', 128),
  'rte': ('6/50/4e-6/48/.2', '6/50/3e-6/48/.2', '6/50/1e-5/32/.3', 320),
  'stsb': ('4/100/4e-6/32/.2', '4/100/3e-6/32/.2', '4/50/7e-6/32/.1', 128),
  'conll2003': ('15/.1/4e-6/16/0', '15/.1/2.5e-6/16/0', '10/10/9e-6/16/0', 512),
}
# V3's smaller sizes have a script for MNLI alone.
_V3 = {'mnli': ('3/1000/4.5e-5/64/.1', '3/1500/4.5e-5/64/.2', '3/1000/1.5e-5/64/.1', 256)}


def _deberta(table, column, rate, rates=(), dropout=0.2, from_mnli=('mrpc', 'rte', 'stsb')):
  """The recipe of a column of a table.

  The default, for other tasks: optimizer and rates of Table 9; 32 rows, 6 epochs and 100 steps of
  warmup, as the scripts of small tasks; five seeds (A.10). RACE has the dropout of its script and
  512 tokens (Table 11; the script has 320).

  rate, rates, dropout: of the default; dropout of the classifier.
  from_mnli: tasks that begin with the network of MNLI.
  """
  default = dict(
    optimizer=parts.adamw_uncorrected(),
    schedule=parts.linear_from_start(learning_rate=rate, warmup=0),
    grid=((_RATE, rates),) if rates else (),
    seeds=tuple(range(5)),
    batch_size=32,
    epochs=6.0,
    warmup=100,
    length=256,
    encoder=dict(dropout=0.1, attention_dropout=0.1),
    objective=dict(dropout=dropout),
  )
  recipe = {'default': default}
  recipe |= dict.fromkeys(_RACE, dict(length=512, objective=dict(dropout=0.2)))
  for task, row in table.items():
    recipe[task] = _deberta_task(row, column, init='mnli' if task in from_mnli else '')
  return recipe


def _deberta_task(row, column, init=''):
  """The fields of one place of a table."""
  epochs, warmup, rate, batch_size, dropout = row[column].split('/')
  return dict(
    schedule=parts.linear_from_start(learning_rate=float(rate), warmup=0),
    grid=(),
    batch_size=int(batch_size),
    epochs=float(epochs),
    warmup=float(warmup) if '.' in warmup else int(warmup),
    length=row[-1],
    objective=dict(dropout=float(dropout)),
    init=init,
  )


PLAIN = {
  'deberta_base': _deberta(_V1, 0, 2e-5, _BASE_RATES, 0.15),
  'deberta_large': _deberta(_V1, 1, 1e-5, _LARGE_RATES, 0.15),
  'deberta_xlarge': _deberta(_V1, 2, 7e-6),
  'deberta_v2_xlarge': _deberta(_V2, 0, 4e-6),
  'deberta_v2_xxlarge': _deberta(_V2, 1, 3e-6),
  # He et al. 2021: V3 does not begin with MNLI [code]. V3's own rates for other tasks were not
  # found. Chosen here: base has v1's (Table 9), the smaller ones have MNLI's.
  'deberta_v3_xsmall': _deberta(_V3, 0, 4.5e-5, dropout=0.1, from_mnli=()),
  'deberta_v3_small': _deberta(_V3, 1, 4.5e-5, dropout=0.1, from_mnli=()),
  'deberta_v3_base': _deberta(_V3, 2, 1.5e-5, _BASE_RATES, dropout=0.1, from_mnli=()),
  'deberta_v3_large': _deberta(_V2, 2, 7e-6, _LARGE_RATES, from_mnli=()),
}

# experiments/glue/mnli.sh of the release [code], the only task with a schedule for SiFT. Columns
# as in _V1: v1 base, v2 xxlarge, V3 xsmall, V3 small, V3 base.
_SIFT_MNLI = (
  '6/1000/1.5e-5/64/.1',
  '6/1000/3e-6/64/.3',
  '10/1500/5e-5/64/.1',
  '6/1000/3.5e-5/64/.1',
  '6/1000/1.5e-5/64/.1',
  256,
)


def _with_sift(name, column, weight=5.0):
  """A recipe with SiFT: MNLI's by the release. For other tasks chosen here: as without it.

  weight: of SiFT in the loss.
  """
  recipe = {**PLAIN[name], 'mnli': _deberta_task(_SIFT_MNLI, column)}
  for task, fields in recipe.items():
    if 'objective' in fields:
      own = {**fields['objective'], 'sift': dict(weight=weight)}
      recipe[task] = {**fields, 'objective': own}
  return recipe


SIFT = {
  'deberta_base_sift': _with_sift('deberta_base', 0),
  'deberta_v2_xxlarge_sift': _with_sift('deberta_v2_xxlarge', 1),
  'deberta_v3_xsmall_sift': _with_sift('deberta_v3_xsmall', 2, weight=3.0),
  'deberta_v3_small_sift': _with_sift('deberta_v3_small', 3),
  'deberta_v3_base_sift': _with_sift('deberta_v3_base', 4),
}
