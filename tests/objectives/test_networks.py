import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_networks as small

from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks


def test_v3_s_head_reads_the_first_token_of_its_own_pack():
  encoder, draw, lengths = small.encoder(activation='gelu'), np.random.default_rng(0), (7, 12, 5)
  head = heads.replaced('token_and_row')
  start = jax.eval_shape(lambda key: head.init(encoder, key), jax.random.key(0))
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), start)
  params = {'replaced_head': small.perturbed(zeros)}
  hidden_BLD = draw.normal(size=(1, 24, 48)).astype(np.float32)
  logits = jax.jit(lambda hidden_BLD, **batch: head.logits(encoder, params, hidden_BLD, batch))
  ends = np.cumsum([0, *lengths])
  alone = [hidden_BLD[:, a:b] for a, b in zip(ends, ends[1:])]
  places = np.concatenate([np.arange(n) for n in lengths])[None]
  packed = logits(hidden_BLD, position_ids=places)
  assert small.worst(packed, np.concatenate([logits(x) for x in alone], axis=1)) < 1e-5
  # He et al. 2021, code of the release: norm of the sum, dense, activation, one number.
  head, x = params['replaced_head'], alone[1][0, 0] + alone[1][0]
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + encoder.norm_eps)
  x = x * head['norm']['scale'] + head['norm']['bias']
  x = jax.nn.gelu(x @ head['dense']['kernel'] + head['dense']['bias'], approximate=False)
  score = head['score']['classifier']
  assert small.worst(packed[0, 7:19], (x @ score['kernel'] + score['bias'])[:, 0]) < 1e-4


@pytest.mark.parametrize('kind', ['tanh', 'gelu'])
def test_a_row_head_scores_the_vector_of_the_row_and_drops_before_each_layer(kind):
  encoder, draw = small.encoder(), np.random.default_rng(0)
  start = jax.jit(lambda key: heads.row(kind, 3).init(encoder, key))
  own = small.perturbed(start(jax.random.key(0)))
  assert heads.find({'row_head': own})['row_head'].fields['kind'] == kind
  hidden_BLD = draw.normal(size=(64, 2, 48)).astype(np.float32)
  rows = {'row_keys': draw.integers(0, 2**32, (64, 2), np.uint32)}
  head = {'row_head': own}
  of = lambda rates, key: heads.row(kind, 3, *rates).logits(encoder, head, hidden_BLD, rows, key)
  compiled = jax.jit(of, static_argnums=0)
  logits = lambda key=None, *rates: np.asarray(compiled(rates, key))
  # Devlin et al. 2018 §4.1, He et al. 2021 and Clark et al. 2020, code of the releases.
  dense = lambda name, x: x @ own[name]['kernel'] + own[name]['bias']
  x = hidden_BLD[:, 0]
  if kind == 'tanh':
    x = np.tanh(dense('pooler', x))
  else:
    x = jax.nn.gelu(dense('dense', x), approximate=False)
  assert small.worst(logits(), dense('classifier', x)) < 1e-5
  key = jax.random.key(1)
  np.testing.assert_array_equal(logits(key, 0.0, 0.0), logits())
  before, after, both = logits(key, 0.0, 0.5), logits(key, 0.5, 0.0), logits(key, 0.5, 0.5)
  for dropped in (before, after, both):
    assert np.abs(dropped - logits()).max(axis=1).min() > 1e-3  # every row
  assert small.worst(before, after) > 0.1 and small.worst(both, after) > 0.1
  assert small.worst(logits(jax.random.key(2), 0.5, 0.0), after) > 0.1
  # What is dropped before the last layer is scaled up to the same mean.
  many = np.mean([logits(jax.random.key(i), 0.5, 0.0) for i in range(200)], axis=0)
  assert np.abs(many - logits()).mean() < 0.15 * np.abs(after - logits()).mean()


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
  losses = {'mlm_loss': np.mean(nlls), 'mlm_accuracy': np.mean(hits)}
  right = np.mean(pair.argmax(-1) == batch['pair_labels'])
  of_pairs = {'pair_loss': np.mean(pair_nlls), 'pair_accuracy': right}
  expected = {'masked': losses, 'pairs': of_pairs}
  assert carry == () and objective.carry(4) == ()
  assert normalizers == {'masked': len(nlls), 'pairs': 4}
  mean = lambda tree, k: jax.tree.map(lambda x: x / normalizers[k], tree)
  means = lambda sums: {k: mean(v, k) for k, v in sums.items()}
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
