"""Cui et al. 2021 (arXiv:1906.08101 v3), Table 10: MacBERT-large without its parts.

    python -m bertzoo_jax.reproduce --config configs/tables/macbert_table10.py:tiny --workdir R

Scores of test, EM/F1 of questions. The paper's numbers are the best of ten runs of fine-tuning,
ours are medians. CJRC's questions that are answered by yes, no or not at all are left out here; the
paper does not say whether it had them. The average takes the mean of EM and F1 first; here it is
not run, since CMRC 2018 is part of it.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Cui et al. 2021',
    name='Table 10',
    title='MacBERT without its parts',
    source='arXiv:1906.08101 v3, §VII-A',
    system='macbert:large',
    topology='v4-8',
    columns=(
      paper.not_supported('CMRC 2018', 'the answers of its test set, which are not published'),
      columns.chinese_questions('DRCD', 'drcd', 'macbert', 'dev_test'),
      columns.chinese_questions('CJRC', 'cjrc', 'macbert', 'dev_test'),
      columns.chinese('ChnSentiCorp', 'chnsenticorp', 'macbert', 'test'),
      columns.chinese('THUCNews', 'thucnews', 'macbert', 'test'),
      columns.chinese('XNLI', 'xnli', 'macbert', 'test'),
      columns.chinese('LCQMC', 'lcqmc', 'macbert', 'test'),
      columns.chinese('BQ', 'bq', 'macbert', 'test'),
      paper.average(
        'Average', 'CMRC 2018', 'DRCD', 'CJRC', 'ChnSentiCorp', 'THUCNews', 'XNLI', 'LCQMC', 'BQ'
      ),
    ),
    rows=(
      paper.row(
        'MacBERT-large', '74.8/90.7', '91.7/95.6', '62.9/82.5', 95.9, 97.9, 81.3, 87.6, 85.6, 87.18
      ),
      paper.row(
        'SOP → NSP',
        *('74.5/90.6', '91.5/95.5', '62.4/82.3', 96.0, 97.8, 81.2, 87.4, 85.2, '87.00'),
        fields={'format.pairs': 'nsp'},
      ),
      paper.row(
        'w/o SOP',
        *('74.4/90.6', '91.0/95.4', '62.2/82.1', 95.8, 97.8, 81.1, 87.4, 85.2, 86.89),
        change='objective=mlm',
        fields={'format.pairs': 'none'},
      ),
      paper.row(
        'w/o Mac',
        *('74.2/90.1', '91.2/95.4', '62.2/82.3', 95.7, 97.8, 81.2, 87.4, 85.3, 86.88),
        fields={'masking.substitute': 'mask'},
      ),
      paper.row(
        'w/o NM',
        *('74.0/89.8', '90.9/95.1', '62.1/82.0', 95.9, 97.9, 81.3, 87.5, 85.6, 86.89),
        fields={'masking.weights': (1,)},
      ),
      paper.row(
        'RoBERTa-large',
        *('74.2/90.6', '89.6/94.5', '62.4/82.2', 95.8, 97.8, 81.2, 87.0, 85.8, 86.79),
        system=None,
        note='published; it is configs/bert_wwm.py:roberta_ext_large, with other steps',
      ),
    ),
    varies={
      'format.pairs': '§VII-A: SOP → NSP; w/o SOP',
      'objective': '§VII-A: w/o SOP',
      'masking.substitute': '§VII-A: w/o Mac, [MASK] in place of similar words',
      'masking.weights': '§VII-A: w/o NM, no n-grams',
    },
    sample=paper.CHINESE,
  )
