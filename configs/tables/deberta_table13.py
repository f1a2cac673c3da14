"""He et al. 2020 (arXiv:2006.03654), Table 13: the changes from DeBERTa to v2, base.

    python -m bertzoo_jax.reproduce --config configs/tables/deberta_table13.py:tiny --workdir R

Each row adds a change to the row above; settings as in deberta_table4.py. v2's buckets of distance
and the norm of its relative table are not in this table, so no row has them. The table of 128,100
rows is the release's. Our counts of parameters have the positions and the head, too.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import deberta_table4
from bertzoo_jax.configs.tables import paper

_SHARED = {'encoder.shared_projections': True}
_CONV = {**_SHARED, 'encoder.convolution_size': 3}
_V1 = {'encoder.buckets': 0, 'encoder.norm_relative': False, 'encoder.key_bias': False}


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='He et al. 2020',
    name='Table 13',
    title='From DeBERTa to v2',
    source='arXiv:2006.03654, A.6',
    system='deberta:base_ablation',
    topology='v5e-8',
    columns=(
      paper.parameters('params, M'),
      columns.mnli_both('deberta_base'),
      columns.squad1('deberta_base', 'SQuAD v1.1'),
      columns.squad2('deberta_base', 'SQuAD v2.0'),
    ),
    rows=(
      paper.row(
        'RoBERTa-ReImp-base',
        120,
        '84.9/85.1',
        '91.1/84.8',
        '79.5/76.0',
        change='encoder=transformer',
        fields=deberta_table4.REIMP,
      ),
      paper.row('DeBERTa-base', 134, '86.3/86.2', '92.1/86.1', '82.5/79.3'),
      paper.row('+ ShareProjection', 120, '86.3/86.3', '92.2/86.2', '82.3/79.5', fields=_SHARED),
      paper.row('+ Conv', 122, '86.3/86.5', '92.5/86.4', '82.5/79.7', fields=_CONV),
      paper.row(
        '+ 128k Vocab',
        190,
        '86.7/86.9',
        '93.1/86.8',
        '83.0/80.1',
        system='deberta_v2:base_ablation',
        fields=_V1,
      ),
    ),
    varies={
      'encoder': 'Table 13: RoBERTa-ReImp, DeBERTa',
      'encoder.shared_projections': 'Table 13: ShareProjection',
      'encoder.convolution_size': 'Table 13: Conv',
      'encoder.vocab_multiple': 'Table 13: 128k Vocab, in a table of 128,100 rows',
      'tokenizer': 'Table 13: 128k Vocab, by SentencePiece',
    },
  )
