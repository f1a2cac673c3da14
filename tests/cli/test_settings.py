import json
import pathlib

import ml_collections
import pytest

from bertzoo_jax import parts
from bertzoo_jax.cli import settings
from tests.cli import forked
from tests.refused import refused

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = """
import json
from bertzoo_jax import cli
cli.define_config(fields=())
read = lambda c: (c.batch_size, list(c.seeds), c.schedule.learning_rate, c.run.tensorboard)
cli.run(lambda asked: print(json.dumps({k: read(c) for k, c in asked.config.suite.items()})))
"""


def _run(*flags):
  return forked.run(PROGRAM, '--config', 'configs/tasks/glue.py:all', *flags)


def test_a_flag_sets_a_field_of_every_task_and_a_task_s_own_flag_wins():
  given = ('--config.batch_size', '8', '--config.seeds=0,1', '--noconfig.run.tensorboard')
  done = _run('--config.suite.rte.batch_size=4', *given, '--config.schedule.learning_rate=1e-3')
  assert not done.stderr
  found = json.loads(done.stdout)
  assert len(found) == 9 and found.pop('rte') == [4, [0, 1], 1e-3, False]
  assert all(one == [8, [0, 1], 1e-3, False] for one in found.values())


RATE = 'Did you mean --config.schedule.learning_rate?\n'
SIZE = 'Did you mean --config.batch_size?\n'
REPLACED = '--config.schedule overrides --config.suite.rte.schedule.warmup, given before it'

AX = 'Not every task has it: set --config.suite.mnli.source.files.test_ax.\n'  # one task alone
WRONG_FOR_A_SUITE = [
  ('--config.batch_siz=8', f"no field 'batch_siz'. {SIZE}"),
  ('--config.schedule.lr=1', RATE),
  ('--config.learning_rate=1', RATE),
  ('--config.suite.rte.batch_siz=8', 'Did you mean --config.suite.rte.batch_size?\n'),
  ('--batch_size=8', SIZE),
  ('--config.source.files.test_ax=AX.tsv', AX),
  ("--config.suite.rte.schedule.warmup=3 --config.schedule={'name':'linear_jump'}", REPLACED),
]


def test_a_field_of_a_suite_that_cannot_be_set_is_answered_with_the_one_for_every_task():
  for line, words in WRONG_FOR_A_SUITE:
    done = _run(*line.split())
    assert done.returncode == 2 and done.stderr.startswith('error: '), line
    assert words in done.stderr and done.stderr.count('\n') == 1, (line, done.stderr)


@pytest.mark.parametrize(
  'flag', ['objective.how=centred', 'objective.how hardest', 'encoder.reach=5']
)
def test_a_flag_sets_a_field_of_a_part_of_one_s_own_that_the_config_leaves_at_its_default(flag):
  one = parts.part('tests.outside.coupled:coupled')
  two = parts.part('tests.outside.convolved:Convolved', num_layers=2)
  config = ml_collections.ConfigDict(dict(objective=one, encoder=two)).lock()
  settings.apply(config, settings.split(f'--config.{flag}'.split(), config)[1])
  section, field, value = flag.replace('=', ' ').replace('.', ' ').split()
  assert str(config[section][field]) == value and config.is_locked
  refused('no field', settings.split, ['--config.objective.hov=1'], config)
  words = "as parts.part('tests.outside.coupled:coupled', qqq=…)."
  refused(words, settings.split, ['--config.objective.qqq=1'], config)


def small():
  """A config with a field of each type, locked."""
  size = ml_collections.FieldReference(300, field_type=object)
  return ml_collections.ConfigDict(
    dict(
      tokenizer=dict(vocab_size=size),
      masking=dict(name='token', rate=0.15, repeat=1),
      run=dict(mesh=(-1, 1, 1), tensorboard=True, dtype='float32', kept=None),
      length=32,
      also=dict(vocab_size=size),
    )
  ).lock()


VOCABULARIES = 'tokenizer.vocab_size', 'also.vocab_size'
LAST = {'run.mesh': (-1, 1), 'length': 3}
SPANS = "--config.masking={'name':'span','rate':0.1}"


@pytest.mark.parametrize(
  'line, wished',
  [
    ('--config.length=64', dict(length=64)),
    ('-config.length 64', dict(length=64)),
    ('--config.length=0x40', dict(length=64)),
    ('--config.length=1_000', dict(length=1000)),
    ('--config.masking.rate=1', {'masking.rate': 1.0}),
    ('--config.masking.rate -1e-3', {'masking.rate': -0.001}),
    ('--noconfig.run.tensorboard', {'run.tensorboard': False}),
    ('--config.run.tensorboard=F', {'run.tensorboard': False}),
    ('--config.run.tensorboard --config.length=1', dict(length=1)),
    ('--config.run.mesh=(1,1,8)', {'run.mesh': (1, 1, 8)}),
    ('--config.run.mesh [2,1,1]', {'run.mesh': (2, 1, 1)}),
    ('--config.run.mesh=8', {'run.mesh': (8,)}),
    ('--config.run.mesh=pearson,rmse', {'run.mesh': ('pearson', 'rmse')}),
    ('--config.run.mesh=O,B-PER,I-PER', {'run.mesh': ('O', 'B-PER', 'I-PER')}),
    ('--config.run.mesh=a,0', {'run.mesh': ('a', '0')}),
    ('--config.run.mesh=/a/b', {'run.mesh': ('/a/b',)}),
    ('--config.run.mesh=()', {'run.mesh': ()}),
    ('--config.run.dtype=', {'run.dtype': ''}),
    ('--config.run.dtype=a=b', {'run.dtype': 'a=b'}),
    ('--config.run.kept=None', {}),
    # a reference sets the field everywhere, and may be a word
    ('--config.tokenizer.vocab_size=auto', dict.fromkeys(VOCABULARIES, 'auto')),
    ('--config.tokenizer.vocab_size 9', dict.fromkeys(VOCABULARIES, 9)),
    # the last of each
    ('--config.run.mesh=1,1,1 --config.length=3 --config.run.mesh -1,1', LAST),
    ('--config.run.tensorboard --noconfig.run.tensorboard', {'run.tensorboard': False}),
    # a whole section, and then a field of it
    (f'{SPANS} --config.masking.rate=0.3', {'masking': dict(name='span', rate=0.3)}),
  ],
)
def test_a_field_is_set_in_the_type_that_it_has(line, wished):
  config, wish = small(), small()
  rest, given = settings.split(['command', *line.split(), '--steps=3'], config)
  settings.apply(config, given)
  assert rest == ['command', '--steps=3'] and config.is_locked
  for key, value in wished.items():
    *sections, field = key.split('.')
    wish_section, section = wish, config
    for name in sections:
      wish_section, section = wish_section[name], section[name]
    wish_section.unlock()[field] = value
    assert type(section[field]) is type(wish_section[field])
  assert config.to_dict() == wish.to_dict()


WRONG = [
  ('--config.keys=3', "no field 'keys'"),
  ('--config.masking.items=3', "no field 'items'. There is: name, rate, repeat."),
  ('--config.run.deep.mesh=3', "no field 'mesh'. Did you mean --config.run.mesh?"),
  ('--config.length.rate=3', "no field 'rate'. Did you mean --config.masking.rate?"),
  ('--config.=3', "no field ''"),
  ('--config.masking["rate"]=3', 'Did you mean --config.masking?'),
  ('--config.length=', "takes a whole number, not '': write, for example, --config.length=32."),
  ('--config.length=1e3', "takes a whole number, not '1e3'"),
  ('--config.length --workdir=W', "not '--workdir=W'"),
  ('--config.length', '--config.length sets nothing: write --config.length=32.'),
  ('--noconfig.length', '--noconfig.length sets nothing: write --config.length=32.'),
  ('--config.masking.rate=many', "takes a number, not 'many'"),
  ('--config.run.tensorboard=maybe', "takes true or false, not 'maybe'"),
  ('--config.run.mesh=(1,', "a tuple, not '(1,': write, for example, --config.run.mesh='(-1, 1,"),
  ('--config.masking=span', '--config FILE.py:SIZE,masking=PART, or --config.masking.FIELD=value'),
  ('--config.masking=()', "takes a section, not '()'"),
  ('--config.masking=', "takes a section, not ''"),
  ("--config.masking.k=1 --config.masking={'k':2}", "no field 'k'"),
  ("--config.masking.rate=1 --config.masking={'k':2}", 'g.rate, given before it: give it first'),
]


@pytest.mark.parametrize('line, words', WRONG)
def test_a_field_that_a_line_cannot_set_is_one_sentence_with_the_remedy(line, words):
  config = small()
  refused(words, lambda: settings.apply(config, settings.split(line.split(), config)[1]))
