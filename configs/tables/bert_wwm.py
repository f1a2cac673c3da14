"""Cui et al. 2021 (arXiv:1906.08101 v3): Chinese BERT with whole words masked, or characters, base.

    python -m bertzoo_jax.reproduce --config configs/tables/bert_wwm.py:tiny --workdir R

Questions are EM/F1. The paper prints the best and the mean of ten runs of fine-tuning; here are its
means, and ours are medians. Left out are its rows with more text (-ext), other systems, and its
columns of CMRC's test and challenge, CJRC, THUCNews, TNEWS and OCNLI. "BERT" is the published
network, with which BERT-wwm begins; here it is BERT-wwm with characters masked one by one, from
random weights as the other row. To begin with BERT set --config.rows.ROW.init, see
configs/bert_wwm.py.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Cui et al. 2021',
    name='main results, base networks',
    title='Whole words or characters',
    source='arXiv:1906.08101 v3, §III-A and §VI',
    system='bert_wwm:base',
    columns=(
      columns.chinese_questions('CMRC 2018 dev', 'cmrc2018', 'bert_wwm', 'dev'),
      columns.chinese_questions('DRCD dev/test', 'drcd', 'bert_wwm', 'dev', 'dev_test'),
      columns.chinese('XNLI dev/test', 'xnli', 'bert_wwm', 'dev', 'test'),
      columns.chinese('ChnSentiCorp dev/test', 'chnsenticorp', 'bert_wwm', 'dev', 'test'),
      columns.chinese('LCQMC dev/test', 'lcqmc', 'bert_wwm', 'dev', 'test'),
      columns.chinese('BQ dev/test', 'bq', 'bert_wwm', 'dev', 'test'),
    ),
    rows=(
      paper.row(
        'BERT',
        '64.4/84.0',
        '82.7/89.6/81.6/88.8',
        '77.4/77.5',
        '94.3/94.7',
        '88.4/86.4',
        '85.5/84.6',
        change='masking=token',
        fields={'masking.repeat': 10},
        tiny={},
      ),
      paper.row(
        'BERT-wwm',
        '65.0/84.7',
        '83.4/90.2/81.8/89.0',
        '78.4/78.0',
        '94.5/95.0',
        '89.2/86.8',
        '85.6/84.9',
      ),
    ),
    varies={'masking': '§III-A: whole words in place of single characters'},
    sample=paper.CHINESE,
  )
