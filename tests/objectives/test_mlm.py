import jax
import jax.numpy as jnp
import numpy as np
import optax
import small_networks as small

from bertzoo_jax.objectives import networks


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
  objective = small.objective('mlm_pair', pair_weight=0.25)
  normalizers = objective.normalizers(batch)
  loss = jax.jit(lambda p: objective.loss(p, batch, normalizers, (), None, False))
  loss, (carry, sums) = loss(params)
  assert carry == () and objective.carry(4) == ()
  assert abs(loss - (np.mean(nlls) + 0.25 * np.mean(pair_nll))) < 1e-4
  assert {k: set(v) for k, v in sums.items()} == {
    'masked': {'mlm_loss', 'mlm_accuracy'},
    'pairs': {'pair_loss', 'pair_accuracy'},
  }
  assert abs(sums['masked']['mlm_loss'] / normalizers['masked'] - np.mean(nlls)) < 1e-4
  assert abs(sums['masked']['mlm_accuracy'] / normalizers['masked'] - np.mean(hits)) < 1e-6
  found = abs(
    sums['pairs']['pair_accuracy'] / normalizers['pairs']
    - np.mean(pair.argmax(-1) == batch['pair_labels'])
  )
  assert found < (1e-6)
  assert normalizers['masked'] == len(nlls) and normalizers['pairs'] == 4


def test_the_untrained_loss_is_that_of_a_uniform_guess():
  objective, batch = small.objective('mlm_pair'), small.batch()
  loss = lambda p: objective.loss(p, batch, objective.normalizers(batch), (), None, False)[0]
  value = jax.jit(lambda key: loss(objective.init(key)))(jax.random.key(0))
  assert abs(value - np.log(2 * small.VOCAB)) < 0.3


def test_negative_log_likelihood_equals_optax_s_with_its_gradient_and_large_scores():
  rng = np.random.default_rng(0)
  logits = jnp.asarray(rng.normal(0, 30, (6, 7, 50)), jnp.float32)
  targets = jnp.asarray(rng.integers(0, 50, (6, 7)))
  theirs = optax.softmax_cross_entropy_with_integer_labels
  assert small.worst(networks.nll(logits, targets)[0], theirs(logits, targets)) < 1e-4
  found = small.worst(
    jax.grad(lambda x: networks.nll(x, targets)[0].sum())(logits),
    jax.grad(lambda x: theirs(x, targets).sum())(logits),
  )
  assert found < (1e-5)
  assert (networks.nll(logits, targets)[1] == (logits.argmax(-1) == targets)).all()


def test_dropout_acts_in_training_and_needs_no_key_in_evaluation():
  objective = small.objective('mlm', dropout=0.1, attention_dropout=0.1)
  params, batch = small.parameters(objective), small.rows()
  loss = jax.jit(
    lambda key, train: objective.loss(params, batch, objective.normalizers(batch), (), key, train)[
      0
    ],
    static_argnums=1,
  )
  assert (
    loss(jax.random.key(0), True) == loss(jax.random.key(0), True) != loss(jax.random.key(1), True)
  )
  assert np.isfinite(loss(None, False))
