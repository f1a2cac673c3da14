"""Lan et al. 2019 (arXiv:1909.11942), Table 5: the loss over pairs of segments, ALBERT-base.

    python -m bertzoo_jax.reproduce --config configs/tables/albert_table5.py:tiny --workdir R

The paper builds the intrinsic columns from dev text of SQuAD and RACE; here they are measured on
the corpus's held-out text. A row without a pair head gets a linear probe, see `evaluate`. The row
"None" has no random or swapped second segments; §4.6 says only that the loss is left out. SOP's
MNLI of 82.0 is 81.6 in Tables 2, 3 and 7.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Lan et al. 2019',
    name='Table 5',
    title='The loss over pairs of segments',
    source='arXiv:1909.11942, §4.6',
    system='albert:base',
    topology='v4-64',
    columns=(
      paper.held_out('MLM', 'mlm_accuracy'),
      paper.held_out('NSP', 'nsp_accuracy'),
      paper.held_out('SOP', 'sop_accuracy'),
      columns.squad1('albert_base'),
      columns.squad2('albert_base'),
      columns.glue('mnli', 'albert_base', 'MNLI'),
      columns.glue('sst2', 'albert_base'),
      columns.race('albert_base'),
      paper.average('Avg', 'SQuAD1.1', 'SQuAD2.0', 'MNLI', 'SST-2', 'RACE'),
    ),
    rows=(
      paper.row(
        'None',
        54.9,
        52.4,
        53.3,
        '88.6/81.5',
        '78.1/75.3',
        81.5,
        89.9,
        61.7,
        79.0,
        change='objective=mlm',
        fields={'format.pairs': 'none'},
      ),
      paper.row(
        'NSP',
        54.5,
        90.5,
        52.0,
        '88.4/81.5',
        '77.2/74.6',
        81.6,
        91.1,
        62.3,
        79.2,
        fields={'format.pairs': 'nsp'},
      ),
      paper.row('SOP', 54.0, 78.9, 86.5, '89.3/82.3', '80.0/77.1', 82.0, 90.3, 64.0, 80.1),
    ),
    varies={'objective': '§4.6: none, NSP, SOP', 'format.pairs': '§4.6: none, NSP, SOP'},
    tiny_steps=600,
  )
