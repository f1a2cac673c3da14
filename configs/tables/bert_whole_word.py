"""Whole-word masking in English: README of BERT's release (Devlin et al. 2018), BERT-large.

    python -m bertzoo_jax.reproduce --config configs/tables/bert_whole_word.py:tiny --workdir R

How the networks of this table were fine-tuned is not said. SQuAD is fine-tuned as §4.2 says: 32
rows, 5e-5, 3 epochs. The README's command has 24 rows, 3e-5 and 2 epochs.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper

_CASED = {
  'tokenizer.lowercase': False,
  'tokenizer.strip_accents': False,
  'tokenizer.vocab_size': 28996,
}
_CASED_TINY = {**_CASED, 'tokenizer.vocab_size': 2048}


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Devlin et al. 2018',
    name='README of the release (no table of the paper)',
    title='Whole-word masking',
    source='github.com/google-research/bert',
    system='bert:large',
    topology='v4-8',
    columns=(
      columns.squad1('bert_large', 'SQuAD 1.1'),
      columns.glue('mnli', 'bert_large', 'Multi NLI'),
    ),
    rows=(
      paper.row('Uncased (Original)', '91.0/84.3', '86.05'),
      paper.row('Uncased (Whole Word Masking)', '92.8/86.7', '87.07', change='masking=whole_word'),
      paper.row('Cased (Original)', '91.5/84.8', '86.09', fields=_CASED, tiny=_CASED_TINY),
      paper.row(
        'Cased (Whole Word Masking)',
        '92.9/86.7',
        '86.46',
        change='masking=whole_word',
        fields=_CASED,
        tiny=_CASED_TINY,
      ),
    ),
    varies={
      'masking': 'README: all pieces of a word are masked at once',
      'tokenizer.lowercase': 'README: uncased and cased',
      'tokenizer.strip_accents': 'README: uncased and cased',
      'tokenizer.vocab_size': 'README: uncased and cased; sizes of the released vocabularies',
    },
  )
