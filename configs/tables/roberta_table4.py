"""Liu et al. 2019 (arXiv:1907.11692), Table 4: more data, and longer, RoBERTa-large.

    python -m bertzoo_jax.reproduce --config configs/tables/roberta_table4.py:tiny --workdir R

All rows have 8K rows of 512 tokens per step and Table 9's warmup of 30,000 steps, which is printed
for 500K steps only. Which text is read is no field of a config: run the first row with --rows and
--source for Books + Wikipedia (16 GB) in a workdir of its own, the others with all text (160 GB).
SQuAD is F1.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def _row(title, steps, *printed, note):
  return paper.row(
    title,
    *printed,
    fields={'phases': ((steps, {}),)},
    tiny={'phases': ((steps // 1000, {}),)},
    note=note,
  )


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Liu et al. 2019',
    name='Table 4',
    title='More data, and longer',
    source='arXiv:1907.11692, §5',
    system='roberta:large',
    columns=(
      columns.squad1('roberta', 'SQuAD 1.1', both=False),
      columns.squad2('roberta', 'SQuAD 2.0', both=False),
      columns.glue('mnli', 'roberta'),
      columns.glue('sst2', 'roberta'),
    ),
    rows=(
      _row('with Books + Wiki', 100_000, 93.6, 87.3, 89.0, 95.3, note='16 GB of text, 100K steps'),
      _row('+ additional data', 100_000, 94.0, 87.7, 89.3, 95.6, note='160 GB, 100K steps'),
      _row('+ pretrain longer', 300_000, 94.4, 88.7, 90.0, 96.1, note='160 GB, 300K steps'),
      _row('+ pretrain even longer', 500_000, 94.6, 89.4, 90.2, 96.4, note='160 GB, 500K steps'),
      paper.row(
        'BERT large',
        90.9,
        81.8,
        86.6,
        93.7,
        system=None,
        note='published: 13 GB, 256 rows, 1M steps',
      ),
      paper.row(
        'XLNet large with Books + Wiki',
        94.0,
        87.8,
        88.4,
        94.4,
        system=None,
        note='published: 13 GB, 256 rows, 1M steps',
      ),
      paper.row(
        'XLNet large + additional data',
        94.5,
        88.8,
        89.8,
        95.6,
        system=None,
        note='published: 126 GB, 2K rows, 500K steps',
      ),
    ),
    varies={'phases': 'Table 4: steps'},
  )
