"""Small fine-tunings that tests run: files of each kind of task, configs, the command."""

import json
import random

import jax
import ml_collections

from bertzoo_jax import parts
from bertzoo_jax.finetune import suite as command
from configs.tasks import own
from tests.outside import ratings_config
from tests.pretrained import test_loading as made

WORDS = ('the', 'time', 'machine', 'stood', 'there', 'I', 'looked', 'at')
COUNTS = {'train': 96, 'dev': 40, 'test': 6}
ENDINGS = {'classify': 'tsv', 'tag': 'txt', 'choice': 'jsonl', 'qa': 'json'}
_CSV = {f'source__files__{split}': f'{split}.csv' for split in COUNTS}


def rows(count, seed):
  """(label, text): a text is 'good' if it has the word traveller."""
  draw = random.Random(seed)
  for _ in range(count):
    label = draw.choice(('good', 'bad'))
    words = [draw.choice(WORDS) for _ in range(draw.randint(2, 8))]
    words.insert(draw.randrange(len(words)), 'traveller' if label == 'good' else 'garden')
    yield label, ' '.join(words)


def table(count, seed):
  return '\n'.join(['label\ttext', *map('\t'.join, rows(count, seed))]) + '\n'


def sentences(count, seed):
  """A word and its tag per line: the traveller is a person, the time machine a thing."""
  draw, out = random.Random(seed), []
  for _ in range(count):
    lines = []
    for _ in range(draw.randint(2, 6)):
      found = draw.choice(('traveller B-PER\n', 'time B-T\nmachine I-T\n'))
      other = draw.choice(('the', 'stood', 'there', 'I', 'looked', 'at'))
      lines.append(found if draw.random() < 0.4 else f'{other} O\n')
    out.append(''.join(lines))
  return '\n'.join(out)


def options(count, seed):
  """JSON lines: the right option is the one with the traveller."""
  draw, out = random.Random(seed), []
  some = lambda many: ' '.join(draw.choice(WORDS) for _ in range(draw.randint(1, many)))
  for _ in range(count):
    others = [f'{some(2)} {draw.choice(("garden", "clock"))}' for _ in range(draw.choice((2, 3)))]
    right = f'traveller {some(2)}'
    others.insert(draw.randint(0, len(others)), right)
    out.append(dict(text=some(4), question='the _ there', options=others, label=right))
  return '\n'.join(map(json.dumps, out))


def articles(count, seed, unanswerable=0.0):
  """JSON of SQuAD's shape: the answer to every question is the word of the passage that is a
  traveller or a garden.
  """
  draw, out = random.Random(seed), []
  for number in range(count):
    words = [draw.choice(WORDS) for _ in range(draw.randint(8, 24))]
    answer = draw.choice(('traveller', 'garden'))
    none = draw.random() < unanswerable
    if not none:
      words.insert(draw.randrange(len(words)), answer)
    context = ' '.join(words)
    answers = [] if none else [{'text': answer, 'answer_start': context.index(answer)}]
    qa = dict(id=f'{seed}-{number}', question='who stood there', answers=answers)
    out.append({'paragraphs': [{'context': context, 'qas': [{**qa, 'is_impossible': none}]}]})
  return json.dumps({'version': '2.0', 'data': out})


def numbers(count, seed):
  """A csv: the traveller's texts have the numbers 1 and 2 and the label a, others 0, 0 and b."""
  lines = ['text,score,valence,arousal,a,b']
  for label, text in rows(count, seed):
    lines.append(f'{text},1,1,2,1,0' if label == 'good' else f'{text},0,0,0,0,1')
  return '\n'.join(lines) + '\n'


# Arguments of own.py for each kind of task; an outside kind has a config of its own.
KINDS = 'classify', 'regress', 'multilabel', 'qa', 'qa,objective=span_conditional', 'tag', 'choice'
KINDS += ('ratings',)


def of_kind(name):
  """The config of a kind, on the files of `world`."""
  if name in ('regress', 'multilabel'):
    return config(name, source__label=dict(regress='score', multilabel='a,b')[name], **_CSV)
  if name != 'ratings':
    return config(name, features__doc_stride=6) if name.startswith('qa') else config(name)
  return config('regress', made_by=ratings_config.get_config, **_CSV)


def world(folder, *families, **counts):
  """Fills a folder: a pretrained run of each family, called so, and the files of all tasks, of
  questions also NAME2.json with questions without an answer.
  """
  for family in families:
    (folder / family).mkdir()
    made.make_run(folder / family, family)
  for split, count in {**COUNTS, **counts}.items():
    content = dict(tsv=table, txt=sentences, jsonl=options, json=articles, csv=numbers)
    for ending, text in content.items():
      (folder / f'{split}.{ending}').write_text(text(count, len(split)))
    (folder / f'{split}2.json').write_text(articles(count, len(split) + 9, unanswerable=0.4))
  return folder


def config(argument='classify', files='', made_by=own.get_config, **changes):
  """A fine-tuning of own.py. files: '2' for files with questions without an answer. changes: 'a__b'
  is the field a.b. made_by: get_config of a config file.
  """
  out = made_by(argument)
  task = argument.partition(',')[0]
  if task in ENDINGS:
    names = {split: f'{split}{files}.{ENDINGS[task]}' for split in COUNTS}
    out.source.files = ml_collections.ConfigDict(names)
  out.length, out.batch_size, out.steps = 16, 16, 12
  out.schedule.learning_rate = 2e-3
  if task == 'qa':
    out.length, out.features.doc_stride = 24, 6
    out.schedule.learning_rate = 3e-3
  out.run = parts.run(dtype='float32', log_every=1, tensorboard=False, kernels='xla')
  out.run.compile_cache = ''
  for key, value in changes.items():
    *sections, field = key.split('__')
    at = out
    for section in sections:
      at = at[section]
    at[field] = value
  return ml_collections.ConfigDict(out).lock()


def finetune(world, workdir, made_config, family='bert', **kw):
  """Lines of the table."""
  kw = {'init': str(world / family), 'devices': jax.devices()[:1], **kw}
  return command.finetune(made_config, str(workdir), task_dir=str(world), **kw)


def said(file):
  """The objects of a file of JSON lines."""
  return [json.loads(line) for line in file.read_text(encoding='utf-8').splitlines()]


def answer_of_card(directory, question, passage):
  """The answer that the code of an exported model's card prints."""
  code = (directory / 'README.md').read_text().split('```python\n')[1].split('```')[0]
  example = "question, passage = 'Who …?', 'A passage.'"
  assert example in code
  asked = code.replace(example, f'question, passage = {question!r}, {passage!r}')
  said = []
  exec(asked.replace('THIS_DIRECTORY', str(directory)), {'print': said.append})
  (answer,) = said
  return answer


def majority(workdir):
  return json.loads((workdir / 'table.json').read_text())[0]['majority']
