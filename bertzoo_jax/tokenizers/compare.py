"""Tokenizers beside each other on the same text: show --tokenizers A,B,hf:C --source F.

A word is what stands between blanks; a character of a script without blanks (Han, kana, Thai …) is
a word of its own.
"""

import collections
import json
from typing import NamedTuple

import numpy as np
import rich.table
import rich.text
import tokenizers as hf
from tokenizers import models as models_lib
from tokenizers import normalizers
from tokenizers import pre_tokenizers

from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.common import vocabulary
from bertzoo_jax.text import finding
from bertzoo_jax.text import sources
from bertzoo_jax.tokenizers import hub
from bertzoo_jax.tokenizers import kinds
from bertzoo_jax.tokenizers import published
from bertzoo_jax.tokenizers import spiece_file
from bertzoo_jax.words import characters

MOST_BYTES = 10_000_000  # of text that is compared; the rest would change no digit that is shown
_SAMPLE = 160  # characters of the sample line
_HARDEST = 5  # words
_LONG = 40  # characters; longer words are addresses and the like


class Reading(NamedTuple):
  """A tokenizer to compare. encode: texts → [(ids, starts, ends)], in characters of the text.
  unknown: its id, or None.
  """

  name: str
  kind: str
  vocab_size: int
  unknown: int | None
  encode: object


class Result(NamedTuple):
  """What a tokenizer makes of a text.

  tokens, bytes, words: of the text. unknown: share of the characters, blanks aside, that unknown
  tokens stand for. hardest: [(word, pieces)] of the words in most pieces. sample: a line in pieces,
  [(what it stands for, whether unknown)].
  """

  reading: Reading
  tokens: int
  bytes: int
  words: int
  unknown: float
  hardest: list[tuple[str, int]]
  sample: list[tuple[str, bool]]


def compare(
  names: list[str], source: list[str], section: dict | None = None, most_bytes: int = MOST_BYTES
) -> tuple[list[Result], int]:
  """(a Result for each tokenizer, bytes of text read).

  Args:
    names: what `read` takes.
    source: list of --source arguments; read from the start up to most_bytes.
    section: config.tokenizer, by which bare vocabulary files are read; or None.
    most_bytes: of text.

  Raises:
    UserError: no such tokenizer, no text.
  """
  readings = [read(name, section) for name in names]
  lines, size = _lines(source, most_bytes)
  found = collections.Counter(word for line in lines for word in words(line))
  return [_measure(reading, lines, size, found) for reading in readings], size


def words(text: str) -> list[str]:
  """The words of a text: cut at blanks, and around every character of a script without blanks."""
  if text.isascii():
    return text.split()
  kinds_C = characters.kinds(characters.codes(text))
  if not (kinds_C == characters.ALONE).any():
    return text.split()
  apart = np.flatnonzero(kinds_C == characters.ALONE).tolist()
  out, at = [], 0
  for i in apart:
    out += [*text[at:i].split(), text[i]]
    at = i + 1
  return out + text[at:].split()


def table(results: list[Result], size: int) -> rich.table.Table:
  """The measures, one row per tokenizer."""
  right = [
    rich.table.Column(head, justify='right', no_wrap=True)
    for head in ('pieces', 'per word', 'bytes per token', 'unknown')
  ]
  out = rich.table.Table(
    rich.table.Column('tokenizer', overflow='fold'),
    'kind',
    *right,
    title=f'{results[0].words:,} words, {size / 1e6:,.1f} MB',
  )
  for r in results:
    out.add_row(
      r.reading.name,
      r.reading.kind,
      f'{r.reading.vocab_size:,}',
      f'{r.tokens / max(r.words, 1):.3f}',
      f'{r.bytes / max(r.tokens, 1):.2f}',
      f'{r.unknown:.3%}',
    )
  return out


def samples(results: list[Result]) -> list[rich.text.Text]:
  """A line in each tokenizer, pieces parted by bars, what is unknown in red, · for one more piece
  of the same character; and the words in most pieces."""
  out = []
  for r in results:
    line = rich.text.Text(f'{r.reading.name} ({len(r.sample)}): ', style='bold')
    for i, (text, unknown) in enumerate(r.sample):
      line.append('|' if i else '', style='dim')
      line.append(text, style='not bold red' if unknown else 'not bold')
    if r.hardest:
      line.append(
        '\n  in most pieces: ' + ', '.join(f'{word} {n}' for word, n in r.hardest), style='not bold'
      )
    out.append(line)
  return out


# --- reading ---


def read(name: str, section: dict | None = None) -> Reading:
  """The tokenizer of a corpus, of a folder that `save` wrote, of a tokenizer.json, of bare
  vocabulary files, or of hf:… (hub.folder).

  Args:
    name: of it.
    section: config.tokenizer, by which bare files are read; None: a .model without any cleaning of
      the text, vocab.txt lower-cased unless it has capitals.
  """
  path = hub.folder(name[3:]) if name.startswith('hf:') else storage.path(name)
  if not path.exists():
    raise errors.UserError(
      f'--tokenizers={name} does not exist: name a corpus, a folder with tokenizer files, one such '
      'file, or hf:OWNER/NAME.'
    )
  folder = next((p for p in (path, path / 'tokenizer') if (p / 'bertzoo.json').exists()), None)
  files = (
    {f.name: f for f in path.iterdir() if not f.is_dir()} if path.is_dir() else {path.name: path}
  )
  if folder is not None or section is not None and 'tokenizer.json' not in files:
    ours = tokenizers.load(folder or path, None if folder else section)
    return Reading(
      name, ours.section['name'], ours.vocab_size, ours.special['unk'], ours.encode_with_offsets
    )
  models = sorted(f for f in files if f.endswith('.model'))
  if 'tokenizer.json' in files:
    return _of_json(name, files['tokenizer.json'])
  if models:
    return _of_model(name, files[models[0]])
  if 'vocab.txt' in files:
    return _of_words(name, files)
  ids, merges = (
    next((files[f] for f in pair if f in files), None)
    for pair in (('vocab.json', 'encoder.json'), ('merges.txt', 'vocab.bpe'))
  )
  if ids and merges:
    engine = hf.Tokenizer(models_lib.BPE.from_file(str(ids), str(merges)))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return Reading(name, 'byte-level BPE', engine.get_vocab_size(), None, _encoded_by(engine))
  raise errors.UserError(
    f'--tokenizers={name} holds {", ".join(sorted(files)) or "nothing"}: a tokenizer is read from '
    'tokenizer.json, a '
    'SentencePiece .model, vocab.txt, or vocab.json and merges.txt.'
  )


def _of_json(name, path):
  content = published.content(path.parent)
  model = kinds.read_model(path)
  try:  # without the post-processor, which may cut blanks off the offsets
    engine = hf.Tokenizer.from_str(json.dumps({**content, 'post_processor': None}))
  except Exception as e:  # the library raises nothing more particular
    raise errors.UserError(
      f'{path} is not a tokenizer.json that this version of tokenizers ({hf.__version__}) reads: '
      f'{e}.'
    ) from e
  engine.no_truncation()
  engine.no_padding()
  unknown = (
    model['unk_id']
    if model.get('unk_id') is not None
    else engine.token_to_id(model['unk_token'])
    if model.get('unk_token')
    else None
  )
  return Reading(
    name, model.get('type', 'WordPiece'), engine.get_vocab_size(), unknown, _encoded_by(engine)
  )


def _of_words(name, files):
  pieces = vocabulary.lines(files['vocab.txt'])
  settings = (
    kinds.read_json(files['tokenizer_config.json']) if 'tokenizer_config.json' in files else {}
  )
  lower = settings.get('do_lower_case', all(p == p.lower() for p in pieces if p.isalpha()))
  engine = hf.Tokenizer(
    models_lib.WordPiece(
      {p: i for i, p in enumerate(pieces)}, unk_token='[UNK]', max_input_chars_per_word=100
    )
  )
  engine.normalizer, engine.pre_tokenizer = (
    normalizers.BertNormalizer(lowercase=lower),
    pre_tokenizers.BertPreTokenizer(),
  )
  return Reading(
    name,
    'WordPiece, ' + ('uncased' if lower else 'cased'),
    len(pieces),
    engine.token_to_id('[UNK]'),
    _encoded_by(engine),
  )


def _of_model(name, path):
  import sentencepiece

  data = path.read_bytes()
  kind = spiece_file.parse(data, str(path)).model
  model = sentencepiece.SentencePieceProcessor(model_proto=data)

  def encode(texts):
    rows = model.encode(texts, return_type='offset_mapping', num_threads=1)
    return [
      (np.asarray(row['ids'], np.int32), *np.asarray(row['offsets'], np.int32).reshape(-1, 2).T)
      for row in rows
    ]

  return Reading(name, f'SentencePiece, {kind}', model.vocab_size(), model.unk_id(), encode)


def _encoded_by(engine):
  def encode(texts):
    rows = engine.encode_batch(texts, add_special_tokens=False)
    return [
      (np.asarray(row.ids, np.int32), *np.asarray(row.offsets, np.int32).reshape(-1, 2).T)
      for row in rows
    ]

  return encode


# --- measuring ---


def _lines(source, most_bytes):
  """(paragraphs, their bytes) from the start of the sources."""
  out, size = [], 0
  for paragraphs in sources.Reader([finding.find(s) for s in source]).documents():
    for paragraph in paragraphs:
      out.append(paragraph)
      size += len(paragraph.encode('utf-8', 'surrogatepass'))
    if size >= most_bytes:
      break
  out = [line.encode('utf-8', 'ignore').decode() for line in out]
  if not any(line.strip() for line in out):
    raise errors.UserError(f'--source={" ".join(source)} holds no text: name files with some.')
  return out, size


def _measure(reading, lines, size, found):
  tokens = unknown = 0
  for batch in _batches(lines, 256):
    for text, (ids, starts, ends) in zip(batch, reading.encode(batch)):
      tokens += len(ids)
      for i in np.flatnonzero(ids == reading.unknown) if reading.unknown is not None else ():
        unknown += _characters(text[starts[i] : ends[i]])
  apart = [word for word in found if 1 < len(word) <= _LONG and word.isalpha()]
  pieces = [
    sum(
      bool(word[max(start - 1, 0) : end - 1].strip())
      for start, end in zip(starts.tolist(), ends.tolist())
    )  # a bare blank is no piece
    for batch in _batches(apart, 4096)
    for word, (_, starts, ends) in zip(batch, reading.encode([f' {word}' for word in batch]))
  ]
  order = sorted(range(len(apart)), key=lambda i: (-pieces[i], -found[apart[i]], apart[i]))
  return Result(
    reading,
    tokens,
    size,
    found.total(),
    unknown / max(sum(n * _characters(word) for word, n in found.items()), 1),
    [(apart[i], pieces[i]) for i in order[:_HARDEST] if pieces[i] > 1],
    _pieces(reading, _sample_line(lines)),
  )


def _characters(text):
  return len(text) - sum(c.isspace() for c in text)


def _sample_line(lines):
  line = next((line for line in lines if len(line.strip()) >= _SAMPLE // 4), lines[0]).strip()
  if len(line) <= _SAMPLE:
    return line
  blank = line.rfind(' ', _SAMPLE // 2, _SAMPLE)
  return line[: blank if blank > 0 else _SAMPLE]


def _pieces(reading, line):
  ((ids, starts, ends),) = reading.encode([line])
  out, at = [], -1
  for i, start, end in zip(ids.tolist(), starts.tolist(), ends.tolist()):
    text = line[start:end].replace(' ', '▁')
    out.append((text or '▁' if start >= at else '·', i == reading.unknown))
    at = max(at, end)
  return out


def _batches(items, size):
  return (items[i : i + size] for i in range(0, len(items), size))
