"""Liu et al. 2019 (arXiv:1907.11692), §4.4: byte-level BPE and WordPiece, BERT-base.

    python -m bertzoo_jax.reproduce --config configs/tables/roberta_bytes.py:tiny --workdir R

The paper prints no table and no score. It says that a byte-level vocabulary of 50K adds about 15M
parameters to base, and is slightly worse on some tasks. The input format is FULL-SENTENCES without
NSP (§4.2), and the tasks are those of Table 2. Perplexities over different vocabularies cannot be
compared, so the first column has bits per byte of text. WordPiece is BERT's, uncased; the
byte-level BPE keeps case, which costs bits. roberta_table2.py describes the fine-tuning.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Liu et al. 2019',
    name='§4.4 (text, no table)',
    title='Byte-level BPE and WordPiece',
    source='arXiv:1907.11692, §4.4',
    system='bert:base',
    change='format=full_sentences,objective=mlm',
    fields={'phases': ((1_000_000, {}),)},
    tiny={},
    columns=(
      paper.held_out('bits per byte', 'held_out_bits_per_byte', unit=''),
      paper.parameters('params, M'),
      columns.squad1('bert', 'SQuAD 1.1', both=False),
      columns.squad2('bert', 'SQuAD 2.0', both=False),
      columns.glue('mnli', 'bert'),
      columns.glue('sst2', 'bert'),
      columns.race('roberta'),
    ),
    rows=(
      paper.row('WordPiece, 30K'),
      paper.row(
        'byte-level BPE, 50K',
        change='tokenizer=byte_bpe',
        tiny={'tokenizer.vocab_size': 3600},
      ),
    ),
    varies={'tokenizer': '§4.4: 30K pieces of characters, or 50K of bytes'},
    task_seeds=tuple(range(5)),
  )
