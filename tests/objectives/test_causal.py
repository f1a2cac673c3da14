"""Rows from left to right and masked rows in one network: its loss by hand, and its refusals."""

import jax
import numpy as np
import pytest
import small_networks as small
from test_left_to_right import packed

from bertzoo_jax.common import errors
from bertzoo_jax.objectives import networks

ENCODERS = {
  'shared': dict(sharing='all', embedding_size=16),
  'disentangled': small.DISENTANGLED,
}


def made(kind, encoder, **own):
  section = {**small.SECTION, 'num_layers': 2, **ENCODERS[encoder]}
  return small.objective(kind, section=section, **own)


def loss_of(objective, params, batch):
  loss = lambda p: objective.loss(p, batch, objective.normalizers(batch), (), None, False)[0]
  return jax.jit(loss)(params)


@pytest.mark.parametrize('encoder', ENCODERS)
def test_a_mixture_is_the_mean_of_both_losses_by_the_output_before_each_token(encoder):
  objective, batch = made('causal_masked', encoder, causal_share=0.25), packed()
  batch['causal'] = np.array([1, 0, 1, 0], np.int32)
  params, ids, packs = small.parameters(objective), small.with_targets(batch), batch['segment_ids']
  (network,) = objective.networks
  causal = batch['causal'][:, None] > 0
  assert packs[:, 9].all()
  row = networks.from_left_to_right(
    {**batch, 'input_ids': np.where(causal, ids, batch['input_ids'])}, batch['causal']
  )

  @jax.jit
  def log_p_of(params, row):
    states = networks.predict_all_positions(
      network.encoder, params['encoder'], row, None
    ).states_BPD
    return jax.nn.log_softmax(networks.vocabulary_logits(network.encoder, params, states))

  log_p = np.asarray(log_p_of(params, row), np.float64)
  other = {**row, 'input_ids': row['input_ids'].copy()}
  other['input_ids'][:, 7] = 17
  moved = np.abs(log_p_of(params, other) - log_p).max(axis=-1) > 0
  for r in range(
    4
  ):  # only what may see token 7: itself and later ones, or all of the packed segment
    assert moved[r].tolist() == [(7 if batch['causal'][r] else 0) <= i < 9 for i in range(24)]
  predicted = np.zeros(ids.shape, bool)
  rows, slots = np.nonzero(batch['masked_weights'])
  predicted[rows, batch['masked_positions'][rows, slots]] = True
  losses = {'tokens': [], 'masked': []}
  for r, i in np.argwhere((packs[:, 1:] > 0) & (packs[:, 1:] == packs[:, :-1])):
    if batch['causal'][r] or predicted[r, i + 1]:
      losses['tokens' if batch['causal'][r] else 'masked'].append(-log_p[r, i, ids[r, i + 1]])
  loss = loss_of(objective, params, batch)
  assert objective.normalizers(batch) == {k: len(v) for k, v in losses.items()}
  expected = 0.25 * np.mean(losses['tokens']) + 0.75 * np.mean(losses['masked'])
  assert abs(loss - expected) < 1e-4


def test_all_rows_from_left_to_right_are_causal_lm_whose_parameters_are_those_of_mlm():
  whole, mixed = made('causal_lm', 'shared'), made('causal_masked', 'shared', causal_share=1.0)
  batch = {**packed(), 'causal': np.ones(4, np.int32)}
  params = small.parameters(whole)
  assert loss_of(whole, params, batch) == loss_of(mixed, params, batch)
  shapes = [
    jax.eval_shape(made(kind, 'disentangled').init, jax.random.key(0))
    for kind in ('causal_lm', 'mlm')
  ]
  assert shapes[0] == shapes[1]


def test_an_encoder_that_cannot_is_refused_with_the_reason():
  convolved = {**small.SECTION, **small.DISENTANGLED, 'convolution_size': 3}
  for section, words in ((convolved, 'convolution_size=0'), (small.TWO_STREAM, 'its own')):
    for kind in ('causal_lm', 'causal_masked'):
      with pytest.raises(errors.UserError, match=f'objective={kind} needs .*{words}'):
        small.objective(kind, section=section)
