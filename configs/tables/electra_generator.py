"""Clark et al. 2020 (arXiv:2003.10555), Figure 3 left: the size of the generator, GLUE dev.

    python -m bertzoo_jax.reproduce --config configs/tables/electra_generator.py:tiny --workdir R

The paper has a plot and no numbers: best is a generator of 1/4 to 1/2 of the discriminator's width.
All rows have 500K steps, only widths shrink (§3.2). The figure has discriminators of several
widths; here there is one of 768, and the widths of its generator are chosen here. The unigram
generator draws tokens as often as they are in the corpus. The uniform one is an option of the
released code.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def _row(width, tiny):
  """tiny: share of the width at `tiny`."""
  own = {'objective.width': width / 768}
  return paper.row(str(width), 'figure', fields=own, tiny={'objective.width': tiny})


def _drawn(title, printed, tokens, note):
  return paper.row(
    title,
    printed,
    change='objective=corruption_detection',
    fields={'masking.corruption': (0.0, 1.0, 0.0), 'masking.random_tokens': tokens},
    note=note,
  )


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Clark et al. 2020',
    name='Figure 3 left',
    title='The size of the generator',
    source='arXiv:2003.10555, §3.2, "Smaller Generators"',
    system='electra:base',
    fields={'phases': ((500_000, {}),)},
    tiny={},
    columns=columns.glue_average('electra_base'),
    rows=(
      _drawn(
        'uniform', '', 'all', 'tokens of the whole vocabulary alike: an option of the release'
      ),
      _drawn('unigram', 'figure', 'unigrams', "tokens by the corpus's frequencies"),
      _row(64, 1 / 8),
      _row(128, 1 / 4),
      _row(256, 1 / 2),
      _row(768, 1.0),
    ),
    varies={
      'objective': '§3.2: size of the generator; a unigram generator',
      'masking.corruption': '§3.2: a chosen token is replaced by a drawn one (no generator)',
      'masking.random_tokens': '§3.2: … by its frequency; in the release also uniformly',
    },
  )
