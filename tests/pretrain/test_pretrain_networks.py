import json
import shutil

import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import fill_mask
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.evaluate import gaps
from bertzoo_jax.evaluate import minimal_pairs
from bertzoo_jax.evaluate import scores
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import metrics
from tests.pretrain import runs
from tests.pretrain.runs import BORDER
from tests.pretrain.runs import STEPS

ELECTRA = dict(objective=parts.replaced_token(width=0.5), hf='ElectraForPreTraining')
ELECTRA['encoder__activation'] = 'gelu'
FROZEN = {'objective': parts.replaced_token_frozen()}
STAGES = {'length': 32, 'objective': parts.generator_mlm()}, FROZEN
TWO_STAGES = dict(
  phases=((BORDER, STAGES[0]), (STEPS - BORDER, STAGES[1])),
  objective=parts.generator_mlm(),
  encoder__activation='gelu',
  schedule__across_phases='restart',
  run__keep_every=BORDER,
  run__save_minutes=1000.0,
  run__eval_every=0,
)
# Two steps, of which the first has rate 0: it leaves the weights that a run began with.
SHORT = dict(phases=((2, {}),), schedule__warmup=1, run__keep_every=1, run__eval_every=0)


def params_at(workdir, step):
  return checkpoint.load_params(f'{workdir}@{step}')[0]


def test_two_stages_resume_across_their_border_bit_for_bit_and_the_generator_stays(tmp_path, here):
  here(tmp_path / 'whole', **TWO_STAGES)
  run = shutil.copytree(tmp_path / 'whole', tmp_path / 'run')
  runs.cut(run, BORDER)
  here(run, **TWO_STAGES)
  runs.check_same(run, tmp_path / 'whole')
  border, end = params_at(run, BORDER), params_at(run, STEPS)
  # the discriminator starts from the generator
  assert small.worst(border['encoder'], border['generator']['encoder']) == 0
  assert small.worst(end['generator'], border['generator']) == 0
  assert small.worst(end['encoder'], border['encoder']) > 1e-3
  before, after = metrics.read(run)[BORDER - 1 : BORDER + 1]
  assert 'rtd_loss' not in before and after['rtd_loss'] > 0 and after['mlm_loss'] > 0


def test_both_networks_are_exported_and_begin_a_run_again(tmp_path, here, capsys):
  here(tmp_path / 'run', **{**SHORT, 'run__eval_every': 2}, **ELECTRA)
  assert all(row.holds for row in export.export(str(tmp_path / 'run'), tmp_path / 'hf'))
  classes = dict(discriminator='ElectraForPreTraining', generator='ElectraForMaskedLM')
  assert {p.name for p in (tmp_path / 'hf').iterdir()} == set(classes)
  for name, its_class in classes.items():
    written = json.loads((tmp_path / 'hf' / name / 'config.json').read_text())
    assert written['architectures'] == [its_class]
    assert (tmp_path / f'hf/{name}/tokenizer.json').exists()
  fresh, run = params_at(tmp_path / 'run', 1), params_at(tmp_path / 'run', 2)
  assert all(small.worst(fresh[name], run[name]) > 1e-3 for name in ('encoder', 'generator'))
  one, two = (f'hf:{tmp_path}/hf/{name}' for name in classes)
  here(tmp_path / 'again', init=f'{one},{two}', **SHORT, **ELECTRA)
  assert small.worst(params_at(tmp_path / 'again', 1), run) == 0
  here(tmp_path / 'one', init=one, **SHORT, **ELECTRA)
  begun = params_at(tmp_path / 'one', 1)
  assert small.worst(begun['encoder'], run['encoder']) == 0
  assert small.worst(begun['generator'], run['generator']) > 0
  output = capsys.readouterr().out
  for words in ('generator: fresh', 'held-out replaced tokens: accuracy', 'flops     '):
    assert words in output
  frozen = {**ELECTRA, 'objective': parts.replaced_token_frozen()}
  with pytest.raises(errors.UserError, match='has no generator/.* give --init DISCRIMINATOR,GEN'):
    here(tmp_path / 'headless', init=f'{one},{one}', **SHORT, **frozen)
  with pytest.raises(errors.UserError, match=r'has 2 addresses, the objective 1 network'):
    here(tmp_path / 'two', init=f'{one},{two}', **SHORT)


@pytest.mark.slow
def test_a_run_gives_each_network_the_one_of_its_name_and_what_no_class_holds_is_said(
  tmp_path, here, capsys
):
  adversarial = {**ELECTRA, 'objective': parts.replaced_token_adversarial(width=0.5)}
  here(tmp_path / 'pair', **SHORT, **adversarial)
  export.export(str(tmp_path / 'pair'), tmp_path / 'hf')
  assert 'not exported, since no class has a place for it: baseline_head' in capsys.readouterr().out
  pair = params_at(tmp_path / 'pair', 2)
  here(tmp_path / 'both', init=f'{tmp_path}/pair,{tmp_path}/pair', **SHORT, **ELECTRA)
  both = params_at(tmp_path / 'both', 1)
  assert all(small.worst(both[name], pair[name]) == 0 for name in ('encoder', 'generator'))
  here(tmp_path / 'whole', init=f'{tmp_path}/pair@2', **SHORT, **adversarial)
  assert small.worst(params_at(tmp_path / 'whole', 1), pair) == 0
  once, gelu = dict(phases=((1, {}),), schedule__warmup=0), dict(encoder__activation='gelu')
  here(tmp_path / 'plain', objective=parts.mlm(), hf='BertForMaskedLM', **once, **gelu)
  alone = dict(objective=parts.generator_mlm(), schedule__learning_rate=0.0, **once, **gelu)
  here(tmp_path / 'first', init=str(tmp_path / 'plain'), **alone)
  plain, first = (params_at(tmp_path / name, 1) for name in ('plain', 'first'))
  assert small.worst(first['generator'], plain) == 0
  with pytest.raises(errors.UserError, match='freezes a network.*generator_mlm before it'):
    here(tmp_path / 'frozen', **{**alone, 'objective': parts.replaced_token_frozen()})


SIZES = dict(num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32, max_positions=64)
ENCODERS = {  # changes of the config, class of the export
  'shared': (dict(encoder__sharing='all'), 'AlbertForMaskedLM'),
  'transformer': ({}, 'BertForMaskedLM'),
  'disentangled': (dict(encoder=parts.disentangled(**SIZES)), 'DebertaV2ForMaskedLM'),
  'modern': (dict(encoder=parts.modern(**SIZES, window=8)), 'ModernBertForMaskedLM'),
}


@pytest.mark.parametrize('encoder', ENCODERS)
def test_a_run_goes_from_causal_over_a_mixture_to_masked_and_each_stage_is_scored_as_it_learned(
  tmp_path, here, world, capsys, encoder
):
  fields, hf_class = ENCODERS[encoder]
  stages = parts.causal_lm(), parts.causal_masked(causal_share=0.5), parts.mlm()
  here(
    tmp_path / 'run',
    phases=tuple((2, {'objective': stage, 'length': 32}) for stage in stages),
    run__keep_every=2,
    run__eval_every=2,
    hf=hf_class if fields else 'BertForPreTraining',
    **fields,
  )
  rows = [metrics.read(tmp_path / 'run')[step - 1] for step in (2, 4, 6)]
  told = [tuple(f'held_out_{x}_loss' in row for x in ('next', 'mlm')) for row in rows]
  assert told == [(True, False), (True, True), (False, True)]
  ways = {2: ['left to right'], 4: ['masked', 'words', 'left to right'], 6: ['masked', 'words']}
  for step, those in ways.items():
    address = f'{tmp_path}/run@{step}'
    assert minimal_pairs.opened(address)[0].how == those[0]
    for by in {'masked', 'words', 'left to right'} - {*those}:
      with pytest.raises(errors.UserError, match='as it learned'):
        minimal_pairs.opened(address, by)
  rows = export.export(f'{tmp_path}/run@4', tmp_path / 'hf')
  assert all(row.holds for row in rows)
  exported = json.loads((tmp_path / 'hf/config.json').read_text())
  assert exported['architectures'] == [hf_class]
  assert exported['bertzoo_learned'] == ['left to right', 'masked']
  assert '| masking | token' in (tmp_path / 'hf/README.md').read_text()
  corpus = str(world / 'corpus')
  for command, words in (
    (scores.evaluate, 'sees no later tokens.*metrics.jsonl'),
    (gaps.find, 'trains no network that fills masks'),
  ):
    with pytest.raises(errors.UserError, match=words):
      command(f'{tmp_path}/run@2', corpus)
  assert len(fill_mask.fill(str(tmp_path / 'hf'), 'a [MASK] b', 2)[0]) == 2
