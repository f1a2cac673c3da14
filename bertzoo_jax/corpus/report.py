"""The data report of a corpus: what came into it and what was dropped, as numbers and as text."""

from bertzoo_jax.common import errors
from bertzoo_jax.corpus import shards
from bertzoo_jax.text import duplicates

_COUNTED = tuple(
  f'{many}{level}' for level in ('words', 'phrases', 'entities') for many in ('', 'multi_piece_')
)
_LONG_WORDS = 6  # tokens per word: more are hardly words


def of(records, dropped, repeated) -> dict:
  """The data report over both splits.

  Args:
    records: of the shards, as shards.write returns them.
    dropped: {reason: {count, bytes, first}} of a reader.
    repeated: how many documents, and longer paragraphs, stand in the text before.
  """
  parts = [s for r in records for s in r['splits'].values()]
  totals = {
    key: sum(p[key] for p in parts)
    for key in ('documents', 'sentences', 'tokens', 'bytes', 'unknown', *_COUNTED)
  }
  held_out = sum(r['splits'].get('held_out', {}).get('documents', 0) for r in records)
  dropped = dict(dropped)
  long = f'sentence over {shards.MAX_SENTENCE:,} characters, cut'
  for reason, key in (
    ('document without a token', 'empty'),
    ('sentence without a token', 'cut'),
    (long, 'long'),
  ):
    if count := sum(r[key] for r in records):
      dropped[reason] = dict(count=count, bytes=0, first='')
  return dict(
    **totals,
    unknown_rate=totals['unknown'] / totals['tokens'],
    pieces_per_word=totals['tokens'] / totals['words'],
    misaligned_sentences=sum(r['misaligned'] for r in records),
    duplicate_documents=repeated[0],
    duplicate_paragraphs=repeated[1],
    held_out_share=held_out / totals['documents'],
    dropped=dropped,
  )


def empty(dropped) -> errors.UserError:
  """That no text is left to train on, with what was dropped."""
  why = '; '.join(
    f'{d["count"]} × {reason}, first at {d["first"]}' for reason, d in dropped.items()
  )
  return errors.UserError(
    f'The sources hold no text to train on{f" (dropped: {why})" if why else ""}: '
    'are they plain text, JSON lines or WikiExtractor output, in UTF-8?'
  )


def describe(manifest: dict, where: str) -> str:
  """The data report as text."""
  report, splits = manifest['report'], manifest['splits']
  lines = [
    f'Corpus {where}: {manifest["tokenizer"]["name"]}, {manifest["vocab_size"]:,} pieces, hash '
    f'{manifest["hash"][:12]}',
    *(
      f'  {name:<9} {s["documents"]:>12,} documents {s["sentences"]:>13,} sentences '
      f'{s["tokens"]:>15,} tokens {s["bytes"]:>15,} bytes'
      for name, s in splits.items()
    ),
    f'  unknown {100 * report["unknown_rate"]:.4f} % of tokens; {report["pieces_per_word"]:.3f} '
    'pieces per word; '
    f'{report["duplicate_documents"]:,} exact duplicate documents, '
    f'{report["duplicate_paragraphs"]:,} paragraphs; '
    f'held out {100 * report["held_out_share"]:.2f} % of documents',
  ]
  if manifest['units']:
    shares = ', '.join(
      f'{report[level]:,} {level} '
      f'({100 * report["multi_piece_" + level] / max(report[level], 1):.1f} % of several tokens)'
      for level in ('words', 'phrases', 'entities')
      if level == 'words' or manifest['corpus'][level] != 'none'
    )
    lines.append(
      f'  units: {shares}; {report["misaligned_sentences"]:,} sentences with a border inside a '
      'token, told by pieces there'
    )
  for reason, d in report['dropped'].items():
    first = f', first at {d["first"]}' if d['first'] else ''
    lines.append(f'  dropped: {d["count"]:,} × {reason} ({d["bytes"]:,} bytes{first})')
  if not report['dropped']:
    lines.append('  dropped: nothing')
  if manifest['plan']['exclude'] and not any('--exclude' in reason for reason in report['dropped']):
    lines.append(
      '  WARNING: --exclude left nothing out: no document of it, and no paragraph of at least '
      f'{duplicates.LEAST} characters, stands in the sources as it is there.'
    )
  if report['pieces_per_word'] > _LONG_WORDS:
    lines.append(
      f'  WARNING: a word has {report["pieces_per_word"]:.1f} tokens on average. Has this text '
      'blanks between its words, and is '
      f'config.corpus.words={manifest["corpus"]["words"]} meant? Whole words would hardly fit into '
      'what a row may mask.'
    )
  if report['unknown_rate'] > 0.5:
    lines.append(
      '  WARNING: MORE THAN HALF OF THE TOKENS ARE UNKNOWN: the tokenizer does not fit this text, '
      'and a model will learn next to '
      'nothing from it. Take another --tokenizer, or train one (raise --config.tokenizer.coverage '
      'or max_word_chars).'
    )
  if not splits['held_out']['documents']:
    lines.append(
      '  note: no document fell into the held-out share, so a run cannot be evaluated: '
      'raise --config.corpus.held_out, or bring more text.'
    )
  return '\n'.join(lines)
