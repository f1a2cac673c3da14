"""Clark et al. 2020 (arXiv:2003.10555), Figure 3 right: how the two networks are trained, GLUE dev.

    python -m bertzoo_jax.reproduce --config configs/tables/electra_training.py:tiny --workdir R

The paper has a plot of scores over train FLOPs and no numbers: joint training is best; adversarial
and two-stage training are between it and BERT. The first column is from the text of §3.2 and of the
appendix: accuracy of a generator of width 256 on masked tokens; in BERT's row it is BERT's own.
Two-stage: n steps for a generator of the network's size, then n for a discriminator that begins
with its weights. Chosen here: n is half of ELECTRA's 766K, and each of the two has a schedule of
its own. BERT has the 1M steps of Table 6 and the masks of §3.5.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper
from bertzoo_jax.configs.tables.electra_table5 import BERT_MASKS


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Clark et al. 2020',
    name='Figure 3 right',
    title='Training algorithms',
    source='arXiv:2003.10555, §3.2, "Training Algorithms"',
    system='electra:base',
    columns=(
      paper.held_out('generator, masked tokens', 'held_out_mlm_accuracy'),
      *columns.glue_average('electra_base'),
    ),
    rows=(
      paper.row('ELECTRA', 65, 'figure'),
      paper.row(
        'Adversarial ELECTRA',
        58,
        'figure',
        change='objective=replaced_token_adversarial',
        fields={'objective.width': 1 / 3},
        tiny={'objective.depth': 0.5, 'objective.temperature': 2.0},
      ),
      paper.row('Two-Stage ELECTRA', '', 'figure', system='electra:base_two_stage'),
      paper.row(
        'BERT',
        '',
        'figure',
        change='objective=mlm',
        fields={**BERT_MASKS, 'phases': ((1_000_000, {}),)},
        tiny={**BERT_MASKS, 'phases': ((261, {}),)},
      ),
    ),
    varies={
      'objective': '§3.2: joint, adversarial, two-stage; BERT',
      'phases': '§3.2: n steps of the generator, then n of the discriminator; Table 6: BERT',
      'masking.corruption': '§3.5: BERT has 80 % [MASK], 10 % random tokens and 10 % kept',
      'schedule.across_phases': '§3.2: two trainings, one after the other',
    },
  )
