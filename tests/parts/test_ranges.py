import math
import sys
import types

import pytest

from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax import prepare
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.experiment import check
from bertzoo_jax.experiment import resolve
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.parts import experiments
from bertzoo_jax.parts import fields
from bertzoo_jax.parts import named as part_lib
from bertzoo_jax.parts import ranges
from bertzoo_jax.parts import task_objectives
from bertzoo_jax.show import __main__ as show
from configs import bert
from configs.tasks import own
from tests import commands
from tests.refused import refused


def changed(**changes):
  config = bert.get_config('tiny')
  for key, value in changes.items():
    *sections, field = key.split('__')
    section = config[sections[0]] if sections else config
    with section.ignore_type():
      section[field] = value
  return config


DECLARATIONS = [x for some in (ranges.SECTIONS, ranges.TASK_SECTIONS) for x in some.values()]
DECLARATIONS = [x for some in DECLARATIONS for x in some.values()]
DECLARATIONS += [experiments.Corpus, experiments.Run, experiments.Experiment]
DECLARATIONS += [experiments.FineTuning, task_objectives.Sift]


@pytest.mark.parametrize('declaration', DECLARATIONS, ids=lambda x: x.__name__)
def test_every_field_has_a_type_a_meaning_and_every_number_a_range(declaration):
  for name, field in fields.parameters(declaration).items():
    range_, default = fields.get_range(field.annotation), field.default
    assert field.annotation is not field.empty, name
    is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
    assert range_ or not (is_number or isinstance(default, tuple) and fields.numbers_in(default))
    if default is not field.empty:
      fields.check(name, default, field.annotation)
    if field.annotation is dict:
      continue  # a section
    meaning = fields.meaning(field.annotation)
    assert meaning.endswith('.'), name
    assert all(choice in meaning for choice in (range_.choices if range_ else ())), (name, meaning)
    if range_:
      wrong = 'oter' if range_.choices else (-1e9,) if range_.of_each else -(10**9)
      wrong = 'much' if range_.words == fields.get_range(fields.FINITE).words else wrong
      with pytest.raises(errors.UserError, match=f'config.{name} '):
        fields.check(name, wrong, field.annotation)


NAN = ((5, {}), (5, {'schedule.learning_rate': math.nan}))
TOKEN = ((5, {'masking': parts.token(rate=-0.1)}),)
OUTSIDE = [
  (dict(seed=2**32), 'config.seed is 4294967296: a whole number from 0 to 4,294,967,295'),
  (dict(seed=-1), 'config.seed is -1'),
  (dict(run__save_minutes=math.nan), 'config.run.save_minutes is nan: a finite number is needed.'),
  (dict(schedule__learning_rate=math.inf), 'config.schedule.learning_rate is inf: a finite'),
  (dict(schedule__learning_rate=1e39), 'config.schedule.learning_rate is 1e+39: a finite'),
  (dict(optimizer__rates=(('norm/', math.nan),)), "config.optimizer.rates is (('norm/', nan),)"),
  (dict(optimizer__eps=-1e-6), 'config.optimizer.eps is -1e-06'),
  (dict(optimizer__rates=(('norm/', -0.5),)), 'each of its numbers must be a number of at least 0'),
  (dict(optimizer__b1=1.0), 'config.optimizer.b1 is 1.0: a number from 0 to below 1'),
  (dict(optimizer__weight_decay=-0.01), 'config.optimizer.weight_decay is -0.01: a number of at'),
  (dict(schedule=parts.linear_to_floor(end_share=1.1)), 'config.schedule.end_share is 1.1'),
  (dict(schedule__across_phases='stop'), "No config.schedule.across_phases is called 'stop'"),
  (dict(run__on_spike='rewind'), "No config.run.on_spike is called 'rewind'. There is: report, st"),
  (dict(encoder__norm_eps=1e-50), 'config.encoder.norm_eps is 1e-50: a number of at least 1.2e-38'),
  (dict(encoder__dropout=1.0), 'config.encoder.dropout is 1.0: a number from 0 to below 1'),
  (dict(batch_size=-8), 'config.batch_size is -8: a whole number from 0'),
  (dict(batch_size=8.0), 'config.batch_size is 8.0: a whole number'),
  (dict(batch_size=None), 'config.batch_size is None: a whole number'),
  (dict(batch_size=True), 'config.batch_size is True: a whole number'),
  (dict(batch_size=2**20, length=2**10), '1,048,576 rows × 1,024 tokens per batch'),
  (dict(length=0), 'config.length is 0'),
  (dict(run__accumulation=0), 'config.run.accumulation is 0'),
  (dict(run__mesh=(-2, 1, 1)), 'config.run.mesh is (-2, 1, 1): each of its numbers'),
  (dict(run__mesh=('a', 1, 1)), "config.run.mesh is ('a', 1, 1): each of its numbers"),
  (dict(run__mesh=(1, (1, 1), 1)), 'config.run.mesh is (1, (1, 1), 1): each of its numbers'),
  (dict(masking__corruption=(0.8, None, 0)), 'config.masking.corruption is (0.8, None, 0): each'),
  (dict(encoder__num_layers=10**9), 'config.encoder.num_layers is 1000000000'),
  (dict(encoder__hidden_size=10**12), 'config.encoder.hidden_size is 1000000000000'),
  (dict(tokenizer__vocab_size=10**10), 'config.tokenizer.vocab_size is 10000000000'),
  (dict(phases=((2**31, {}),)), 'config.phases have 2,147,483,648 steps'),
  (dict(phases=NAN), 'in phase 1, config.schedule.learning_rate is nan'),
  (
    dict(phases=TOKEN),
    'in phase 0, config.masking.rate is -0.1: a number above 0 and below 1',
  ),
  (dict(masking=parts.part('a.b:c', odd=math.nan)), 'config.masking.odd is nan: a finite number'),
]


def test_a_number_outside_its_range_is_refused_before_anything_is_built():
  built = lambda changes: check.config(resolve.run(changed(**changes)))
  for changes, words in OUTSIDE:
    refused(words, built, changes)


def test_a_vocabulary_size_may_be_that_of_the_corpus_and_no_other_word():
  ranges.check(changed(tokenizer__vocab_size='auto'))
  refused('a whole number from 1', ranges.check, changed(length='auto'))
  for size in ('atuo', 'many', '30_000', 0, -5):
    refused("a whole number from 1.*or 'auto'", ranges.check, changed(tokenizer__vocab_size=size))


KEPT, CONVOLVED = 'tests.outside.kept_or_random:kept_or_random', 'tests.outside.convolved:Convolved'


def test_a_part_of_ones_own_has_the_ranges_and_meanings_that_it_says_and_no_others():
  ranges.check(changed(objective=parts.part(KEPT, mask_id=4, rate=15.0, dropout=2.0)))
  config = changed(objective=parts.part(KEPT, mask_id=4))
  rows = {row.key: row for row in ranges.table(config)}
  assert set(configuration.flatten(config)) | {'objective.weight'} == set(rows)
  assert rows['objective.weight'][1:] == (1.0, 'a number of at least 0', 'of the second loss.')
  assert rows['schedule.learning_rate'].meaning == 'the peak.'
  assert rows['masking.rounding'].range == "'nearest' | 'random'"
  assert rows['encoder.dropout'].range == 'a number from 0 to below 1'


def test_a_part_of_ones_own_has_its_ranges_checked_where_it_is_built():
  build = lambda part: part_lib.build(part, objectives.BY_NAME, 'objective', encoder=None)
  words = 'config.objective.weight is -1.0: a number of at least'
  refused(words, build, parts.part(KEPT, mask_id=4, weight=-1.0))
  words = 'config.objective.mask_id is 4.5: a whole number from 0'
  refused(words, build, parts.part(KEPT, mask_id=4.5))
  sizes = dict(num_layers=1, hidden_size=8, num_heads=2, intermediate_size=8, max_positions=8)
  encoder = parts.part(CONVOLVED, **sizes, reach=0), encoders.BY_NAME, 'encoder'
  words = 'config.encoder.reach is 0: a whole number from 1'
  refused(words, part_lib.build, *encoder, vocab_size=9, dtype=None)


@pytest.mark.parametrize('command', ['prepare', 'show'])
def test_every_command_refuses_a_seed_whose_weights_another_seed_has(command, tmp_path):
  config, out = changed(seed=2**32 + 5), tmp_path / 'out'
  prepared = lambda: prepare.prepare(config, ['README.md'], str(out))
  act = prepared if command == 'prepare' else lambda: show.show(config, str(out))
  refused('config.seed is 4294967301', act)
  assert not out.exists()


def test_one_annotation_that_is_there_for_type_checkers_alone_leaves_the_others(monkeypatch):
  made = types.ModuleType('late')
  made.fields = fields
  monkeypatch.setitem(sys.modules, 'late', made)
  exec('def part(*, size: "Nope" = 1, rate: "fields.SHARE" = 0.1): ...', vars(made))
  found = fields.parameters(made.part)
  assert found['size'].annotation == 'Nope'
  assert fields.get_range(found['rate'].annotation).holds(0.5)


def test_definitions_need_no_framework():
  code = 'import sys; from configs import bert; from bertzoo_jax.parts import ranges\n'
  code += 'ranges.check(bert.get_config("tiny")); print(*{m.split(".")[0] for m in sys.modules})'
  done = commands.run('-c', code)
  loaded = set(done.stdout.split())
  assert 'ml_collections' in loaded and not loaded & {'jax', 'flax', 'tensorflow', 'numpy'}, done


FIELDS = [('source', 'text_a', 0), ('source', 'separator', None), ('source', 'where', 'x')]
FIELDS += [('source', 'header', 'no'), ('name', ['a']), ('metrics', 'accuracy')]


def test_fields_of_a_fine_tuning_have_their_types():
  for *section, field, value in FIELDS:
    config = own.get_config('classify').unlock()
    ranges.check_fields(config)
    at = config[section[0]] if section else config
    del at[field]
    at[field] = value
    refused('is needed', ranges.check_fields, config)
