"""Liu et al. 2019 (arXiv:1907.11692), Table 3: the batch size, BERT-base.

    python -m bertzoo_jax.reproduce --config configs/tables/roberta_table3.py:tiny --workdir R

All rows train on about the same number of tokens. roberta_table1.py describes the settings. The
input format is FULL-SENTENCES without NSP, which the paper uses from §4.2 on. The first row has the
same MNLI and SST-2 as DOC-SENTENCES in Table 2. The warmup was tuned and is not printed: here it is
1 % of the steps, as BERT's. For which rows Adam's b2 was lowered to 0.98 (§3.1) is not said: here
all have BERT's 0.999.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def _row(title, batch_size, steps, rate, *printed):
  return paper.row(
    title,
    *printed,
    fields={
      'batch_size': batch_size,
      'phases': ((steps, {}),),
      'schedule.learning_rate': rate,
      'schedule.warmup': steps // 100,
    },
    tiny={'batch_size': batch_size // 16, 'phases': ((steps // 1000, {}),)},
  )


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Liu et al. 2019',
    name='Table 3',
    title='The batch size',
    source='arXiv:1907.11692, §4.3',
    system='bert:base',
    topology='v4-128',
    change='tokenizer=byte_bpe,format=full_sentences,objective=mlm',
    tiny={'tokenizer.vocab_size': 2048},
    columns=(
      paper.held_out('ppl', 'perplexity', unit=''),
      columns.glue('mnli', 'bert'),
      columns.glue('sst2', 'bert'),
    ),
    rows=(
      _row('256, 1M steps, lr 1e-4', 256, 1_000_000, 1e-4, 3.99, 84.7, 92.7),
      _row('2K, 125K steps, lr 7e-4', 2048, 125_000, 7e-4, 3.68, 85.2, 92.9),
      _row('8K, 31K steps, lr 1e-3', 8192, 31_000, 1e-3, 3.77, 84.6, 92.8),
    ),
    varies={
      'batch_size': 'Table 3: bsz',
      'phases': 'Table 3: steps',
      'schedule.learning_rate': 'Table 3: lr, tuned for each setting',
      'schedule.warmup': '§3.1: tuned for each setting',
    },
    task_seeds=tuple(range(5)),
  )
