import bz2
import gzip
import json
import lzma
import os

import pytest
import zstandard

from tests.text import made

PACKERS = [gzip.compress, bz2.compress, lzma.compress]
PACKERS += [zstandard.ZstdCompressor(write_checksum=True).compress]

NO_DATA = b'\x5a\x2a\x4d\x18\x04\0\0\0what'  # a frame of zstandard


@pytest.mark.parametrize(
  'pack', [*(gzip.compress, bz2.compress, lzma.compress), lambda x: NO_DATA + zstandard.compress(x)]
)
def test_packed_files_are_known_by_content_not_by_name(tmp_path, pack):
  file = made.write(tmp_path / 'a', pack(b'one\n\ntwo'))
  assert made.read(file) == ([['one'], ['two']], {})


@pytest.mark.parametrize('pack', PACKERS)
def test_a_damaged_packed_file_gives_what_it_holds_and_is_counted(tmp_path, pack):
  data, second = pack(b'one\n\n' + os.urandom(600_000).hex().encode() + b'\n\n'), pack(b'end')
  half = len(data) // 2
  flipped = data[:half] + bytes([data[half] ^ 255]) + data[half + 1 :]
  for damaged, whole in (
    (data[:-20], True),
    (data[:12], False),
    (flipped, pack is gzip.compress),
    (data + b'rubbish behind', True),
    (data + b'x' + second[1:], True),
    (data + second[:-3], True),
  ):
    documents, dropped = made.read(made.write(tmp_path / 'a', damaged))
    assert len(dropped) == 1 and 'rest of a damaged packed file' in list(dropped)[0]
    assert len(documents) <= 3 and (documents[:1] == [['one']] or not whole)


@pytest.mark.parametrize('pack', PACKERS)
def test_packed_files_may_be_joined(tmp_path, pack):
  data = pack(b'one\r') + pack(b'\n\r\ntwo') + pack(b'')
  for end in (b'', b'\0' * 8):  # padding
    assert made.read(made.write(tmp_path / 'a', data + end)) == ([['one'], ['two']], {})


@pytest.mark.parametrize(
  'open_packed',
  [
    lambda name: gzip.open(name, 'wb', 1),
    pytest.param(lambda name: zstandard.open(name, 'wb'), marks=pytest.mark.slow),
  ],
)
def test_a_gigabyte_in_one_line_is_read_in_bounded_memory(tmp_path, open_packed):
  with open_packed(tmp_path / 'a.txt') as f:
    for data in (b'before\n', *[b'a' * (1 << 24)] * 64, b'\nafter'):
      f.write(data)
  characters, dropped, peak = made.peak(tmp_path / 'a.txt')
  assert characters == len('beforeafter') and [x['bytes'] for x in dropped.values()] == [1 << 30]
  assert peak < 300, f'{peak} MB of memory for a line of 1 GiB'


@pytest.mark.parametrize('kind', ['txt', 'zst', 'jsonl', 'parquet', 'xml'])
def test_ten_times_the_text_takes_the_same_memory(tmp_path, kind):
  documents = ['\n'.join(os.urandom(100).hex() for _ in range(20)) for _ in range(1500)]  # 6 MB
  form = dict(
    jsonl=lambda d: json.dumps(dict(text=d)) + '\n',
    xml=lambda d: f'<page><ns>0</ns><revision><text>{d}</text></revision></page>',
  )
  peaks = []
  for times in (1, 10):
    file = tmp_path / f'{times}.{kind}'
    if kind == 'parquet':  # one row group
      rows = [dict(text=d) for d in documents] * times
      made.write_rows(file, kind, rows, compression='none', use_dictionary=False)
    else:
      text = ''.join(map(form.get(kind, lambda d: d + '\n\n'), documents * times))
      text = f'<mediawiki>{text}</mediawiki>' if kind == 'xml' else text
      made.write(file, zstandard.compress(text.encode()) if kind == 'zst' else text)
    characters, dropped, peak = made.peak(file)
    assert (characters, dropped) == (6_000_000 * times, {})
    peaks.append(peak)
  assert peaks[1] < peaks[0] + 40, f'{peaks} MB'
