"""Runs that go on from another run with its moments, and averages of weights by their addresses."""

import re
import types

import jax
import ml_collections
import numpy as np
import pytest
import small_corpora

from bertzoo_jax import hf
from bertzoo_jax import parts
from bertzoo_jax import pretrain
from bertzoo_jax import pretrained
from bertzoo_jax.common import errors
from bertzoo_jax.experiment import start
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import workdir as workdirs
from tests.pretrain import runs

STEPS, AT, LENGTH, VOCAB = 4, 2, 12, 31
DECAY = parts.warmup_stable_decay(learning_rate=0.01, warmup=1, decay=STEPS - AT)


@pytest.fixture(scope='module')
def train(tmp_path_factory):
  """(workdir, init, **fields of the config) → the run, on one device."""
  folder = tmp_path_factory.mktemp('branches')
  text = small_corpora.of_text(folder / 'corpus', VOCAB)

  def run(workdir, init=None, **fields):
    made = parts.experiment(
      **{
        **dict(
          tokenizer=parts.wordpiece(vocab_size=VOCAB),
          corpus=parts.corpus(),
          format=parts.segment_pairs(),
          masking=parts.token(),
          encoder=parts.transformer(
            num_layers=1, hidden_size=8, num_heads=2, intermediate_size=8, max_positions=LENGTH
          ),
          objective=parts.mlm(),
          optimizer=parts.adamw(),
          schedule=parts.constant(learning_rate=0.01, warmup=1),
          length=LENGTH,
          batch_size=8,
          phases=((STEPS, {}),),
          ema=0.9,
          hf='BertForMaskedLM',
          run=parts.run(
            dtype='float32', log_every=1, keep_every=1, tensorboard=False, compile_cache=str(folder)
          ),
        ),
        **fields,
      }
    )
    with pytest.MonkeyPatch.context() as patch:
      runs.on_one_device(patch)
      how = dict(corpus=text, init=init, resume_moments=init is not None)
      return pretrain.pretrain(ml_collections.ConfigDict(made).lock(), str(workdir), **how)

  return run


@pytest.fixture(scope='module')
def whole(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('whole') / 'run'
  train(workdir)
  return workdir


def test_a_branch_with_the_same_config_is_the_uninterrupted_run_bit_for_bit(
  train, whole, tmp_path, capsys
):
  init = f'{whole}@{AT}'
  train(tmp_path / 'run', init)
  assert f'step {AT}, weights and optimizer from {init}' in capsys.readouterr().out
  assert runs.state_of(tmp_path / 'run', STEPS) == runs.state_of(whole, STEPS)
  averages = [checkpoint.load_params(f'{run}@ema')[0] for run in (whole, tmp_path / 'run')]
  jax.tree.map(np.testing.assert_array_equal, *averages)
  assert [row['step'] for row in metrics.read(tmp_path / 'run')] == [3, 4]
  assert workdirs.first_weights(tmp_path / 'run') == init


def test_frozen_layers_stay_and_all_moments_begin_anew_when_they_are_freed(train, tmp_path, capsys):
  frozen, run = dict(phases=((AT, {'frozen': ('/layers/',)}), (STEPS - AT, {}))), tmp_path / 'run'
  train(run, **frozen)
  assert f'steps 0–{AT} · 8 rows × {LENGTH} tokens = 96 tokens per step · frozen: /layers/' in (
    capsys.readouterr().out
  )
  params = lambda step: hf.flatten(checkpoint.load_params(f'{run}@{step}')[0])
  before, border, after = map(params, (1, AT, AT + 1))
  learned = lambda a, b: {path for path in a if not np.array_equal(a[path], b[path])}
  assert learned(before, border) == {path for path in before if '/layers/' not in path}
  assert learned(border, after) == {*before}
  moments = lambda step: {
    path: bool(np.any(x)) for path, x in runs.arrays(run, step) if re.search('mu|nu|count', path)
  }
  assert all(moved != ('layers' in path) for path, moved in moments(1).items()), moments(1)
  assert not any(moments(AT).values()) and all(moments(AT + 1).values())
  for step in (1, AT):
    train(tmp_path / f'from{step}', f'{run}@{step}', **frozen)
    assert runs.state_of(tmp_path / f'from{step}', STEPS) == runs.state_of(run, STEPS)


@pytest.mark.parametrize(
  'frozen, words',
  [(('/layer/',), 'config.frozen has ./layer/., which matches no'), (('',), 'freezes all')],
)
def test_what_cannot_be_frozen_is_refused(train, tmp_path, frozen, words):
  with pytest.raises(errors.UserError, match=words):
    train(tmp_path / 'run', frozen=frozen)
  assert not (tmp_path / 'run/checkpoints').exists()


def _early(decay, name='warmup_stable_decay', **fields):
  return ml_collections.ConfigDict(
    dict(
      schedule={**DECAY, 'decay': decay} if 'stable' in name else getattr(parts, name)(**RATE),
      phases=((STEPS, {}),),
      batch_size=8,
      batch_tokens=0,
      mixture=(),
      format={},
      length=LENGTH,
      seed=len(name),
    )
    | fields
  )


RATE = dict(learning_rate=0.01, warmup=1)


@pytest.mark.parametrize(
  'before, config, words',
  [
    (_early(2), _early(2), []),
    (
      _early(2),
      _early(3),
      ['the rate goes from 1.0e-02 .W@2. to .*decay=2 is a decay that begins'],
    ),
    (_early(0, 'constant'), _early(3), ['config.seed was different', 'the rate goes']),
    (_early(0, 'constant'), _early(0, 'linear_from_start'), ['seed', 'to 5.0e-03$']),
  ],
)
def test_what_changes_where_a_run_branches_off_is_said(before, config, words):
  notes = start._breaks(before, config, 'W@2', 2)
  assert len(notes) == len(words)
  assert all(re.search(word, note) for word, note in zip(words, notes))


@pytest.mark.parametrize(
  'step, fields, words',
  [
    (2, dict(batch_size=4), r"16 rows by step 2, .* row 8: .*\(\(2, {'batch_size': 8}\), \(2, "),
    (3, dict(phases=((2, dict(batch_size=4)), (2, {}))), '24 rows .* row 16: set config.phases'),
    (2, dict(batch_size=16), '16 rows .* row 32: set config.phases'),
  ],
)
def test_a_branch_goes_on_at_the_next_row(step, fields, words):
  with pytest.raises(errors.UserError, match=words):
    start._breaks(_early(2), _early(2, **fields), f'W@{step}', step)
  remedy = dict(phases=((step, dict(batch_size=8)), (STEPS - step, dict(batch_size=4))))
  assert not start._breaks(_early(2), _early(2, **remedy), f'W@{step}', step)


@pytest.mark.parametrize('other', ['', 'c0ffee', 'c0ffee 7'])
def test_a_branch_onto_another_corpus_is_said(whole, other):
  corpus = {'hash': other or workdirs.corpus_record(whole)['hash']}
  data = types.SimpleNamespace(corpus=corpus, tokenizer=whole / 'tokenizer')
  notes = start._branching(workdirs.run_config(whole), start.First(f'{whole}@{AT}'), data, STEPS)[2]
  assert notes == [f'note: {whole}@{AT} was trained on another corpus'] * bool(other)


def test_a_decay_branches_from_a_stable_run(train, whole, tmp_path):
  train(tmp_path / 'run', f'{whole}@{AT}', schedule=DECAY)
  assert [round(row['lr'], 5) for row in metrics.read(tmp_path / 'run')] == [
    0.01,
    0.00293,
  ]  # 1 − √(1/2)


@pytest.mark.parametrize(
  'init, fields, words',
  [
    ('hf:somewhere', {}, 'give --init WORKDIR.@STEP.'),
    ('{}@ema', {}, 'is an average, which has no moments'),
    (
      '{}@2',
      dict(optimizer=parts.lamb()),
      'trained with optimizer=adamw, .* optimizer=lamb cannot',
    ),
    ('{}@2', dict(ema=0.0), 'with config.ema=0.9, and this config has 0: '),
    ('{}', {}, 'begins at step 4, and this config ends at step 4'),
    (
      '{}@3',
      dict(phases=((2, dict(batch_size=4)), (2, {}))),
      '24 rows .* row 16: set config.phases',
    ),
    ('{}@2', dict(objective=parts.mlm_pair()), 'other arrays.*leave --resume_m'),
  ],
)
def test_moments_that_cannot_continue_are_refused(train, whole, tmp_path, init, fields, words):
  with pytest.raises(errors.UserError, match=words):
    train(tmp_path / 'run', init.format(whole), **fields)
  assert not (tmp_path / 'run').exists()


def test_averages_open_by_their_addresses_and_keep_them(whole):
  for kind in ('ema', 'average:2'):
    found = pretrained.open(f'{whole}@{kind}')
    assert (found.address, found.step) == (f'{whole}@{kind}@{STEPS}', STEPS)
