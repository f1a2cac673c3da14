"""Three comparisons of small networks on ten million words, with four paired seeds.

    PYTHONPATH=. python bench/small_networks.py run WORK [--minutes=M]
    PYTHONPATH=. python bench/small_networks.py page

WORK has text (that of bench/babylm_text.py), pairs (BLiMP's 67 files) and nli (train.jsonl and
dev.jsonl of MNLI: 7,107 and 1,777 rows). `run` takes the pieces that
docs/results/small_networks/scores.json lacks; a piece that was cut resumes in the next `run`.
Another machine goes on from scores.json, with a new WORK. SIGTERM ends it after a save. `page`
writes docs/results/small_networks.md.

Decided before anything ran:

* Arms are ARMS. All have 3 layers of 192, no dropout, 64 rows of 64 tokens in a step, masks that
  fall from 30 to 15 %, and a rate that rises, stays, and falls in the last fifth of the steps.
  Runs with the same seed read the same rows; `masks` and `muon` also hide the same tokens.
* The peak rate: of RATES, the one with the fewest bits per byte after 1,500 steps of seed 9.
  `causal` and `replaced` take that of `masks`.
* `replaced` has GDES and a generator of one layer, and as many steps as have the FLOPs of 1,500
  steps of `masks`.
* `muon` and `causal` are judged by bits per byte of the masked tokens in held-out text, all on the
  rows of `masks`. `replaced` is judged by the accuracy on MNLI after fine-tuning: three epochs, 32
  rows, rate 1e-4, the seed of the run. BLiMP stands beside them: 4,020 pairs, by masks; of
  `replaced` by its generator.
* Each arm is compared with `masks`, paired by seed: 95 %, Student's t over four differences. An
  interval that has 0 in it is "no difference seen".
"""

import json
import shutil

import pieces

PAGE = pieces.ROOT / 'docs/results/small_networks.md'
TABLE = PAGE.with_suffix('') / 'scores.json'
STEPS, SEEDS, OF = 1500, (0, 1, 2, 3), 4020
# arm: (parts, fields, steps). A step of `masks` has 50.0 GFLOP, one of `replaced` 63.7.
RTD = ('objective.shared=added', 'objective.width=1.0', f'objective.depth={1 / 3}')
ARMS = {
  'masks': ('optimizer=adamw', (), STEPS),
  'muon': ('optimizer=muon', (), STEPS),
  'causal': ('optimizer=adamw,objective=causal_masked', ('objective.causal_share=0.0625',), STEPS),
  'replaced': ('optimizer=adamw,objective=replaced_token', RTD, 1177),
}
RATES = {'masks': (1e-3, 2e-3, 4e-3), 'muon': (1e-3, 2e-3, 4e-3)}
FIELDS = (
  *('tokenizer.vocab_size=8192', 'corpus.held_out=0.01', 'length=64', 'batch_size=64'),
  *('encoder.num_layers=3', 'encoder.hidden_size=192', 'encoder.num_heads=3'),
  *('encoder.intermediate_size=768', 'encoder.max_distance=64', 'epochs=0.0', 'run.keep_words='),
  *('run.save_minutes=3.0', 'run.tensorboard=False', 'run.eval_every=500', 'run.log_every=50'),
)


def names() -> list[str]:
  """Names of all pieces, in the order in which they run."""
  rates = [f'rate {arm} {rate:g}' for arm, rates in RATES.items() for rate in rates]
  runs = [f'{what} {arm} {seed}' for seed in SEEDS for arm in ARMS for what in _of(arm)]
  return ['corpus', *rates, *runs]


def _of(arm):
  return ('run', 'pairs') + (('task',) if arm in ('masks', 'replaced') else ())


def needs(piece) -> list[str]:
  """Names of the pieces whose folders a piece reads."""
  name, *args = piece.split()
  if name == 'corpus':
    return []
  return [f'run {" ".join(args)}'] if name in ('pairs', 'task') else ['corpus']


def corpus(work):
  line = ('--source=text/*/**', '--out=corpus', '--workers=1')
  seconds = pieces.command(work, 'prepare', *config('masks'), *line)
  return {'seconds': round(seconds)}


def config(arm, *fields):
  name = f'--config={pieces.ROOT}/configs/babylm.py:tiny,{ARMS[arm][0]}'
  return [name, *(f'--config.{field}' for field in (*FIELDS, *ARMS[arm][1], *fields))]


def rate(work, arm, value):
  out = _run(work, work / f'rate-{arm}-{value}', arm, 9, float(value))
  shutil.rmtree(work / f'rate-{arm}-{value}')
  return out


def run(work, arm, seed):
  searched = arm if arm in RATES else 'masks'
  done = pieces.read(TABLE)
  bits = {value: done[f'rate {searched} {value:g}']['bits'] for value in RATES[searched]}
  return _run(work, work / f'{arm}-{seed}', arm, seed, min(bits, key=bits.get))


def _run(work, folder, arm, seed, peak):
  """{rate, seconds, bits per byte of masked tokens; None for `replaced`} of a run."""
  steps = ARMS[arm][2]
  fields = [f'seed={seed}', f'phases=(({steps},{{}}),)', f'schedule.learning_rate={peak}']
  fields += [f'schedule.warmup={steps // 15}', f'schedule.decay={steps // 5}']
  fields.append(f"moving=(('masking.rate',0.3,0.15,0,{steps},'linear'),)")
  line = [*config(arm, *fields), '--corpus=corpus', f'--workdir={folder}']
  seconds = pieces.command(work, 'pretrain', *line)
  return {'rate': peak, 'seconds': round(seconds), 'bits': _bits(work, folder, arm)}


def _bits(work, folder, arm):
  """Bits per byte of the masked tokens of 64 held-out batches, on the rows of `masks`."""
  if arm == 'replaced':
    return None
  from bertzoo_jax.training import phase_run

  out = folder / 'scores.json'
  out.unlink(missing_ok=True)
  line = ['--corpus=corpus', '--batches=64', f'--json={out}']
  pieces.command(work, 'evaluate', f'--workdir={folder}', *line)
  scores = json.loads(out.read_text())['scores']
  nats = next(x['value'] for x in scores if (x['rows'], x['measure']) == ('mlm', 'loss'))
  text = json.loads((work / 'corpus/manifest.json').read_text())['splits']['held_out']
  return phase_run.bits_per_byte(nats, text['tokens'] / text['bytes'])


def pairs(work, arm, seed):
  """{share of the pairs that are right}."""
  few, folder = work / 'few_pairs', work / f'{arm}-{seed}'
  few.mkdir(exist_ok=True)
  for path in sorted((work / 'pairs').glob('*.jsonl')):
    lines = path.read_text().splitlines()
    each = OF // 67
    (few / path.name).write_text('\n'.join(lines[:: len(lines) // each][:each]) + '\n')
  out = folder / 'pairs.json'
  out.unlink(missing_ok=True)
  pieces.command(
    work, 'evaluate', f'--workdir={folder}', '--minimal_pairs=few_pairs', f'--json={out}'
  )
  return {'pairs': json.loads(out.read_text())['total']['accuracy']}


def task(work, arm, seed):
  """{accuracy on MNLI after fine-tuning}."""
  folder = work / f'task-{arm}-{seed}'
  fields = ['source.text_a=premise', 'source.text_b=hypothesis', 'source.files.train=train.jsonl']
  fields += ['source.files.dev=dev.jsonl', 'batch_size=32', 'epochs=3.0', 'length=64']
  fields += ['schedule.learning_rate=1e-4', f'seeds=({seed},)']
  line = [f'--config={pieces.ROOT}/configs/tasks/own.py:pairs', f'--init={arm}-{seed}']
  line += ['--task_dir=nli', f'--workdir={folder}', *(f'--config.{field}' for field in fields)]
  pieces.command(work, 'finetune', *line)
  score = json.loads(next(folder.glob('**/result.json')).read_text())['score']
  shutil.rmtree(folder)
  return {'accuracy': score}


# The page


def page(done: dict) -> str:
  """The text of docs/results/small_networks.md."""
  missing = [name for name in names() if name not in done]
  state = f'**{len(missing)} of {len(names())} pieces have not run yet.**\n\n' if missing else ''
  rows = []
  for arm in ARMS:
    rate = next((done[k]['rate'] for s in SEEDS if (k := f'run {arm} {s}') in done), None)
    cells = [arm, '–' if rate is None else f'{rate:g}', f'{ARMS[arm][2]:,}']
    cells += [_cell(done, arm, *measure) for measure in MEASURES]
    rows.append(f'| {" | ".join(cells)} |')
  lines = [_beside(done, arm, *measure) for arm in ARMS if arm != 'masks' for measure in MEASURES]
  return _TEXT.format(state=state, table='\n'.join(rows), beside='\n'.join(filter(None, lines)))


# (piece, what of its result, name, factor, decimals)
MEASURES = (
  ('run', 'bits', 'bits per byte', 1, 4),
  ('pairs', 'pairs', 'BLiMP, %', 100, 2),
  ('task', 'accuracy', 'MNLI, %', 100, 2),
)


def _values(done, arm, piece, what, factor):
  """{seed: value} of the seeds that have run."""
  values = {s: done.get(f'{piece} {arm} {s}', {}).get(what) for s in SEEDS}
  return {s: factor * v for s, v in values.items() if v is not None}


def _cell(done, arm, piece, what, name, factor, decimals):
  values = _values(done, arm, piece, what, factor)
  return f'{pieces.mean(values.values()):.{decimals}f} ({len(values)})' if values else '–'


def _beside(done, arm, piece, what, name, factor, decimals):
  """A line on the difference of an arm and `masks`; None without two seeds of both."""
  ours, theirs = (_values(done, x, piece, what, factor) for x in (arm, 'masks'))
  interval = pieces.interval([ours[s] - theirs[s] for s in SEEDS if s in ours and s in theirs])
  if interval is None:
    return None
  middle, half = interval
  seen = '' if abs(middle) > half else ': no difference seen'
  return f'* {arm} − masks, {name}: {middle:+.{decimals}f} ± {half:.{decimals}f}{seen}'


_TEXT = """<!-- Written by `PYTHONPATH=. python bench/small_networks.py page`. -->
# Small networks on ten million words: three comparisons

{state}Means over seeds (how many). `bench/small_networks.py` has what was decided beforehand.

| arm | rate | steps | bits per byte | BLiMP, % | MNLI, % |
|---|---|---|---|---|---|
{table}

{beside}
"""


if __name__ == '__main__':
  functions = dict(corpus=corpus, rate=rate, run=run, pairs=pairs, task=task)
  pieces.main(__doc__, TABLE, functions, names, needs, PAGE, page)
