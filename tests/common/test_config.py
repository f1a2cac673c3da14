import itertools
import json
import re

import ml_collections

from bertzoo_jax import parts
from bertzoo_jax.common import config as configuration
from bertzoo_jax.runs import workdir
from configs import arguments
from configs import babylm
from configs import bert
from configs import bert_wwm
from configs import ernie
from tests.refused import refused


def _config(**fields):
  return ml_collections.ConfigDict({**bert.get_config('tiny'), **fields}).lock()


def test_phases_follow_each_other_and_carry_their_overrides():
  first, second = configuration.phases(
    _config(phases=((90, {'length': 16, 'masking.rate': 0.3}), (10, {'objective': parts.mlm()})))
  )
  assert (first.first_step, first.end_step, second.first_step, second.end_step) == (0, 90, 90, 100)
  assert first.config.length == 16
  assert first.config.masking.rate == 0.3
  assert first.config.objective.name == 'mlm_pair'
  assert second.config.length == 32 and second.config.objective.name == 'mlm'
  (phase,) = configuration.phases(_config(phases=((5, {'masking.corruption': [1.0, 0.0, 0.0]}),)))
  assert phase.config.masking.corruption == (1.0, 0.0, 0.0)


def test_a_phase_that_cannot_be_is_refused_in_one_sentence():
  for phases, words in (
    ((), 'at least one phase'),
    (((10, {'lenght': 32}),), "Did you mean 'length'"),
    (((10, {'masking.rat': 0.3}),), "Did you mean 'masking.rate'"),
    (((10, {'optimizer.b1': 0.5}),), 'a phase may set'),
    (((10, {'run.remat': 'full'}),), 'a phase may set'),
    (((10, {'batch_size': 0}),), 'set one of them'),
    (((10, {'batch_size': 4, 'batch_tokens': 64}),), 'set one of them'),
    (((10, {'batch_tokens': 31}),), 'at least one row'),
    (((10, {'encoder.num_layers': 4}),), 'a phase may set'),
    (((10, {'length': 'long'}),), 'it is a int'),
    (((0, {}),), 'at least one'),
    (((6.7, {}),), 'a whole number'),
    (((True, {}),), 'a whole number'),
    ((10,), r'a phase is \(steps'),
  ):
    refused(words, configuration.phases, _config(phases=phases))


def test_a_phase_has_rows_of_its_own_in_rows_or_in_tokens():
  pairs, own = parts.segment_pairs(), {'run.accumulation': 31, 'masking.rate': 0.3}
  phases = (10, {}), (20, {'batch_tokens': 1000, **own}), (5, {'batch_size': 2, 'length': 64})
  phases += (6, {'length': 64}), (7, {'format': pairs})
  made = configuration.phases(_config(length=32, batch_size=8, format=pairs, phases=phases))
  rows = [p.config.batch_size for p in made]
  assert rows == [8, 1000 // 32, 2, 8, 8]
  assert [p.config.run.accumulation for p in made] == [1, 31, 1, 1, 1]
  read = [0, *itertools.accumulate(n * b for (n, _), b in zip(phases, rows))]
  assert [p.examples for p in made] == read[:-1]
  # neighbours with the same rows share an order
  assert [p.order for p in made] == [0, 0, 2, 2, 4]
  assert [p.first_example for p in made] == [0, 80, 0, 10, 0]
  mixed = (1, {'run.accumulation': 'auto'}), (1, {'run.accumulation': 2})
  for usual in (1, 'auto'):
    mixes = configuration.phases(_config(run=parts.run(accumulation=usual), phases=mixed))
    assert [p.config.run.accumulation for p in mixes] == ['auto', 2]
  phases = (1, {}), (1, {'length': 16})
  in_tokens = _config(length=32, batch_size=0, batch_tokens=640, phases=phases)
  assert [p.config.batch_size for p in configuration.phases(in_tokens)] == [20, 40]


def test_an_argument_swaps_sections_keeps_their_sizes_and_scales_steps():
  config = bert.get_config('base,objective=mlm,format=full_sentences,steps=1000')
  assert config.objective.name == 'mlm' and config.format == parts.full_sentences()
  assert config.phases == ((900, {'length': 128}), (100, {})) and config.schedule.warmup == 10
  before, after = (bert.get_config(f'tiny{swap}').encoder for swap in ('', ',encoder=disentangled'))
  assert after.name == 'disentangled' and after.buckets == 256
  sizes = arguments.SIZES_OF_ENCODERS
  assert {key: after[key] for key in sizes} == {key: before[key] for key in sizes}
  assert bert.get_config('tiny,encoder=two_stream').encoder.hidden_size == 128


def test_steps_scale_whatever_stands_beside_them():
  one = bert.get_config('base,steps=1000,schedule=linear_after_warmup')
  other = bert.get_config('base,schedule=linear_after_warmup,steps=1000')
  assert one == other and one.schedule.warmup == 24
  jump = {'schedule': parts.linear_jump(warmup=50)}
  config = bert.get_config('base')
  config.phases = ((500, {'schedule.warmup': 100}), (500, jump))
  arguments._scale(config, '100')
  assert config.phases[0] == (50, {'schedule.warmup': 10})
  assert config.phases[1][1]['schedule'].warmup == 5
  short = babylm.get_config('strict_small,steps=400')
  assert short.phases == ((400, {}),) and short.epochs == 0.0 and short.schedule.decay == 80
  assert short.moving == (('masking.rate', 0.3, 0.15, 0, 400, 'linear'),)


def test_a_misspelt_argument_and_text_of_another_tokenizer_say_what_was_meant():
  for argument, words in (
    ('bse', "Did you mean 'base'"),
    ('base,masking=tokn', "Did you mean 'token'"),
    ('base,maskin=token', "Did you mean 'masking'"),
    ('base,steps=many', 'a number of steps'),
    ('base,steps=1', 'too few for 2 phases'),
  ):
    refused(words, bert.get_config, argument, kind=ValueError)
  facts = {'vocab_size': 100, 'tokenizer': parts.byte_bpe(vocab_size=100)}
  given = 'The corpus C', facts, parts.wordpiece(), parts.corpus()
  refused('write tokenizer=byte_bpe after the size', configuration.check_text, *given)


def test_machinery_is_not_science():
  science = configuration.science
  by_hand = parts.run(accumulation=4, mesh=(4, 1, 2), dtype='float32')
  assert science(_config()) == science(_config(run=by_hand))
  a, b = (_config(phases=((9, {'batch_size': 8, 'run.accumulation': n}),)) for n in (2, 4))
  assert science(a) == science(b)
  other = science(_config(optimizer=parts.lamb(), seed=7))
  lines = ['optimizer.name: adamw → lamb', 'seed: 0 → 7']
  assert configuration.differences(science(_config()), other) == lines


def test_each_field_that_is_not_machinery_is_refused_by_its_key_when_it_changes_at_resume(tmp_path):
  stored = json.loads(configuration.to_json(_config()))
  (tmp_path / 'config.json').write_text(json.dumps(stored))
  for key in configuration.flatten(_config()):
    changed = _config().unlock()
    *section, field = key.split('.')
    part = changed[section[0]] if section else changed
    with part.ignore_type():
      part[field] = 'another'
    if section in (['run'], ['hf']) or key == 'hf':
      workdir.check_same_run(tmp_path, changed, 'hash')
    else:
      words = rf'another config: {re.escape(key)}: .* → another'
      refused(words, workdir.check_same_run, tmp_path, changed, 'hash')


def test_recipes_hold_the_papers_values_phase_by_phase():
  rows = lambda config: [
    (p.steps, p.config.length, p.config.batch_size, p.config.schedule.warmup)
    for p in configuration.phases(config)
  ]
  config = bert.get_config('base')
  assert config.schedule.learning_rate == 1e-4
  assert rows(config) == [(900_000, 128, 256, 10_000), (100_000, 512, 256, 10_000)]
  two = [(1_000_000, 128, 2560, 15625), (400_000, 512, 384, 936)]
  assert rows(bert_wwm.get_config('ext_base')) == two
  config = ernie.get_config('base')
  assert sum(steps for steps, *_ in rows(config)) == 1_000_000
  assert {stage[1:] for stage in rows(config)} == {(512, 65_536 // 512, 5000)}
  # one order of rows for all stages
  orders = [(p.order, p.examples == p.first_example) for p in configuration.phases(config)]
  assert orders == [(0, True)] * 3
