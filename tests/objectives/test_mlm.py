import jax
import jax.numpy as jnp
import numpy as np
import optax
import small_networks as small

from bertzoo_jax.objectives import networks


def test_the_loss_is_the_mean_over_masked_tokens_plus_the_weighted_mean_over_pairs():
  batch, objective = small.batch(), small.objective('mlm_pair', pair_weight=0.25)
  params, normalizers = small.parameters(objective), objective.normalizers(batch)

  @jax.jit
  def both(params, key):
    """(what the network predicts, its loss, the loss of an untrained one)."""
    loss_of = lambda params: objective.loss(params, batch, normalizers, (), None, False)
    untrained = loss_of(objective.init(key))[1][1]
    return networks.predict(small.encoder(), params, batch), loss_of(params), untrained

  out, (loss, (carry, sums)), untrained = both(params, jax.random.key(0))
  nlls, hits = [], []
  for b, slot in np.argwhere(batch['masked_weights']):
    logits = np.asarray(out['mlm'][b, batch['masked_positions'][b, slot]], np.float64)
    target = batch['masked_targets'][b, slot]
    nlls.append(np.log(np.exp(logits).sum()) - logits[target])
    hits.append(logits.argmax() == target)
  pair = np.asarray(out['pair'], np.float64)
  pair_nlls = np.log(np.exp(pair).sum(-1)) - pair[np.arange(4), batch['pair_labels']]
  expected = {
    'masked': {'mlm_loss': np.mean(nlls), 'mlm_accuracy': np.mean(hits)},
    'pairs': {
      'pair_loss': np.mean(pair_nlls),
      'pair_accuracy': np.mean(pair.argmax(-1) == batch['pair_labels']),
    },
  }
  assert carry == () and objective.carry(4) == ()
  assert normalizers == {'masked': len(nlls), 'pairs': 4}
  means = lambda sums: {
    k: jax.tree.map(lambda x, k=k: x / normalizers[k], v) for k, v in sums.items()
  }
  assert jax.tree.structure(sums) == jax.tree.structure(expected)
  assert small.worst(means(sums), expected) < 1e-4
  assert abs(loss - (np.mean(nlls) + 0.25 * np.mean(pair_nlls))) < 1e-4
  first = means(untrained)
  assert abs(first['masked']['mlm_loss'] - np.log(small.VOCAB)) < 0.2, 'of a uniform guess'
  assert abs(first['pairs']['pair_loss'] - np.log(2)) < 0.1


def test_negative_log_likelihood_equals_optax_s_with_its_gradient_and_large_scores():
  rng = np.random.default_rng(0)
  logits = jnp.asarray(rng.normal(0, 30, (6, 7, 50)), jnp.float32)
  targets = jnp.asarray(rng.integers(0, 50, (6, 7)))
  ours = lambda x: networks.nll(x, targets)[0]
  theirs = lambda x: optax.softmax_cross_entropy_with_integer_labels(x, targets)
  both = [jax.value_and_grad(lambda x, f=f: f(x).sum())(logits)[1] for f in (ours, theirs)]
  assert small.worst(ours(logits), theirs(logits)) < 1e-4 and small.worst(*both) < 1e-5
  assert (networks.nll(logits, targets)[1] == (logits.argmax(-1) == targets)).all()
