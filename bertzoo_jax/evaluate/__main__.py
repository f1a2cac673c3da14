"""Scores a trained model on held-out text, pairs of sentences, the BabyLM challenge or vectors of
texts; shows what it has learned. docs/commands.md explains the numbers.

    python -m bertzoo_jax.evaluate --workdir W[@STEP|@best] --corpus CORPUS [--corpus CORPUS2 …]
                                   [--batches 50] [--masking_of OTHER] [--json FILE]

scores masked tokens, next sentences and sentence order of held-out text (Lan et al. 2019, Table 5).

    python -m bertzoo_jax.evaluate --workdir W[@STEP|@best] --corpus CORPUS --gaps 10
                                   [--draw 0] [--top 5] [--require 1.5] [--json FILE]

shows the curve of the held-out loss, fills gaps in held-out text, and compares with bigrams. With
--require it ends with code 3 if the run has not learned that much.

    python -m bertzoo_jax.evaluate --workdir W[@STEP|@best]|hf:DIR --minimal_pairs FILE
                                   [--group_by FIELD] [--score_by WAY] [--json FILE]

scores pairs of an acceptable and an unacceptable sentence (Warstadt et al. 2020): a pair is right
if the acceptable sentence has the higher (pseudo-)log-likelihood (Salazar et al. 2020).

    python -m bertzoo_jax.evaluate --workdir W[@STEP|@best]|hf:DIR --babylm FOLDER
                                   [--score_by WAY] [--glue FOLDER] [--json FILE]
                                   [--submission FILE]

scores all parts of the BabyLM challenge, and writes the file that is submitted.

    python -m bertzoo_jax.evaluate --workdir W[@STEP|@best]|hf:DIR --similarity FILE
                                   [--columns A,B,SCORE] [--json FILE]
    python -m bertzoo_jax.evaluate --workdir W[@STEP|@best]|hf:DIR --retrieval FOLDER
                                   [--json FILE]

score vectors of texts, made as `encode` makes them: correlations of their cosines with a column of
scores; nDCG@10, recall and the mean reciprocal rank of all documents by their cosine with a query.
"""

import json

from absl import flags

from bertzoo_jax import cli
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import opening
from bertzoo_jax.runs import workdir as workdirs


def main(asked):
  from bertzoo_jax.evaluate import gaps  # with jax: --help does not wait for it
  from bertzoo_jax.evaluate import scores

  modes = (asked.corpus, asked.minimal_pairs, asked.babylm, asked.similarity, asked.retrieval)
  if sum(mode is not None for mode in modes) != 1:
    raise errors.UserError(
      'Give --corpus (held-out text), --minimal_pairs (pairs of sentences), --babylm (that '
      'challenge), --similarity (texts with scores) or --retrieval (queries and documents), one of '
      'them.'
    )
  if asked.gaps and len(asked.corpus or ()) != 1:
    raise errors.UserError('--gaps shows gaps in held-out text: give one --corpus.')
  if not asked.gaps and (asked.draw or asked.top or asked.require is not None):
    raise errors.UserError('--draw, --top and --require need --gaps: give --gaps=10 too.')
  if asked.score_by and not (asked.minimal_pairs or asked.babylm):
    raise errors.UserError('--score_by needs pairs: give --minimal_pairs or --babylm too.')
  if (asked.submission or asked.glue) and not asked.babylm:
    raise errors.UserError('--submission and --glue need the challenge: give --babylm too.')
  if asked.columns and asked.similarity is None:
    raise errors.UserError('--columns needs a table: give --similarity too.')
  if asked.submission and asked.submission == asked.json:
    raise errors.UserError('--json and --submission name one file: give each its own.')
  for file in filter(None, (asked.json, asked.submission)):
    storage.check_new(file)
    storage.path(file).parent.mkdir(parents=True, exist_ok=True)
  ways = (_on_text, _on_pairs, _on_babylm, _on_vectors, _on_vectors)
  way = next(way for way, mode in zip(ways, modes) if mode is not None)
  result, text = (_on_gaps if asked.gaps else way)(asked)
  print(text, flush=True)
  if asked.json:
    storage.write_text(asked.json, scores.to_json(result))
  if asked.require is not None:
    gaps.check(result, asked.require)


def _on_text(asked):
  """(Scores on held-out text, the lines to print)."""
  from bertzoo_jax.evaluate import held_out
  from bertzoo_jax.evaluate import scores
  from bertzoo_jax.runs import checkpoint

  names, results, texts = opening.names(asked.corpus), [], []
  workdir = checkpoint.parse_address(asked.workdir)[0]
  for path in asked.corpus[1:]:  # scoring takes minutes: all are checked before the first
    held_out.corpus_of(workdir, workdirs.run_config(workdir), path, asked.cache_dir)
  more = {name: getattr(asked, name) for name in ('batches', 'cache_dir', 'masking_of')}
  for name, path in zip(names, asked.corpus):
    results.append(scores.evaluate(asked.workdir, path, **more))
    head = f'{results[-1].workdir} at step {results[-1].step:,} on held-out text of the corpus'
    suffix = f' ({name})' if len(names) > 1 else ''
    texts.append(f'{head} {results[-1].corpus[:12]}{suffix}\n{scores.table(results[-1])}')
  return results[0] if len(results) == 1 else dict(zip(names, results)), '\n'.join(texts)


def _on_gaps(asked):
  """(Gaps and counts, the lines to print)."""
  from bertzoo_jax.evaluate import gaps

  more = {name: getattr(asked, name) for name in ('gaps', 'draw', 'top', 'batches', 'cache_dir')}
  report = gaps.find(asked.workdir, asked.corpus[0], **more)
  return report, gaps.screen(report)


def _on_pairs(asked):
  """(Scores on pairs of sentences, the lines to print)."""
  from bertzoo_jax.evaluate import minimal_pairs

  how = dict(group_by=asked.group_by, by=asked.score_by and asked.score_by.replace('_', ' '))
  result = minimal_pairs.evaluate(asked.workdir, asked.minimal_pairs, **how)
  network = f'{result.network} of ' if result.network else ''
  step = '' if result.step is None else f' at step {result.step:,}'
  head = f'{network}{result.address}{step} on {asked.minimal_pairs}, tokens: {result.how}'
  return result, f'{head}\n{minimal_pairs.table(result)}'


def _on_babylm(asked):
  """(Scores of the challenge, the lines to print); writes the file to submit."""
  from bertzoo_jax.evaluate import babylm

  by = asked.score_by and asked.score_by.replace('_', ' ')
  result, submission = babylm.evaluate(asked.workdir, asked.babylm, by, asked.glue)
  if asked.submission:
    storage.write_text(asked.submission, json.dumps(submission))
  return result, babylm.table(result)


def _on_vectors(asked):
  """(Scores of vectors of texts, the lines to print)."""
  from bertzoo_jax.evaluate import vectors

  if asked.retrieval is not None:
    result = vectors.retrieval(asked.workdir, asked.retrieval)
  else:
    result = vectors.similarity(asked.workdir, asked.similarity, asked.columns or vectors.COLUMNS)
  return result, vectors.table(result)


if __name__ == '__main__':
  cli.required(
    workdir='Run to score: W (newest checkpoint), W@STEP or W@best. Without --corpus also hf:DIR '
    'or hf:OWNER/NAME.'
  )
  flags.DEFINE_multi_string(
    'corpus',
    None,
    "Corpus with the run's tokenizer and held-out text, local or gs://. Several are scored one by "
    'one.',
  )
  cli.texts(
    minimal_pairs='Pairs of sentences: FILE.jsonl with sentence_good and sentence_bad (as BLiMP '
    'has them), FILE.tsv with two columns, the good sentence first, or a folder of such files.',
    babylm='Folder of the BabyLM challenge, with full_eval and fast_eval.',
    glue='With --babylm: workdir of configs/tasks/babylm.py:all, or TASK/predictions.json in it.',
    submission='With --babylm: file to write for the leaderboard; an existing one is refused.',
    similarity='Table of two texts and a score per row: tsv, csv, jsonl, json or parquet.',
    columns='With --similarity: the columns of the two texts and of the score. Default: text_a or '
    'sentence1, text_b or sentence2, score or label.',
    retrieval='Folder with corpus.jsonl, queries.jsonl and qrels/test.tsv.',
    masking_of='Workdir of another run: the mlm rows take its masking.',
    cache_dir=cli.CACHE_DIR_HELP,
    json='File to write the scores to; an existing one is refused.',
  )
  flags.DEFINE_string(
    'group_by', '', 'Field of the pairs to group by. Default: UID or field, if they have one.'
  )
  flags.DEFINE_enum(
    'score_by',
    None,
    ['masked', 'words', 'left_to_right'],
    'How pairs are scored. Default: as the network learned to predict.',
  )
  flags.DEFINE_integer(
    'batches', 50, 'Batches of config.batch_size rows per set, at most; also to fit a probe on.'
  )
  flags.DEFINE_integer(
    'gaps', None, 'Draw the loss, and fill at most this many gaps beside bigrams.', lower_bound=1
  )
  flags.DEFINE_integer('draw', 0, 'With --gaps: the seed that draws them.', lower_bound=0)
  flags.DEFINE_integer(
    'top',
    0,
    'With --gaps: K, to count how often the truth is among the K likeliest tokens. 0: off.',
    lower_bound=0,
  )
  flags.DEFINE_float(
    'require',
    None,
    'With --gaps: nats. The command fails unless the loss is at least that far below the unigram '
    "entropy and the accuracy at least the bigrams'.",
  )
  cli.run(main)
