"""Devlin et al. 2018 (arXiv:1810.04805), Table 6: the size of BERT.

    python -m bertzoo_jax.reproduce --config configs/tables/bert_table6.py:tiny --workdir R

Rows are #L / #H / #A. The paper's numbers of the dev sets are means of five restarts of
fine-tuning, ours are medians of five.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def _row(layers, width, heads, *printed, tiny):
  """A size. tiny: its layers, width and heads at `tiny`."""
  return paper.row(
    f'{layers} / {width} / {heads}',
    *printed,
    fields=_size(layers, width, heads),
    tiny=_size(*tiny),
  )


def _size(layers, width, heads):
  return {
    'encoder.num_layers': layers,
    'encoder.hidden_size': width,
    'encoder.num_heads': heads,
    'encoder.intermediate_size': 4 * width,
  }


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Devlin et al. 2018',
    name='Table 6',
    title='The size of the network',
    source='arXiv:1810.04805, §5.2',
    system='bert:base',
    topology='v4-8',
    columns=(
      paper.held_out('LM (ppl)', 'perplexity', unit=''),
      columns.glue('mnli', 'bert'),
      columns.glue('mrpc', 'bert'),
      columns.glue('sst2', 'bert'),
    ),
    rows=(
      _row(3, 768, 12, 5.84, 77.9, 79.8, 88.4, tiny=(1, 96, 6)),
      _row(6, 768, 3, 5.24, 80.6, 82.2, 90.7, tiny=(2, 96, 2)),
      _row(6, 768, 12, 4.68, 81.9, 84.8, 91.3, tiny=(2, 96, 6)),
      _row(12, 768, 12, 3.99, 84.4, 86.7, 92.9, tiny=(4, 96, 6)),
      _row(12, 1024, 16, 3.54, 85.7, 86.9, 93.3, tiny=(4, 128, 8)),
      _row(24, 1024, 16, 3.23, 86.6, 87.8, 93.7, tiny=(8, 128, 8)),
    ),
    varies={
      'encoder.num_layers': 'Table 6: number of layers #L',
      'encoder.hidden_size': 'Table 6: hidden size #H',
      'encoder.num_heads': 'Table 6: number of attention heads #A',
      'encoder.intermediate_size': '§3: 4H',
    },
    task_seeds=tuple(range(5)),
  )
