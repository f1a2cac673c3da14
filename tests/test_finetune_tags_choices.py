"""finetune on tags and on choices, from files to predictions."""

import json
import random

import jax
import ml_collections
import numpy as np
import pytest

from bertzoo_jax import export
from bertzoo_jax.finetune import __main__ as command
from configs import parts
from configs.tasks import own
from tests import killed
from tests.pretrained import test_loading as made

WORDS = ('the', 'stood', 'there', 'I', 'looked', 'at')


def sentences(count, seed):
  """(words, tags): the traveller is a person, and the time machine a thing of two words."""
  draw = random.Random(seed)
  for _ in range(count):
    words, tags = [], []
    for _ in range(draw.randint(2, 6)):
      found = draw.choice(((('traveller',), ('B-PER',)), (('time', 'machine'), ('B-T', 'I-T'))))
      own_words, own_tags = found if draw.random() < 0.4 else ((draw.choice(WORDS),), ('O',))
      words, tags = [*words, *own_words], [*tags, *own_tags]
    yield words, tags


def questions(count, seed):
  """JSON lines: the right option is the one with the traveller."""
  draw = random.Random(seed)
  some = lambda many: ' '.join(draw.choice(WORDS) for _ in range(draw.randint(1, many)))
  for _ in range(count):
    options = [
      f'{some(2)} {draw.choice(("garden", "machine"))}' for _ in range(draw.choice((2, 3)))
    ]
    right = f'traveller {some(2)}'
    options.insert(draw.randint(0, len(options)), right)
    yield dict(text=some(4), question='the _ there', options=options, label=right)


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  """A folder with a pretrained run and the files of two tasks."""
  folder = tmp_path_factory.mktemp('world')
  (folder / 'run').mkdir()
  made.make_run(folder / 'run', 'bert')
  for name, count in (('train', 96), ('dev', 40)):
    text = ''.join(
      ''.join(f'{w} {t}\n' for w, t in zip(words, tags)) + '\n'
      for words, tags in sentences(count, count)
    )
    (folder / f'{name}.txt').write_text(text)
  long = ['the'] * 40 + ['traveller', '\u200b', 'stood']
  (folder / 'test.txt').write_text('the\ntime\nmachine\n\n' + '\n'.join(long))
  for name, count in (('train', 128), ('dev', 40), ('test', 9)):
    lines = [json.dumps(x) for x in questions(count, count)]
    (folder / f'{name}.jsonl').write_text('\n'.join(lines))
  return folder


ENDINGS = {'tag': 'txt', 'choice': 'jsonl'}


def config(argument, run=None, **changes):
  """A fine-tuning of own.py. run: changed fields of its section `run`."""
  out = own.get_config(argument)
  splits = ('train', 'dev', 'test')
  out.source.files = ml_collections.ConfigDict({s: f'{s}.{ENDINGS[argument]}' for s in splits})
  out.length, out.batch_size = 16, 16
  out.schedule.learning_rate = 2e-3
  out.run = parts.run(
    dtype='float32', log_every=50, tensorboard=False, compile_cache='', kernels='xla'
  )
  out.update(changes)
  out.run.update(run or {})
  return out.lock()


def finetune(world, workdir, argument, devices=1, **changes):
  """Lines of the table."""
  return command.finetune(
    config(argument, **changes),
    str(workdir),
    task_dir=str(world),
    init=str(world / 'run'),
    predict=str(world / f'test.{ENDINGS[argument]}'),
    devices=jax.devices()[:devices],
  )


@pytest.fixture(scope='module')
def tagged(world, tmp_path_factory):
  """(lines of the table, workdir)"""
  workdir = tmp_path_factory.mktemp('tags') / 'f'
  return finetune(world, workdir, 'tag', steps=100), workdir


@pytest.fixture(scope='module')
def chosen(world, tmp_path_factory):
  """(lines of the table, workdir)"""
  workdir = tmp_path_factory.mktemp('choices') / 'f'
  return finetune(world, workdir, 'choice', steps=100), workdir


def test_entities_are_learned_and_every_word_is_predicted(tagged):
  found, workdir = tagged
  assert found[0].metric == 'entity_f1'
  assert found[0].median > 0.9 > json.loads((workdir / 'table.json').read_text())[0]['majority']
  predicted = [json.loads(x) for x in (workdir / 'tag/test.jsonl').read_text().splitlines()]
  assert predicted[0]['tags'] == ['O', 'B-T', 'I-T']
  assert predicted[1]['tags'] == ['O'] * 40 + ['B-PER', 'O', 'O']
  again = (workdir / 'tag/test.txt.predictions.jsonl').read_text().splitlines()
  assert [json.loads(x) for x in again] == predicted
  text = (workdir / 'submission/test.conll').read_text()
  assert text.startswith('the\tO\ntime\tB-T\nmachine\tI-T\n\nthe\tO\n')


def test_the_right_option_is_learned_whatever_its_place(chosen, world):
  found, workdir = chosen
  assert found[0].metric == 'accuracy'
  assert (
    found[0].median > 0.85 > 0.6 > (json.loads((workdir / 'table.json').read_text())[0]['majority'])
  )
  predicted = [json.loads(x) for x in (workdir / 'choice/test.jsonl').read_text().splitlines()]
  read = [json.loads(x) for x in (world / 'test.jsonl').read_text().splitlines()]
  for line, one in zip(predicted, read, strict=True):
    assert line['option'] == one['options']['ABCD'.index(line['label'])]
    assert len(line['probabilities']) == len(one['options'])
  right = sum(line['option'] == one['label'] for line, one in zip(predicted, read))
  assert right >= 7
  again = (workdir / 'choice/test.jsonl.predictions.jsonl').read_text().splitlines()
  assert [json.loads(x)['label'] for x in again] == [line['label'] for line in predicted]


def exported(workdir, task, folder):
  pytest.importorskip('torch', reason='transformers needs torch')
  transformers = pytest.importorskip('transformers', reason='the comparison needs transformers')
  rows = export.export(str(workdir / task / 'run'), str(folder))
  assert rows and all(r.holds for r in rows)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  return transformers, tokenizer, (folder / 'README.md').read_text()


def test_an_exported_tagger_says_the_same_of_every_word(tagged, tmp_path):
  _, workdir = tagged
  transformers, tokenizer, card = exported(workdir, 'tag', tmp_path / 'hf')
  assert "pipeline('token-classification'" in card and '1 `B-PER`' in card
  model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / 'hf')
  lines = (workdir / 'tag/test.jsonl').read_text().splitlines()
  words, wanted = (json.loads(lines[0])[k] for k in ('words', 'tags'))
  row = tokenizer(words, is_split_into_words=True, return_tensors='pt')
  said = model(**row).logits[0].argmax(-1).tolist()
  first = [row.word_ids().index(i) for i in range(len(words))]
  assert [model.config.id2label[said[t]] for t in first] == wanted
  tag = transformers.pipeline(
    'token-classification', model=str(tmp_path / 'hf'), aggregation_strategy='first'
  )
  found = [(x['entity_group'], x['word']) for x in tag('the traveller stood at the time machine')]
  assert found == [('PER', 'traveller'), ('T', 'time machine')]


def test_an_exported_chooser_says_the_same_of_every_option(chosen, world, tmp_path):
  _, workdir = chosen
  transformers, tokenizer, card = exported(workdir, 'choice', tmp_path / 'hf')
  assert 'AutoModelForMultipleChoice' in card and "truncation='only_first'" in card
  model = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / 'hf')
  read = [json.loads(x) for x in (world / 'test.jsonl').read_text().splitlines()]
  for line, one in zip((workdir / 'choice/test.jsonl').read_text().splitlines(), read):
    asked = [one['question'].replace('_', option) for option in one['options']]
    rows = tokenizer(
      [one['text']] * len(asked),
      asked,
      padding=True,
      truncation='only_first',
      max_length=16,
      return_tensors='pt',
    )
    scores = model(**{name: x[None] for name, x in rows.items()}).logits[0]
    shares = scores.softmax(-1).tolist()
    assert shares == pytest.approx(json.loads(line)['probabilities'], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('argument', ENDINGS)
def test_microbatches_on_two_devices_predict_the_same(world, tmp_path, argument):
  machinery = {'alone': dict(), 'split': dict(devices=2, run=dict(mesh=(2, 1, 1), accumulation=2))}
  found = []
  for name, more in machinery.items():
    finetune(world, tmp_path / name, argument, steps=10, **more)
    with np.load(tmp_path / name / argument / 'run' / 'predictions.npz') as file:
      found.append({key: file[key] for key in file.files})
  assert found[0].keys() == found[1].keys() and found[0]
  for key, x in found[0].items():
    np.testing.assert_allclose(found[1][key], x, atol=2e-4, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize('argument', ENDINGS)
def test_a_run_that_is_killed_twice_ends_with_the_same_bytes(world, tmp_path, argument):
  made = f'test_finetune_tags_choices.config({argument!r}, steps=12, run=dict(log_every=1))'
  kills = (f'{argument}/run', 3), (f'{argument}/run', 8)
  killed.finetune(tmp_path / 'whole', made, world, world / 'run', ())
  killed.finetune(tmp_path / 'killed', made, world, world / 'run', kills)
  killed.same_bytes(tmp_path / 'whole/f', tmp_path / 'killed/f', argument)
