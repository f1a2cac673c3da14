import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small
from jax.flatten_util import ravel_pytree

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.common import trees
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import generator as generators
from bertzoo_jax.objectives import networks
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import sharding
from bertzoo_jax.training import step as steps
from tests import found

PLAIN = dict(num_layers=2, activation='gelu', embedding_size=16)
SIZES, ADVERSARIAL = dict(PLAIN, width=0.5), 'replaced_token_adversarial'


def keys(rows, seed=0):
  return row_keys.batch_keys(jax.random.key(seed), rows)


@functools.lru_cache
def pair(kind='replaced_token', **changes):
  objective = small.objective(kind, **{**SIZES, **changes})
  return objective, small.parameters(objective, seed=1, scale=0.05)


@functools.partial(jax.jit, static_argnums=0)
def loss_of(objective, params, batch):
  """(loss, sums) without dropout."""
  value, (_, sums) = objective.loss(params, batch, objective.normalizers(batch), (), None, False)
  return value, sums


@functools.partial(jax.jit, static_argnums=0)
def evaluate(objective, params, batch):
  """((loss, sums), gradients) without dropout."""
  return jax.value_and_grad(loss_of, 1, has_aux=True)(objective, params, batch)


def gradients(objective, params, batch):
  return evaluate(objective, params, batch)[1]


@functools.partial(jax.jit, static_argnums=0)
def guesses(objective, params, batch):
  """(logits, hidden vectors) of the generator at the masked positions."""
  network = objective.networks[1]
  generator = generators.build(network.encoder, width=1.0, depth=1.0, shared='none')
  return generators.logits(generator, network.extract(params), batch, None, operations.PLAIN)


@functools.partial(jax.jit, static_argnums=0)
def detected(objective, params, batch):
  """(scores, vectors) of the discriminator."""
  main = objective.networks[0]
  vectors = networks.encode(main.encoder, main.extract(params)['encoder'], batch, None)
  return networks.predict(main.encoder, main.extract(params), batch)['replaced'], vectors


def rows():
  batch = small.batch()
  return {**batch, 'row_keys': keys(len(batch['input_ids']))}


def sampled(**sizes):
  batch = small.batch(**sizes)
  draw = np.random.default_rng(1)
  return {**batch, 'sampled_ids': draw.integers(5, small.VOCAB, batch['masked_targets'].shape)}


def chi_square(counts, expected):
  """The statistic in standard deviations from its mean."""
  kept = expected > 5
  degrees = kept.sum() - 1
  return (((counts - expected)[kept] ** 2 / expected[kept]).sum() - degrees) / np.sqrt(2 * degrees)


@pytest.mark.parametrize('temperature, disallow', [(1, False), (2, False), (0.5, True), (1, True)])
def test_sampled_tokens_follow_the_generator_s_distribution(temperature, disallow):
  size, n, places = 40, 20_000, 3
  logits = np.random.default_rng(0).normal(0, 1.5, (places, size)).astype(np.float32)
  batch = {'row_keys': keys(n), 'masked_targets': np.full((n, places), 7)}
  same, how = jnp.broadcast_to(logits, (n, places, size)), dict(disallow_correct=disallow)
  tempered = generators.tempered(same, batch, temperature=temperature, **how)
  found = np.asarray(jax.jit(lambda x: generators.sample(x, batch))(tempered))
  for place in range(places):
    shares = np.exp(logits[place] / temperature)
    shares[7] *= not disallow
    counts = np.bincount(found[:, place], minlength=size)
    assert abs(chi_square(counts, n * shares / shares.sum())) < 4 and (counts[7] == 0) == disallow


def test_rows_and_places_are_sampled_apart_by_the_key_of_their_row_and_every_step_anew():
  size, n = 6, 40_000
  sample = jax.jit(lambda x, keys: generators.sample(x, {'row_keys': keys}))
  zeros = jnp.zeros((n, 2, size))
  found, again = (np.asarray(sample(zeros, keys(n, seed))) for seed in (0, 1))
  apart = (found[:, 0], found[:, 1]), (found[1:, 0], found[:-1, 0]), (found[:, 0], again[:, 0])
  for a, b in apart:
    counts = np.bincount(a * size + b, minlength=size * size)
    assert abs(chi_square(counts, np.full(size * size, len(a) / size**2))) < 4
  np.testing.assert_array_equal(sample(zeros, keys(n)[::-1]), found[::-1])


def test_no_noise_is_large_enough_for_a_token_of_no_probability():
  # 60 million draws of noise: at 1 in 16 million it must not be infinite
  logits = jnp.zeros((1000, 2, 30_000)).at[..., 5].set(60.0)
  assert (jax.jit(lambda x: generators.sample(x, {'row_keys': keys(1000)}))(logits) == 5).all()


def optimizer(params, rate, weight_decay):
  fields = dict(weight_decay=weight_decay, no_decay=())
  paths = trees.paths_of(params)
  return found.call_part(optimizers, 'adamw_uncorrected', lambda s: rate, paths, **fields)


@functools.lru_cache
def updated(accumulation, mesh):
  """(parameters, metrics) after a step."""
  objective, params = pair(temperature=3.0, num_layers=1)
  tx = optimizer(params, 1e-3, 0.01)
  devices = sharding.mesh(mesh, jax.devices()[: math.prod(mesh)]) if mesh else None
  state = small.state(objective, tx, params, 16)
  batch = small.batch(rows=16)
  if mesh:
    batch = {k: jax.device_put(v, sharding.batch_sharding(devices)) for k, v in batch.items()}
  how = dict(seed=3, accumulation=accumulation, mesh=devices)
  step = steps.make_train_step(objective, tx, lambda s: 1e-3, **how)
  new, metrics = jax.block_until_ready(jax.jit(step)(state, batch))
  return new.params, metrics


@pytest.mark.parametrize(
  'accumulation, mesh', [(2, None), (4, None), (1, (2, 4, 1)), (2, (2, 2, 2))]
)
def test_samples_depend_on_neither_microbatches_nor_mesh(accumulation, mesh):
  (ours, a), (theirs, b) = updated(accumulation, mesh), updated(1, None)
  assert a['rtd_base_rate'] == b['rtd_base_rate'] < 1
  assert abs(float(a['loss'] / b['loss']) - 1) < 1e-5
  assert small.worst(ours['generator'], theirs['generator']) < 2e-4


@pytest.mark.parametrize('kind', ['replaced_token', 'replace_mlm'])
def test_the_two_networks_drop_other_units(kind, monkeypatch):
  objective, seen, join = small.objective(kind, **SIZES), [], row_keys.join
  batch = {**small.batch(), 'row_keys': keys(4)}
  params = jax.tree.map(jnp.asarray, small.parameters(objective))
  monkeypatch.setattr(row_keys, 'join', lambda keys, key: seen.append(key) or join(keys, key))

  @jax.jit
  def drawn(key):
    objective.loss(params, batch, objective.normalizers(batch), (), key, True)
    return jnp.stack([jax.random.key_data(key) for key in seen])

  assert len(np.unique(drawn(jax.random.key(0)), axis=0)) == 2


# ids that are shown; positions, targets, weights, samples; the row before masking, the filled row
FILLED = {
  'all masked positions are filled and the others left': (
    [10, 4, 12, 4, 14, 15],
    ([1, 2, 3, 0, 0], [11, 12, 13, 0, 0], [1, 1, 1, 0, 0], [70, 12, 90, 33, 44]),
    ([10, 11, 12, 13, 14, 15], [10, 70, 12, 90, 14, 15]),
  ),
  'a real prediction at position 0 survives fillers that point there': (
    [4, 11],
    ([0, 0, 0], [10, 0, 0], [1, 0, 0], [70, 80, 90]),
    ([10, 11], [70, 11]),
  ),
  'a position that comes twice takes its first sample': (
    [9, 4, 4],
    ([1, 1, 2, 2, 2], [11, 11, 12, 12, 12], [1, 1, 1, 1, 1], [70, 80, 90, 91, 92]),
    ([9, 11, 12], [9, 70, 90]),
  ),
}


def test_samples_stand_at_the_masked_positions_and_the_original_row_comes_back():
  for what, (shown, (positions, targets, weights, samples), expected) in FILLED.items():
    masked = dict(positions=positions, targets=targets, weights=np.float32(weights))
    batch = {f'masked_{name}': np.array([x]) for name, x in masked.items()}
    given = generators.sample(None, {'sampled_ids': jnp.array([samples])})
    filled = generators.fill({**batch, 'input_ids': np.array([shown])}, given)
    assert [x[0].tolist() for x in filled] == [*expected], what


@pytest.mark.parametrize(
  'kind, shared',
  [('replaced_token', 'embeddings'), ('replaced_token', 'none'), (ADVERSARIAL, 'token')],
)
def test_the_discriminator_s_loss_sends_no_gradient_to_the_generator_s_own_parameters(kind, shared):
  objective, params = pair(kind, shared=shared, generator_weight=0.0)
  found = gradients(objective, params, rows())
  assert not ravel_pytree(found['generator'])[0].any()  # exactly
  assert all(ravel_pytree(found[name])[0].any() for name in ('encoder', 'replaced_head'))


@pytest.mark.parametrize('shared', ['token', 'embeddings'])
def test_the_generator_s_loss_reaches_only_shared_parameters_of_the_discriminator(shared):
  objective, params = pair(shared=shared, discriminator_weight=0.0)
  found = gradients(objective, params, rows())
  tables = found['encoder'].pop('embeddings')
  assert not ravel_pytree((found['encoder'], found['replaced_head']))[0].any()
  every = {'word', 'position', 'type', 'norm'}
  reached = {'token': {'word'}, 'embeddings': every}[shared]
  assert {name for name, tree in tables.items() if ravel_pytree(tree)[0].any()} == reached
  assert set(params['generator']['encoder'].get('embeddings', {})) == every - reached


def test_a_frozen_generator_has_no_update_not_even_decay():
  objective = small.objective('replaced_token_frozen', **PLAIN)
  params = small.parameters(objective, seed=1, scale=0.05)
  tx = optimizer(params, 1e-2, 0.5)
  state = small.state(objective, tx, params, 4)
  moments = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), state.opt_state)
  state = state.replace(opt_state=moments)  # as the phase before left them
  update = jax.jit(steps.make_train_step(objective, tx, lambda s: 1e-2, seed=0))
  new, metrics = update(state, small.batch())
  moved = {name: small.worst(new.params[name], params[name]) for name in ('generator', 'encoder')}
  assert moved['generator'] == 0 < moved['encoder']
  assert metrics['mlm_loss'] > 0


@pytest.mark.parametrize('disallow', [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_policy_gradient_is_that_of_the_expected_reward_summed_over_a_vocabulary_of_three(
  disallow,
):
  sizes = dict(num_layers=1, hidden_size=8, num_heads=2, intermediate_size=8, embedding_size=4)
  how = dict(disallow_correct=disallow, temperature=1.3, discriminator_weight=0.0)
  objective, params = pair('replaced_token_adversarial', vocab_size=3, **sizes, **how)
  params = small.perturbed(params, seed=1, scale=0.5)
  ids, ones = np.array([[0, 1, 2, 1]]), np.ones((1, 4), np.int32)
  batch = dict(input_ids=ids, token_type_ids=0 * ones, segment_ids=ones)
  batch |= dict(masked_positions=np.array([[2]]), masked_targets=np.array([[1]]))
  batch['masked_weights'] = np.ones((1, 1), np.float32)

  def log_shares(params):
    logits, _ = guesses(objective, params, batch)
    how = dict(temperature=1.3, disallow_correct=disallow)
    return jax.nn.log_softmax(generators.tempered(logits, batch, **how)[0, 0])

  def reward(token):
    filled = np.where(np.arange(4) == 2, token, [0, 1, 2, 1])[None]
    score = detected(objective, params, {**batch, 'input_ids': filled})[0][0, 2]
    return float(-jax.nn.log_sigmoid(score if token != 1 else -score))

  rewards = jnp.array([reward(v) for v in range(3)])
  # the generator climbs
  wanted = jax.jit(jax.grad(lambda p: -jnp.sum(jnp.exp(log_shares(p)) * rewards)))(params)
  shares = np.exp(jax.jit(log_shares)(params))
  each = [gradients(objective, params, {**batch, 'sampled_ids': np.array([[v]])}) for v in range(3)]
  mean = jax.tree.map(lambda *g: sum(share * x for share, x in zip(shares, g)), *each)
  for tree in (wanted, mean):
    tree.pop('baseline_head')  # which learns by itself, below
  assert small.worst(wanted, mean) < 1e-6
  assert np.abs(ravel_pytree(wanted['generator'])[0]).max() > 1e-2
  assert (shares[1] == 0) == disallow


def test_the_baseline_learns_the_discriminator_s_probability_of_the_right_answer():
  objective, params = pair('replaced_token_adversarial', discriminator_weight=0.0)
  batch = {**small.batch(rows=1, predictions=1), 'sampled_ids': np.array([[9]])}
  batch['masked_weights'][:] = 1.0
  (_, sums), found = evaluate(objective, params, batch)
  right = np.exp(-float(sums['masked']['reward']))
  gradient = found['baseline_head']['classifier']['bias'][0]
  hidden = guesses(objective, params, batch)[1][0, 0]
  head = params['baseline_head']['classifier']
  guess = 1 / (1 + np.exp(-float(hidden @ head['kernel'][:, 0] + head['bias'][0])))
  assert abs(gradient - (guess - right)) < 1e-5  # of cross-entropy


def reference(scores, replaced):
  """Metrics over tokens, written out: the area by pairs, the precision with scores in eighths."""
  flagged, eighths = scores > 0, np.floor(8 * scores)
  hits, misses = scores[replaced], scores[~replaced]
  area = np.mean((hits[:, None] > misses) + 0.5 * (hits[:, None] == misses))
  return dict(
    rtd_accuracy=np.mean(flagged == replaced),
    rtd_base_rate=1 - replaced.mean(),
    rtd_precision=replaced[flagged].mean(),
    rtd_recall=flagged[replaced].mean(),
    rtd_auc=area,
    rtd_average_precision=np.mean([replaced[eighths >= x].mean() for x in eighths[replaced]]),
  )


@pytest.mark.parametrize('loss_over', ['all', 'masked'])
def test_metrics_and_loss_are_those_of_the_discriminator_s_scores(loss_over):
  objective, params = pair(loss_over=loss_over, discriminator_weight=2.0, generator_weight=0.5)
  params = jax.tree.map(lambda x: 3 * x, params)
  batch = sampled(rows=16)
  # a correct guess is an original token
  batch['sampled_ids'][::2, 0] = batch['masked_targets'][::2, 0]
  normalizers = objective.normalizers(batch)
  value, sums = loss_of(objective, params, batch)
  found = objective.finalize_metrics(steps.means(sums, normalizers))
  original, filled = (np.asarray(x) for x in generators.fill(batch, batch['sampled_ids']))
  scores, vectors = map(np.asarray, detected(objective, params, {**batch, 'input_ids': filled}))
  real, replaced = batch['segment_ids'] > 0, filled != original
  for name, value_of in reference(scores[real], replaced[real]).items():
    assert abs(float(found[name]) - value_of) < (0.01 if name == 'rtd_auc' else 1e-5), name
  around = [row[of] - row[of].mean(axis=0) for row, of in zip(vectors, real)]
  rms = np.sqrt(np.mean(np.square(np.concatenate(around))))
  assert 0.1 < rms and abs(float(found['rtd_token_rms']) / rms - 1) < 1e-5
  chosen = np.zeros_like(real)
  np.put_along_axis(chosen, batch['masked_positions'], True, axis=1)
  chosen[:, 0] &= (batch['masked_positions'] * 1 + (batch['masked_weights'] == 0) * 99 == 0).any(1)
  over = real if loss_over == 'all' else chosen
  nll = np.log1p(np.exp(np.where(replaced, -scores, scores)))
  assert abs(float(found['rtd_loss']) - nll[over].mean()) < 1e-4
  weighted = 2.0 * float(found['rtd_loss']) + 0.5 * float(found['mlm_loss'])
  assert abs(float(value) - weighted) < 1e-3
  assert {'rtd_counts', 'rtd_found', 'rtd_spread'}.isdisjoint(found)


def test_predicting_all_tokens_with_a_copy_mechanism_is_the_mixture_written_out():
  objective, params = pair('all_tokens_mlm', generator_weight=0.0)
  batch = sampled()
  normalizers = objective.normalizers(batch)
  value, sums = loss_of(objective, params, batch)
  original, filled = (np.asarray(x) for x in generators.fill(batch, batch['sampled_ids']))
  encoder = objective.networks[0].encoder

  @jax.jit
  def read(params, batch):
    hidden = networks.encode(encoder, params['encoder'], batch, None)
    return hidden, jax.nn.softmax(networks.vocabulary_logits(encoder, params, hidden))

  hidden, shares = (np.asarray(x) for x in read(params, {**batch, 'input_ids': filled}))
  shares = shares.astype(np.float64)
  head = params['copy_head']['classifier']
  copy = 1 / (1 + np.exp(-np.asarray(hidden @ head['kernel'])[..., 0] - head['bias'][0]))
  mixed = (1 - copy[..., None]) * shares + copy[..., None] * np.eye(small.VOCAB)[filled]
  real = batch['segment_ids'] > 0
  likely = np.take_along_axis(mixed, original[..., None], -1)[..., 0]
  assert abs(float(value) + np.log(likely[real]).mean()) < 1e-4
  accuracy = float(sums['tokens']['all_tokens_accuracy'] / normalizers['tokens'])
  assert abs(accuracy - (mixed.argmax(-1) == original)[real].mean()) < 1e-6
  at = np.take_along_axis(np.log(likely), batch['masked_positions'], 1)
  assert abs(float(sums['masked']['mlm_loss']) + (at * batch['masked_weights']).sum()) < 1e-3


@pytest.mark.parametrize(
  'kind, other, total',
  [('replaced_token', 'corruption_detection', 'tokens'), ('replace_mlm', 'mlm', 'masked')],
)
def test_filled_rows_are_learned_from_like_rows_that_a_masking_filled(kind, other, total):
  objective, params = pair(kind, generator_weight=0.0)
  plain, batch = small.objective(other, **PLAIN), sampled(rows=8)
  filled = {**batch, 'input_ids': np.asarray(generators.fill(batch, batch['sampled_ids'])[1])}
  ours, theirs = loss_of(objective, params, batch)[1], loss_of(plain, params, filled)[1]
  assert small.worst({k: ours[total][k] for k in theirs[total]}, theirs[total]) < 1e-4


def test_an_impossible_generator_is_refused_with_a_remedy():
  shallow = dict(shared='embeddings', width=0.5, num_heads=2, embedding_size=0)
  other = {**parts.disentangled(max_positions=40, max_distance=20, buckets=8), **SIZES, **shallow}
  for fields, words in (
    ({**SIZES, 'shared': 'all', 'width': 0.5}, 'width=1.0'),
    ({**SIZES, 'width': 0.6, 'num_heads': 4}, 'heads do not divide'),
    (other, 'shares embeddings/norm/bias.*objective.shared=token'),  # a norm of another width
  ):
    with pytest.raises(errors.UserError, match=words):
      small.objective('replaced_token', **fields)
  small.objective('replaced_token', **{**other, 'shared': 'token'})


@pytest.mark.parametrize(
  'width, depth, shared, sizes',
  [
    (0.25, 1.0, 'embeddings', (16, 1, 64, 4, 64)),
    (0.25, 1.0, 'none', (16, 1, 64, 4, 16)),
    (1.0, 0.5, 'none', (64, 4, 256, 2, 64)),
  ],
)
def test_only_widths_shrink_with_the_width_and_only_layers_with_the_depth(
  width, depth, shared, sizes
):
  encoder = small.encoder(hidden_size=64, num_heads=4, intermediate_size=256, num_layers=4)
  made = generators.build(encoder, width=width, depth=depth, shared=shared).encoder
  names = 'hidden_size', 'num_heads', 'intermediate_size', 'num_layers', 'embedding_width'
  assert tuple(getattr(made, name) for name in names) == sizes
