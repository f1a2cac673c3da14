import bz2
import gzip
import io
import os
import pickle
import tarfile

import numpy as np
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.text import binaries
from bertzoo_jax.text import finding
from bertzoo_jax.text import formats
from bertzoo_jax.text import records
from tests.text import made

TEXT = b'One paragraph of text.\n\nAnother one, long enough to be read as text by anyone.\n' * 9


def _tar():
  out = io.BytesIO()
  with tarfile.open(fileobj=out, mode='w') as t:
    member = tarfile.TarInfo('../only.txt')
    member.size = len(TEXT)
    t.addfile(member, io.BytesIO(TEXT))
  return out.getvalue()


UNPACK = r'a tar archive, no text: unpack it \(tar -xf'
FILES = [
  (b'PK\3\4' + bytes(99), r'a zip archive .*: unpack it \(unzip .*name the files that were in it'),
  (_tar(), UNPACK),
  (gzip.compress(_tar()), UNPACK),
  (gzip.compress(b'PK\3\4' + bytes(99)), 'a zip archive'),
  (b'\x7fELF\2\1\1' + bytes(999), r'a program \(ELF\)'),
  (b'SQLite format 3\0' + bytes(99), 'an SQLite database'),
  (b'\x89PNG\r\n\x1a\n' + bytes(99), r'a picture \(PNG\)'),
  (b'%PDF-1.4\n1 0 obj << /Type /Catalog >> endobj\n%%EOF', 'a PDF'),
  (b'\x93NUMPY\1\0v\0{}', 'a NumPy array'),
  (gzip.compress(b'PAR1' + bytes(99)), 'a parquet file in a packed one'),
  (pickle.dumps(np.arange(999)), 'a binary file .*control characters'),
  (os.urandom(4000), 'a binary file .*control characters'),
  (TEXT.decode().encode('utf-16-le'), 'a binary file .*convert it to UTF-8'),
]


def test_binary_files_are_refused_whatever_their_names(tmp_path):
  for data, words in FILES:
    file = made.write(tmp_path / 'corpus.txt', data)
    with pytest.raises(errors.UserError, match=f'corpus.txt is {words}'):
      finding.find(str(file))


POINTER = b'version https://git-lfs.github.com/spec/v1\noid sha256:ab12\nsize 146946961\n'
WARC = 'WARC/1.0\r\nWARC-Type: conversion\r\n\r\nSome text.\r\n'
ROWS = [('id', 'user', 'text'), (76, 'u812', 'Good, and cheap.'), *[(7, 'u1', 'Bad.')] * 6]


def _rows(mark, quote='"'):
  cells = lambda row: (f'{quote}{c}{quote}' if mark in str(c) else str(c) for c in row)
  return '\n'.join(mark.join(cells(row)) for row in ROWS) + '\n'


NO_TEXT = [
  ('a.txt', POINTER, r'a Git LFS pointer, no text: .*\(git lfs pull\)'),
  ('a.parquet', POINTER, 'a Git LFS pointer'),
  ('a.jsonl', b'\xef\xbb\xbf' + POINTER, 'a Git LFS pointer'),
  ('a.txt', '../../.git/annex/objects/Wx/2/SHA256E-s3--ab.txt', 'a git-annex pointer'),
  ('a.txt', 'outs:\n- md5: ab12\n  size: 3\n', r'a DVC pointer.*\(dvc pull\)'),
  ('a.jsonl', 'Entry not found', "a server's refusal, no text: download it again"),
  ('a.csv', _rows(','), 'a table, no running text: write its column of text as JSON lines'),
  ('a.csv.gz', gzip.compress(b'text\nOne column.\n'), 'a table'),
  ('a.tsv', 'One line.\n', 'a table'),
  ('a.txt', _rows(','), 'a table'),
  ('a.txt', _rows('\t'), 'a table'),
  ('a.txt', '# text = Door\nDoor\tNN\nspoke\tVB\n\nAnd\tCC\nof\tIN\tx\n', 'a table'),  # of tags
  ('a', _rows(';'), 'a table'),
  ('a', _rows('|') * 200, 'a table'),
  ('a.html', '<!DOCTYPE html>\n<html><body>Text.', r'a web page \(HTML\), no text: extract its'),
  ('a.txt', '\n<!-- made -->\n<HTML lang="en">', 'a web page'),
  ('a.gz', '<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x">', 'a web page'),
  ('a.txt', '<p class="x">Text.</p>\n', 'a web page'),
  ('a.ipynb', '{\n "cells": [],\n', 'one JSON object over several lines'),
  ('a.xml', '<?xml version="1.0"?>\n<tei>text</tei>', 'XML, but no MediaWiki dump'),
  ('a.srt', '1\n00:00:01,000 --> 00:00:02,500\nGood day.\n', 'a file of subtitles'),
  ('a.txt', '\ufeff1\n00:00:01,000 --> 00:00:02,500\nGood day.\n', 'a file of subtitles'),
  ('a.txt', 'WEBVTT\n\n00:01.000 --> 00:02.500\nGood day.\n', 'a file of subtitles'),
  ('a.yaml', 'title: Good day\nlines: 3\n', 'a .yaml file, .*extract its text first, or name it'),
  ('a.tex', '\\section{One} Text.\n', 'a .tex file, whose marks are no text'),
  ('a.bib.gz', gzip.compress(b'@book{a, title={One}}\n'), 'a .bib file'),
  ('a.wet', WARC, r'a web archive \(WARC, WET or ARC\), no text: write the text of its records'),
  ('a.wet.gz', gzip.compress(WARC.encode()), 'a web archive'),
  ('a.txt', 'filedesc://a.arc 0.0.0.0 2008 text/plain 75\n', 'a web archive'),
  ('a.parquet', 'text', 'not what its name says: download it again, or rename it'),
  ('a.txt.gz', 'text', 'not what its name says'),
  ('a.txt.zst', 'text', 'not what its name says'),
]


def test_files_without_text_are_refused_before_anything_is_read(tmp_path):
  for name, data, words in NO_TEXT:
    file = made.write(tmp_path / name, data)
    with pytest.raises(errors.UserError, match=f'{name} is {words}') as e:
      finding.find(str(file))
    assert '\n' not in str(e.value)
    with pytest.raises(errors.UserError, match=f'{name} is {words}'), file.open('rb') as raw:
      list(formats.paragraphs(formats.File(str(file)), raw, '', records.Wanted('text', ())))


def test_the_last_of_many_files_is_looked_at_before_the_first_is_read(tmp_path):
  for i in range(3):
    made.write(tmp_path / f'{i}.txt', TEXT)
  made.write(tmp_path / '3.txt', bz2.compress(_tar()))
  with pytest.raises(errors.UserError, match='3.txt is a tar archive'):
    finding.find(f'{tmp_path}/*.txt')


ODD = [
  b'',
  b'\xff\xff\n\n\0\n',
  TEXT + b'\0',
  b'ORC and MZ are words, too: GIF8 is one, and so is Obj. ' * 3,
  b'ORC\n',
  b'MZ stands at the beginning.',
  '\ufeff漢字\x0c\x1b[1m'.encode(),
  TEXT.decode().encode('utf-16'),
  b'Roses are red, violets are blue\n' * 9,
  b'Yes,no\nPerhaps, perhaps, perhaps,\nNo,yes\nMaybe\n',
  b'\tindented\n\ttext\n\tof four\n\tlines\n',
  b'Entry not found in this dictionary.',
  b'The first lines of a page are <html> and <head>.',
  b'title: Good day\n\n1\nWEBVTT has lines such as 00:00:01,000 --> 00:00:02,500.\n',
]


def test_odd_text_is_read_and_what_is_wrong_in_it_is_counted_not_refused(tmp_path):
  for data in ODD:
    made.read(made.write(tmp_path / 'a', data))
  # Markdown, and a text of a task, may begin with markup
  text = '<!-- x -->\n<p align="center">A name.</p>\n'
  binaries.refuse(text.encode(), 'train.tsv')
  assert made.read(made.write(tmp_path / 'README.md', text)) == ([text.splitlines()], {})
