"""Everything else that would fail, with a code and a remedy."""

import os
import re

import pytest

from bertzoo_jax import parts
from bertzoo_jax import pretrain
from bertzoo_jax.common import errors
from bertzoo_jax.preflight import readiness
from bertzoo_jax.preflight import report
from bertzoo_jax.preflight.tpu import program
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
