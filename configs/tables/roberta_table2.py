"""Liu et al. 2019 (arXiv:1907.11692), Table 2: the input formats, BERT-base.

    python -m bertzoo_jax.reproduce --config configs/tables/roberta_table2.py:tiny --workdir R

1,000,000 steps of about the same number of tokens (§4.2), for the settings see roberta_table1.py.
Pairs of single sentences are short: 1,024 rows of 128 tokens take the place of 256 rows of 512,
chosen here. For DOC-SENTENCES the paper takes more rows where they are short; here short segments
share a row. SQuAD is F1. BERT has no figures for RACE: it is fine-tuned as in RoBERTa's Table 10.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Liu et al. 2019',
    name='Table 2',
    title='Input formats',
    source='arXiv:1907.11692, §4.2',
    system='bert:base',
    topology='v5e-4',
    change='tokenizer=byte_bpe',
    fields={'phases': ((1_000_000, {}),)},
    tiny={'tokenizer.vocab_size': 2048},
    columns=(
      columns.squad1('bert', 'SQuAD 1.1', both=False),
      columns.squad2('bert', 'SQuAD 2.0', both=False),
      columns.glue('mnli', 'bert'),
      columns.glue('sst2', 'bert'),
      columns.race('roberta'),
    ),
    rows=(
      paper.row('SEGMENT-PAIR', 90.4, 78.7, 84.0, 92.9, 64.2, fields={'format.short_rate': 0.0}),
      paper.row(
        'SENTENCE-PAIR',
        88.7,
        76.2,
        82.9,
        92.1,
        63.0,
        change='format=sentence_pairs',
        fields={'length': 128, 'batch_size': 0, 'batch_tokens': 131_072},
        tiny={'length': 16, 'batch_size': 128},
      ),
      paper.row(
        'FULL-SENTENCES', 90.4, 79.1, 84.7, 92.5, 64.8, change='format=full_sentences,objective=mlm'
      ),
      paper.row(
        'DOC-SENTENCES', 90.6, 79.7, 84.7, 92.7, 65.6, change='format=doc_sentences,objective=mlm'
      ),
      paper.row('BERT base', 88.5, 76.3, 84.3, 92.8, 64.3, system=None, note='published'),
      paper.row('XLNet base (K = 7)', '–', 81.3, 85.8, 92.7, 66.1, system=None, note='published'),
      paper.row('XLNet base (K = 6)', '–', 81.0, 85.6, 93.4, 66.7, system=None, note='published'),
    ),
    varies={
      'format': '§4.2: SEGMENT-PAIR+NSP, SENTENCE-PAIR+NSP, FULL-SENTENCES, DOC-SENTENCES',
      'objective': '§4.2: the NSP loss is retained for pairs and removed for the others',
      'length': '§4.2: pairs of single sentences are shorter than 512 tokens',
      'batch_size': "§4.2: … so their batch is larger, to have as many tokens as the others'",
      'batch_tokens': 'as batch_size',
    },
    task_seeds=tuple(range(5)),
  )
