"""Lan et al. 2019 (arXiv:1909.11942), Table 11: the number of layers, ALBERT-large.

    python -m bertzoo_jax.reproduce --config configs/tables/albert_table11.py:tiny --workdir R

Networks of three layers and more begin with the weights of the row above (A.1); no shape depends on
depth. All have 18M parameters.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def _row(layers, *printed, init='', tiny):
  return paper.row(
    f'{layers} layers' if layers > 1 else '1 layer',
    *printed,
    fields={'encoder.num_layers': layers},
    tiny={'encoder.num_layers': tiny},
    init=init,
  )


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Lan et al. 2019',
    name='Table 11',
    title='The number of layers',
    source='arXiv:1909.11942, A.1',
    system='albert:large',
    topology='v4-256',
    columns=(
      paper.parameters('params, M'),
      columns.squad1('albert_base'),
      columns.squad2('albert_base'),
      columns.glue('mnli', 'albert_base', 'MNLI'),
      columns.glue('sst2', 'albert_base'),
      columns.race('albert_base'),
      paper.average('Avg', 'SQuAD1.1', 'SQuAD2.0', 'MNLI', 'SST-2', 'RACE'),
    ),
    rows=(
      _row(1, 18, '31.1/22.9', '50.1/50.1', 66.4, 80.8, 40.1, 52.9, tiny=1),
      _row(3, 18, '79.8/69.7', '64.4/61.7', 77.7, 86.7, 54.0, 71.2, init='1 layer', tiny=2),
      _row(6, 18, '86.4/78.4', '73.8/71.1', 81.2, 88.9, 60.9, 77.2, init='3 layers', tiny=3),
      _row(12, 18, '89.8/83.3', '80.7/77.9', 83.3, 91.7, 66.7, 81.5, init='6 layers', tiny=4),
      _row(24, 18, '90.3/83.3', '81.8/79.0', 83.3, 91.5, 68.7, 82.1, init='12 layers', tiny=6),
      _row(48, 18, '90.0/83.1', '81.8/78.9', 83.4, 91.9, 66.9, 81.8, init='24 layers', tiny=8),
    ),
    varies={'encoder.num_layers': 'Table 11: number of layers'},
  )
