"""Devlin et al. 2018 (arXiv:1810.04805), Table 5: the pretraining tasks, BERT-base.

    python -m bertzoo_jax.reproduce --config configs/tables/bert_table5.py:tiny --workdir R

Rows without NSP have no random second segments; §5.1 says only that the task is left out. The paper
fine-tunes "LTR" from left to right, too, and does not say which token the classifier reads. Here
all tokens see both sides in fine-tuning.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper

_ALONE = {'format.pairs': 'none'}


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Devlin et al. 2018',
    name='Table 5',
    title='The pretraining tasks',
    source='arXiv:1810.04805, §5.1',
    system='bert:base',
    topology='v5e-4',
    columns=(
      columns.glue('mnli', 'bert'),
      columns.glue('qnli', 'bert'),
      columns.glue('mrpc', 'bert'),
      columns.glue('sst2', 'bert'),
      columns.squad1('bert', 'SQuAD', both=False),
    ),
    rows=(
      paper.row('BERT base', 84.4, 88.4, 86.7, 92.7, 88.5),
      paper.row('No NSP', 83.9, 84.9, 86.5, 92.6, 87.9, change='objective=mlm', fields=_ALONE),
      paper.row(
        'LTR & No NSP',
        82.1,
        84.3,
        77.5,
        92.1,
        77.8,
        change='objective=left_to_right',
        fields=_ALONE,
        note='here fine-tuned with both sides visible, in the paper from left to right (§5.1)',
      ),
      paper.row(
        '+ BiLSTM',
        82.1,
        84.1,
        75.7,
        91.6,
        84.9,
        system=None,
        note='the row above, fine-tuned with a BiLSTM on top; there is no such head',
      ),
    ),
    varies={
      'objective': '§5.1: MLM with NSP; MLM alone; a left-to-right language model',
      'format.pairs': '§5.1: no NSP',
    },
  )
