"""Lan et al. 2019 (arXiv:1909.11942), Table 3: the width E of the embeddings, ALBERT-base.

    python -m bertzoo_jax.reproduce --config configs/tables/albert_table3.py:tiny --workdir R

The paper contradicts itself: not-shared with E = 128 has MNLI 83.7 and Avg 81.7 here, and 83.2 and
81.6 in Table 4; all-shared with E = 128 has MNLI 81.6 here, and 82.0 in Tables 4 and 5.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def _row(sharing, width, *printed):
  tiny = {64: 8, 128: 16, 256: 32, 768: 0}[width]  # 0: as wide as the layers
  return paper.row(
    f'{sharing}, E = {width}',
    *printed,
    fields=_own(sharing, 0 if width == 768 else width),
    tiny=_own(sharing, tiny),
  )


def _own(sharing, width):
  shared = {'not-shared': 'none', 'all-shared': 'all'}[sharing]
  return {'encoder.sharing': shared, 'encoder.embedding_size': width}


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Lan et al. 2019',
    name='Table 3',
    title='The width of the embeddings',
    source='arXiv:1909.11942, §4.4',
    system='albert:base',
    topology='v4-64',
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
      _row('not-shared', 64, 87, '89.9/82.9', '80.1/77.8', 82.9, 91.5, 66.7, 81.3),
      _row('not-shared', 128, 89, '89.9/82.8', '80.3/77.3', 83.7, 91.5, 67.9, 81.7),
      _row('not-shared', 256, 93, '90.2/83.2', '80.3/77.4', 84.1, 91.9, 67.3, 81.8),
      _row('not-shared', 768, 108, '90.4/83.2', '80.4/77.6', 84.5, 92.8, 68.2, 82.3),
      _row('all-shared', 64, 10, '88.7/81.4', '77.5/74.8', 80.8, 89.4, 63.5, 79.0),
      _row('all-shared', 128, 12, '89.3/82.3', '80.0/77.1', 81.6, 90.3, 64.0, 80.1),
      _row('all-shared', 256, 16, '88.8/81.5', '79.1/76.3', 81.5, 90.3, 63.4, 79.6),
      _row('all-shared', 768, 31, '88.6/81.5', '79.2/76.6', 82.0, 90.6, 63.3, 79.8),
    ),
    varies={
      'encoder.embedding_size': 'Table 3: E',
      'encoder.sharing': 'Table 3: not-shared, all-shared',
    },
  )
