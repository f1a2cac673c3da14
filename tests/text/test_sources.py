"""Sources: dropped text and memory."""

import json
import os
import subprocess
import sys

import pytest
import zstandard

from tests.text import made

_PEAK = """if True:
  import re, sys
  from bertzoo_jax.text import finding, sources
  reader = sources.Reader([finding.find(sys.argv[1])])
  characters = sum(len(p) for document in reader.documents() for p in document)
  print(characters, dict(reader.dropped.reasons))
  print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)"""


@pytest.mark.parametrize('kind', ['txt', 'zst', 'jsonl', 'parquet', 'xml'])
def test_ten_times_the_text_takes_the_same_memory(tmp_path, kind):
  # 6 MB
  peaks = []
  documents = ['\n'.join(os.urandom(100).hex() for _ in range(20)) for _ in range(1500)]
  for times in (1, 10):
    file = tmp_path / f'{times}.{kind}'
    if kind == 'parquet':  # one row group
      made.write_rows(
        file,
        kind,
        [dict(text=d) for d in documents] * times,
        compression='none',
        use_dictionary=False,
      )
    else:
      form = dict(
        jsonl=lambda d: json.dumps(dict(text=d)) + '\n',
        xml=lambda d: f'<page><ns>0</ns><revision><text>{d}</text></revision></page>',
      )
      text = ''.join(map(form.get(kind, lambda d: d + '\n\n'), documents * times))
      made.write(
        file,
        zstandard.compress(text.encode())
        if kind == 'zst'
        else f'<mediawiki>{text}</mediawiki>'
        if kind == 'xml'
        else text,
      )
    out = subprocess.run(
      [sys.executable, '-c', _PEAK, str(file)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert out[0] == f'{6_000_000 * times} {{}}'
    peaks.append(int(out[1]))
  assert peaks[1] < peaks[0] + 40, f'{peaks} MB'
