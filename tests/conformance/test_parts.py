"""Any masking, format, schedule and optimizer keeps the promises of its axis."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertzoo_jax.batches import formats
from bertzoo_jax.batches import masking as maskings
from bertzoo_jax.batches import rows as rows_lib
from bertzoo_jax.common import hashing
from bertzoo_jax.common import trees
from bertzoo_jax.common import trust
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.parts import named
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import schedules
from tests.batches import masking_rows

LENGTH, STEPS = 24, 40
PIECES = [f'[{i}]' if i % 3 else f'word{i}' for i in range(masking_rows.V)]


def text():
  """A corpus in memory, with a tokenizer."""
  corpus = masking_rows.corpus(units=None)
  corpus.tokenizer = lambda: types.SimpleNamespace(pieces=PIECES)
  return corpus


@pytest.fixture(scope='module')
def masked(masking_of):
  """(masking, features before it, keys, features after it)."""
  trust.allow_config(masking_of)
  mask = named.build(masking_of, maskings.BY_NAME, 'masking', LENGTH, text())
  features, keys = masking_rows.some_layout(6, LENGTH, seed=3, direction=True)
  return mask, features, keys, masking_rows.run(mask, features, keys)


def test_a_masking_writes_what_it_says_and_restores_the_row(masked):
  mask, features, _, out = masked
  positions, targets, weights = (out[f'masked_{k}'] for k in ('positions', 'targets', 'weights'))
  assert positions.shape == targets.shape == weights.shape == (6, mask.num_predictions)
  assert (positions.dtype, targets.dtype, weights.dtype) == (np.int32, np.int32, np.float32)
  assert set(np.unique(weights)) <= {0.0, 1.0} and weights.sum()
  assert 'units' not in out and set(mask.features) <= set(out)
  row, slot = np.nonzero(weights)
  restored = out['input_ids'].copy()
  restored[row, positions[row, slot]] = targets[row, slot]
  np.testing.assert_array_equal(restored, features['input_ids'])


def test_a_masking_draws_by_the_keys_of_the_row_alone(masked):
  mask, features, keys, out = masked
  some = np.array([5, 2])
  alone = masking_rows.run(mask, {k: x[some] for k, x in features.items()}, keys[some])
  for name, x in alone.items():
    np.testing.assert_array_equal(x, out[name][some], err_msg=name)


def test_stand_in_text_has_the_tokenizer_of_its_corpus(masking_of):
  trust.allow_config(masking_of)
  stand_in = corpora.stand_in(text(), 2, LENGTH)
  assert stand_in.tokenizer() is not None
  mask = named.build(masking_of, maskings.BY_NAME, 'masking', LENGTH, stand_in)
  assert mask.num_predictions > 0


def test_a_format_lists_rows_by_its_key_and_fills_them_with_text(format_of):
  trust.allow_config(format_of)
  ends = lambda sizes: np.append(0, np.cumsum(sizes)).astype(np.int64)
  sentences, documents = ends([7, 5, 9, 4, 8, 30, 6, 5] * 3), ends([3, 3, 2] * 3)
  tokens, special = 10 + np.arange(sentences[-1]), dict(pad=0, unk=1, cls=2, sep=3, mask=4)
  split = corpora.in_memory(tokens, sentences, documents, 10 + len(tokens), special).splits['train']
  form = named.build(format_of, formats.BY_NAME, 'format', rows_lib.text_of(split), LENGTH)
  if form.in_lanes is not None:
    form = form.in_lanes(2, False)
  key = hashing.new_key(5)
  rows, again = form.rows(key), form.rows(key)
  assert len(rows) == len(again) > 0
  numbers = np.arange(min(len(rows), 4))
  if form.assemble is not None:
    make = lambda rows: form.assemble(key, rows, numbers, split.gather, special, None)
  else:
    size = len(numbers), LENGTH, split.gather, special, form.packed
    make = lambda rows: rows_lib.assemble(form.spans(key, rows, numbers), *size)
  made = make(rows), make(again)
  for name, x in made[0].items():
    np.testing.assert_array_equal(x, made[1][name], err_msg=name)
  ids, segments = made[0]['input_ids'], made[0]['segment_ids']
  assert ids.shape == segments.shape == (len(numbers), LENGTH)
  assert (ids[segments == 0] == special['pad']).all() and (ids >= 10).any(axis=1).all()
  assert form.packed or segments.max() == 1
  assert form.has_pairs == ('pair_labels' in made[0])


def test_a_schedule_is_the_same_number_traced_and_not_and_never_below_0(schedule_of):
  trust.allow_config(schedule_of)
  rate = named.build(schedule_of, schedules.BY_NAME, 'schedule', STEPS)
  steps = jnp.arange(STEPS + 1)
  traced = np.asarray(jax.jit(jax.vmap(rate))(steps))
  assert traced.shape == (STEPS + 1,) and np.isfinite(traced).all() and (traced >= 0).all()
  assert traced.max() > 0
  plain = [float(rate(s)) for s in (0, 1, STEPS // 2, STEPS)]
  np.testing.assert_allclose(traced[[0, 1, STEPS // 2, STEPS]], plain, rtol=1e-5, atol=1e-9)


def test_an_optimizer_takes_its_rate_from_the_step_and_stays_finite(optimizer_of):
  trust.allow_config(optimizer_of)
  draw = np.random.default_rng(0)
  leaf = lambda *shape: jnp.asarray(draw.normal(size=shape), jnp.float32)
  dense = {'kernel': leaf(2, 6, 4), 'bias': leaf(2, 4)}
  params = {'layers': {'in': dense, 'norm': {'scale': leaf(2, 4)}}}
  gradients = jax.tree.map(lambda x: x * 0.1, params)
  schedule = lambda step: jnp.where(jnp.asarray(step) == 7, 1e-2, 0.0)
  tx = named.build(optimizer_of, optimizers.BY_NAME, 'optimizer', schedule, trees.paths_of(params))
  still, state = tx.update(gradients, tx.init(params), params, step=3)
  moved, _ = tx.update(gradients, state, params, step=7)
  assert all(not np.any(x) for x in jax.tree.leaves(still))
  assert all(np.isfinite(x).all() and np.any(x) for x in jax.tree.leaves(moved))
