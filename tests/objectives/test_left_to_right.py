"""The language model from left to right: its loss by hand, the tokens that it sees, and its
refusals.
"""

import types

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.objectives import networks


def packed(**sizes):
  """Rows of two packed segments and padding."""
  batch = small.rows(**sizes)
  length = batch['input_ids'].shape[1]
  batch['segment_ids'] = np.where(np.arange(length) < 9, 1, 2) * (batch['segment_ids'] > 0)
  return {**batch, 'segment_ids': batch['segment_ids'].astype(np.int32)}


def test_the_loss_is_the_mean_over_tokens_that_follow_one_of_their_segment():
  objective, batch = small.objective('left_to_right'), packed()
  params, ids, packs = small.parameters(objective), small.with_targets(batch), batch['segment_ids']
  encoder = objective.networks[0].encoder
  shown = {**batch, 'input_ids': ids}
  logits = jax.jit(lambda p: networks.predict(encoder, p, shown))(params)['next']
  nlls, hits = [], []
  for row, i in np.argwhere((packs[:, 1:] > 0) & (packs[:, 1:] == packs[:, :-1])):
    scores = np.asarray(logits[row, i], np.float64)
    nlls.append(np.log(np.exp(scores).sum()) - scores[ids[row, i + 1]])
    hits.append(scores.argmax() == ids[row, i + 1])
  totals = objective.normalizers(batch)
  (loss, (carry, sums)), gradients = small.evaluate(objective, params, batch)
  assert carry == () and totals == {'tokens': len(nlls)}
  assert abs(loss - np.mean(nlls)) < 1e-4
  assert abs(sums['tokens']['next_accuracy'] / totals['tokens'] - np.mean(hits)) < 1e-6
  # the choice of masked tokens changes nothing
  again = {**batch, 'input_ids': small.with_targets(batch)}
  again['masked_targets'] = np.take_along_axis(
    again['input_ids'], batch['masked_positions'], axis=1
  )
  hidden = {**again, 'input_ids': again['input_ids'].copy()}
  rows, slots = np.nonzero(batch['masked_weights'])
  hidden['input_ids'][rows, batch['masked_positions'][rows, slots]] = 4
  assert (hidden['input_ids'] != again['input_ids']).any()
  for other in (again, hidden):
    assert small.worst(small.evaluate(objective, params, other), (loss, sums, gradients)) == 0


def test_an_encoder_that_reads_both_sides_is_refused():
  sizes = {k: v for k, v in small.SECTION.items() if k in parts.disentangled() and k != 'name'}
  convolved = parts.disentangled(**sizes, convolution_size=3)
  with pytest.raises(errors.UserError, match='convolution reads both sides.*convolution_size=0'):
    small.objective('left_to_right', section=convolved)
  other = types.SimpleNamespace(left_to_right=False)  # one without this field
  with pytest.raises(errors.UserError, match='which this one cannot: take encoder=transformer.$'):
    objectives.BY_NAME['left_to_right'](other)
