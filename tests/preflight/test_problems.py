import os
import pathlib
import re

import ml_collections
import pytest

from bertzoo_jax import parts
from bertzoo_jax import pretrain
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.experiment import resolve
from bertzoo_jax.preflight import __main__ as command
from bertzoo_jax.preflight import readiness
from bertzoo_jax.preflight import report
from bertzoo_jax.preflight.tpu import program
from bertzoo_jax.runs import workdir as workdirs
from configs import bert
from configs import electra
from tests.preflight import asked


@asked.needs_libtpu
def test_all_problems_are_listed_at_once(tmp_path, monkeypatch):
  (tmp_path / 'file').write_text('')
  monkeypatch.setenv('LIBTPU_INIT_ARGS', '--xla_no_such_flag=true')
  wrong = asked.config(run__mesh=(3, 1, 1), run__dtype='float17', objective=parts.replaced_token())
  where = dict(corpus=str(tmp_path / 'none'), workdir=str(tmp_path / 'file' / 'run'))
  found = asked.preflight(wrong, tpu='v5e-4', recipe=asked.config(batch_size=64), **where)
  assert asked.codes(found) == ['P01', 'P05', 'W01', 'W01', 'P04', 'P06', 'P11']
  remedies = [re.search(r':|Did you mean|There is', f.sentence) for f in found.findings]
  assert all(remedies)
  assert 'LIBTPU_INIT_ARGS' not in os.environ
  text = asked.printed(found)
  assert all(code in text for code in asked.codes(found)) and '5 problems' in text
  assert not found.ready and not report.as_dict(found)['phases']


def test_a_misspelt_type_is_a_problem_beside_the_others_and_one_of_two_flags_is_needed(tmp_path):
  found = asked.preflight(asked.config(), tpu='v5e-5', corpus=str(tmp_path))
  assert asked.codes(found) == ['P02', 'P06'] and 'v5e-4' in found.findings[0].sentence
  assert found.slice_ is None and '2 problems' in asked.printed(found)
  for both in ({}, dict(tpu='v5e-4', topology='v5e:2x2')):
    with pytest.raises(errors.UserError, match='either --tpu'):
      asked.preflight(asked.config(), **both)


def test_without_the_compiler_parts_that_do_not_go_together_are_said_too(monkeypatch):
  monkeypatch.setattr(program.platform, 'system', lambda: 'Darwin')
  found = asked.preflight(asked.config(objective=parts.mlm_pair()), tpu='v5e-4')
  assert asked.codes(found) == ['P03', 'P08'] and not found.ready
  assert 'Linux on x86-64 only' in found.findings[0].sentence
  assert 'pair_labels' in found.findings[1].sentence


PAIRS = {'objective': parts.mlm_pair(), 'format': parts.segment_pairs()}


@asked.needs_libtpu
@pytest.mark.parametrize(
  'code, changes',
  [
    ('P01', dict(seed=2**32)),
    ('P01', dict(phases=())),
    ('P01', dict(phases=((0, {}),))),
    ('P01', dict(phases=((5, {}), (5, {'lenght': 32})))),
    ('P01', dict(phases=((5, {'encoder.num_layers': 2}),))),
    ('P01', dict(batch_tokens=512)),
    ('P01', dict(run__dtype='float64')),
    ('P01', dict(run__kernels='xls')),
    ('P01', dict(run__remat='everything')),
    ('P01', dict(run__on_spike='go')),
    ('P01', dict(run__corpus_cache='tape')),
    ('P01', dict(schedule__warmup=100)),
    ('P01', dict(schedule__name='linear')),
    ('P01', dict(objective__name='mlmm')),
    ('P01', dict(optimizer__name='adam')),
    ('P01', dict(encoder__num_heads=3)),
    ('P01', dict(encoder__activation='gulu')),
    ('P01', dict(hf='BertForMaskedLMs')),
    ('P01', dict(hf='nowhere.at_all:Bert')),
    ('P01', dict(length=128)),
    ('P04', dict(batch_size=12)),
    ('P06', dict(tokenizer__vocab_size=301)),
    ('P07', dict(length=2)),
    ('P08', dict(objective={'name': 'mlm', 'odd': 1})),
    ('P08', dict(optimizer__rates=(('nothing', 0.5),))),
    ('P08', dict(masking=parts.permutation(num_predictions=8))),
    ('P08', dict(phases=((5, PAIRS), (5, {})))),
  ],
)
def test_refusals_of_pretrain_are_refusals_here_in_the_same_words(
  corpus, tmp_path, monkeypatch, code, changes
):
  asked.linear(monkeypatch)  # what is compiled beside a refusal is not asked about here
  made = asked.config(**changes)
  with pytest.raises(errors.UserError) as refused:
    pretrain.pretrain(made, str(tmp_path / 'run'), corpus=str(corpus))
  found = asked.preflight(made, tpu='v5e-8', corpus=str(corpus))
  assert found.findings.problems == [readiness.Finding(code, str(refused.value))]
  assert not (tmp_path / 'run').exists()


# text, workdir and recipe


def read(made, path=None):
  found = readiness.Findings()
  return found, readiness.text(found, resolve.run(made), path and str(path), 1)


def codes(found):
  return [f.code for f in found]


def test_the_config_alone_tells_the_features_of_its_rows():
  for made in (bert.get_config('base'), electra.get_config('tiny_two_stage'), asked.config()):
    found, text = read(ml_collections.ConfigDict(made).lock())
    for phase in configuration.phases(made):
      features = text.data.phases[phase.index].features
      assert features['input_ids'][0] == (made.batch_size, phase.config.length)
      assert 'masked_positions' in features
    assert not found and text.data.vocab_size == made.tokenizer.vocab_size


def test_a_corpus_gives_epochs_its_own_warnings_and_is_no_workdir(corpus):
  found, text = read(asked.config(phases=((40000, {}),)), corpus)
  assert text.rows[0] > 4 and text.hash and text.tokens > 500
  assert codes(found) == ['W02'] and 'times' in found[0].sentence
  few, _ = read(asked.config(batch_size=4096), corpus)
  assert 'W03' in codes(few) and any('a batch repeats rows' in f.sentence for f in few)
  keeping = lambda **more: asked.config(run__keep_words='100,200,1G', **more)
  alone, of_run = read(keeping())[1], read(keeping(), corpus)[1]
  assert alone.kept == 3 and 0 < of_run.kept <= 2
  found, text = read(asked.config())
  readiness.check_workdir(found, asked.config(), str(corpus), text, None)
  assert 'P11' in codes(found)


def test_epochs_of_a_corpus_in_an_object_store_are_said_to_be_unknown():
  found, config = readiness.Findings(), asked.config(phases=((40000, {}),), epochs=2.0)
  assert readiness.with_epochs(found, config, ['gs://bucket/corpus']) is config
  assert codes(found) == ['W02'] and 'the 40,000 steps of config.phases' in found[0].sentence


def test_a_vocabulary_size_that_only_a_corpus_tells_is_a_problem_without_one():
  found = asked.preflight(asked.config(tokenizer__vocab_size='auto'), tpu='v5e8').findings
  assert codes(found) == ['P02', 'P06'] and 'give --corpus' in found[1].sentence


def test_an_object_store_that_does_not_answer_is_a_problem_beside_the_others(monkeypatch):
  def refuse(path):
    raise ConnectionError('no such host')

  monkeypatch.setattr(readiness.corpora, 'read_manifest', refuse)
  monkeypatch.setattr(readiness.workdirs, 'check_writable', refuse)
  monkeypatch.setattr(readiness.storage, 'path', lambda p: pathlib.Path('/nowhere'))
  monkeypatch.setattr(readiness.storage, 'is_remote', lambda p: True)
  found, text = read(asked.config(), 'gs://bucket/corpus')
  readiness.check_workdir(found, asked.config(), 'gs://bucket/run', text, 1)
  assert codes(found) == ['P14', 'P14']
  assert 'gs://bucket/corpus cannot be reached' in found[0].sentence
  assert text.data.vocab_size == 300


def test_a_workdir_with_another_run_or_without_room_is_a_problem(tmp_path, corpus, monkeypatch):
  found, text = read(asked.config(), corpus)
  look = lambda made, path: readiness.check_workdir(found, made, str(path), text, 1 << 20)
  look(asked.config(), tmp_path / 'a' / 'b')
  assert not found and not (tmp_path / 'a').exists()
  workdirs.describe(tmp_path, asked.config(), {'hash': text.hash}, lambda folder: None)
  look(asked.config(run__save_minutes=7.0), tmp_path)
  assert not found, 'machinery may change'
  look(asked.config(batch_size=16), tmp_path)
  assert codes(found) == ['P12'] and 'batch_size' in found[0].sentence
  free = type('Usage', (), dict(free=5 << 20))
  monkeypatch.setattr(readiness.shutil, 'disk_usage', lambda path: free)
  found.clear()
  readiness.check_room(found, tmp_path, 1 << 20, keep=3, for_good=0)
  assert not found, 'five checkpoints of a mebibyte'
  readiness.check_room(found, tmp_path, 1 << 20, keep=3, for_good=1)
  assert codes(found) == ['P13']


def test_the_recipe_is_the_file_without_the_fields_that_the_command_sets():
  line = '--config=configs/bert.py:tiny,steps=26,masking=span --config.batch_size=512'
  made = command.recipe(['preflight', *line.split()])
  assert made.batch_size == 64 and made.masking.name == 'token'
  assert made.phases == bert.get_config('tiny').phases
  other = command.recipe(['preflight', '--config', 'configs/bert.py:base', '--tpu=v4-8'])
  assert other.batch_size == 256
  phases = lambda **changes: configuration.phases(asked.config(**changes))
  found = readiness.Findings()
  readiness.check_recipe(found, phases(batch_size=16), phases())
  assert not found, 'twice is near enough'
  readiness.check_recipe(found, phases(batch_size=24), phases())
  assert codes(found) == ['W01', 'W01'] and 'learning_rate' in found[0].sentence
