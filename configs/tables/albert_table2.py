"""Lan et al. 2019 (arXiv:1909.11942), Table 2: BERT and ALBERT of several sizes.

    python -m bertzoo_jax.reproduce --config configs/tables/albert_table2.py:tiny --workdir R

All rows have ALBERT's vocabulary, text, masks, optimizer and 125,000 steps (§4.1). The rows called
BERT also have ALBERT's loss over pairs; the paper does not say this, it was chosen here. Their
layers share nothing, and their tables are as wide as the layers: BERT base has the same numbers as
the row not-shared, E = 768, of Table 3. "speed" is the speed of training, as a multiple of BERT
large's.

xlarge has 16 heads, as released; §3.1's rule gives 32, which Table 12 has here. xxlarge has 12
layers (Table 1), but its scores are those of 24 layers in Table 13; the same network has 94.0/88.1
88.3/85.3 87.8 95.4 82.5 in Table 6. The paper began it with a network of 6 layers (A.1); here it
begins with random weights.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper

_BERT = {'encoder.embedding_size': 0, 'encoder.sharing': 'none'}

# The paper removes dropout after 1M steps of xxlarge (§4.8), not for this table.
_DROPOUT = {'encoder.dropout': 0.1, 'encoder.attention_dropout': 0.1}


def _row(model, size, *printed, tiny):
  """tiny: layers and width at `tiny`."""
  (layers, width), own = tiny, _BERT if model == 'BERT' else {}
  dropout = _DROPOUT if size == 'xxlarge' else {}
  shape = {
    'encoder.num_layers': layers,
    'encoder.hidden_size': width,
    'encoder.num_heads': width // 64,
    'encoder.intermediate_size': 4 * width,
  }
  return paper.row(
    f'{model} {size}',
    *printed,
    system=f'albert:{size}',
    fields={**own, **dropout},
    tiny={**shape, **own},
  )


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Lan et al. 2019',
    name='Table 2',
    title='BERT and ALBERT of several sizes',
    source='arXiv:1909.11942, §4.3',
    system='albert:base',
    topology='v4-128',
    columns=(
      paper.parameters('params, M'),
      columns.squad1('albert_base'),
      columns.squad2('albert_base'),
      columns.glue('mnli', 'albert_base', 'MNLI'),
      columns.glue('sst2', 'albert_base'),
      columns.race('albert_base'),
      paper.average('Avg', 'SQuAD1.1', 'SQuAD2.0', 'MNLI', 'SST-2', 'RACE'),
      paper.speed('speed', 'BERT large'),
    ),
    rows=(
      _row(
        'BERT', 'base', 108, '90.4/83.2', '80.4/77.6', 84.5, 92.8, 68.2, 82.3, 4.7, tiny=(2, 128)
      ),
      _row(
        'BERT', 'large', 334, '92.2/85.5', '85.0/82.2', 86.6, 93.0, 73.9, 85.2, 1.0, tiny=(4, 128)
      ),
      _row(
        'ALBERT', 'base', 12, '89.3/82.3', '80.0/77.1', 81.6, 90.3, 64.0, 80.1, 5.6, tiny=(2, 128)
      ),
      _row(
        'ALBERT', 'large', 18, '90.6/83.9', '82.3/79.4', 83.5, 91.7, 68.5, 82.4, 1.7, tiny=(4, 128)
      ),
      _row(
        'ALBERT', 'xlarge', 60, '92.5/86.1', '86.1/83.1', 86.4, 92.4, 74.8, 85.5, 0.6, tiny=(4, 192)
      ),
      _row(
        'ALBERT',
        'xxlarge',
        235,
        '94.1/88.3',
        '88.1/85.1',
        88.0,
        95.2,
        82.3,
        88.7,
        0.3,
        tiny=(2, 256),
      ),
    ),
    varies={
      'encoder.num_layers': 'Table 1: layers',
      'encoder.hidden_size': 'Table 1: hidden',
      'encoder.intermediate_size': '§3.1: 4H',
      'encoder.num_heads': 'as released: see above',
      'encoder.embedding_size': 'Table 1: embedding',
      'encoder.sharing': 'Table 1: parameter-sharing',
    },
  )
