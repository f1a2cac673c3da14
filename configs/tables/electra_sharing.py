"""Clark et al. 2020 (arXiv:2003.10555), §3.2: what generator and discriminator share, base.

    python -m bertzoo_jax.reproduce --config configs/tables/electra_sharing.py:tiny --workdir R

The numbers stand in the text: 500K steps, a generator of the discriminator's size, GLUE dev.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Clark et al. 2020',
    name='§3.2 (text)',
    title='What generator and discriminator share',
    source='arXiv:2003.10555, §3.2, "Weight Sharing"',
    system='electra:base',
    topology='v5e-8',
    fields={'objective.width': 1.0, 'phases': ((500_000, {}),)},
    tiny={'objective.width': 1.0, 'objective.depth': 1.0},
    columns=columns.glue_average('electra_base'),
    rows=(
      paper.row('no weight tying', 83.6, fields={'objective.shared': 'none'}),
      paper.row('token embeddings', 84.3, fields={'objective.shared': 'token'}),
      paper.row('all weights', 84.4, fields={'objective.shared': 'all'}),
    ),
    varies={'objective.shared': '§3.2: no weight tying, tying token embeddings, tying all weights'},
  )
