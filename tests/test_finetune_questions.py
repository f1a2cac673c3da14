"""finetune on questions from the outside: what a run leaves, resuming, exports."""

import json
import random

import jax
import ml_collections
import pytest

from bertzoo_jax.finetune import __main__ as command
from configs import parts
from configs.tasks import own
from tests import test_load as made

WORDS = ('the', 'time', 'machine', 'stood', 'there', 'I', 'looked', 'at')


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


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  """A folder with a pretrained run and files of questions."""
  folder = tmp_path_factory.mktemp('world')
  (folder / 'run').mkdir()
  made.make_run(folder / 'run', 'bert')
  for name, count in (('train', 96), ('dev', 40), ('test', 6)):
    (folder / f'{name}.json').write_text(articles(count, len(name)))
    (folder / f'{name}2.json').write_text(articles(count, len(name), unanswerable=0.4))
  return folder


def config(files=('train.json', 'dev.json'), objective='span', **changes):
  out = own.get_config(f'qa,objective={objective}')
  out.source.files = ml_collections.ConfigDict(dict(zip(('train', 'dev', 'test'), files)))
  out.length, out.batch_size, out.steps = 24, 16, 60
  out.features.doc_stride = 6
  out.schedule.learning_rate = 3e-3
  out.run = parts.run(
    dtype='float32', log_every=1, tensorboard=False, compile_cache='', kernels='xla'
  )
  for key, value in changes.items():
    *sections, field = key.split('__')
    at = out
    for section in sections:
      at = at[section]
    at[field] = value
  return ml_collections.ConfigDict(out).lock()


def finetune(world, workdir, made_config, **kw):
  kw = {'init': str(world / 'run'), 'devices': jax.devices()[:1], **kw}
  return command.finetune(made_config, str(workdir), task_dir=str(world), **kw)


def test_a_run_learns_to_find_answers_in_windows_and_leaves_its_predictions(
  world, tmp_path, capsys
):
  files = ('train.json', 'dev.json', 'test.json')
  made_config = config(files, submission={'test': 'answers.json'})
  found = finetune(world, tmp_path / 'f', made_config, predict=str(world / 'test.json'))
  print(capsys.readouterr().out[-3000:])
  print(found)
