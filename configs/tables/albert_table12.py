"""Lan et al. 2019 (arXiv:1909.11942), Table 12: the hidden size, ALBERT-large with three layers.

    python -m bertzoo_jax.reproduce --config configs/tables/albert_table12.py:tiny --workdir R

The paper's first row is the network of three layers of Table 11, which began with the weights of
the network of one layer. Here all rows begin with random weights, because the other widths have no
network to begin with.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def _row(width, *printed, tiny):
  """tiny: width at `tiny`."""
  return paper.row(str(width), *printed, fields=_size(width, 64), tiny=_size(tiny, 64))


def _size(width, head):
  return {
    'encoder.num_layers': 3,
    'encoder.hidden_size': width,
    'encoder.num_heads': width // head,
    'encoder.intermediate_size': 4 * width,
  }


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Lan et al. 2019',
    name='Table 12',
    title='The hidden size',
    source='arXiv:1909.11942, A.1',
    system='albert:large',
    topology='v4-128',
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
      _row(1024, 18, '79.8/69.7', '64.4/61.7', 77.7, 86.7, 54.0, 71.2, tiny=64),
      _row(2048, 60, '83.3/74.1', '69.1/66.6', 79.7, 88.6, 58.2, 74.6, tiny=128),
      _row(4096, 225, '85.0/76.4', '71.0/68.1', 80.3, 90.4, 60.4, 76.3, tiny=192),
      _row(6144, 499, '84.7/75.8', '67.8/65.4', 78.1, 89.1, 56.0, 74.0, tiny=256),
    ),
    varies={
      'encoder.hidden_size': 'Table 12: hidden size',
      'encoder.intermediate_size': '§3.1: 4H',
      'encoder.num_heads': '§3.1: H/64',
    },
  )
