"""Files that hold no text are refused by their content, whatever their name, before anything is
read.
"""

import gzip
import io
import os
import pickle
import sqlite3
import struct
import sys
import tarfile
import zipfile
import zlib

import numpy as np
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.text import finding
from bertzoo_jax.text import sources

TEXT = b'One paragraph of text.\n\nAnother one, long enough to be read as text by anyone.\n' * 9


def _zip():
  out = io.BytesIO()
  with zipfile.ZipFile(out, 'w') as z:
    z.writestr('only.txt', TEXT)
  return out.getvalue()


def _tar():
  out = io.BytesIO()
  with tarfile.open(fileobj=out, mode='w') as t:
    member = tarfile.TarInfo('../only.txt')
    member.size = len(TEXT)
    t.addfile(member, io.BytesIO(TEXT))
  return out.getvalue()


def _sqlite():
  with sqlite3.connect(':memory:') as base:
    base.execute('create table texts (text)')
    return base.serialize()


def _png():
  chunk = lambda kind, data: (
    struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
  )
  header = struct.pack('>IIBBBBB', 1, 1, 8, 0, 0, 0, 0)
  body = chunk(b'IHDR', header) + chunk(b'IDAT', zlib.compress(b'\0\0')) + chunk(b'IEND', b'')
  return b'\x89PNG\r\n\x1a\n' + body


def _npy():
  out = io.BytesIO()
  np.save(out, np.arange(100))
  return out.getvalue()


FILES = {
  'zip': (_zip, r'a zip archive .*: unpack it \(unzip .*name the files that were in it'),
  'tar': (_tar, r'a tar archive, no text: unpack it \(tar -xf'),
  'packed tar': (lambda: gzip.compress(_tar()), r'a tar archive, no text: unpack it \(tar -xf'),
  'packed zip': (lambda: gzip.compress(_zip()), 'a zip archive'),
  'program': (lambda: open(sys.executable, 'rb').read(100_000), r'a program \(ELF\)'),
  'sqlite': (_sqlite, 'an SQLite database'),
  'png': (_png, r'a picture \(PNG\)'),
  'pdf': (lambda: b'%PDF-1.4\n1 0 obj << /Type /Catalog >> endobj\n%%EOF', 'a PDF'),
  'npy': (_npy, 'a NumPy array'),
  'packed parquet': (lambda: gzip.compress(b'PAR1' + bytes(99)), 'a parquet file in a packed one'),
  'pickle': (lambda: pickle.dumps(np.arange(999)), 'a binary file .*control characters'),
  'noise': (lambda: os.urandom(4000), 'a binary file .*control characters'),
  'utf-16 without a mark': (lambda: TEXT.decode().encode('utf-16-le'), 'convert it to UTF-8'),
}


@pytest.mark.parametrize('kind', FILES)
def test_what_is_no_text_is_refused_whatever_its_name(tmp_path, kind):
  make, words = FILES[kind]
  file = tmp_path / 'corpus.txt'
  file.write_bytes(make())
  with pytest.raises(
    errors.UserError, match=f'corpus.txt is {words}' if words[0] == 'a' else words
  ):
    list(sources.Reader([finding.find(str(file))]).documents())


def test_the_last_of_many_files_is_looked_at_before_the_first_is_read(tmp_path):
  for i in range(3):
    (tmp_path / f'{i}.txt').write_bytes(TEXT)
  (tmp_path / '3.txt').write_bytes(_zip())
  with pytest.raises(errors.UserError, match='3.txt is a zip archive'):
    finding.find(f'{tmp_path}/*.txt')


@pytest.mark.parametrize(
  'data',
  [
    b'',
    b'\xff\xff\n\n\0\n',
    TEXT + b'\0',
    b'ORC and MZ are words, too: GIF8 is one, and so is Obj. ' * 3,
    b'ORC\n',
    b'MZ stands at the beginning.',
    '\ufeff漢字\x0c\x1b[1m'.encode(),
    TEXT.decode().encode('utf-16'),
  ],
)
def test_odd_text_is_read_and_what_is_wrong_in_it_is_counted_not_refused(tmp_path, data):
  (tmp_path / 'a').write_bytes(data)
  list(sources.Reader([finding.find(str(tmp_path / 'a'))]).documents())
