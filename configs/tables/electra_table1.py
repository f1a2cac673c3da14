"""Clark et al. 2020 (arXiv:2003.10555), Table 1: small and base networks, GLUE dev.

    python -m bertzoo_jax.reproduce --config configs/tables/electra_table1.py:tiny --workdir R

BERT-Small and BERT-Base have ELECTRA's settings and input format, BERT's masks (§3.5), and the
steps of Table 6: 1.45M small, 1M base; §3.3 says 1.5M small. A network trained for x % of the steps
has a schedule of that length; the paper does not say whether its networks had. The paper counts the
discriminator's parameters, we count all that are trained. FLOPs are counted as in the release. Its
script gives 1.29e18 for ELECTRA-Small, where the paper prints 1.4e18. The paper's columns of
speedup and of time and hardware are left out.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper
from bertzoo_jax.configs.tables.electra_table5 import BERT_MASKS

# Base networks at `tiny`.
_TINY_BASE = {
  'encoder.hidden_size': 192,
  'encoder.num_heads': 3,
  'encoder.intermediate_size': 768,
}


def _part(percent, steps, *printed):
  return paper.row(
    f'ELECTRA-Small, {percent} % trained',
    *printed,
    fields={'phases': ((steps, {}),)},
    tiny={'phases': ((steps // 5000, {}),)},
  )


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Clark et al. 2020',
    name='Table 1',
    title='Small and base networks',
    source='arXiv:2003.10555, §3.3',
    system='electra:small',
    columns=(
      paper.flops('train FLOPs'),
      paper.not_supported('infer FLOPs', "a count of one example's forward pass"),
      paper.parameters('params, M'),
      *columns.glue_average('electra_base'),
    ),
    rows=(
      paper.row('ELMo', '3.3e18', '2.6e10', 96, 71.2, system=None, note='another kind of network'),
      paper.row('GPT', '4.0e19', '3.0e10', 117, 78.8, system=None, note='published'),
      paper.row(
        'BERT-Small',
        '1.4e18',
        '3.7e9',
        14,
        75.1,
        change='objective=mlm',
        fields={**BERT_MASKS, 'phases': ((1_450_000, {}),)},
        tiny={**BERT_MASKS, 'phases': ((290, {}),)},
      ),
      paper.row(
        'BERT-Base',
        '6.4e19',
        '2.9e10',
        110,
        82.2,
        system='electra:base',
        change='objective=mlm',
        fields={**BERT_MASKS, 'phases': ((1_000_000, {}),)},
        tiny={**_TINY_BASE, **BERT_MASKS, 'phases': ((260, {}),)},
      ),
      paper.row('ELECTRA-Small', '1.4e18', '3.7e9', 14, 79.9),
      _part(50, 500_000, '7.1e17', '3.7e9', 14, 79.0),
      _part(25, 250_000, '3.6e17', '3.7e9', 14, 77.7),
      _part(12.5, 125_000, '1.8e17', '3.7e9', 14, 76.0),
      _part(6.25, 62_500, '8.9e16', '3.7e9', 14, 74.1),
      paper.row(
        'ELECTRA-Base',
        '6.4e19',
        '2.9e10',
        110,
        85.1,
        system='electra:base',
        tiny=_TINY_BASE,
      ),
    ),
    varies={
      'objective': 'Table 1: BERT and ELECTRA; Table 6: size of the generator',
      'encoder.hidden_size': 'Table 6: small and base',
      'encoder.intermediate_size': 'Table 6: small and base',
      'encoder.num_heads': 'Table 6: small and base',
      'encoder.embedding_size': 'Table 6: small and base',
      'masking.corruption': '§3.5: BERT has 80 % [MASK], 10 % random tokens and 10 % kept',
      'length': 'Table 6: 128 small, 512 base',
      'batch_size': 'Table 6: 128 small, 256 base',
      'phases': 'Table 6: train steps BERT/ELECTRA; Table 1: share of the steps',
      'schedule.learning_rate': 'Table 6: 5e-4 small, 2e-4 base',
    },
  )
