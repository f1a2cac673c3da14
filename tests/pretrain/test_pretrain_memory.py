import shutil

import jax
import numpy as np
import pytest

from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.evaluate import held_out
from bertzoo_jax.evaluate import scores
from bertzoo_jax.runs import metrics
from tests.pretrain import runs

# An epoch ends with step 15; saves in its middle and at its end.
STEPS, EPOCH, SAVES, LENGTH, BATCH, WORDS = 18, 15, (10, 15), 40, 16, 1600
CONFIG = f"""
from bertzoo_jax import parts

def get_config(argument=None):
  return parts.experiment(
      tokenizer=parts.wordpiece(vocab_size=300), corpus=parts.corpus(held_out=0.4),
      format=parts.memory_segments(reuse_length=16),
      masking=parts.permutation(num_predictions=6, block=16),
      encoder=parts.two_stream(num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32,
                               memory_length=24, reuse_length=16),
      objective=parts.permutation_lm(), optimizer=parts.adamw_uncorrected(),
      schedule=parts.linear_to_floor(learning_rate=1e-2, warmup=3), length={LENGTH},
      batch_size={BATCH}, phases=(({STEPS}, {{}}),), hf='XLNetLMHeadModel',
      run=parts.run(dtype='bfloat16', log_every=1, eval_every=9, save_minutes=1000.0, keep=3,
                    keep_every=5, tensorboard=False))
"""
SYSTEMS = {
  'pairs': dict(objective__pair_weight=1.0),
  'denoising': dict(masking=parts.token(), objective=parts.memory_mlm()),
  'left to right': dict(masking=parts.in_order()),
}


@pytest.fixture(scope='session')
def world(tmp_path_factory):
  """Folder with config.py, corpus/, and a cache of compiled programs that all runs share."""
  return runs.make_world(tmp_path_factory.mktemp('lanes'), CONFIG, WORDS)


def directly(opened, vocab_size, rows, remembers):
  """(loss, accuracy) at the masked tokens of rows, by the objective itself."""
  objective = objectives.build(opened.config, vocab_size)
  assert len(rows) > 2 and not any(b['resets'].any() for b in rows[1:])
  loss = jax.jit(objective.loss, static_argnums=(4, 5))
  carry, sums, total = objective.carry(BATCH), np.zeros(2), 0
  for batch in rows:
    carry = carry if remembers else ()
    _, (carry, found) = loss(opened.params, batch, objective.normalizers(batch), carry, None, False)
    sums += [found['masked'][name] for name in ('mlm_loss', 'mlm_accuracy')]
    total += batch['masked_weights'].sum()
  return sums / total


@pytest.mark.parametrize('system', SYSTEMS)
def test_a_run_resumes_bit_for_bit_with_its_memory_and_is_scored_with_it_and_without(
  tmp_path, here, world, system, monkeypatch
):
  changes, whole, corpus = SYSTEMS[system], tmp_path / 'whole', world / 'corpus'
  here(whole, **changes)
  assert metrics.read(whole)[EPOCH - 1]['epoch'] == 1
  for step in SAVES:
    run = shutil.copytree(whole, tmp_path / str(step))
    runs.cut(run, step)
    here(run, **changes)
    runs.check_same(run, whole, STEPS)
  monkeypatch.setattr(scores, '_ROWS', 6)  # lanes that go through in parts keep their memory
  opened, text = held_out.opened(str(whole), str(corpus))
  rows = held_out.rows_of(text, opened.config, opened.config.format, 'held_out', 50)
  [network] = opened.networks
  measured = scores.masked_scores('', network.encoder, network.extract(opened.params), rows)
  values = {(s.how, s.measure): s.value for s in measured if s.places is None}
  for how in ('memory', 'no memory'):
    said = [values[f'head, {how}', name] for name in ('loss', 'accuracy')]
    wanted = directly(opened, text.vocab_size, rows, how == 'memory')
    np.testing.assert_allclose(said, wanted, rtol=1e-5)
  assert abs(values['head, memory', 'loss'] - values['head, no memory', 'loss']) > 1e-5
  if system == 'pairs':
    both = [('mlm', 'head, memory')] * 2 + [('mlm', 'head, no memory')] * 2
    found = scores.evaluate(str(whole), str(corpus)).scores
    assert [(s.rows, s.how) for s in found] == [*both, ('nsp', 'head'), ('sop', 'head')]
