"""He et al. 2021 (arXiv:2111.09543): how DeBERTaV3's two networks share word vectors, base.

    python -m bertzoo_jax.reproduce --config configs/tables/deberta_v3_sharing.py:tiny --workdir R

The paper itself was not read: [3rd] numbers come from someone's notes on it, [mem] ones from
memory. BERT-base and DeBERTa-base were read in Table 4 of He et al. 2020. 125,000 steps of 2,048
rows [3rd], Wikipedia + BooksCorpus. How these networks were fine-tuned was not found: MNLI is as in
the release for V3 base, SQuAD's rate is MNLI's, the rest chosen here. Cosines are means over pairs
of word vectors, of the generator (E_G) and of the discriminator (E_D).
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='He et al. 2021',
    name='embedding sharing (Table 6 of v4 [3rd])',
    title='How the two networks share word vectors',
    source='arXiv:2111.09543, §3.3 [3rd]',
    system='deberta_v3:base_ablation',
    topology='v6e-8',
    columns=(
      columns.mnli_both('deberta_v3_base'),
      columns.squad2('deberta_v3_base', 'SQuAD v2.0'),
      paper.cosine('cosine, E_G', 'generator'),
      paper.cosine('cosine, E_D', 'discriminator'),
    ),
    rows=(
      paper.row('BERT-base', '84.3/84.7', '76.3/73.7', system=None, note='published'),
      paper.row('ELECTRA-base', '[mem] 85.8/–', system=None, note='published'),
      paper.row(
        'DeBERTa-base',
        '86.3/86.2',
        '82.5/79.3',
        system=None,
        note='masked language modelling: the row DeBERTa-base of deberta_table4.py',
      ),
      paper.row(
        'DeBERTa + RTD, ES',
        '[3rd] 88.8/88.4',
        '[3rd] 86.3/83.5',
        '[mem] 0.02',
        '[mem] 0.02',
        fields={'objective.shared': 'token'},
      ),
      paper.row(
        'DeBERTa + RTD, NES',
        '[3rd] 88.3/87.9',
        '[3rd] 85.3/82.7',
        '[mem] 0.45',
        '[mem] 0.02',
        fields={'objective.shared': 'none'},
      ),
      paper.row(
        'DeBERTa + RTD, GDES', '[3rd] 89.3/89.0', '[3rd] 87.2/84.5', '[mem] 0.45', '[mem] 0.29'
      ),
    ),
    varies={'objective.shared': '§3.3 [3rd]: ES, NES, GDES'},
  )
