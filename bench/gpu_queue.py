"""A queue of steps for a GPU that is there for minutes, without a network.

    python bench/gpu_queue.py pack FOLDER --corpus=CORPUS --pairs=PAIRS --ngrams=FILE
    python bench/gpu_queue.py run FOLDER OUT --minutes=9 [--device=cpu]
    python bench/gpu_queue.py bring OUT --run=seed0
    python bench/gpu_queue.py keep OUT
    python bench/gpu_queue.py left

`pack` (where a package index is) writes into FOLDER what a bare machine lacks: packages of pure
Python, the corpus, the pairs, the scores of the n-gram model. `run` (where the GPU is) takes the
steps below in their order, as many as fit the minutes, and writes what they measured into OUT. A
step that was cut resumes in the next `run` on the same machine, since its workdir lies in WORK.
`bring` writes the end of a trained run into OUT in bfloat16, for `--model hf:OUT` elsewhere.
`keep` copies the results of OUT to the pages' files, and the state of the queue to
bench/gpu_queue.json. `left` prints what is still to do. `--device=cpu` rehearses all steps with
tiny networks.

One run trains at a time: on an H200 one reads 0.66 M tokens/s, three beside one another 0.59 M.
Scores, exports and tests run beside it. Steps that time need the card alone: they wait until the
others have ended, compile beside one another, and take their turns.
"""

import argparse
import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
STATE = HERE / 'gpu_queue.json'
TABLE = HERE / 'gpu.csv'
BLIMP = HERE.parent / 'docs' / 'results' / 'blimp'
MACHINE = ('card', 'driver', 'jax', 'torch', 'transformers', 'date')
COLUMNS = ('step', 'side', 'median_ms', 'quartile_1_ms', 'quartile_3_ms', 'tokens_per_s', 'peak_MB')
WORK = pathlib.Path(os.environ.get('GPU_QUEUE_WORK', '/tmp/gpu_queue'))
RESULTS, FILE = WORK / 'results', 'queue.zip'
# Of pure Python, and not on machines that have jax, flax, optax, orbax, torch and transformers.
WHEELS = ('ml_collections', 'disentangled-flash==1.1.1')
FIELDS_OF_PAIRS = ('sentence_good', 'sentence_bad', 'UID', 'linguistics_term')
# Files that come back from the machine: at most 16 MiB each.
PART = 15 * 2**20
ENDING = 25  # seconds that a run gets to save

# The run of docs/results/blimp.md: 12 layers of 384, one row of sixteen read from left to right.
CONFIG = 'babylm.py:{},objective=causal_masked,format=token_blocks,optimizer=adamw,schedule=cosine'
FIELDS = """
batch_size=128 encoder.intermediate_size=1280 optimizer.weight_decay=0.1 optimizer.eps=1e-8
optimizer.clip_norm=2.0 schedule.learning_rate=5e-4 schedule.warmup=200
objective.causal_share=0.0625
phases=(({steps},{{}}),) moving=(('masking.rate',0.3,0.15,0,{steps},'linear'),)
epochs=0.0 run.tensorboard=False run.save_minutes=2.0 run.eval_every={every} run.keep_words={words}
""".split()
TINY_STEPS = 40
TINY = (
  'batch_size=8',
  'length=32',
  'schedule.warmup=5',
  'run.eval_every=20',
  'run.keep_words=500k..1M',
)


class Step(NamedTuple):
  """One step of the queue.

  Attributes:
    name: of its row in the state, and of its result in OUT.
    seconds: that it takes on the card. It is not started where less time is left.
    command: the arguments of Python; {folder}, {out} and {work} are put in.
    alone: whether it times something.
    after: a step that must be done before.
  """

  name: str
  seconds: int
  command: tuple
  alone: bool = False
  after: str = ''


def queue(device: str, folder: pathlib.Path) -> list[Step]:
  """The queue, in the order of worth."""
  tiny = device == 'cpu'
  return [*_runs(tiny, folder), _tests(device), *_timings(device, tiny)]


def _runs(tiny, folder):
  """Three seeds of the BLiMP run, and their scores."""
  total = TINY_STEPS if tiny else _about(folder)['steps']
  values = dict(steps=total, every=total // 20, words='1M' if tiny else '10M..100M')
  fields = [field.format(**values) for field in FIELDS] + list(TINY if tiny else ())
  fields += [f'run.dtype={"float32" if tiny else "bfloat16"}']
  config = f'configs/{CONFIG.format("tiny" if tiny else "strict_small")}'
  for seed in range(3):
    run = f'{{work}}/seed{seed}'
    train = ('-m', 'bertzoo_jax.pretrain', f'--config={config}', '--corpus={folder}/corpus')
    train += (f'--workdir={run}', f'--config.seed={seed}')
    yield Step(f'seed{seed}', 250, (*train, *(f'--config.{field}' for field in fields)))
  for seed in range(3):
    line = ('-m', 'bertzoo_jax.export', f'--workdir={{work}}/seed{seed}')
    yield Step(f'export{seed}', 25, (*line, f'--out={{work}}/seed{seed}-hf'), after=f'seed{seed}')
  for way in ('masked', 'left_to_right'):
    for seed in range(3):
      places = (f'{{work}}/seed{seed}', '{folder}/corpus', '{folder}/pairs', '{folder}/ngrams.json')
      of = () if way == 'masked' else ('--end_alone',)
      score = ('bench/blimp.py', *places, f'{{out}}/{way}-seed{seed}', f'--by={way}', *of)
      yield Step(f'score{seed}_{way}', 200 if way == 'masked' else 90, score, after=f'seed{seed}')


def _about(folder) -> dict:
  """What `pack` wrote down; nothing yet where the queue is only listed."""
  return json.loads((folder / 'about.json').read_text()) if folder else {'steps': 0}


def _tests(device):
  return Step('tests', 350, ('-m', 'pytest', '-q', '-x', 'tests/kernels/test_on_gpu.py'))


def _timings(device, tiny):
  """Steps of networks, and one layer's attention, beside compiled torch and disentangled-flash."""
  for name, system, length, rate in (
    ('deberta_v3_512', 'deberta_v3', 512, 0.1),
    ('bert_512_dropout', 'bert', 512, 0.1),
    ('bert_512', 'bert', 512, 0.0),
    ('modernbert_1024', 'modernbert', 1024, 0.0),
    ('deberta_v3_1024', 'deberta_v3', 1024, 0.1),
    ('deberta_v3_4096', 'deberta_v3', 4096, 0.1),
  ):
    step = (f'--system={system}', f'--attention_dropout={rate}', f'--device={device}')
    step += ('--lock={work}/lock', f'--json={{out}}/{name}.json', '--limit=150', '--turns=3')
    sizes = ('32', '64', '1') if tiny else (f'{length}', f'{16_384 // length}', '10')
    step += tuple(map('{}={}'.format, ('--length', '--batch', '--steps'), sizes))
    more = ('--model=tiny',) if tiny else ('--dtype=bfloat16', '--compile')
    yield Step(name, 100, ('bench/step.py', *step, *more), alone=True)
  for length in (512, 1024, 8192):
    sizes = (
      ('--tokens=512', f'--length={length // 16}', '--steps=1') if tiny else (f'--length={length}',)
    )
    command = ('bench/gpu_attention.py', *sizes, f'--device={device}', '--lock={work}/lock')
    command += (f'--json={{out}}/layer_{length}.json',)
    yield Step(f'layer_{length}', 40, command, alone=True)
  sizes = ('--steps=16', '--turns=1') if tiny else ()
  command = ('bench/steps_per_call.py', *sizes, f'--device={device}', '--lock={work}/lock')
  name = 'steps_per_call'
  yield Step(name, 150, (*command, f'--json={{out}}/{name}.json'), alone=True)


# --- run ---


def run(folder, out, minutes, device, jobs, only):
  """Runs what fits the minutes. Prints a line per step, and what is left."""
  folder, out = folder.resolve(), out.resolve()
  end, state = time.monotonic() + 60 * minutes - ENDING, _state()
  for place in (out, RESULTS):
    place.mkdir(parents=True, exist_ok=True)
  if (RESULTS / 'state.json').exists():  # of a command before, on the same machine
    state |= json.loads((RESULTS / 'state.json').read_text())
  machine = _machine(device)
  print(' · '.join(f'{k} {v}' for k, v in machine.items()), flush=True)
  waiting = [s for s in queue(device, folder) if state.get(s.name, {}).get('state') != 'done']
  waiting = [s for s in waiting if not only or s.name in only.split(',')]
  running, ended = {}, set()  # steps that run, and steps that got SIGTERM
  while running or waiting:
    left = end - time.monotonic()
    for step, (process, began) in list(running.items()):
      code = process.poll()
      if code is None and left > -ENDING:
        if left < 0 and step not in ended:
          os.killpg(process.pid, signal.SIGTERM)
          ended.add(step)
        continue
      if code is None:
        os.killpg(process.pid, signal.SIGKILL)
      del running[step]
      seconds = round(time.monotonic() - began, 1)
      did = 'cut' if step in ended else 'done' if code == 0 else f'failed ({code})'
      state[step.name] = dict(state=did, seconds=seconds, **machine)
      print(f'{step.name}: {did} after {seconds} s', flush=True)
      if did.startswith('failed'):
        print(_tail(WORK / f'{step.name}.log'), flush=True)
      _keep_state(state, out)
    for step in list(waiting):
      if left < step.seconds:
        waiting.remove(step)
        continue
      if step.after in [other.name for other in (*running, *waiting)]:
        continue
      if step.after and not _is_here(step.after, state):
        waiting.remove(step)
      elif _may_start(step, running, waiting, jobs):
        waiting.remove(step)
        running[step] = _started(step, folder, device), time.monotonic()
    time.sleep(0.5)
  _keep_state(state, out)
  left_over(device, folder, state)


def _is_here(name, state) -> bool:
  """Whether a run is done, and on this machine."""
  return state.get(name, {}).get('state') == 'done' and (WORK / name).exists()


def _may_start(step, running, waiting, jobs) -> bool:
  """Whether the card is free for a step: timed ones are alone with their like, one run trains."""
  alone = [other.alone for other in running]
  if step.alone:
    return all(alone) and len(alone) < jobs and all(other.alone for other in waiting)
  trains = step.name.startswith('seed') and any(other.name.startswith('seed') for other in running)
  return not any(alone) and not trains


def _started(step, folder, device):
  """The process of a step; its output goes to a file of WORK."""
  put = lambda text: (
    text.replace('{folder}', str(folder))
    .replace('{out}', str(RESULTS))
    .replace('{work}', str(WORK))
  )
  environment = {
    **_environment(folder),
    'JAX_PLATFORMS': 'cpu' if device == 'cpu' or step.name.startswith('export') else 'cuda,cpu',
    'JAX_COMPILATION_CACHE_DIR': str(WORK / 'jax'),
    'TORCHINDUCTOR_CACHE_DIR': str(WORK / 'inductor'),
    'TORCHINDUCTOR_COMPILE_THREADS': '4',
  }
  # Scores share the card with a run. All but the run takes memory as it needs it.
  if step.name.startswith('seed'):
    environment['XLA_PYTHON_CLIENT_MEM_FRACTION'] = '0.5'
  else:
    environment['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  if step.name.startswith('score'):  # its many programs are small
    environment['XLA_FLAGS'] = '--xla_gpu_autotune_level=0'
  if step.name == 'tests':  # else tests/conftest.py lets XLA compile quickly and badly
    environment['XLA_FLAGS'] = (
      '--xla_backend_optimization_level=3 --xla_force_host_platform_device_count=1 '
      '--xla_cpu_parallel_codegen_split_count=32'
    )
  print(f'{step.name}: starts', flush=True)
  with open(WORK / f'{step.name}.log', 'ab') as log:
    return subprocess.Popen(
      [sys.executable, *map(put, step.command)],
      cwd=HERE.parent,
      env=environment,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      process_group=0,
    )


def _environment(folder) -> dict:
  site = os.pathsep.join([str(HERE.parent), str((folder / 'site').resolve())])
  return {**os.environ, 'PYTHONPATH': site, 'HF_HUB_OFFLINE': '1', 'PYTHONUNBUFFERED': '1'}


def _machine(device) -> dict:
  """Card, driver and versions."""
  from importlib import metadata

  query = ['nvidia-smi', '--query-gpu=name,driver_version', '--format=csv,noheader']
  card = driver = 'none'
  if device == 'gpu':
    card, driver = subprocess.check_output(query, text=True).splitlines()[0].split(', ')
  versions = {name: metadata.version(name) for name in ('jax', 'torch', 'transformers')}
  today = datetime.date.today().isoformat()
  return dict(card=card, driver=driver, **versions, date=today)


def _state() -> dict:
  return json.loads(STATE.read_text()) if STATE.exists() else {}


def _keep_state(state, out):
  """Writes the state, and all results and logs so far as one file: few files come back."""
  (RESULTS / 'state.json').write_text(json.dumps(state, indent=1) + '\n')
  with zipfile.ZipFile(out / FILE, 'w', zipfile.ZIP_DEFLATED) as z:
    for file in RESULTS.rglob('*'):
      z.write(file, file.relative_to(RESULTS))
    for file in [*WORK.glob('*.log'), *WORK.glob('seed*/metrics.jsonl')]:
      z.write(file, file.relative_to(WORK))


def _tail(path) -> str:
  return path.read_text(errors='replace')[-3000:] if path.exists() else ''


def left_over(device, folder, state):
  """Prints the steps that are not done, and their seconds."""
  rest = [s for s in queue(device, folder) if state.get(s.name, {}).get('state') != 'done']
  print(f'left: {sum(s.seconds for s in rest):,} s' if rest else 'left: nothing')
  for step in rest:
    print(f'  {step.name}: {state.get(step.name, {}).get("state", "waits")}, {step.seconds} s')


# --- around it ---


def pack(folder, corpus, pairs, ngrams, passes):
  """Writes into FOLDER what the machine needs. See the text at the top."""
  folder.mkdir(parents=True, exist_ok=True)
  wheels = folder / 'wheels'
  get = [sys.executable, '-m', 'pip', 'download', '-q', '--no-deps', '--only-binary=:all:']
  subprocess.run([*get, '-d', str(wheels), *WHEELS], check=True)
  for wheel in wheels.iterdir():
    with zipfile.ZipFile(wheel) as z:
      z.extractall(folder / 'site')
  shutil.rmtree(wheels)
  for name in ('corpus', 'pairs'):
    shutil.rmtree(folder / name, ignore_errors=True)
  shutil.copytree(corpus, folder / 'corpus')
  (folder / 'pairs').mkdir()
  for file in sorted(pathlib.Path(pairs).glob('*.jsonl')):  # without the fields that nothing reads
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [json.dumps({k: row[k] for k in FIELDS_OF_PAIRS if k in row}) for row in rows]
    (folder / 'pairs' / file.name).write_text('\n'.join(rows) + '\n')
  shutil.copyfile(ngrams, folder / 'ngrams.json')
  manifest = json.loads((folder / 'corpus' / 'manifest.json').read_text())
  tokens = manifest['splits']['train']['tokens']
  # Blocks of 128 places, of which two are special; 128 rows per step.
  about = dict(
    steps=int(passes * tokens / 126 / 128), tokens=tokens, words=manifest['words']['train']
  )
  (folder / 'about.json').write_text(json.dumps(about) + '\n')
  size = sum(p.stat().st_size for p in folder.rglob('*') if p.is_file())
  print(f'{folder}: {size / 2**20:.1f} MiB, {about}')


def bring(out, run_):
  """Writes the Hugging Face directory of a run of WORK into OUT: in bfloat16, in files that come
  back. Run it alone: what comes back is limited, too.
  """
  import ml_dtypes
  import safetensors.numpy

  export = WORK / f'{run_}-hf'
  out.mkdir(parents=True, exist_ok=True)
  files = [{}]
  for name, x in sorted(safetensors.numpy.load_file(export / 'model.safetensors').items()):
    x = x.astype(ml_dtypes.bfloat16)
    if files[-1] and sum(y.nbytes for y in files[-1].values()) + x.nbytes > PART:
      files.append({})
    files[-1][name] = x
  where = {}
  for number, tensors in enumerate(files, 1):
    file = f'model-{number:05d}-of-{len(files):05d}.safetensors'
    safetensors.numpy.save_file(tensors, out / file, {'format': 'pt'})
    where |= dict.fromkeys(tensors, file)
  # No more files come back than eight, so the small ones are one.
  index = json.dumps(dict(metadata={}, weight_map=where))
  with zipfile.ZipFile(out / 'rest.zip', 'w', zipfile.ZIP_DEFLATED) as z:
    z.writestr('model.safetensors.index.json', index)
    for file in export.iterdir():
      if file.suffix in ('.json', '.txt') and 'index' not in file.name:
        z.write(file, file.name)


def keep(out):
  """Copies results to the files of the pages."""
  with zipfile.ZipFile(out / FILE) as z, tempfile.TemporaryDirectory() as place:
    z.extractall(place)
    _keep(pathlib.Path(place))


def _keep(out):
  STATE.write_text((out / 'state.json').read_text())
  state = json.loads(STATE.read_text())
  rows = TABLE.read_text().splitlines() if TABLE.exists() else []
  for file in sorted(out.glob('*.json')):
    if file.stem in state and state[file.stem]['state'] == 'done':
      rows = [row for row in rows[1:] if not row.startswith(f'{file.stem},')]
      about = state[file.stem]
      for side, x in json.loads(file.read_text()).items():
        row = (file.stem, side, *x.values(), *(about[k] for k in MACHINE))
        rows.append(','.join(map(str, row)))
      rows = [','.join((*COLUMNS, *MACHINE)), *sorted(rows)]
  if rows:
    TABLE.write_text('\n'.join(rows) + '\n')
  for way in ('masked', 'left_to_right'):
    merged = BLIMP / f'causal_masked_{way}.json'
    found = json.loads(merged.read_text()) if merged.exists() else {'runs': {}}
    for scores in sorted(out.glob(f'{way}-seed*/scores.json')):
      some = json.loads(scores.read_text())
      found |= {k: v for k, v in some.items() if k != 'runs'}
      found['runs'] |= some['runs']
    if found['runs']:
      merged.write_text(json.dumps(found, indent=1) + '\n')


def main():
  p = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  commands = p.add_subparsers(dest='command', required=True)
  of = {name: commands.add_parser(name) for name in ('pack', 'run', 'bring', 'keep', 'left')}
  for name in ('pack', 'run'):
    of[name].add_argument('folder', type=pathlib.Path)
  for name in ('run', 'bring', 'keep'):
    of[name].add_argument('out', type=pathlib.Path)
  for name in ('corpus', 'pairs', 'ngrams'):
    of['pack'].add_argument(f'--{name}', required=True)
  of['pack'].add_argument('--passes', type=float, default=9.99, help='over the corpus')
  of['run'].add_argument('--minutes', type=float, default=9.0)
  of['run'].add_argument('--jobs', type=int, default=3, help='timed steps that compile at a time')
  of['run'].add_argument('--only', default='', help='names of steps, by comma; all without it')
  for name in ('run', 'left'):
    of[name].add_argument('--device', choices=('cpu', 'gpu'), default='gpu')
  of['bring'].add_argument('--run', dest='run_', required=True)
  a = vars(p.parse_args())
  command = a.pop('command')
  if command == 'left':
    left_over(a['device'], None, _state())
  else:
    {'pack': pack, 'run': run, 'bring': bring, 'keep': keep}[command](**a)


if __name__ == '__main__':
  main()
