"""Batches from a file, what a step costs, what a watcher sees, what a workdir remembers."""

import itertools
import json
import re
import signal

import ml_collections
import numpy as np
import pytest
import toys

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import progress
from bertzoo_jax.common import storage
from bertzoo_jax.training import data
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import preemption
from bertzoo_jax.training import step_folders
from bertzoo_jax.training import workdir as workdirs
from configs import bert


def write(path, arrays=None, **changes):
  meta = {
    'vocab_size': toys.VOCAB,
    'special': {},
    'corpus_hash': 'abc',
    'steps': [0, 4],
    'batch_size': 8,
    'length': toys.LENGTH,
    'phase': 0,
  }
  meta.update(changes)
  rows = [toys.batch(s) for s in range(4)]
  stacked = {k: np.stack([r[k] for r in rows]) for k in rows[0]} | (arrays or {})
  np.savez(
    path,
    __meta__=np.frombuffer(json.dumps(meta).encode(), np.uint8),
    **{k: x for k, x in stacked.items() if x is not None},
  )


def tiny(**fields):
  config = bert.get_config('tiny').unlock()
  vocab_size = fields.pop('vocab_size', toys.VOCAB)
  config.update({'batch_size': 8, 'length': toys.LENGTH, 'phases': ((6, {}),), **fields})
  config.tokenizer.vocab_size = vocab_size
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
        np.testing.assert_array_equal(got[k], x[4 * host : 4 * host + 4])


@pytest.mark.parametrize(
  'changes,fields,words',
  [
    ({}, {'batch_size': 16}, 'batches of 8 rows, the phase has 16'),
    ({}, {'length': 9}, 'rows of 6'),
    ({'phase': 1}, {}, 'phase 1'),
    ({'steps': [0, 5]}, {}, 'does not hold'),
    ({'batch_size': 16}, {'batch_size': 16}, 'does not hold'),
  ],
)
def test_a_file_of_other_batches_is_refused(tmp_path, changes, fields, words):
  write(tmp_path / 'b.npz', **changes)
  config = tiny(**fields)
  with pytest.raises(errors.UserError, match=words):
    list(
      data.from_file(tmp_path / 'b.npz', config)
      .phase(configuration.phases(config)[0])
      .batches(0, 2)
    )


def test_a_file_of_batches_for_another_vocabulary_or_tokenizer_than_the_config_is_refused(tmp_path):
  write(tmp_path / 'b.npz')
  with pytest.raises(
    errors.UserError,
    match=rf'b.npz has a vocabulary of {toys.VOCAB}, the config one of 99: set --config.tokenizer',
  ):
    data.from_file(tmp_path / 'b.npz', tiny(vocab_size=99))
  config = tiny()
  section = dict(tokenizer=config.tokenizer.to_dict(), corpus=config.corpus.to_dict())
  write(tmp_path / 'c.npz', tokenizer_hash='t', **section)
  assert data.from_file(tmp_path / 'c.npz', config).corpus['tokenizer_hash'] == 't'
  section['tokenizer']['lowercase'] = False
  write(tmp_path / 'd.npz', **section)
  with pytest.raises(errors.UserError, match='tokenizer.lowercase: False → True'):
    data.from_file(tmp_path / 'd.npz', config)
  write(tmp_path / 'e.npz', vocab_size=3)
  with pytest.raises(errors.UserError, match='the vocabulary ends at 2'):
    data.from_file(tmp_path / 'e.npz', tiny(vocab_size=3))


@pytest.mark.parametrize(
  'arrays,changes',
  [
    ({'input_ids': None}, {}),
    ({'input_ids': np.zeros((4, 8, toys.LENGTH), np.float32)}, {}),
    ({'masked_positions': np.zeros((4, 8, 2), np.float64)}, {}),
    ({'masked_weights': np.full((4, 8, 2), 'x')}, {}),
    ({'masked_weights': np.zeros((4, 8, 2), complex)}, {}),
    ({'input_ids': np.zeros((4, 7, toys.LENGTH), np.int32)}, {}),
    ({'input_ids': np.zeros((4, 8, toys.LENGTH + 1), np.int32)}, {}),
    ({'input_ids': np.zeros((4, 8), np.int32)}, {}),
    ({'pair_labels': np.zeros((4, 9), np.int32)}, {}),
    ({'pair_labels': np.int32(3)}, {}),
    ({'masked_targets': np.zeros((4, 8, 3), np.int32)}, {}),
    ({'masked_positions': np.zeros((4, 8), np.int32)}, {}),
    ({'pair_labels': np.array([None] * 32).reshape(4, 8)}, {}),
    ({}, {'steps': [0, 0]}),
    ({k: x[None][:0] for k, x in toys.batch(0).items()}, {'steps': [2, 2]}),
    ({}, {'steps': [-4, 0]}),
    ({}, {'steps': [4, 0]}),
    ({}, {'steps': 4}),
    ({}, {'steps': ['0', '4']}),
    ({}, {'vocab_size': None}),
    ({}, {'vocab_size': True}),
    ({}, {'batch_size': '8'}),
    ({}, {'length': [6]}),
    ({}, {'phase': -1}),
    ({}, {'corpus_hash': 3}),
    ({}, {'tokenizer': 'wordpiece'}),
  ],
)
def test_an_odd_file_of_batches_is_one_sentence_that_says_how_to_write_one(
  tmp_path, arrays, changes
):
  write(tmp_path / 'b.npz', arrays, **changes)
  with pytest.raises(errors.UserError, match=r'show --npz') as e:
    data.from_file(tmp_path / 'b.npz', tiny())
  assert str(e.value).count('b.npz') == 1


def test_a_file_that_is_no_file_of_batches_is_refused(tmp_path):
  (tmp_path / 'text').write_text('no')
  np.savez(tmp_path / 'other.npz', a=1)
  write(tmp_path / 'cut.npz')
  (tmp_path / 'cut.npz').write_bytes((tmp_path / 'cut.npz').read_bytes()[:-200])
  write(tmp_path / 'zeros.npz')
  (tmp_path / 'zeros.npz').write_bytes(
    (tmp_path / 'zeros.npz').read_bytes()[:100]
    + bytes(400)
    + (tmp_path / 'zeros.npz').read_bytes()[500:]
  )
  np.save(tmp_path / 'one.npy', np.zeros(3))
  for name in ('text', 'other.npz', 'cut.npz', 'zeros.npz', 'one.npy', 'absent', '.'):
    with pytest.raises(errors.UserError, match='show --npz') as e:
      data.from_file(tmp_path / name, tiny())
    assert (
      'pickle' not in str(e.value) and '(' not in str(e.value) or 'cannot be read (' in str(e.value)
    )


@pytest.mark.parametrize(
  'meta,phase,steps,words',
  [
    (
      {'phase': 0},
      1,
      (0, 2),
      r'holds steps 0 to 3 \(phase 0\), the run needs 6 to 8 of phase 1: .*show … --npz FILE '
      r'--steps 6:9\.',
    ),
    (
      {'steps': [2, 6]},
      0,
      (0, 4),
      r'holds steps 2 to 5 \(phase 0\), the run needs 0 to 3 of phase 0: .* --steps 0:4\.',
    ),
  ],
)
def test_a_file_of_other_steps_says_what_it_holds_what_is_needed_and_the_line_that_writes_it(
  tmp_path, meta, phase, steps, words
):
  write(tmp_path / 'b.npz', **meta)
  config = tiny(phases=((6, {}), (3, {})))
  with pytest.raises(errors.UserError, match=words):
    list(
      data.from_file(tmp_path / 'b.npz', config)
      .phase(configuration.phases(config)[phase])
      .batches(*steps)
    )


def test_a_file_that_ends_before_the_run_can_tell_what_is_still_to_come(tmp_path):
  write(tmp_path / 'b.npz')
  for phases, words in (
    (((6, {}), (3, {})), 'steps 4 to 8 .*--steps 4:6 '),
    (((4, {}), (3, {})), 'steps 4 to 6 .*--steps 4:7 '),
  ):
    config = tiny(phases=phases)
    assert re.search(
      words, data.from_file(tmp_path / 'b.npz', config).still_to_come(configuration.phases(config))
    )
  config = tiny(phases=((4, {}),))
  assert (
    data.from_file(tmp_path / 'b.npz', config).still_to_come(configuration.phases(config)) is None
  )


@pytest.mark.parametrize(
  'name,good,bad',
  [
    ('masked_positions', toys.LENGTH - 1, toys.LENGTH),
    ('segment_ids', 2, 3),
    ('pair_labels', 1, 2),
    ('masked_positions', 0, -1),
    ('segment_ids', 0, -1),
    ('pair_labels', 0, -1),
  ],
)
def test_positions_segments_and_labels_out_of_range_are_refused_on_the_host(name, good, bad):
  batch = {**toys.batch(0), 'segment_ids': np.zeros((8, toys.LENGTH), np.int32)}
  batch[name].flat[3] = good
  data.check_ids(batch, toys.VOCAB, 'here')
  batch[name].flat[3] = bad
  with pytest.raises(errors.UserError, match=f'here: {name} has the .* {bad}, they end at'):
    data.check_ids(batch, toys.VOCAB, 'here')


def test_a_second_ctrl_c_ends_one_of_several_hosts_and_one_alone_tells_the_others(monkeypatch):
  monkeypatch.setattr(preemption.jax.distributed, 'is_initialized', lambda: True)
  monkeypatch.setattr(
    preemption.multihost_utils, 'reached_preemption_sync_point', lambda number: number == 2
  )
  monkeypatch.setattr(preemption, '_count', itertools.count(1))
  told = []
  # in the place of jax's, which tells the other hosts
  before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
  try:
    with preemption.Preemption().listening() as interrupt:
      signal.raise_signal(signal.SIGINT)
      assert told == [signal.SIGTERM] and interrupt.name is None and not interrupt.reached()
      with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
      assert interrupt.reached() and interrupt.name == 'preemption'
  finally:
    signal.signal(signal.SIGTERM, before)


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


def test_lines_say_step_percent_loss_speed_and_time_left(capsys):
  bar = progress.Progress(1000, 0, show=True, terminal=False)
  bar.finished(1)
  bar._began = (bar._began[0] - 60, 1)
  bar.row({'step': 501, 'loss': 2.5, 'tokens_per_second': 12345.6})
  assert capsys.readouterr().out.startswith(
    'step 501/1,000 50.1% · loss 2.5000 · 12,346 tokens/s · '
  )
  progress.Progress(10, 0, show=False).row({'step': 1})
  assert capsys.readouterr().out == ''
  assert [progress.clock(s) for s in (59, 3723, 90000)] == ['0:59', '1:02:03', '1d 01:00']


def test_a_line_shows_the_loss_of_masked_tokens_beside_the_entropy(capsys):
  bar = progress.Progress(10, 0, show=True, terminal=False, entropy=6.2)
  bar.row({'step': 5, 'loss': 6.5, 'mlm_loss': 5.8, 'held_out_loss': 6.6, 'held_out_mlm_loss': 5.9})
  assert (
    ' · masked-token loss 5.8000 (unigram entropy 6.2000) · total loss 6.5000 · held out: '
    + ('masked-token loss 5.9000 (unigram entropy 6.2000), total loss 6.6000 · ')
    in capsys.readouterr().out
  )
  bar.row({'step': 6, 'loss': 5.8, 'mlm_loss': 5.8})
  assert 'total' not in capsys.readouterr().out
  told = {'rtd_accuracy': 0.9, 'rtd_base_rate': 0.85, 'rtd_auc': 0.71}
  held_out = {f'held_out_{k}': v for k, v in {'loss': 20.0, **told}.items()}
  bar.row({'step': 7, 'loss': 20.0, 'mlm_loss': 5.8, **told, **held_out})
  said = capsys.readouterr().out
  words = 'replaced tokens: accuracy 90.00 % (calling all original 85.00 %), AUC 0.710'
  assert said.count(words) == 2


@pytest.mark.parametrize(
  'dispatched, finished, row, left',
  [
    (201, 201, 101, '6:39'),  # a row is shown one interval after its step
    (1000, 201, 101, '6:39'),  # a short run: all is dispatched
    (1000, 1, 101, '14:59'),  # what a row says is computed
    (1000, 1, 1, '?'),
    (1000, 1000, 1000, '0:00'),
  ],
)
def test_the_time_left_is_counted_from_the_step_that_is_computed(
  capsys, dispatched, finished, row, left
):
  bar = progress.Progress(1000, 0, show=True, terminal=False)
  bar.finished(1)
  bar._began = (bar._began[0] - 100, 1)
  bar.step(dispatched)
  bar.finished(finished)
  bar.row({'step': row, 'loss': 2.5})
  assert f' {left} left' in capsys.readouterr().out


def test_a_bar_on_a_terminal_takes_the_same_calls(capsys):
  bar = progress.Progress(10, 0, show=True, terminal=True)
  bar.say('compiling')
  bar.finished(1)
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
  with pytest.raises(
    errors.UserError,
    match=f'schedule.learning_rate: {config.schedule.learning_rate} → 1.0; seed: 0 → 3',
  ):
    workdirs.check_same_run(tmp_path, changed, 'abc')
  with pytest.raises(errors.UserError, match='corpus'):
    workdirs.check_same_run(tmp_path, config, 'abd')


def test_a_run_of_an_earlier_version_says_from_which_step_its_rows_come_in_another_order(
  tmp_path, capsys
):
  begun = tiny(phases=((5, {}), (5, {'schedule': tiny().schedule})))
  workdirs.describe(tmp_path, begun, {'hash': 'abc'}, lambda folder: None)
  workdirs.check_same_run(tmp_path, begun, 'abc')
  assert capsys.readouterr().out == ''
  file = tmp_path / 'config.json'
  kept = json.loads(file.read_text())
  del kept['batch_tokens']  # as versions wrote it whose phases all had orders of their own
  file.write_text(json.dumps(kept))
  workdirs.check_same_run(tmp_path, begun, 'abc')
  assert 'From step 5 on this run reads the same rows in another order' in capsys.readouterr().out


def test_attempts_are_counted_over_a_line_cut_short(tmp_path):
  add = lambda: workdirs.add_attempt(
    tmp_path, corpus_hash='abc', start_step=0, devices='1 × cpu', init=None
  )
  assert [add(), add()] == [1, 2]
  with open(tmp_path / 'attempts.jsonl', 'a') as f:
    f.write('{"attem')
  assert add() == 3
  last = workdirs.attempts(tmp_path)[-1]
  assert last['versions']['jax'] and last['command'] and last['host']


def test_the_first_weights_of_a_run_are_those_of_the_last_attempt_that_began_at_step_0(tmp_path):
  assert workdirs.first_weights(tmp_path) is None
  for start, init in ((0, 'OTHER'), (0, 'W@best'), (7, 'NOT_USED')):
    workdirs.add_attempt(tmp_path, corpus_hash='abc', start_step=start, devices='1', init=init)
  with open(tmp_path / 'attempts.jsonl', 'a') as f:
    f.write('{"attempt": 4, "start_step": 9}\n')
  assert workdirs.first_weights(tmp_path) == 'W@best'


def test_attempts_are_appended_and_a_line_with_a_bad_byte_is_said_and_left_where_it_is(
  tmp_path, capsys
):
  add = lambda: workdirs.add_attempt(
    tmp_path, corpus_hash='abc', start_step=0, devices='1 × cpu', init=None
  )
  file = tmp_path / 'attempts.jsonl'
  assert [add(), add()] == [1, 2]
  damaged = b'\xff' + file.read_bytes()[1:]
  file.write_bytes(damaged)
  inode = file.stat().st_ino
  assert add() == 3
  assert file.stat().st_ino == inode and file.read_bytes().startswith(damaged)
  assert [a['attempt'] for a in workdirs.attempts(tmp_path)] == [2, 3]
  assert '1 line(s) cannot be read' in capsys.readouterr().out


def sealed_run(path, config, text):
  """A workdir whose only checkpoint has the copy that a run puts there."""
  folder = path / 'checkpoints/3'
  folder.mkdir(parents=True)
  run = {'config': json.loads(configuration.to_json(config)), 'corpus': text}
  storage.write_json(folder / 'run.json', run)
  sums = {'run.json': storage.sha256(folder / 'run.json')}
  storage.write_json(folder / step_folders.MANIFEST, {'files': sums})
  workdirs.describe(path, config, text, lambda folder: None)
  return path


@pytest.mark.parametrize('file', ['config.json', 'corpus.json'])
@pytest.mark.parametrize(
  'damage',
  [
    lambda data: data[: len(data) // 2],
    lambda data: data[:9] + b'\xff' + data[10:],
    lambda data: b'',
    lambda data: b'[1]',
    lambda data: b'[' * 100000,
    lambda data: data.replace(b'1', b'2').replace(b'a', b'b'),  # still JSON
  ],
  ids=['half', 'byte', 'empty', 'list', 'deep', 'values'],
)
def test_a_damaged_file_of_a_workdir_is_said_and_written_again_from_the_checkpoints(
  tmp_path, capsys, file, damage
):
  config = tiny()
  workdir = sealed_run(tmp_path, config, {'hash': 'abc1'})
  whole = (workdir / file).read_bytes()
  (workdir / file).write_bytes(damage(whole))
  with pytest.raises(errors.UserError, match='another config: seed'):
    workdirs.check_same_run(workdir, tiny(seed=3), 'abc1')
  with pytest.raises(errors.UserError, match='trained on the corpus abc1'):
    workdirs.check_same_run(workdir, config, 'abd')
  workdirs.check_same_run(workdir, config, 'abc1')
  capsys.readouterr()
  workdirs.describe(workdir, config, {'hash': 'abc1'}, lambda folder: None)
  said = capsys.readouterr().out
  assert (workdir / file).read_bytes() == whole
  assert said.count('\n') == 1 and f'{file} is damaged and is written again' in said
  assert (workdir / f'{file}.damaged').read_bytes() == damage(whole)


def test_who_only_reads_a_run_takes_the_config_of_its_checkpoints_where_its_own_is_damaged(
  tmp_path,
):
  workdir = sealed_run(tmp_path, tiny(), {'hash': 'abc'})
  (workdir / 'config.json').write_bytes(b'{"seed": \xff')
  (workdir / 'corpus.json').write_bytes(b'{')
  assert workdirs.run_config(workdir) == tiny()
  assert workdirs.corpus_record(workdir) == {'hash': 'abc'}
  (workdir / 'checkpoints/3/run.json').write_bytes(b'{}')  # not what its checksum says
  with pytest.raises(errors.UserError, match='no checkpoint has a copy'):
    workdirs.run_config(workdir)


@pytest.mark.parametrize(
  'file, damage',
  [
    ('config.json', lambda data: data.replace(b'adam', b'adal')),
    ('config.json', lambda data: data.replace(b'"seed": 0', b'"seed": 8')),
    ('corpus.json', lambda data: data.replace(b'abc', b'abb')),
  ],
  ids=['name', 'digit', 'hash'],
)
def test_before_the_first_checkpoint_a_file_that_no_attempt_has_noted_decides_nothing(
  tmp_path, capsys, file, damage
):
  config = tiny()
  workdirs.describe(tmp_path, config, {'hash': 'abc'}, lambda folder: None)
  workdirs.add_attempt(tmp_path, corpus_hash='abc', start_step=0, devices='1', init=None)
  whole = (tmp_path / file).read_bytes()
  (tmp_path / file).write_bytes(damage(whole))
  assert (tmp_path / file).read_bytes() != whole
  workdirs.check_same_run(tmp_path, config, 'abc')
  assert ('cannot be checked' in capsys.readouterr().out) == (file == 'config.json')
  workdirs.describe(tmp_path, config, {'hash': 'abc'}, lambda folder: None)
  assert (tmp_path / file).read_bytes() == whole
  with pytest.raises(errors.UserError, match='another config: seed'):
    workdirs.check_same_run(tmp_path, tiny(seed=3), 'abc')


def test_a_run_of_an_earlier_version_with_a_damaged_config_goes_on_and_says_so(tmp_path, capsys):
  config = tiny()
  workdirs.describe(tmp_path, config, {'hash': 'abc'}, lambda folder: None)
  (tmp_path / 'config.json').write_bytes(b'\xff')
  workdirs.check_same_run(tmp_path, config, 'abc')
  assert 'cannot be checked' in capsys.readouterr().out


def test_a_workdir_writes_only_what_changed(tmp_path):
  config = tiny()
  text = {'hash': 'abc'}
  workdirs.describe(tmp_path, config, text, lambda folder: None)
  inodes = lambda: {p.name: p.stat().st_ino for p in tmp_path.iterdir()}
  before = inodes()
  workdirs.describe(tmp_path, config, text, lambda folder: None)
  assert inodes() == before
  workdirs.describe(tmp_path, tiny(run={**config.run, 'log_every': 7}), text, lambda folder: None)
  assert [name for name in before if inodes()[name] != before[name]] == ['config.json']


def test_a_workdir_that_cannot_be_written_is_a_users_mistake_unless_that_may_pass(
  tmp_path, monkeypatch
):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.UserError, match='--workdir .* give a folder') as e:
    with workdirs.writable(tmp_path / 'file' / 'run'):
      pass
  assert e.value.code == 2

  def fail(*args):
    raise TimeoutError('no answer')

  monkeypatch.setattr(workdirs.storage, 'write_text', fail)
  with pytest.raises(errors.TryAgain, match='--workdir .* again'):
    with workdirs.writable(tmp_path / 'run'):
      pass
  assert not (tmp_path / 'run').exists()


def test_the_compiler_is_asked_for_what_suits_a_chip_unless_somebody_asked_otherwise(monkeypatch):
  monkeypatch.delenv('LIBTPU_INIT_ARGS', raising=False)
  memory, windows = (
    {'xla_tpu_scoped_vmem_limit_kib': '32768'},
    {'xla_jf_spmd_threshold_for_windowed_einsum_mib': '1000000'},
  )
  assert (
    phase_runs.compiler_options('TPU v5 lite', False)
    == phase_runs.compiler_options('TPU v5', False)
    == memory
  )
  assert phase_runs.compiler_options('TPU v5 lite', True) == memory | windows
  assert phase_runs.compiler_options('TPU v4', True) == windows
  assert (
    phase_runs.compiler_options('TPU v4', False) == phase_runs.compiler_options('cpu', True) == {}
  )
  monkeypatch.setenv('LIBTPU_INIT_ARGS', '--a=1 --xla_tpu_scoped_vmem_limit_kib=65536')
  assert phase_runs.compiler_options('TPU v5 lite', True) == windows
