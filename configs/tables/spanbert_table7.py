"""Joshi et al. 2020 (arXiv:1907.10529), Table 7: the auxiliary objective, large.

    python -m bertzoo_jax.reproduce --config configs/tables/spanbert_table7.py:tiny --workdir R

All rows mask spans, and none are short (§4.2). spanbert_table6.py describes the rest.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Joshi et al. 2020',
    name='Table 7',
    title='The auxiliary objective',
    source='arXiv:1907.10529, §6.2',
    system='spanbert:large',
    topology='v4-8',
    fields={'phases': ((1_200_000, {}),)},
    tiny={},
    columns=(
      columns.squad2('spanbert', 'SQuAD 2.0', both=False),
      columns.mrqa('NewsQA', 'spanbert'),
      columns.mrqa('TriviaQA', 'spanbert'),
      columns.coreference(),
      columns.glue('mnli', 'spanbert'),
      columns.glue('qnli', 'spanbert'),
      *columns.glue_average('spanbert', 'GLUE (Avg)', but=('mnli', 'qnli')),
    ),
    rows=(
      paper.row(
        'Span Masking (2seq) + NSP',
        85.4,
        73.0,
        78.8,
        76.4,
        87.0,
        93.3,
        83.4,
        change='objective=mlm_pair,format=segment_pairs',
        fields={'format.short_rate': 0.0},
      ),
      paper.row(
        'Span Masking (1seq)', 86.7, 73.4, 80.0, 76.3, 87.3, 93.8, 83.8, change='objective=mlm'
      ),
      paper.row('Span Masking (1seq) + SBO', 86.8, 74.1, 80.3, 79.0, 87.6, 93.9, 84.0),
    ),
    varies={
      'objective': '§6.2: NSP, none, span boundary objective',
      'format': '§6.2: two sequences or one',
    },
  )
