"""Devlin et al. 2018 (arXiv:1810.04805), Table 8: what masked tokens become, BERT-base.

    python -m bertzoo_jax.reproduce --config configs/tables/bert_table8.py:tiny --workdir R

Rows are the shares of MASK / SAME / RND, in percent; `masking.corruption` has them as MASK, RND,
SAME. NER is CoNLL-2003, on dev. Chosen here: base, and its uncased pieces; the paper's NER is cased
(§5.3).
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def _row(mask, same, rnd, *printed):
  shares = (mask / 100, rnd / 100, same / 100)
  return paper.row(f'{mask} / {same} / {rnd}', *printed, fields={'masking.corruption': shares})


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Devlin et al. 2018',
    name='Table 8',
    title='Masking strategies',
    source='arXiv:1810.04805, C.2',
    system='bert:base',
    topology='v5e-4',
    columns=(
      columns.glue('mnli', 'bert', 'MNLI fine-tune'),
      columns.conll2003('bert', 'NER fine-tune'),
      paper.not_supported('NER feature-based', 'tags from the last four layers, kept as they are'),
    ),
    rows=(
      _row(80, 10, 10, 84.2, 95.4, 94.9),
      _row(100, 0, 0, 84.3, 94.9, 94.0),
      _row(80, 0, 20, 84.1, 95.2, 94.6),
      _row(80, 20, 0, 84.4, 95.2, 94.7),
      _row(0, 20, 80, 83.7, 94.8, 94.6),
      _row(0, 0, 100, 83.6, 94.9, 94.6),
    ),
    varies={'masking.corruption': 'Table 8: MASK, SAME, RND'},
  )
