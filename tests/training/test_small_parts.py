"""Batches from a file, what a step costs, what a watcher sees, what a workdir remembers."""

import json

import ml_collections
import numpy as np
import pytest
import toys

from bertzoo_jax import config as configuration
from bertzoo_jax import errors
from bertzoo_jax.training import cost
from bertzoo_jax.training import data
from bertzoo_jax.training import progress
from bertzoo_jax.training import workdir as workdirs
from configs import bert


def write(path, **changes):
  meta = {'vocab_size': toys.VOCAB, 'special': {}, 'corpus_hash': 'abc', 'steps': [0, 4], 'batch_size': 8, 'length': toys.LENGTH, 'phase': 0}
  meta.update(changes)
  rows = [toys.batch(s) for s in range(4)]
  np.savez(path, __meta__=np.frombuffer(json.dumps(meta).encode(), np.uint8), **{k: np.stack([r[k] for r in rows]) for k in rows[0]})


def tiny(**fields):
  config = bert.get_config('tiny').unlock()
  config.update({'batch_size': 8, 'length': toys.LENGTH, 'phases': ((6, {}),), **fields})
  return ml_collections.ConfigDict(config).lock()


def test_a_file_of_batches_gives_each_host_its_rows_of_each_step(tmp_path):
  write(tmp_path / 'b.npz')
  config = tiny()
  phase = configuration.phases(config)[0]
  for host in range(2):
    found = data.from_file(tmp_path / 'b.npz', config, (host, 2))
    assert (found.corpus['hash'], found.vocab_size, found.last_step) == ('abc', toys.VOCAB, 4)
    for step, got in zip((1, 2, 3), found.phase(phase).batches(1, 4)):
      for k, x in toys.batch(step).items():
        np.testing.assert_array_equal(got[k], x[4 * host:4 * host + 4])


@pytest.mark.parametrize('changes,words', [({'batch_size': 16}, 'batch_size=16'), ({'length': 9}, 'rows of 9'), ({'phase': 1}, 'phase 1'),
                                           ({'vocab_size': 3}, 'the vocabulary ends at 2'), ({'steps': [2, 6]}, 'steps 2:6')])
def test_a_file_of_other_batches_is_refused(tmp_path, changes, words):
  write(tmp_path / 'b.npz', **changes)
  config = tiny()
  with pytest.raises(errors.UserError, match=words):
    list(data.from_file(tmp_path / 'b.npz', config).phase(configuration.phases(config)[0]).batches(0, 2))


def test_a_file_that_is_no_file_of_batches_is_refused(tmp_path):
  (tmp_path / 'text').write_text('no')
  np.savez(tmp_path / 'other.npz', a=1)
  for name in ('text', 'other.npz', 'absent'):
    with pytest.raises(errors.UserError, match='show --npz'):
      data.from_file(tmp_path / name, tiny())


@pytest.mark.parametrize('bad', [-1, toys.VOCAB])
def test_ids_out_of_the_vocabulary_are_refused_on_the_host(bad):
  for name in ('input_ids', 'masked_targets'):
    batch = toys.batch(0)
    data.check_ids(batch, toys.VOCAB, 'here')
    batch[name][3, 1] = bad
    with pytest.raises(errors.UserError, match=f'here: {name} has the id {bad}'):
      data.check_ids(batch, toys.VOCAB, 'here')


def test_entropy_of_a_uniform_distribution_is_the_logarithm():
  assert data.entropy(np.array([5, 5, 0, 5, 5])) == pytest.approx(np.log(4))


def test_operations_are_six_a_weight_and_token_plus_attention_plus_the_head_on_predictions_alone():
  n, d, f, h, v, p, rows, length = 12, 768, 3072, 12, 30522, 20, 2, 128
  k = d // h
  shapes = {'encoder/embeddings/word/embedding': (v, d), 'encoder/embeddings/position/embedding': (512, d),
            **{f'encoder/layers/attention/{x}/kernel': (n, d, h, k) for x in ('query', 'key', 'value')},
            'encoder/layers/attention/output/kernel': (n, h, k, d), 'encoder/layers/feed_forward/in/kernel': (n, d, f),
            'encoder/layers/feed_forward/out/kernel': (n, f, d), 'encoder/layers/feed_forward/in/bias': (n, f),
            'mlm_head/transform/kernel': (d, d), 'mlm_head/bias': (v,), 'pair_head/pooler/kernel': (d, d), 'pair_head/classifier/kernel': (d, 2)}
  found = cost.flops_per_step(shapes, {'input_ids': (rows, length), 'masked_positions': (rows, p)})
  weights = n * (4 * d * d + 2 * d * f)
  expected = rows * (6 * weights * length + 12 * n * length * length * d + 6 * p * (d * d + d * v) + 6 * (d * d + 2 * d))
  assert found == pytest.approx(expected, rel=1e-12)


def test_lines_say_step_percent_loss_speed_and_time_left(capsys):
  bar = progress.Progress(1000, 0, show=True, terminal=False)
  bar.begin()
  bar._began = (bar._began[0] - 60, 1)
  bar.row({'step': 501, 'loss': 2.5, 'tokens_per_second': 12345.6})
  assert capsys.readouterr().out.startswith('step 501/1,000 50.1% · loss 2.5000 · 12,346 tokens/s · ')
  progress.Progress(10, 0, show=False).row({'step': 1})
  assert capsys.readouterr().out == ''
  assert [progress.clock(s) for s in (59, 3723, 90000)] == ['0:59', '1:02:03', '1d 01:00']


def test_a_bar_on_a_terminal_takes_the_same_calls(capsys):
  bar = progress.Progress(10, 0, show=True, terminal=True)
  bar.say('compiling')
  bar.begin()
  bar.step(1)
  bar.row({'step': 1, 'loss': float('nan'), 'held_out_loss': 2.0})
  bar.close()
  assert 'compiling' in capsys.readouterr().out


def test_a_workdir_refuses_other_science_and_lets_machinery_change(tmp_path):
  config = tiny()
  workdirs.check_same_run(tmp_path, config, 'abc')
  workdirs.describe(tmp_path, config, {'hash': 'abc'}, lambda folder: None)
  workdirs.check_same_run(tmp_path, tiny(run={**config.run, 'log_every': 7}), 'abc')
  changed = tiny(seed=3, schedule={**config.schedule, 'learning_rate': 1.0})
  with pytest.raises(errors.UserError, match=f'schedule.learning_rate: {config.schedule.learning_rate} → 1.0; seed: 0 → 3'):
    workdirs.check_same_run(tmp_path, changed, 'abc')
  with pytest.raises(errors.UserError, match='corpus'):
    workdirs.check_same_run(tmp_path, config, 'abd')


def test_attempts_are_counted_over_a_line_cut_short(tmp_path):
  add = lambda: workdirs.add_attempt(tmp_path, corpus_hash='abc', start_step=0, devices='1 × cpu', init=None)
  assert [add(), add()] == [1, 2]
  with open(tmp_path / 'attempts.jsonl', 'a') as f:
    f.write('{"attem')
  assert add() == 3
  last = workdirs.attempts(tmp_path)[-1]
  assert last['versions']['jax'] and last['command'] and last['host']


def test_a_workdir_that_cannot_be_written_is_a_users_mistake(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.UserError, match='--workdir'):
    workdirs.check_writable(tmp_path / 'file' / 'run')
