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
from configs import bert
from tests.pretrain import runs

STEPS, AT, LENGTH, VOCAB = 4, 2, 12, 31
RATE = dict(learning_rate=0.01, warmup=1)
DECAY = parts.warmup_stable_decay(**RATE, decay=STEPS - AT)
FROZEN = dict(phases=((AT, {'frozen': ('/layers/',)}), (STEPS - AT, {})))
HALF_ROWS = ((2, dict(batch_size=4)), (2, {}))
SIZES = dict(num_layers=1, hidden_size=8, num_heads=2, intermediate_size=8)


@pytest.fixture(scope='module')
def train(tmp_path_factory):
  """(workdir, init, **fields of the config) → the run, on one device."""
  folder = tmp_path_factory.mktemp('branches')
  text = small_corpora.of_text(folder / 'corpus', VOCAB)

  def run(workdir, init=None, **fields):
    made = bert.get_config('tiny').unlock()
    made.tokenizer, made.corpus = parts.wordpiece(vocab_size=VOCAB), parts.corpus()
    made.encoder.update(SIZES)
    machinery = dict(dtype='float32', log_every=1, keep_every=1, eval_every=0, tensorboard=False)
    made.run.update(machinery | dict(compile_cache=str(folder)))
    usual = dict(length=LENGTH, batch_size=8, phases=((STEPS, {}),), ema=0.9)
    for name, value in {'schedule': parts.constant(**RATE), **usual, **fields}.items():
      made[name] = value
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
  run = tmp_path / 'run'
  train(run, **FROZEN)
  line = f'steps 0–{AT} · 8 rows × {LENGTH} tokens = 96 tokens per step · frozen: /layers/'
  assert line in capsys.readouterr().out
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


def test_a_branch_inside_and_at_the_border_of_a_frozen_phase_is_the_whole_run(train, tmp_path):
  run = tmp_path / 'run'
  train(run, **FROZEN)
  for step in (1, AT):
    train(tmp_path / f'from{step}', f'{run}@{step}', **FROZEN)
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
  schedule = {**DECAY, 'decay': decay} if 'stable' in name else getattr(parts, name)(**RATE)
  usual = dict(batch_size=8, batch_tokens=0, mixture=(), format={}, length=LENGTH, seed=len(name))
  made = dict(schedule=schedule, phases=((STEPS, {}),), **usual)
  return ml_collections.ConfigDict(made | fields)


CHANGED = 'the rate goes from 1.0e-02 .W@2. to .*decay=2 is a decay that begins'
CONSTANT = _early(0, 'constant')


def test_what_changes_where_a_run_branches_off_is_said():
  for before, config, words in (
    (_early(2), _early(2), []),
    (_early(2), _early(3), [CHANGED]),
    (CONSTANT, _early(3), ['config.seed was different', 'the rate goes']),
    (CONSTANT, _early(0, 'linear_from_start'), ['seed', 'to 5.0e-03$']),
  ):
    notes = start._breaks(before, config, 'W@2', 2)
    assert len(notes) == len(words), notes
    assert all(re.search(word, note) for word, note in zip(words, notes))


def test_a_branch_goes_on_at_the_next_row():
  for step, fields, words in (
    (2, dict(batch_size=4), r"16 rows by step 2, .* row 8: .*\(\(2, {'batch_size': 8}\), \(2, "),
    (3, dict(phases=HALF_ROWS), '24 rows .* row 16: set config.phases'),
    (2, dict(batch_size=16), '16 rows .* row 32: set config.phases'),
  ):
    with pytest.raises(errors.UserError, match=words):
      start._breaks(_early(2), _early(2, **fields), f'W@{step}', step)
    remedy = dict(phases=((step, dict(batch_size=8)), (STEPS - step, dict(batch_size=4))))
    assert not start._breaks(_early(2), _early(2, **remedy), f'W@{step}', step)


def test_a_branch_onto_another_corpus_is_said(whole):
  for other in (None, 'c0ffee', 'c0ffee 7'):
    corpus = {'hash': other or workdirs.corpus_record(whole)['hash']}
    data = types.SimpleNamespace(corpus=corpus, tokenizer=whole / 'tokenizer')
    first = start.First(f'{whole}@{AT}')
    notes = start._branching(workdirs.run_config(whole), first, data, STEPS)[2]
    assert notes == [f'note: {whole}@{AT} was trained on another corpus'] * bool(other)


def test_a_decay_branches_from_a_stable_run(train, whole, tmp_path):
  train(tmp_path / 'run', f'{whole}@{AT}', schedule=DECAY)
  rates = [round(row['lr'], 5) for row in metrics.read(tmp_path / 'run')]
  assert rates == [0.01, 0.00293]  # 1 − √(1/2)


def test_moments_that_cannot_continue_are_refused(train, whole, tmp_path):
  lamb = dict(optimizer=parts.lamb())
  for init, fields, words in (
    ('hf:somewhere', {}, 'give --init WORKDIR.@STEP.'),
    ('{}@ema', {}, 'is an average, which has no moments'),
    ('{}@2', lamb, 'trained with optimizer=adamw.*, .* optimizer=lamb cannot'),
    ('{}@2', dict(ema=0.0), 'with config.ema=0.9, and this config has 0: '),
    ('{}', {}, 'begins at step 4, and this config ends at step 4'),
    ('{}@3', dict(phases=HALF_ROWS), '24 rows .* row 16: set config.phases'),
    ('{}@2', dict(objective=parts.mlm()), 'other arrays.*leave --resume_m'),
  ):
    with pytest.raises(errors.UserError, match=words):
      train(tmp_path / 'run', init.format(whole), **fields)
    assert not (tmp_path / 'run').exists()


def test_averages_open_by_their_addresses_and_keep_them(whole):
  for kind in ('ema', 'average:2'):
    found = pretrained.open(f'{whole}@{kind}')
    assert (found.address, found.step) == (f'{whole}@{kind}@{STEPS}', STEPS)
