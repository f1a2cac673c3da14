import types

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import objectives
from bertzoo_jax.common import errors
from bertzoo_jax.objectives import networks

ENCODERS = {
  'shared': dict(sharing='all', embedding_size=16),
  'disentangled': small.DISENTANGLED,
}


def made(kind, encoder, **own):
  section = {**small.SECTION, 'num_layers': 2, **ENCODERS[encoder]}
  return small.objective(kind, section=section, **own)


def packed():
  batch = small.rows()
  packs = np.where(np.arange(24) < 9, 1, 2) * (batch['segment_ids'] > 0)
  return {**batch, 'segment_ids': packs.astype(np.int32)}


def following(packs):
  """(row, place) of each token that another one of its segment follows."""
  return np.argwhere((packs[:, 1:] > 0) & (packs[:, 1:] == packs[:, :-1]))


def test_the_loss_is_the_mean_over_tokens_that_follow_one_of_their_segment():
  objective, batch = small.objective('left_to_right'), packed()
  params, ids = small.parameters(objective), small.with_targets(batch)
  encoder = objective.networks[0].encoder
  shown = {**batch, 'input_ids': ids}
  logits = jax.jit(lambda p: networks.predict(encoder, p, shown))(params)['next']
  nlls, hits = [], []
  for row, i in following(batch['segment_ids']):
    scores = np.asarray(logits[row, i], np.float64)
    nlls.append(np.log(np.exp(scores).sum()) - scores[ids[row, i + 1]])
    hits.append(scores.argmax() == ids[row, i + 1])
  totals = objective.normalizers(batch)
  (loss, (carry, sums)), gradients = small.evaluate(objective, params, batch)
  assert carry == () and totals == {'tokens': len(nlls)}
  assert abs(loss - np.mean(nlls)) < 1e-4
  assert abs(sums['tokens']['next_accuracy'] / totals['tokens'] - np.mean(hits)) < 1e-6
  # the choice of masked tokens changes nothing
  again = {**batch, 'input_ids': ids}
  again['masked_targets'] = np.take_along_axis(ids, batch['masked_positions'], axis=1)
  hidden = {**again, 'input_ids': ids.copy()}
  rows, slots = np.nonzero(batch['masked_weights'])
  hidden['input_ids'][rows, batch['masked_positions'][rows, slots]] = 4
  assert (hidden['input_ids'] != ids).any()
  for other in (again, hidden):
    assert small.worst(small.evaluate(objective, params, other), (loss, sums, gradients)) == 0


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
    found = networks.predict_all_positions(network.encoder, params['encoder'], row, None)
    return jax.nn.log_softmax(networks.vocabulary_logits(network.encoder, params, found.states_BPD))

  log_p = np.asarray(log_p_of(params, row), np.float64)
  other = {**row, 'input_ids': row['input_ids'].copy()}
  other['input_ids'][:, 7] = 17
  moved = np.abs(log_p_of(params, other) - log_p).max(axis=-1) > 0
  for r in range(4):  # only what may see token 7: itself and later ones, or all of its segment
    assert moved[r].tolist() == [(7 if batch['causal'][r] else 0) <= i < 9 for i in range(24)]
  predicted = np.zeros(ids.shape, bool)
  rows, slots = np.nonzero(batch['masked_weights'])
  predicted[rows, batch['masked_positions'][rows, slots]] = True
  losses = {'tokens': [], 'masked': []}
  for r, i in following(packs):
    if batch['causal'][r] or predicted[r, i + 1]:
      losses['tokens' if batch['causal'][r] else 'masked'].append(-log_p[r, i, ids[r, i + 1]])
  (loss, _), _ = small.evaluate(objective, params, batch)
  assert objective.normalizers(batch) == {k: len(v) for k, v in losses.items()}
  expected = 0.25 * np.mean(losses['tokens']) + 0.75 * np.mean(losses['masked'])
  assert abs(loss - expected) < 1e-4


def test_all_rows_from_left_to_right_are_causal_lm_whose_parameters_are_those_of_mlm():
  whole, mixed = made('causal_lm', 'shared'), made('causal_masked', 'shared', causal_share=1.0)
  batch = {**packed(), 'causal': np.ones(4, np.int32)}
  params = small.parameters(whole)
  one, two = (small.evaluate(objective, params, batch)[0][0] for objective in (whole, mixed))
  assert one == two
  init = lambda kind: made(kind, 'disentangled').init
  shapes = [jax.eval_shape(init(kind), jax.random.key(0)) for kind in ('causal_lm', 'mlm')]
  assert shapes[0] == shapes[1]


@pytest.mark.parametrize('kind', ['left_to_right', 'causal_lm', 'causal_masked'])
def test_an_encoder_that_cannot_is_refused_with_the_reason(kind):
  convolved = {**small.SECTION, **small.DISENTANGLED, 'convolution_size': 3}
  reasons = [(convolved, 'convolution reads both sides.*convolution_size=0')]
  if kind != 'left_to_right':
    reasons.append((small.TWO_STREAM, 'its own'))
  for section, words in reasons:
    with pytest.raises(errors.UserError, match=f'objective={kind} needs .*{words}'):
      small.objective(kind, section=section)
  other = types.SimpleNamespace(left_to_right=False)  # one without this field
  with pytest.raises(errors.UserError, match='which this one cannot: take encoder=transformer.$'):
    objectives.BY_NAME['left_to_right'](other)
