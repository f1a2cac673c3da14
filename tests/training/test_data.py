"""Batches from a file, and ids that are out of range."""

import contextlib
import re

import numpy as np
import pytest
import toys

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.training import data


def write(path, arrays=None, **changes):
  rows = [toys.batch(s) for s in range(4)]
  stacked = {k: np.stack([r[k] for r in rows]) for k in rows[0]} | (arrays or {})
  toys.write_batches(path, {k: x for k, x in stacked.items() if x is not None}, **changes)


def test_a_file_of_batches_gives_each_host_its_rows_of_each_step(tmp_path):
  write(tmp_path / 'b.npz')
  config = toys.config()
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
  config = toys.config(**fields)
  with pytest.raises(errors.UserError, match=words):
    found = data.from_file(tmp_path / 'b.npz', config)
    list(found.phase(configuration.phases(config)[0]).batches(0, 2))


def test_a_file_of_batches_for_another_vocabulary_or_tokenizer_than_the_config_is_refused(tmp_path):
  write(tmp_path / 'b.npz')
  words = rf'b.npz has a vocabulary of {toys.VOCAB}, the config one of 99: set --config.tokenizer'
  with pytest.raises(errors.UserError, match=words):
    data.from_file(tmp_path / 'b.npz', toys.config(vocab_size=99))
  config = toys.config()
  section = dict(tokenizer=config.tokenizer.to_dict(), corpus=config.corpus.to_dict())
  write(tmp_path / 'c.npz', tokenizer_hash='t', **section)
  assert data.from_file(tmp_path / 'c.npz', config).corpus['tokenizer_hash'] == 't'
  section['tokenizer']['lowercase'] = False
  write(tmp_path / 'd.npz', **section)
  with pytest.raises(errors.UserError, match='tokenizer.lowercase: False → True'):
    data.from_file(tmp_path / 'd.npz', config)
  write(tmp_path / 'e.npz', vocab_size=3)
  with pytest.raises(errors.UserError, match='the vocabulary ends at 2'):
    data.from_file(tmp_path / 'e.npz', toys.config(vocab_size=3))


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
    data.from_file(tmp_path / 'b.npz', toys.config())
  assert str(e.value).count('b.npz') == 1


def test_a_file_that_is_no_file_of_batches_is_refused(tmp_path):
  (tmp_path / 'text').write_text('no')
  np.savez(tmp_path / 'other.npz', a=1)
  write(tmp_path / 'cut.npz')
  (tmp_path / 'cut.npz').write_bytes((tmp_path / 'cut.npz').read_bytes()[:-200])
  write(tmp_path / 'zeros.npz')
  whole = (tmp_path / 'zeros.npz').read_bytes()
  (tmp_path / 'zeros.npz').write_bytes(whole[:100] + bytes(400) + whole[500:])
  np.save(tmp_path / 'one.npy', np.zeros(3))
  for name in ('text', 'other.npz', 'cut.npz', 'zeros.npz', 'one.npy', 'absent', '.'):
    with pytest.raises(errors.UserError, match='show --npz') as e:
      data.from_file(tmp_path / name, toys.config())
    said = str(e.value)
    assert 'pickle' not in said and '(' not in said or 'cannot be read (' in said


@pytest.mark.parametrize(
  'meta,phase,steps,words',
  [
    ({'phase': 0}, 1, (0, 2), '0 to 3 P, the run needs 6 to 8 of phase 1: .*FILE --steps 6:9'),
    ({'steps': [2, 6]}, 0, (0, 4), '2 to 5 P, the run needs 0 to 3 of phase 0: .* --steps 0:4'),
  ],
)
def test_a_file_of_other_steps_says_what_it_holds_what_is_needed_and_the_line_that_writes_it(
  tmp_path, meta, phase, steps, words
):
  write(tmp_path / 'b.npz', **meta)
  words = f'holds steps {words}[.]'.replace('P', '[(]phase 0[)]')
  config = toys.config(phases=((6, {}), (3, {})))
  with pytest.raises(errors.UserError, match=words):
    found = data.from_file(tmp_path / 'b.npz', config)
    list(found.phase(configuration.phases(config)[phase]).batches(*steps))


def test_a_file_that_ends_before_the_run_can_tell_what_is_still_to_come(tmp_path):
  write(tmp_path / 'b.npz')
  for phases, words in (
    (((6, {}), (3, {})), 'steps 4 to 8 .*--steps 4:6 '),
    (((4, {}), (3, {})), 'steps 4 to 6 .*--steps 4:7 '),
    (((4, {}),), None),
  ):
    config = toys.config(phases=phases)
    found = data.from_file(tmp_path / 'b.npz', config)
    said = found.still_to_come(configuration.phases(config))
    assert re.search(words, said) if words else said is None


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


@pytest.mark.parametrize(
  'row, taken',
  [
    ([1, 1, 1, 1], True),
    ([1, 1, 0, 0], True),
    ([0, 0, 1, 1], True),
    ([0, 0, 0, 0], True),
    ([1, 1, 2, 0], False),
    ([2, 2, 0, 0], False),
    ([1, 0, 1, 0], False),
    ([0, 1, 0, 1], False),
  ],
)
def test_a_row_without_position_ids_is_one_pack_on_the_host(row, taken):
  packs = np.array([[[1, 1, 1, 0], row]])
  data.check_ids({'pack_ids': packs, 'position_ids': packs}, 5, 'here')
  with contextlib.nullcontext() if taken else pytest.raises(errors.UserError, match='no position'):
    data.check_ids({'pack_ids': packs}, 5, 'here')


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
