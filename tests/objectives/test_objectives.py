import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_networks as small

from bertzoo_jax import objectives
from bertzoo_jax.objectives import networks
from bertzoo_jax.training import optimizers

# which has no loss (tests/test_systems.py)
NAMES = sorted(set(objectives.BY_NAME) - {'input_only'})


@pytest.fixture(scope='module', params=NAMES)
def learned(request):
  objective = small.objective(request.param)
  return objective, small.parameters(objective)


def rows(**sizes):
  """A batch as the step hands it to an objective."""
  batch = small.batch(**sizes)
  return {
    **batch,
    'row_keys': np.random.default_rng(5).integers(
      0, 2**32, (len(batch['input_ids']), 2), np.uint32
    ),
  }


@functools.partial(jax.jit, static_argnums=0)
def evaluate(objective, params, batch, normalizers=None):
  """((loss, (carry, sums)), gradients) without dropout."""
  normalizers = objective.normalizers(batch) if normalizers is None else normalizers
  return jax.value_and_grad(objective.loss, has_aux=True)(
    params, batch, normalizers, (), None, False
  )


def test_the_loss_is_the_mean_over_masked_tokens_plus_the_weighted_mean_over_pairs():
  batch = small.batch()
  params = small.parameters(small.objective('mlm_pair'))
  out = jax.jit(lambda p: networks.predict(small.encoder(), p, batch))(params)
  nlls, hits = [], []
  for b in range(4):
    for position, target, weight in zip(
      *(batch[f'masked_{n}'][b] for n in ('positions', 'targets', 'weights'))
    ):
      if weight:
        logits = np.asarray(out['mlm'][b, position], np.float64)
        nlls.append(np.log(np.exp(logits).sum()) - logits[target])
        hits.append(logits.argmax() == target)
  pair = np.asarray(out['pair'], np.float64)
  pair_nll = np.log(np.exp(pair).sum(-1)) - pair[np.arange(4), batch['pair_labels']]
  for weight in (1.0, 0.25):
    objective = small.objective('mlm_pair', pair_weight=weight)
    normalizers = objective.normalizers(batch)
    (loss, (carry, sums)), _ = evaluate(objective, params, batch)
    assert carry == () and objective.carry(4) == ()
    assert abs(loss - (np.mean(nlls) + weight * np.mean(pair_nll))) < 1e-4
    assert {k: set(v) for k, v in sums.items()} == {
      'masked': {'mlm_loss', 'mlm_accuracy'},
      'pairs': {'pair_loss', 'pair_accuracy'},
    }
    assert abs(sums['masked']['mlm_loss'] / normalizers['masked'] - np.mean(nlls)) < 1e-4
    assert abs(sums['masked']['mlm_accuracy'] / normalizers['masked'] - np.mean(hits)) < 1e-6
    assert (
      abs(
        sums['pairs']['pair_accuracy'] / normalizers['pairs']
        - np.mean(pair.argmax(-1) == batch['pair_labels'])
      )
      < 1e-6
    )
    assert normalizers['masked'] == len(nlls) and normalizers['pairs'] == 4


def test_parts_of_a_batch_add_up_to_the_whole_in_loss_metrics_and_gradient(learned):
  objective, params = learned
  batch = rows(rows=8)
  normalizers = objective.normalizers(batch)
  pieces = [
    evaluate(objective, params, {k: v[i::2] for k, v in batch.items()}, normalizers)
    for i in range(2)
  ]
  whole = evaluate(objective, params, batch, normalizers)
  assert small.worst(jax.tree.map(lambda *x: sum(x), *pieces), whole) < 5e-5 * max(
    1, abs(float(whole[0][0]))
  )


def test_fillers_contribute_nothing_even_where_a_real_prediction_shares_their_position(learned):
  objective, params = learned
  batch = rows()
  batch['masked_positions'][0, 0] = 0  # real, at the place that fillers point to
  other = {
    **batch,
    'masked_targets': np.where(batch['masked_weights'] > 0, batch['masked_targets'], 17).astype(
      np.int32
    ),
  }
  assert (batch['masked_weights'] == 0).any()
  assert small.worst(evaluate(objective, params, batch), evaluate(objective, params, other)) == 0


def test_a_batch_of_fillers_has_a_finite_loss_and_no_gradient_of_the_masked_tokens(learned):
  objective, params = learned
  (loss, _), gradients = evaluate(
    objective, params, {**rows(), 'masked_weights': np.zeros((4, 5), np.float32)}
  )
  assert np.isfinite(loss) and all(np.isfinite(x).all() for x in jax.tree.leaves(gradients))
  masked_only = [
    gradients[name]
    for name in ('mlm_head', 'generator')
    if name in gradients and 'copy_head' not in gradients
  ]
  assert not any(np.asarray(x).any() for x in jax.tree.leaves(masked_only))
  over_more = {'pair_head', 'replaced_head', 'copy_head'} & gradients.keys()
  assert over_more or not any(np.asarray(x).any() for x in jax.tree.leaves(gradients))


def test_an_objective_reads_the_features_it_says(learned):
  objective, params = learned
  batch = rows()
  reads = (*objective.reads, 'row_keys')
  assert (
    evaluate(objective, params, {name: batch[name] for name in reads})[0][0]
    == evaluate(objective, params, batch)[0][0]
  )
  for name in objective.reads:
    with pytest.raises(KeyError):
      evaluate(objective, params, {k: v for k, v in batch.items() if k != name})


def test_the_untrained_loss_is_that_of_a_uniform_guess():
  for name, guess in (('mlm', np.log(small.VOCAB)), ('mlm_pair', np.log(small.VOCAB) + np.log(2))):
    objective = small.objective(name)
    params = jax.jit(objective.init)(jax.random.key(0))
    assert abs(evaluate(objective, params, small.batch())[0][0] - guess) < 0.3


def test_vocabulary_scores_are_computed_at_predicted_positions_only(learned):
  objective, params = learned
  predicts_all = [network.predicts_all_positions for network in objective.networks]
  program = str(
    jax.make_jaxpr(evaluate, static_argnums=0)(objective, params, rows(length=24, predictions=5))
  )
  assert (f'f32[4,5,{small.VOCAB}]' in program) == any(
    'mlm_head' in n.of(params) and not n.predicts_all_positions for n in objective.networks
  )
  assert (f'[4,24,{small.VOCAB}]' in program) == any(predicts_all)


def test_every_parameter_gets_a_gradient(learned):
  objective, params = learned
  gradients = evaluate(objective, params, rows(length=40))[1]
  for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
    if optimizers.matching(optimizers.path_of(path), objective.frozen):
      assert not np.asarray(leaf).any(), path
    elif path[-2].key != 'key':  # a bias of all keys alike moves no softmax
      assert np.abs(leaf).max() > 1e-7, path


def test_negative_log_likelihood_equals_optax_s_with_its_gradient_and_large_scores():
  rng = np.random.default_rng(0)
  logits, targets = (
    jnp.asarray(rng.normal(0, 30, (6, 7, 50)), jnp.float32),
    jnp.asarray(rng.integers(0, 50, (6, 7))),
  )
  theirs = optax.softmax_cross_entropy_with_integer_labels
  assert small.worst(networks.nll(logits, targets)[0], theirs(logits, targets)) < 1e-4
  assert (
    small.worst(
      jax.grad(lambda x: networks.nll(x, targets)[0].sum())(logits),
      jax.grad(lambda x: theirs(x, targets).sum())(logits),
    )
    < 1e-5
  )
  assert (networks.nll(logits, targets)[1] == (logits.argmax(-1) == targets)).all()


def test_dropout_acts_in_training_and_needs_no_key_in_evaluation():
  objective = small.objective('mlm', dropout=0.1, attention_dropout=0.1)
  params, batch = jax.jit(objective.init)(jax.random.key(0)), rows()
  loss = jax.jit(
    lambda key, train: objective.loss(params, batch, objective.normalizers(batch), (), key, train)[
      0
    ],
    static_argnums=1,
  )
  assert (
    loss(jax.random.key(0), True) == loss(jax.random.key(0), True) != loss(jax.random.key(1), True)
  )
  assert abs(loss(None, False) - evaluate(small.objective('mlm'), params, batch)[0][0]) < 1e-6
