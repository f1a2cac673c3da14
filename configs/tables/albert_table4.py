"""Lan et al. 2019 (arXiv:1909.11942), Table 4: what the layers share, ALBERT-base.

    python -m bertzoo_jax.reproduce --config configs/tables/albert_table4.py:tiny --workdir R

The paper contradicts itself: not-shared with E = 128 has MNLI 83.2 and Avg 81.6 here, and 83.7 and
81.7 in Table 3; all-shared with E = 128 has MNLI 82.0 here, and 81.6 in Tables 2 and 3.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper

_SHARED = {
  'all-shared': 'all',
  'shared-attention': 'attention',
  'shared-FFN': 'feed_forward',
  'not-shared': 'none',
}


def _row(width, sharing, *printed):
  return paper.row(
    f'E = {width}, {sharing}',
    *printed,
    fields=_own(sharing, 0 if width == 768 else width),  # 0: as wide as the layers
    tiny=_own(sharing, 0 if width == 768 else 16),
  )


def _own(sharing, width):
  return {'encoder.sharing': _SHARED[sharing], 'encoder.embedding_size': width}


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Lan et al. 2019',
    name='Table 4',
    title='What the layers share',
    source='arXiv:1909.11942, §4.5',
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
      _row(768, 'all-shared', 31, '88.6/81.5', '79.2/76.6', 82.0, 90.6, 63.3, 79.8),
      _row(768, 'shared-attention', 83, '89.9/82.7', '80.0/77.2', 84.0, 91.4, 67.7, 81.6),
      _row(768, 'shared-FFN', 57, '89.2/82.1', '78.2/75.4', 81.5, 90.8, 62.6, 79.5),
      _row(768, 'not-shared', 108, '90.4/83.2', '80.4/77.6', 84.5, 92.8, 68.2, 82.3),
      _row(128, 'all-shared', 12, '89.3/82.3', '80.0/77.1', 82.0, 90.3, 64.0, 80.1),
      _row(128, 'shared-attention', 64, '89.9/82.8', '80.7/77.9', 83.4, 91.9, 67.6, 81.7),
      _row(128, 'shared-FFN', 38, '88.9/81.6', '78.6/75.6', 82.3, 91.7, 64.4, 80.2),
      _row(128, 'not-shared', 89, '89.9/82.8', '80.3/77.3', 83.2, 91.5, 67.9, 81.6),
    ),
    varies={
      'encoder.embedding_size': 'Table 4: E = 768, E = 128',
      'encoder.sharing': 'Table 4: all-shared, shared-attention, shared-FFN, not-shared',
    },
  )
