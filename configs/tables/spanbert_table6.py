"""Joshi et al. 2020 (arXiv:1907.10529), Table 6: the masking scheme, large.

    python -m bertzoo_jax.reproduce --config configs/tables/spanbert_table6.py:tiny --workdir R

All rows have two segments and NSP, and no short rows (§4.2). The paper takes checkpoints at 1.2M
steps (§6); here the runs end there, so the rate is zero at 1.2M. Entities and noun phrases, which
are half of what those two rows mask, need a tagger; there is none here. Rows of subword tokens and
whole words draw random tokens from the whole vocabulary and per piece, as BERT; spans draw them as
SpanBERT. NewsQA and TriviaQA are scored on all of dev, of which the paper took a half (§4.1).
GLUE's average is over dev, with the first score of each task.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper

_TAGGER = 'not run: needs a tagger, and a masking that draws half of its units from its marks'


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Joshi et al. 2020',
    name='Table 6',
    title='The masking scheme',
    source='arXiv:1907.10529, §6.1',
    system='spanbert:large',
    topology='v4-8',
    change='objective=mlm_pair,format=segment_pairs',
    fields={'phases': ((1_200_000, {}),), 'format.short_rate': 0.0},
    tiny={'format.short_rate': 0.0},
    columns=(
      columns.squad2('spanbert', 'SQuAD 2.0', both=False),
      columns.mrqa('NewsQA', 'spanbert'),
      columns.mrqa('TriviaQA', 'spanbert'),
      columns.coreference(),
      columns.glue('mnli', 'spanbert'),
      columns.glue('qnli', 'spanbert'),
      *columns.glue_average('spanbert', 'GLUE (Avg)', but=('mnli', 'qnli')),
    ),
    rows=(
      paper.row('Subword Tokens', 83.8, 72.0, 76.3, 77.7, 86.7, 92.5, 83.2, change='masking=token'),
      paper.row(
        'Whole Words', 84.3, 72.8, 77.1, 76.6, 86.3, 92.8, 82.9, change='masking=whole_word'
      ),
      paper.row(
        'Named Entities', 84.8, 72.7, 78.7, 75.6, 86.0, 93.1, 83.2, system=None, note=_TAGGER
      ),
      paper.row(
        'Noun Phrases', 85.0, 73.0, 77.7, 76.7, 86.5, 93.2, 83.5, system=None, note=_TAGGER
      ),
      paper.row('Geometric Spans', 85.4, 73.0, 78.8, 76.4, 87.0, 93.3, 83.4),
    ),
    varies={'masking': '§6.1: subword tokens, whole words, named entities, noun phrases, spans'},
  )
