"""Sources: weights, dropped text and memory."""

import json
import os
import subprocess
import sys

import pytest
import zstandard

from bertzoo_jax.text import finding
from bertzoo_jax.text import sources
from tests.text import made


def test_documents_come_as_often_as_the_weight_says_a_reading_apart(tmp_path):
  file = made.write(tmp_path / 'a.txt', '\n\n'.join(map(str, range(1000))))
  reader = sources.Reader([finding.find(f'2.25*{file}')])
  copies = [(document[0], reader.copy) for document in reader.documents()]
  first = [d for d, copy in copies if copy == 0]
  assert first == [d for d, copy in copies if copy == 1] == list(map(str, range(1000)))
  assert 200 < len(copies) - 2000 < 300 and {copy for _, copy in copies} == {0, 1, 2}
  assert copies == sorted(copies, key=lambda c: (c[1], int(c[0])))
  assert reader.bytes_read == finding.find(f'2.25*{file}').bytes == 3 * file.stat().st_size
  assert not reader.dropped.reasons


def test_which_documents_a_fraction_takes_depends_on_their_text_alone(tmp_path):
  numbers = list(map(str, range(1000)))
  taken = [
    d[0]
    for d in made.read(
      f'0.25*{made.write(tmp_path / "a.txt", chr(10).join(n + chr(10) for n in numbers))}'
    )[0]
  ]
  rows = made.write(
    tmp_path / 'b.jsonl', '\n'.join(json.dumps(dict(text=n)) for n in reversed(numbers))
  )
  assert [d[0] for d in made.read(f'0.25*{rows}')[0]] == taken[::-1] and 200 < len(taken) < 300
  more = {d[0] for d in made.read(f'0.5*{rows}')[0]}
  assert set(taken) < more and {d[0] for d in made.read(f'1.5*{rows}')[0][1000:]} == more


def test_documents_left_out_by_a_weight_are_counted_and_dropped_ones_count_once(tmp_path):
  file = made.write(
    tmp_path / 'a.jsonl', '\n'.join(json.dumps(dict(text=str(n))) for n in range(100)) + '\nno json'
  )
  documents, dropped = made.read(f'0.5*{file}')
  assert (
    dropped
    == {'line that is not JSON': 1, 'document that weight 0.5 leaves out': 100 - len(documents)}
    and 30 < len(documents) < 70
  )
  assert made.read(f'3*{file}')[1] == {'line that is not JSON': 1}


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
