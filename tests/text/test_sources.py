"""Sources: dropped text and memory."""

import json
import os

import pytest
import zstandard

from tests.text import made


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
