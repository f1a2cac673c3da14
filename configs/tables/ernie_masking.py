"""Sun et al. 2019 (arXiv:1904.09223): ERNIE's masking stages, dev and test of XNLI.

    python -m bertzoo_jax.reproduce --config configs/tables/ernie_masking.py:tiny --workdir R

Numbers marked [mem] are from memory; the last row's are also in the release's README. All rows but
the last have a tenth of the text; which text is read is no field of a config: run the last row with
--rows the_same_all_text in a workdir of its own. How long the stages last is not published: here
all stages of a row are equally long. Batch and steps are the release's; the paper has none. The
last row's number is of the whole system, with its loss over dialogues, which the release does not
have either. XNLI has rows of 128 tokens here, 512 in the release.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper

_CHARACTERS = {'masking': parts.token()}


def _phrases(selection):
  return {'masking': parts.whole_word(level='phrase', selection=selection)}


def _row(title, printed, *, stages=None, note):
  """stages: (selection) → overrides of the phases; None for the system's three."""

  def phases(steps, selection):
    found = stages(selection)
    return {'phases': tuple((steps // len(found), one) for one in found)}

  own = (phases(1_000_000, 'independent'), phases(200, 'budget')) if stages else ({}, {})
  return paper.row(title, printed, fields=own[0], tiny=own[1], note=note)


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Sun et al. 2019',
    name='knowledge masking strategies',
    title="ERNIE's masking stages",
    source='arXiv:1904.09223, "Ablation Studies" [3rd]',
    system='ernie:base',
    topology='v5e-4',
    columns=(columns.chinese('XNLI dev/test', 'xnli', 'ernie', 'dev', 'test'),),
    rows=(
      _row(
        'word-level (chinese character)',
        '[mem] 77.7/76.8',
        stages=lambda selection: (_CHARACTERS,),
        note='10 % of the text',
      ),
      _row(
        'word-level & phrase-level',
        '[mem] 78.3/77.3',
        stages=lambda selection: (_CHARACTERS, _phrases(selection)),
        note='10 % of the text',
      ),
      _row('word-level & phrase-level & entity-level', '[mem] 78.7/77.6', note='10 % of the text'),
      _row('the same, all text', '79.9/78.4', note='all text'),
    ),
    varies={'phases': '§3.2: basic-level, phrase-level and entity-level masking, in stages'},
    sample=paper.CHINESE,
  )
