"""Figures that a change of the house must leave as they are: python bench/golden.py record|compare
FILE [part …]

Parts:

    configs   the resolved config, as JSON, of every config × size, table × scale, and task
    help      --help of every command
    systems   of every tiny system: the corpus, two batches, ten losses and the export;
              systems:bert,xlnet for some of them

All but the configs goes by the command line, so that the script knows little of the code. `record`
writes hashes, and losses as they are; `compare` makes them anew and names what differs.
Losses are bitwise on one machine only: record and compare on the same.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
SAMPLE = {
  'en': [f'data/sample/{name}.txt' for name in ('federalist', 'sherlock', 'time_machine')],
  'zh': [f'data/sample/{name}.txt' for name in ('zh_laws', 'zh_tang')],
}
SYSTEMS = {
  **dict.fromkeys(('bert', 'roberta', 'albert', 'electra', 'deberta', 'deberta_v2'), 'en'),
  **dict.fromkeys(('deberta_v3', 'spanbert', 'xlnet'), 'en'),
  **dict.fromkeys(('bert_wwm', 'ernie', 'macbert'), 'zh'),
}
COMMANDS = ('convert', 'encode', 'evaluate', 'export', 'finetune', 'fill_mask')
COMMANDS += ('preflight', 'prepare', 'pretrain', 'reproduce', 'show')

# Prints {config file:argument: its JSON}, for the arguments that each file names.
CONFIGS = """
import json, pathlib, runpy
from bertzoo_jax.common import config
found = {}
for path in sorted(pathlib.Path('configs').rglob('*.py')):
  if 'def get_config' not in path.read_text(encoding='utf-8') or path.name == 'parts.py':
    continue
  made = runpy.run_path(str(path))
  names = [*made.get('SIZES', ()), *made.get('TASKS', ())]
  names += ['all'] * (path.name == 'glue.py') + ['tiny', 'paper'] * ('tables' in path.parts)
  for name in names:
    found[f'{path}:{name}'] = json.loads(config.to_json(made['get_config'](name)))
print(json.dumps(found))
"""


def main():
  action, file, *parts = sys.argv[1:]
  made = {}
  for part in parts or ('configs', 'help', 'systems'):
    name, _, only = part.partition(':')
    made[name] = globals()[name](*[only.split(',')] * bool(only))
  path = pathlib.Path(file)
  known = json.loads(path.read_text()) if path.exists() else {}
  if action == 'record':
    path.write_text(json.dumps({**known, **made}, indent=1, sort_keys=True) + '\n')
    return
  different = [
    f'{part} {key}: {known[part].get(key)} → {made[part].get(key)}'
    for part in made
    for key in sorted({*made[part], *(known[part] if part in parts or not parts else ())})
    if known[part].get(key) != made[part].get(key)
  ]
  counts = ', '.join(f'{len(found)} of {part}' for part, found in made.items())
  print(*different, f'{counts}: {len(different)} differ', sep='\n')
  sys.exit(bool(different))


def configs():
  return {key: digest(json.dumps(value)) for key, value in json.loads(run('-c', CONFIGS)).items()}


def help():
  return {name: digest(run('-m', f'bertzoo_jax.{name}', '--help')) for name in COMMANDS}


def systems(only=tuple(SYSTEMS)):
  found, kept = {}, ('*.safetensors', '*.json', '*.txt', '*.model')
  for system in only:
    with tempfile.TemporaryDirectory() as folder:
      at = lambda name: os.path.join(folder, name)
      command = lambda name, *flags: run('-m', f'bertzoo_jax.{name}', *flags)
      config = f'--config=configs/{system}.py:tiny'
      ten = (f'{config},steps=10', '--config.run.log_every=1')
      text = [f'--source={name}' for name in SAMPLE[SYSTEMS[system]]]
      command('prepare', config, *text, f'--out={at("corpus")}')
      corpus = f'--corpus={at("corpus")}'
      command('show', config, corpus, '--steps=0:2', f'--npz={at("rows.npz")}')
      command('pretrain', *ten, corpus, f'--workdir={at("run")}')
      command('export', f'--workdir={at("run")}', f'--out={at("hf")}')
      records = (json.loads(line) for line in open(at('run/metrics.jsonl')))
      found |= {
        f'{system} corpus': folder_digest(at('corpus'), ('*.npy',)),
        f'{system} batches': arrays_digest(at('rows.npz')),
        f'{system} losses': [r['loss'] for r in records if 'loss' in r],
        f'{system} export': folder_digest(at('hf'), kept),
      }
    print(system, file=sys.stderr, flush=True)
  return found


def digest(data) -> str:
  return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()[:16]


def folder_digest(folder, patterns) -> str:
  files = sorted(p for pattern in patterns for p in pathlib.Path(folder).rglob(pattern))
  assert files, folder
  return digest(b''.join(p.read_bytes() for p in files))


def arrays_digest(path) -> str:
  import numpy as np

  with np.load(path) as arrays:
    return digest(b''.join(name.encode() + arrays[name].tobytes() for name in sorted(arrays)))


def run(*arguments) -> str:
  environment = {
    **os.environ,
    'PYTHONPATH': str(ROOT),
    'JAX_PLATFORMS': 'cpu',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'OMP_NUM_THREADS': '1',
    'COLUMNS': '100',
  }
  command = (sys.executable, *arguments)
  found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
  if found.returncode:
    sys.exit(f'{" ".join(command)}: exit code {found.returncode}\n{found.stderr[-2000:]}')
  return found.stdout


if __name__ == '__main__':
  main()
