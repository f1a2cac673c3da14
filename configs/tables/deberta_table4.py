"""He et al. 2020 (arXiv:2006.03654), Table 4: DeBERTa-base without its parts.

    python -m bertzoo_jax.reproduce --config configs/tables/deberta_table4.py:tiny --workdir R

1M steps of 256 rows, Wikipedia + BooksCorpus (§5.2; Table 8). The paper does not say where absolute
positions are without the mask decoder (EMD): here nowhere. RoBERTa-ReImp has RoBERTa's network;
chosen here: all else is as DeBERTa's, n-grams of up to three words included. The paper's scores are
means of five seeds (A.10), ours are medians. SQuAD and RACE have settings from within the ranges of
Table 9; RACE has 512 tokens, as in Table 11. Which the paper took is not said.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper

# RoBERTa's network
REIMP = {
  'encoder.type_vocab_size': 0,
  'encoder.activation': 'gelu',
  'encoder.norm_eps': 1e-5,
  'encoder.initializer': 'normal',
}
_EMD = {'encoder.absolute_positions': 'none'}
_C2P = {'encoder.content_to_position': False}
_P2C = {'encoder.position_to_content': False}


def _published(title, *printed):
  return paper.row(title, *printed, system=None, note='published')


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='He et al. 2020',
    name='Table 4',
    title='DeBERTa without its parts',
    source='arXiv:2006.03654, §5.2.1',
    system='deberta:base_ablation',
    topology='v5e-8',
    columns=(
      columns.mnli_both('deberta_base'),
      columns.squad1('deberta_base', 'SQuAD v1.1'),
      columns.squad2('deberta_base', 'SQuAD v2.0'),
      columns.race('deberta_base'),
    ),
    rows=(
      _published('BERT-base', '84.3/84.7', '88.5/81.0', '76.3/73.7', 65.0),
      _published('RoBERTa-base', '84.7/–', '90.6/–', '79.7/–', 65.6),
      _published('XLNet-base', '85.8/85.4', '–/–', '81.3/78.5', 66.7),
      paper.row(
        'RoBERTa-ReImp-base',
        '84.9/85.1',
        '91.1/84.8',
        '79.5/76.0',
        66.8,
        change='encoder=transformer',
        fields=REIMP,
      ),
      paper.row('DeBERTa-base', '86.3/86.2', '92.1/86.1', '82.5/79.3', 71.7),
      paper.row('−EMD', '86.1/86.1', '91.8/85.8', '81.3/78.0', 70.3, fields=_EMD),
      paper.row('−C2P', '85.9/85.7', '91.6/85.8', '81.3/78.3', 69.3, fields=_C2P),
      paper.row('−P2C', '86.0/85.8', '91.7/85.7', '80.8/77.6', 69.6, fields=_P2C),
      paper.row('−(EMD+C2P)', '85.8/85.9', '91.5/85.3', '80.3/77.2', 68.1, fields={**_EMD, **_C2P}),
      paper.row('−(EMD+P2C)', '85.8/85.8', '91.3/85.1', '80.2/77.1', 68.5, fields={**_EMD, **_P2C}),
    ),
    varies={
      'encoder': '§5.2: RoBERTa-ReImp, DeBERTa',
      'encoder.absolute_positions': '§5.2.1: −EMD',
      'encoder.content_to_position': '§5.2.1: −C2P',
      'encoder.position_to_content': '§5.2.1: −P2C',
    },
  )
