"""The data report of a corpus: numbers and sentences on the text that was kept and dropped."""

from bertzoo_jax.common import errors
from bertzoo_jax.corpus import doctor
from bertzoo_jax.corpus import shards
from bertzoo_jax.text import duplicates

_COUNTED = tuple(
  f'{kind}{level}' for level in ('words', 'phrases', 'entities') for kind in ('', 'multi_piece_')
)
_LONG_WORDS = 6  # tokens per word; more are hardly words
_LONG_BLANKS = 15  # characters between blanks; languages with blanks between words have at most 9
_LOST = 0.05  # a loss of more than this share of the characters is a warning
_SETTING = '--config.tokenizer.'


def summarize(records, dropped, repeated, unigrams) -> dict:
  """The data report over both splits.

  records: records of the shards, as shards.write returns them. dropped: {reason: {count, bytes,
  first}} of a reader. repeated: number of documents, and of longer paragraphs, that repeat earlier
  ones. unigrams: int64 [V], count of each piece in train.
  """
  parts = [s for r in records for s in r['splits'].values()]
  totals = {
    key: sum(p[key] for p in parts)
    for key in ('documents', 'sentences', 'tokens', 'bytes', 'unknown', *_COUNTED)
  }
  held_out = sum(r['splits'].get('held_out', {}).get('documents', 0) for r in records)
  dropped = dict(dropped)
  for reason, key in (
    ('document without a token', 'empty'),
    ('sentence without a token', 'cut'),
    (f'sentence over {shards.MAX_SENTENCE:,} characters, cut', 'long'),
  ):
    if count := sum(r[key] for r in records):
      dropped[reason] = dict(count=count, bytes=0, first='')
  lost = ('characters', 'unknown_characters', 'read_characters', 'marks', 'joiners')
  return dict(
    **totals,
    **{key: sum(r[key] for r in records) for key in lost},
    unknown_rate=totals['unknown'] / totals['tokens'],
    pieces_per_word=totals['tokens'] / totals['words'],
    misaligned_sentences=sum(r['misaligned'] for r in records),
    duplicate_documents=repeated[0],
    duplicate_paragraphs=repeated[1],
    held_out_share=held_out / totals['documents'],
    dropped=dropped,
    text=doctor.total([r['text'] for r in records if 'text' in r], unigrams),
  )


def _lost_characters(manifest) -> list[str]:
  """Lines about the characters that the tokenizer loses."""
  report, section = manifest['report'], manifest['tokenizer']
  share = lambda key, total: report[key] / max(report[total], 1)
  unknown = share('unknown_characters', 'characters')
  marks, joiners = (share(key, 'read_characters') for key in ('marks', 'joiners'))
  setting = f' ({_SETTING}strip_accents)' * ('strip_accents' in section)
  lines = [
    f'  characters {report["characters"]:,}: {100 * unknown:.4f} % in unknown tokens; '
    f'{100 * marks:.2f} % lose an accent, a vowel sign or the like{setting}; '
    f'{100 * joiners:.2f} % are joiners that are removed'
  ]
  if unknown > _LOST or report['unknown_rate'] > 0.5:
    remedy = f'Take another --tokenizer, or train one with a higher {_SETTING}coverage.'
    if 'max_word_chars' in section and unknown > 2 * report['unknown_rate']:
      remedy = (
        f'Each word of more than max_word_chars={section["max_word_chars"]} characters is one '
        f'unknown token: raise {_SETTING}max_word_chars, or take SentencePiece, which needs no '
        'blanks (configs/albert.py).'
      )
    lines.append(
      f'  WARNING: {100 * unknown:.0f} % OF THE CHARACTERS ARE UNKNOWN: a model learns nothing of '
      f'them. {remedy}'
    )
  if marks > _LOST:
    lines.append(
      f'  WARNING: {100 * marks:.0f} % of the characters lose an accent, a vowel sign or the like, '
      'and words that differ only in these become one. If that matters in this language, set '
      f'{_SETTING}strip_accents=False.'
    )
  if joiners > _LOST / 10:
    lines.append(
      f'  WARNING: {100 * joiners:.1f} % of the characters are joiners (U+200C, U+200D) that '
      f'tokenizer={section["name"]} removes: byte_bpe keeps them.'
    )
  return lines


def unlike_words(manifest) -> list[str]:
  """[a sentence] if the words between blanks are as long as sentences; otherwise []."""
  words = sum(manifest['words'].values())
  characters = manifest.get('report', {}).get('characters', 0)
  if characters <= _LONG_BLANKS * words:
    return []
  return [
    f'words are counted by blanks, here one for {characters / max(words, 1):.0f} characters: '
    'run.keep_words counts these, and not the words of the language.'
  ]


def empty(dropped) -> errors.UserError:
  """The UserError for a corpus without text, with the counts of dropped text."""
  why = '; '.join(
    f'{d["count"]} × {reason}, first at {d["first"]}' for reason, d in dropped.items()
  )
  return errors.UserError(
    f'The sources hold no text to train on{f" (dropped: {why})" if why else ""}: '
    'are they plain text, JSON lines or WikiExtractor output, in UTF-8?'
  )


def describe(manifest: dict, where: str) -> str:
  report, splits = manifest['report'], manifest['splits']
  lines = [
    f'Corpus {where}: {manifest["tokenizer"]["name"]}, {manifest["vocab_size"]:,} pieces, hash '
    f'{manifest["hash"][:12]}',
    *(
      f'  {name:<9} {s["documents"]:>12,} documents {s["sentences"]:>13,} sentences '
      f'{s["tokens"]:>15,} tokens {s["bytes"]:>15,} bytes {manifest["words"][name]:>13,} words'
      for name, s in splits.items()
    ),
    f'  unknown {100 * report["unknown_rate"]:.4f} % of tokens; {report["pieces_per_word"]:.3f} '
    f'tokens per word; {report["duplicate_documents"]:,} exact duplicate documents, '
    f'{report["duplicate_paragraphs"]:,} paragraphs; held out {100 * report["held_out_share"]:.2f} '
    '% of documents',
  ]
  if manifest['units']:
    shares = ', '.join(
      f'{report[level]:,} {level} '
      f'({100 * report["multi_piece_" + level] / max(report[level], 1):.1f} % of several tokens)'
      for level in ('words', 'phrases', 'entities')
      if level == 'words' or manifest['corpus'][level] != 'none'
    )
    lines.append(
      f'  units: {shares}; {report["misaligned_sentences"]:,} sentences have a border inside a '
      'token: there the pieces decide'
    )
  for reason, d in report['dropped'].items():
    first = f', first at {d["first"]}' if d['first'] else ''
    lines.append(f'  dropped: {d["count"]:,} × {reason} ({d["bytes"]:,} bytes{first})')
  if not report['dropped']:
    lines.append('  dropped: nothing')
  if manifest['plan']['exclude'] and not any('--exclude' in reason for reason in report['dropped']):
    lines.append(
      '  WARNING: --exclude left nothing out: no document of it, and no paragraph of at least '
      f'{duplicates.LEAST} characters, occurs literally in the sources.'
    )
  if report['pieces_per_word'] > _LONG_WORDS:
    lines.append(
      f'  WARNING: a word has {report["pieces_per_word"]:.1f} tokens on average. Has this text '
      f'blanks between its words, and is config.corpus.words={manifest["corpus"]["words"]} meant? '
      'Few whole words fit into the tokens that a row may mask.'
    )
  trained = str(manifest['plan']['tokenizer_hash']).startswith('trained')
  notes = unlike_words(manifest) + doctor.describe(report['text'], trained)
  lines += [f'  note: {sentence}' for sentence in notes] + _lost_characters(manifest)
  if not splits['held_out']['documents']:
    lines.append(
      '  note: no document fell into the held-out share, so a run cannot be evaluated: '
      'raise --config.corpus.held_out, or bring more text.'
    )
  return '\n'.join(lines)
