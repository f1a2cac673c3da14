"""The file that the SentencePiece library writes, read by its wire format.

The library's own Python classes for this file demand a protobuf runtime of their own version, which
TensorFlow's rarely is.
Source: the message ModelProto and the type numbers of its pieces (sentencepiece_model.proto of the
library).
"""

import struct
from typing import NamedTuple

from bertzoo_jax.common import errors

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
MODELS = {1: 'unigram', 2: 'bpe'}


class SpieceFile(NamedTuple):
  """pieces, scores, types by id; model: 'unigram' | 'bpe'; byte_fallback: whether bytes stand for
  unknown characters.

  charsmap: the compiled table of its normalization, or empty. dummy_prefix: whether a blank is put
  before every text; remove_blanks: whether blanks are collapsed. suffix_blanks: whether a blank
  belongs to the word before it (in no system here).
  """

  pieces: list[str]
  scores: list[float]
  types: list[int]
  model: str
  byte_fallback: bool
  suffix_blanks: bool
  charsmap: bytes
  dummy_prefix: bool
  remove_blanks: bool


def parse(data: bytes, name='the SentencePiece model') -> SpieceFile:
  """Parses the parts of a model file that segmentation depends on.

  data: the file. name: name of the file, for messages. Raises UserError: damaged, another file, or
  a model that is neither unigram nor bpe.
  """
  broken = f'{name} is not a SentencePiece model, or cut short: copy or download it again'
  with errors.unreadable(broken, struct.error):
    pieces, trainer, normalizer = [], {}, {}
    for number, value in _fields(data):
      if number == 1:
        fields = dict(_fields(value))
        score = struct.unpack('<f', fields[2])[0] if 2 in fields else 0.0
        pieces.append((fields[1].decode('utf-8'), score, fields.get(3, NORMAL)))
      elif number == 2:
        trainer = dict(_fields(value))
      elif number == 3:
        normalizer = dict(_fields(value))
    model = MODELS.get(trainer.get(3, 1))
    out = SpieceFile(
      *(list(column) for column in zip(*pieces, strict=True)),
      model=model,
      byte_fallback=bool(trainer.get(35, 0)),
      suffix_blanks=bool(trainer.get(24, 0)),
      charsmap=normalizer.get(2, b''),
      dummy_prefix=bool(normalizer.get(3, 1)),
      remove_blanks=bool(normalizer.get(4, 1)),
    )
  if model is None:
    raise errors.UserError(
      f"{name} is neither a unigram nor a bpe model (SentencePiece's types word and char have no "
      'place here): take another.'
    )
  return out


def with_pieces(data: bytes, rows: list[tuple[str, float, int]]) -> bytes:
  """The file with further pieces (piece, score, type) at its end. Concatenated protobuf messages
  are one message, so the rest of the file stays as it is.
  """
  out = [data]
  for piece, score, kind in rows:
    text = piece.encode()
    row = b'\x0a' + _as_varint(len(text)) + text + b'\x15' + struct.pack('<f', score)
    row += b'\x18' + _as_varint(kind)
    out.append(b'\x0a' + _as_varint(len(row)) + row)
  return b''.join(out)


def _as_varint(number) -> bytes:
  out = bytearray()
  while number > 127:
    out.append(number & 127 | 128)
    number >>= 7
  return bytes([*out, number])


def _fields(data):
  """(number, value) of each field of a message: int for varints, bytes for the rest."""
  at = 0
  while at < len(data):
    key, at = _varint(data, at)
    number, wire = key >> 3, key & 7
    if wire == 0:
      value, at = _varint(data, at)
    else:
      size = {1: 8, 5: 4}.get(wire)
      if wire == 2:
        size, at = _varint(data, at)
      if size is None or at + size > len(data):
        raise ValueError('cut short')
      value, at = bytes(data[at : at + size]), at + size
    yield number, value


def _varint(data, at):
  value = shift = 0
  while True:
    byte = data[at]
    value |= (byte & 127) << shift
    at, shift = at + 1, shift + 7
    if byte < 128:
      return value, at
