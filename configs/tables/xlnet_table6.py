"""Yang et al. 2019 (arXiv:1906.08237), Table 6: XLNet-base without its parts.

    python -m bertzoo_jax.reproduce --config configs/tables/xlnet_table6.py:tiny --workdir R

BERT-base's hyperparameters, Wikipedia + BooksCorpus (§3.4). Rows 5 to 8 change row 4. Medians of
five seeds. How the base networks were fine-tuned is not printed. Here RACE, SQuAD and MNLI are as
in Table 8, for large networks, with warmups of the release; SST-2 and MNLI's warmup are chosen
here. RACE is scored on dev. BERT-Base's RACE is not from BERT's paper. A full row has 85
predictions with K = 6, as in the release, and 512/7, so 73, with K = 7. Spans are whole words, see
configs/xlnet.py; without spans, tokens are drawn one by one.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Yang et al. 2019',
    name='Table 6',
    title='XLNet without its parts',
    source='arXiv:1906.08237, §3.4',
    system='xlnet:base',
    topology='v4-8',
    columns=(
      columns.race('xlnet_large'),
      columns.squad2('xlnet_large', 'SQuAD2.0'),
      columns.mnli_both('xlnet_large', 'MNLI m/mm'),
      columns.glue('sst2', 'xlnet_large'),
    ),
    rows=(
      paper.row(
        '1 BERT-Base', '64.3', '76.30/73.66', '84.34/84.65', '92.78', system=None, note='published'
      ),
      paper.row(
        '2 DAE + Transformer-XL',
        '65.03',
        '79.56/76.80',
        '84.88/84.45',
        '92.60',
        change='masking=token,objective=memory_mlm',
      ),
      paper.row(
        '3 XLNet-Base (K = 7)',
        '66.05',
        '81.33/78.46',
        '85.84/85.43',
        '92.66',
        fields={'masking.context': 7, 'masking.num_predictions': 73},
        tiny={'masking.context': 7, 'masking.num_predictions': 9},
      ),
      paper.row('4 XLNet-Base (K = 6)', '66.66', '80.98/78.18', '85.63/85.12', '93.35'),
      paper.row(
        '5 − memory',
        '65.55',
        '80.15/77.27',
        '85.32/85.05',
        '92.78',
        fields={'encoder.memory_length': 0},
      ),
      paper.row(
        '6 − span-based pred',
        '65.95',
        '80.61/77.91',
        '85.49/85.02',
        '93.12',
        fields={'masking.max_span': 0},
      ),
      paper.row(
        '7 − bidirectional data',
        '66.34',
        '80.65/77.87',
        '85.31/84.99',
        '92.66',
        fields={'format.both_directions': False},
      ),
      paper.row(
        '8 + next-sent pred',
        '66.76',
        '79.83/76.94',
        '85.32/85.09',
        '92.89',
        fields={'objective.pair_weight': 1.0},
      ),
    ),
    varies={
      'objective': '§3.4: a denoising autoencoder with a memory; next-sentence prediction',
      'masking': '§3.4: the masks of a denoising autoencoder; span-based prediction; K',
      'encoder.memory_length': '§3.4: without the memory',
      'format.both_directions': '§3.4: without the bidirectional input pipeline',
    },
    task_seeds=tuple(range(5)),
  )
