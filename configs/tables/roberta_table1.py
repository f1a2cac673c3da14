"""Liu et al. 2019 (arXiv:1907.11692), Table 1: static and dynamic masking, BERT-base.

    python -m bertzoo_jax.reproduce --config configs/tables/roberta_table1.py:tiny --workdir R

The studies keep BERT-base's shape and settings, and fine-tune as BERT (§3.3). All inputs have 512
tokens, and no short ones are mixed in (§3.1). Peak rate and warmup were tuned for each setting and
are not printed: here they are BERT's. Which vocabulary these networks have is not said: here it is
the byte-level BPE of §4.4. The paper prints medians of five seeds. "dynamic" has the numbers of
SEGMENT-PAIR in Table 2, so the input format is segment pairs. The second head for questions without
an answer, which RoBERTa adds, is left out.
"""

from bertzoo_jax.configs.tables import columns
from bertzoo_jax.configs.tables import paper


def get_config(scale='tiny'):
  return paper.table(
    scale,
    paper='Liu et al. 2019',
    name='Table 1',
    title='Static and dynamic masking',
    source='arXiv:1907.11692, §4.1',
    system='bert:base',
    change='tokenizer=byte_bpe',
    fields={'phases': ((1_000_000, {}),), 'format.short_rate': 0.0},
    tiny={'tokenizer.vocab_size': 2048, 'format.short_rate': 0.0},
    columns=(
      columns.squad2('bert', 'SQuAD 2.0', both=False),
      columns.glue('mnli', 'bert'),
      columns.glue('sst2', 'bert'),
    ),
    rows=(
      paper.row('reference', 76.3, 84.3, 92.8, system=None, note="BERT's, from Yang et al. 2019"),
      paper.row('static', 78.3, 84.3, 92.5, fields={'masking.repeat': 10}),
      paper.row('dynamic', 78.7, 84.0, 92.9),
    ),
    varies={'masking.repeat': '§4.1: ten masks of each row, or a new one each time'},
    task_seeds=tuple(range(5)),
  )
