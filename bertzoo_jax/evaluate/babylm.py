"""The evaluation of the BabyLM challenge as its pipeline makes it: scores, and the file to submit.

docs/babylm.md says which version of the pipeline, and what differs. The tasks are in babylm.json.
"""

import functools
import json
import pathlib
import time
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

GLUE = ('boolq', 'mnli', 'mrpc', 'multirc', 'qqp', 'rte', 'wsc')


class Task(NamedTuple):
  """Which of several texts does a network find likeliest? Texts are templates: {NAME} is a field of
  the row, {file} the name of its file.
  """

  key: str  # in the file to submit
  full_eval: str  # folder with all rows
  fast_eval: str  # folder with the rows for checkpoints; '' for none
  rows: int  # in `full_eval` as it is published; its collector takes no other number
  contexts: list[str]  # before each option; one for all
  options: list[str] | str  # the first is right; the name of the field with them
  group: str  # the subset
  label: str = ''  # field with the index of the right option
  without: str = ''  # rows whose options contain this word are left out
  whole: bool = False  # whether a prediction has the context, too
  per_token: bool = False  # whether a log-likelihood is divided by its number of tokens


TASKS = [Task(**x) for x in json.loads(pathlib.Path(__file__).with_suffix('.json').read_text())]


class Result(NamedTuple):
  address: str
  how: str  # how tokens are predicted, see `likelihoods`
  parts: dict[str, dict]  # {part: score (per cent, the mean of its subsets), rows, ties, …}
  checkpoints: dict[str, dict]  # {revision: {part: {subset: share of right ones}}}
  missing: list[str]  # parts that were not scored, with the reason


def evaluate(address: str, folder: str, by=None, glue=None, say=print) -> tuple[Result, dict]:
  """Scores all parts in a folder of the pipeline's data, and the fast ones for each revision.

  by: a way of `likelihoods.ways`. glue: see `_tuned`. say: shows progress.

  Returns the scores, and the object to submit. Raises UserError for an address without a network.
  """
  root, missing, tuned = pair_files.there(storage.path(folder)), [], {}
  if not any((root / which).is_dir() for which in ('full_eval', 'fast_eval')):
    raise errors.UserError(f'{root} has no full_eval and no fast_eval: give the folder with them.')
  for task in GLUE if glue else ():
    of = functools.partial(_tuned, storage.path(glue), task)
    tuned |= _attempt(f'{task}, fine-tuned', of, missing) or {}
  if glue and not tuned:
    raise errors.UserError(f'--glue={glue} has no predictions. {missing[0]}')
  missing += [] if glue else ['the fine-tuned tasks: give --glue.']
  network = minimal_pairs.opened(address, by)
  result = Result(address, network[0].how, {}, {}, missing)
  say('\n'.join([f'tokens: {result.how}', *network[0].notes]))
  submission, nats, aoa = _parts(network, root, '', result, say), {}, root / 'full_eval' / 'aoa'
  words, items = _attempt('aoa', lambda: _words(aoa / 'cdi_childes.json'), missing) or ((), ())
  for seen, where in (known := revisions(address)).items():
    name = amounts.revision(seen)
    if one := _attempt(name, lambda at=where: minimal_pairs.opened(at, by), missing):
      _parts(one, root, name, result, say)
      of = lambda seen=seen, one=one: {seen: -np.concatenate(minimal_pairs.scored(*one, items)[0])}
      nats |= (_attempt(f'{name}, aoa', of, missing) if items else None) or {}
  asked = amounts.numbers('1M..1G' if max(known, default=0) > 10**8 else '1M..100M')
  names = [amounts.revision(number) for number in asked]
  if absent := [name for name in names if name not in result.checkpoints]:
    missing.append(f'revisions: {", ".join(absent)}')
  shares = lambda key: [result.checkpoints.get(name, {}).get(key) for name in names]
  keys = [*(task.key for task in TASKS if task.fast_eval), 'reading']
  submission |= dict(aoa=None, aoa_surprisals=None, glue=tuned)
  submission['fast_eval_results'] = {key: shares(key) for key in keys}
  if nats:
    rows = [
      dict(step=amounts.revision(seen), word_count=seen, **word, surprisal=float(value))
      for seen, values in nats.items()
      for word, value in zip(words, values)
    ]
    submission['aoa_surprisals'] = dict(metadata=dict(total_steps=len(nats)), results=rows)
    targets = [word['target_word'] for word in words]
    score = lambda: human_data.acquired(targets, nats, network[1], aoa / 'cdi_human.csv')
    if (value := _attempt('aoa', score, missing)) is not None:
      submission['aoa'] = {'aoa': value}
      result.parts['aoa'] = dict(score=100 * value, rows=len(rows), ties=0, seconds=0, subsets={})
  return result, submission


def revisions(address: str) -> dict[int, str]:
  """{number of words seen: address}, ascending: checkpoints of run.keep_words, or the directories
  beside hf:FOLDER/main, as `export --all_checkpoints` writes them.
  """
  if address.startswith('hf:'):
    main = storage.path(address.removeprefix('hf:'))
    beside = main.parent.iterdir() if main.name == hub.MAIN and main.is_dir() else ()
    named = [(path, amounts.numbers(path.name.removeprefix('chck_')) or ()) for path in beside]
    named = [(n, path) for path, of in named for n in of if amounts.revision(n) == path.name]
    return {number: f'hf:{path}' for number, path in sorted(named)}
  run = checkpoint.parse_address(address)[0]
  return {number: f'{run}@{step}' for number, step in step_folders.words(run).items()}


def _parts(network, root, revision, result, say) -> dict:
  """{key: predictions, or None} of all parts, or of the fast ones for a revision; adds their scores
  to a Result.
  """
  which, predictions = 'fast_eval' if revision else 'full_eval', {}
  parts = {task.key: (getattr(task, which), functools.partial(_choices, task)) for task in TASKS}
  for key, (place, part) in (parts | {'reading': ('reading', _reading)}).items():
    if not place:
      continue
    begun, name = time.monotonic(), f'{revision or hub.MAIN}, {key}'
    got = _attempt(name, functools.partial(part, network, root / which / place), result.missing)
    predictions[key], subsets, rows, ties = got or (None, {}, 0, 0)
    if not got:
      continue
    score, seconds = 100 * float(np.mean([*subsets.values()])), time.monotonic() - begun
    say(f'{name:36} {score:6.2f} {seconds:6.0f} s')
    if revision:
      result.checkpoints.setdefault(revision, {})[key] = subsets
    else:
      result.parts[key] = dict(score=score, rows=rows, ties=ties, seconds=seconds, subsets=subsets)
  return predictions


def _attempt(name, part, missing):
  """part(), or None where it cannot be read or scored: the reason is added to `missing`."""
  try:
    return part()
  except (errors.UserError, OSError) as e:
    missing.append(f'{name}: {e}')


def _choices(task, network, folder):
  """(predictions, {subset: share of right ones}, number of rows, ties) of a folder of rows. As on
  the leaderboard a prediction is right if its text is that of the right option.
  """
  items, predictions, right, ties = [], {}, {}, 0
  for file in sorted(p for p in pair_files.there(folder).iterdir() if p.suffix == '.jsonl'):
    for number, line in pair_files.lines(file):
      with errors.unreadable(f'{file}:{number} is no row of {task.key}: download it again'):
        items += _item(task, json.loads(line), file.stem)
  if not items:
    raise errors.UserError(f'{folder} has no row.')
  scores, lengths, _ = minimal_pairs.scored(*network, items)
  draw = np.random.default_rng(0)
  for item, score, length in zip(items, scores, lengths):
    texts = [x[0 if task.whole else at :] for x, at in zip(item.texts, item.starts)]
    best = minimal_pairs.best(score / np.maximum(length, 1) if task.per_token else score)
    chosen, ties = texts[int(draw.choice(best))], ties + (len(best) > 1)
    subset = predictions.setdefault(item.group, {'predictions': []})['predictions']
    subset.append(dict(id=f'{item.group}_{len(subset)}', pred=chosen))
    right.setdefault(item.group, []).append(chosen.strip() == texts[item.right].strip())
  right = {task.key: sum(right.values(), [])} if task.label else right  # each row is a subset
  return predictions, {name: float(np.mean(x)) for name, x in right.items()}, len(items), ties


def _item(task, row, file) -> list[pair_files.Item]:
  """[the item of a row], or []."""
  texts = {name: value for name, value in row.items() if isinstance(value, str)}
  texts |= dict(file=file.removeprefix('comps_').replace('-', '_'), numops=row.get('numops'))
  filled = lambda templates: [template.format_map(texts) for template in templates]
  options = row[task.options] if isinstance(task.options, str) else filled(task.options)
  if task.without and any(task.without in option for option in options):
    return []
  contexts = filled(task.contexts) * (1 if len(task.contexts) > 1 else len(options))
  right = row[task.label] if task.label else 0
  return [pair_files.item(contexts, options, right, *filled([task.group]))]


def _reading(network, folder):
  """As `_choices`, of the table of reading times."""
  columns, shares = human_data.read(*network, folder / 'reading_data.csv')
  pairs = zip(columns['pred'].tolist(), columns['prev_pred'].tolist())
  listed = [dict(id=n, pred=word, prev_pred=before) for n, (word, before) in enumerate(pairs)]
  return {'reading': {'predictions': listed}}, shares, len(listed), 0


def _words(file) -> tuple[list[dict], list[pair_files.Item]]:
  """The words of a file, each after each of its contexts."""
  with errors.unreadable(f'{file} is no object of words and their contexts: download it again'):
    words = [
      dict(target_word=word, context_id=n, context=row['context'])
      for word, rows in _json(file).items()
      for n, row in enumerate(rows if len(word) > 1 else ())
    ]
    pairs = [(word['context'].strip() + ' ', word['target_word'].strip()) for word in words]
    return words, [pair_files.Item((a + b,), (len(a),), 0, b) for a, b in pairs]


def _tuned(folder, task) -> dict:
  """{task: predictions} from a workdir of `finetune`, or from the results of the pipeline."""
  file = folder / 'submission' / f'{task}.tsv'
  if not file.exists():
    file = folder / task / 'predictions.json'
    with errors.unreadable(f'{file} has no predictions of {task}: give another --glue'):
      return {task: {'predictions': [*_json(file)[task]['predictions']]}}
  with errors.unreadable(f'{file} has no label in the second column: fine-tune in a new folder'):
    labels = [int(line.split('\t')[1]) for line in file.read_text().splitlines()[1:]]
  return {task: {'predictions': [dict(id=f'{task}_{n}', pred=x) for n, x in enumerate(labels)]}}


def _json(file) -> dict:
  with errors.unreadable(f'{file} is no JSON object: download or write it again'):
    value = {**storage.read_json(pair_files.there(file))}
    json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is a ValueError
    return value


def table(result: Result) -> str:
  """The scores, with subsets where they are few, and what is missing."""
  lines = [('part', 'rows', 'score', 'ties', 'seconds', 'subsets')]
  published = {task.key: f' of {task.rows:,}' for task in TASKS}
  for name, part in result.parts.items():
    few = part['subsets'].items() if len(part['subsets']) < 5 else ()
    subsets = ', '.join(f'{subset} {share:.2%}' for subset, share in few)
    numbers = f'{part["score"]:.2f}', f'{part["ties"]:,}', f'{part["seconds"]:.0f}', subsets
    lines.append((name, f'{part["rows"]:,}{published.get(name, "")}', *numbers))
  return '\n'.join([tables.aligned(lines), *(f'missing: {x}' for x in result.missing)])
