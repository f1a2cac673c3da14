"""The evaluation of the BabyLM challenge, as its pipeline makes it: scores, and the file to submit.

docs/babylm.md says which version of the pipeline, and where this differs. A part that cannot be
scored is named, and the others are scored.
"""

import functools
import json
import time
from typing import Callable
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import amounts
from bertzoo_jax.common import errors
from bertzoo_jax.common import hub
from bertzoo_jax.common import storage
from bertzoo_jax.common import tables
from bertzoo_jax.evaluate import human_data
from bertzoo_jax.evaluate import minimal_pairs
from bertzoo_jax.evaluate import pair_files
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import step_folders

_GLUE = ('boolq', 'mnli', 'mrpc', 'multirc', 'qqp', 'rte', 'wsc')


class Task(NamedTuple):
  """A part of the evaluation: which of several texts does the network find likeliest?"""

  key: str  # in the file to submit
  full: str  # folder of all rows
  fast: str | None  # folder of the rows for checkpoints
  # (object of a line, name of the file without its end) → pair_files.Item; None: left out
  item: Callable
  rows: int  # in the folder `full` as it is published
  whole: bool = False  # whether a prediction is a context with its option; else the option alone
  per_token: bool = False  # whether a log-likelihood is divided by its number of tokens


def _blimp(row, file):
  texts = row['sentence_good'], row['sentence_bad']
  return pair_files.item(('', ''), texts, group=row['UID'] if 'field' in row else file)


def _ewok(row, _):
  contexts = row['Context1'], row['Context2']
  return pair_files.item(contexts, (' ' + row['Target1'],) * 2, group=row['Domain'])


def _entity(row, file):
  contexts, group = [row['input_prefix']] * len(row['options']), f'{file}_{row["numops"]}_ops'
  left_out = any('nothing' in option for option in row['options'])
  return None if left_out else pair_files.item(contexts, row['options'], group=group)


def _comps(row, file):
  contexts = row['prefix_acceptable'] + ' ', row['prefix_unacceptable'] + ' '
  group = file.removeprefix('comps_').replace('-', '_')
  return pair_files.item(contexts, (row['property_phrase'],) * 2, group=group)


def _piqa(row, _, options):
  texts = [' ' + row[f'solution{i}'] for i in range(options)]
  return pair_files.item([row['prompt']] * options, texts, row['label'], row['example_id'])


_FOUR, _TWO = (functools.partial(_piqa, options=n) for n in (4, 2))
TASKS = (
  Task('blimp', 'blimp_filtered', 'blimp_fast', _blimp, 59_875),
  Task('blimp_supplement', 'supplement_filtered', 'supplement_fast', _blimp, 5_218),
  Task('ewok', 'ewok_filtered', 'ewok_fast', _ewok, 7_618, whole=True),
  Task('entity_tracking_filtered', 'entity_tracking', 'entity_tracking_fast', _entity, 6_780),
  Task('comps', 'comps', None, _comps, 91_028, whole=True),
  *(
    Task(name, name, name, item, rows, per_token=True)
    for name, item, rows in (
      ('global_piqa_parallel', _FOUR, 103),
      ('global_piqa_nonparallel', _TWO, 100),
    )
  ),
)


class Score(NamedTuple):
  part: str
  score: float  # per cent: mean accuracy of the subsets, variance explained, or correlation
  rows: int
  ties: int  # rows with several likeliest texts, of which one is drawn
  subsets: dict[str, float]  # per cent
  seconds: float


class Result(NamedTuple):
  address: str
  how: str  # how tokens are predicted, see `likelihoods`
  scores: list[Score]
  checkpoints: dict[str, list[Score]]  # of each revision
  missing: list[str]  # parts that were not scored, with the reason
  notes: list[str]


def evaluate(address: str, folder: str, by=None, glue=None, say=print) -> tuple[Result, dict]:
  """Scores all parts in a folder of the pipeline's data, and the fast ones for each revision.

  address: W, W@STEP or W@best, with the checkpoints of run.keep_words, or hf:DIR; the revisions
  stand beside hf:FOLDER/main, as `export --all_checkpoints` writes them. by: a way of
  `likelihoods.ways`. glue: folder of TASK/predictions.json, to copy. say: shows progress.

  Returns the scores, and the object to submit. Raises UserError for an address without a network.
  """
  root, result = storage.path(folder), Result(address, '', [], {}, [], [])
  if not root.is_dir():
    raise errors.UserError(f'--babylm: {folder} is no folder.')
  subject, tokenizer = network = minimal_pairs.opened(address, by)
  result = result._replace(how=subject.how, notes=[*subject.notes])
  full = _parts(network, root / 'full_eval', 'full', 'main', result, say)
  submission = {key: predictions for key, (predictions, _) in full.items()}
  words = _attempt('aoa', lambda: _words(root / 'full_eval' / 'aoa' / 'cdi_childes.json'), result)
  fast, nats, known = {}, {}, revisions(address)
  for seen, where in known.items():
    network, name = minimal_pairs.opened(where, by), amounts.revision(seen)
    fast[name] = _parts(network, root / 'fast_eval', 'fast', name, result, say)
    if words:
      nats[seen] = -minimal_pairs.scored(*network, words)[0]
  asked = amounts.numbers('1M..1G' if max(known, default=0) > 10**8 else '1M..100M')
  if absent := [amounts.revision(n) for n in asked if n not in known]:
    result.missing.append(f'revisions: {", ".join(absent)}')
  asked = [amounts.revision(n) for n in asked]
  shares = lambda key: [fast.get(name, {}).get(key, (None, None))[1] for name in asked]
  keys = [*(task.key for task in TASKS if task.fast), 'reading']
  submission['fast_eval_results'] = {key: shares(key) for key in keys}
  submission |= dict(aoa=None, aoa_surprisals=_surprisals(address, words, nats))
  if nats:
    people = root / 'full_eval' / 'aoa' / 'cdi_human.csv'
    begun, score = time.monotonic(), lambda: _acquired(words, nats, tokenizer, people)
    if (value := _attempt('aoa', score, result)) is not None:
      submission['aoa'] = {'aoa': value}
      seconds = time.monotonic() - begun
      result.scores.append(Score('aoa', 100 * value, len(words) * len(nats), 0, {}, seconds))
  submission['glue'] = _glue(glue, result)
  return result, submission


def revisions(address: str) -> dict[int, str]:
  """{number of words seen: address of the checkpoint}, ascending."""
  if address.startswith('hf:'):
    main = storage.path(address.removeprefix('hf:'))
    places = main.parent.iterdir() if main.name == hub.MAIN and main.is_dir() else ()
    named = [p for p in places if p.name.startswith('chck_')]
    return dict(sorted((n, f'hf:{p}') for p in named for n in amounts.numbers(p.name[5:]) or ()))
  run = checkpoint.parse_address(address)[0]
  return {n: f'{run}@{step}' for n, step in step_folders.words(run).items()}


def _parts(network, folder, which, name, result, say) -> dict:
  """{key: (predictions, {subset: share})} of the parts of a folder; adds their Scores to a Result.

  which: field of Task with the folder's name. name: of the revision.
  """
  scores = result.scores if name == hub.MAIN else result.checkpoints.setdefault(name, [])
  parts = {task.key: (getattr(task, which), task) for task in TASKS if getattr(task, which)}
  parts['reading'] = 'reading', None
  found = {}
  for key, (place, task) in parts.items():
    how = functools.partial(_choices, task) if task else _reading
    got = _attempt(f'{name}, {key}', lambda how=how, at=folder / place: how(network, at), result)
    if got:
      found[key], new = got[:2], got[2]
      scores += new
      if task and which == 'full' and new[0].rows != task.rows:
        missing = f'{key}: {new[0].rows:,} rows, and the published part has {task.rows:,}'
        result.notes.append(missing)
      for score in new:
        say(f'{name:10} {score.part:24} {score.score:6.2f} {score.seconds:6.0f} s')
  return found


def _attempt(name, part, result):
  """part(), or None where it raises a UserError, which is added to the missing parts."""
  try:
    return part()
  except errors.UserError as e:
    result.missing.append(f'{name}: {e}')


def _choices(task, network, folder):
  """(predictions, {subset: share}, [Score]) of a folder of rows."""
  begun, items = time.monotonic(), []
  files = sorted(p for p in _there(folder).iterdir() if p.suffix == '.jsonl')
  for file in files:
    for number, line in pair_files.lines(file):
      with errors.unreadable(f'{file}:{number} is no row of {task.key}: download it again'):
        items.append(task.item(json.loads(line), file.stem))
  items = [item for item in items if item]
  if not items:
    raise errors.UserError(f'{folder} has no row.')
  nats, lengths, _ = minimal_pairs.scored(*network, items)
  nats = nats / np.maximum(lengths, 1) if task.per_token else nats
  best = [minimal_pairs.best(x) for x in minimal_pairs.per_pair(items, nats)]
  draw, predictions, right = np.random.default_rng(0), {}, {}
  for item, likeliest in zip(items, best):
    chosen = likeliest[0] if len(likeliest) == 1 else int(draw.choice(likeliest))
    text = item.texts[chosen][0 if task.whole else item.starts[chosen] :]
    subset = predictions.setdefault(item.group, {'predictions': []})['predictions']
    subset.append(dict(id=f'{item.group}_{len(subset)}', pred=text))
    right.setdefault(item.group, []).append(chosen == item.right)
  shares = {group: float(np.mean(x)) for group, x in right.items()}
  score, ties = 100 * float(np.mean([*shares.values()])), sum(len(x) > 1 for x in best)
  if len(shares) == len(items):  # each row is a subset of its own
    shares = {task.key: score / 100}
  subsets = {group: 100 * share for group, share in shares.items()}
  seconds = time.monotonic() - begun
  return predictions, shares, [Score(task.key, score, len(items), ties, subsets, seconds)]


def _reading(network, folder):
  """As `_choices`, of the table of reading times."""
  begun = time.monotonic()
  columns, shares = human_data.read(*network, _there(folder / 'reading_data.csv'))
  rows = zip(*(columns[name].tolist() for name in ('pred', 'prev_pred')))
  listed = [dict(id=n, pred=a, prev_pred=b) for n, (a, b) in enumerate(rows)]
  names, seconds = dict(rt='eye tracking', spr='self-paced reading'), time.monotonic() - begun
  scores = [
    Score(names[key], 100 * share, len(listed), 0, {}, seconds) for key, share in shares.items()
  ]
  return {'reading': {'predictions': listed}}, shares, scores


def _words(file) -> list[pair_files.Item]:
  """The words of a file, each after each of its contexts, in groups by word."""
  with storage.reading(f'{file}'):
    data = storage.read_json(_there(file))
  with errors.unreadable(f'{file} is no object of words and their contexts: download it again'):
    pairs = [(row['context'], word) for word, rows in data.items() for row in rows if word[1:]]
    heads = [context.strip() + ' ' for context, _ in pairs]
    texts = [(head + word.strip(),) for head, (_, word) in zip(heads, pairs)]
    return [
      pair_files.Item(text, (len(head),), 0, word)
      for text, head, (_, word) in zip(texts, heads, pairs)
    ]


def _surprisals(address, words, nats):
  """The surprisal of each word in each context at each revision, as the pipeline writes them."""
  if not nats:
    return None
  seen, numbers = {}, []
  for item in words:
    seen[item.group] = seen.get(item.group, -1) + 1
    numbers.append(seen[item.group])
  rows = [
    dict(
      step=amounts.revision(number_seen),
      word_count=number_seen,
      target_word=item.group,
      context_id=number,
      context=item.texts[0][: item.starts[0] - 1],
      surprisal=float(value),
    )
    for number_seen, values in nats.items()
    for item, number, value in zip(words, numbers, values)
  ]
  name, count = address.rstrip('/').rpartition('/')[2], len(nats)
  about = dict(model_name=name, use_bos_only=False, total_steps=count, completed_steps=count)
  return dict(metadata=about, results=rows)


def _acquired(words, nats, tokenizer, file) -> float:
  """human_data.acquired of the surprisals."""
  names = list(dict.fromkeys(item.group for item in words))
  number = {name: n for n, name in enumerate(names)}
  of = [number[item.group] for item in words]
  mean = [np.bincount(of, values) / np.bincount(of) for values in nats.values()]
  lengths = [
    len(x) for x in tokenizer.encode_as_transformers(['The', *('The ' + n for n in names)])
  ]
  chance = np.maximum(np.array(lengths[1:]) - lengths[0], 1) * np.log(tokenizer.vocab_size)
  ages = human_data.table(_there(file))
  return human_data.acquired(np.stack(mean, axis=1), [*nats], chance, ages, names)


def _glue(folder, result) -> dict:
  """{task: its predictions}, read from TASK/predictions.json."""
  found = {}
  for task in _GLUE:
    file = storage.path(folder or '') / task / 'predictions.json'
    if not folder or not file.exists():
      result.missing.append(f'glue, {task}: fine-tune it; --glue=FOLDER with TASK/predictions.json')
      continue
    with errors.unreadable(f'{file} is no file of predictions'):
      found[task] = {'predictions': list(storage.read_json(file)[task]['predictions'])}
  return found


def _there(path):
  if not path.exists():
    raise errors.UserError(f'{path} does not exist.')
  return path


def table(result: Result) -> str:
  lines = [('part', 'rows', 'score', 'ties', 'seconds')]
  for s in result.scores:
    lines.append((s.part, f'{s.rows:,}', f'{s.score:.2f}', f'{s.ties:,}', f'{s.seconds:.0f}'))
  ends = [f'note: {note}' for note in result.notes] + [f'missing: {m}' for m in result.missing]
  return '\n'.join([tables.aligned(lines), *ends])
