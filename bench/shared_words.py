"""How many pairs of segments are told apart by their common words: the baseline of a network.

PYTHONPATH=. python bench/shared_words.py W C

W is a workdir of `pretrain`, C its corpus. The pairs are those of `evaluate`, next segments and
random ones. A threshold on the cosine of the two segments' tf-idf vectors is fitted to rows of
train and scored on held-out rows. Unlike the network, it sees the masked tokens, too.
"""

import sys

import numpy as np
from sklearn import feature_extraction
from sklearn import linear_model

from bertzoo_jax.evaluate import held_out
from bertzoo_jax.evaluate import scores
from bertzoo_jax.objectives import generator as generators

BATCHES = {'train': 200, 'held_out': 50}


def segments(batches, special):
  """The tokens of each row's two segments, as two lists of lists."""
  out = ([], [])
  for batch in batches:
    ids_BL = np.asarray(generators.fill(batch, batch['masked_targets'])[0])
    text_BL = (batch['segment_ids'] > 0) & ~np.isin(ids_BL, special)
    for side in (0, 1):
      here_BL = text_BL & (batch['token_type_ids'] == side)
      out[side].extend(ids[here].tolist() for ids, here in zip(ids_BL, here_BL))
  return out


def main(workdir, path):
  run, corpus = held_out.opened(workdir, path)
  pairs = {
    split: held_out.rows_of(corpus, run.config, held_out.segment_pairs('nsp'), split, n)
    for split, n in BATCHES.items()
  }
  special = list(corpus.special.values())
  text = {split: segments(batches, special) for split, batches in pairs.items()}
  vectors = feature_extraction.text.TfidfVectorizer(analyzer=lambda ids: ids)
  vectors.fit(text['train'][0] + text['train'][1])
  cosine = {
    split: np.asarray(vectors.transform(a).multiply(vectors.transform(b)).sum(axis=1))
    for split, (a, b) in text.items()
  }
  labels = {
    split: np.concatenate([b['pair_labels'] for b in batches]) for split, batches in pairs.items()
  }
  threshold = linear_model.LogisticRegression(C=1e6).fit(cosine['train'], labels['train'])
  right, count = threshold.score(cosine['held_out'], labels['held_out']), len(labels['held_out'])
  print(
    f'{100 * right:.1f} % (standard error {100 * scores.binomial(right, count):.1f}) of {count:,} '
    f'held-out pairs, fitted to {len(labels["train"]):,}'
  )


if __name__ == '__main__':
  if len(sys.argv) != 3:
    sys.exit(__doc__)
  main(*sys.argv[1:])
