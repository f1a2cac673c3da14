import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import attention
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.model import protocol
from bertzoo_jax.model import stack
from bertzoo_jax.model import transformer
from configs import albert
from configs import bert
from configs import electra
from configs import roberta

ROW = ('input_ids', 'token_type_ids', 'segment_ids')


@functools.partial(jax.jit, static_argnums=0)
def initial(encoder, seed=0):
  batch = {name: jnp.zeros((1, 1), jnp.int32) for name in ROW}
  return encoder.init(jax.random.key(seed), batch)['params']


@functools.partial(jax.jit, static_argnames=('encoder', 'ops'))
def run(encoder, params, batch, key=None, **how):
  keys_B2 = None if key is None else row_keys.batch_keys(key, len(batch['input_ids']))
  return encoder.apply({'params': params}, batch, keys_B2, **how)


@pytest.fixture(scope='module')
def params():
  return small.perturbed(initial(small.encoder()))


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradient(encoder, params, key):
  return jax.value_and_grad(lambda p: jnp.mean(run(encoder, p, small.batch(), key) ** 3))(params)


def program(encoder, params):
  traced = jax.make_jaxpr(value_and_gradient, static_argnums=0)
  return str(traced(encoder, params, jax.random.key(3)))


def test_the_scanned_stack_equals_its_blocks_one_after_the_other(params):
  batch, encoder = small.batch(), small.encoder()
  embeddings, block = encoder.bind({'params': params}).embeddings, encoder._block()
  x, visible = embeddings(batch, None), attention.same_pack(batch['segment_ids'])
  for i in range(3):
    own = stack.block_params(params['layers'], encoder.plan, i)
    x = block.apply({'params': own}, x, visible, None, operations.PLAIN)
  assert small.worst(x, run(encoder, params, batch)) < 1e-5


@pytest.mark.parametrize(
  'remat', ['full', pytest.param('feed_forward', marks=pytest.mark.slow), 'sublayers']
)
def test_recomputing_in_the_backward_pass_changes_nothing_with_dropout_on(params, remat):
  encoder = lambda remat: small.encoder(remat=remat, dropout=0.1, attention_dropout=0.1)
  plain, again = (
    value_and_gradient(encoder(r), params, jax.random.key(3)) for r in ('none', remat)
  )
  assert small.worst(plain, again) < 1e-5
  recomputed = lambda r: program(encoder(r), params).count('remat')
  assert recomputed('none') == 0 < recomputed(remat)


def test_the_less_is_saved_the_more_products_are_computed(params):
  def products(remat):
    encoder = small.encoder(remat=remat, dropout=0.1, attention_dropout=0.1)
    return program(encoder, params).count('dot_general')

  counts = [products(remat) for remat in stack.REMAT]
  assert counts == sorted(set(counts)), counts


def test_the_mixture_of_values_is_saved_without_a_pass_of_its_own(params):
  # jax rounds what is both saved and used; what joins the residual is, in the product that makes
  # it.
  jaxpr = program(small.encoder(remat='sublayers', dropout=0.1, attention_dropout=0.1), params)
  assert jaxpr.count('name=attended') > 0
  assert jaxpr.count('= reduce_precision') == 2, 'of a layer, what its two sublayers give'


@pytest.mark.parametrize(
  'name, bound, deviation', [('truncated_normal', 0.04, 0.02 * 0.8796), ('normal', 0.2, 0.02)]
)
def test_weights_start_as_the_papers_codes_draw_them_with_biases_0_and_norms_1(
  name, bound, deviation
):
  params = initial(small.encoder(vocab_size=2000, initializer=name))
  words = np.asarray(params['embeddings']['word']['embedding'])
  assert abs(words.std() / deviation - 1) < 0.02
  assert abs(words.mean()) < 2e-4
  assert np.abs(words).max() <= bound
  if name == 'normal':
    assert np.abs(words).max() > 0.06
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if path[-1].key in ('bias', 'scale'):
      assert (leaf == (path[-1].key == 'scale')).all(), path
    else:
      assert leaf.std() > 0.8 * deviation, path


def test_bfloat16_products_stay_close_to_float32_and_parameters_stay_float32(params):
  half = small.encoder(dtype=jnp.bfloat16)
  out = run(half, params, small.batch())
  assert out.dtype == jnp.bfloat16
  assert {x.dtype for x in jax.tree.leaves(initial(half))} == {jnp.dtype('float32')}
  difference = np.abs(np.asarray(out, np.float32) - run(small.encoder(), params, small.batch()))
  assert difference.max() < 0.2 and difference.mean() < 0.02


@functools.partial(jax.jit, static_argnums=0)
def gradient_of(encoder, params, batch, weights_BLD):
  loss = lambda p: jnp.sum(run(encoder, p, batch).astype(jnp.float32) * weights_BLD)
  return jax.grad(loss)(params)


def test_bfloat16_gives_the_gradients_of_float32(params):
  batch = {name: x for name, x in small.batch(rows=96).items() if name in ROW}
  # All rows pull one way: sums over them grow far beyond what a bfloat16 can count.
  weights_D = 0.5 + np.random.default_rng(0).normal(0, 0.1, 48).astype(np.float32)
  weights_BLD = np.broadcast_to(weights_D, (96, 24, 48))
  exact, half = (
    gradient_of(small.encoder(dtype=dtype), params, batch, weights_BLD)['layers']
    for dtype in (jnp.float32, jnp.bfloat16)
  )
  errors_of = {}
  for path, x in jax.tree_util.tree_leaves_with_path(exact):
    # adding to all keys changes no share: that gradient is 0
    if path[-1].key == 'bias' and path[-2].key != 'key':
      y = functools.reduce(lambda tree, k: tree[k.key], path, half)
      errors_of[jax.tree_util.keystr(path)] = float(jnp.linalg.norm(y - x) / jnp.linalg.norm(x))
  assert max(errors_of.values()) < 0.03, errors_of


def test_dropout_has_bert_s_four_sites_follows_its_key_and_is_off_in_evaluation(params):
  encoder, batch = small.encoder(dropout=0.1, attention_dropout=0.1), small.batch()
  one, same, two = (run(encoder, params, batch, jax.random.key(k)) for k in (1, 1, 2))
  assert (one == same).all() and not np.allclose(one, two)
  assert small.worst(run(encoder, params, batch), run(small.encoder(), params, batch)) == 0
  drawn = []
  with pytest.MonkeyPatch.context() as patch:
    seen = lambda rate, x, keys, _: drawn.append((x.shape, np.asarray(keys))) or x
    patch.setattr(layers, '_dropped', seen)
    with jax.disable_jit():
      encoder.apply({'params': params}, batch, row_keys.batch_keys(jax.random.key(0), 4))
  # Embeddings; and in each layer: attention shares, attention output, feed-forward output.
  hidden, shares = (4, 24, 48), (4, 4, 24, 24)
  assert [shape for shape, _ in drawn] == [hidden] + 3 * [shares, hidden, hidden]
  keys = [tuple(key) for _, keys in drawn for key in keys.reshape(-1, 2).tolist()]
  assert len(set(keys)) == len(keys), 'no row, head, site or layer drops what another drops'


def test_operations_are_used_where_they_are_given(params):
  seen = []

  def constrain(name, x):
    seen.append((name, x.ndim))
    return x

  attend = lambda q, k, v, visible, rate, key, relative: jnp.zeros_like(q)
  add_norm = lambda x, y, scale, shift, eps, dropout_rate, dropout_keys_B2, with_sum: x + y
  outs = [
    run(small.encoder(), params, small.batch(), ops=operations.PLAIN._replace(**given))
    for given in (dict(constrain=constrain), dict(attend=attend), dict(add_norm=add_norm))
  ]
  assert set(seen) == {('hidden', 3), ('heads', 4), ('feed_forward', 2)}
  plain = run(small.encoder(), params, small.batch())
  assert [np.allclose(out, plain) for out in outs] == [True, False, False]


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(num_heads=5), 'does not divide'),
    (dict(sharing='all', num_groups=2), 'divide num_layers=3'),
    (dict(num_groups=3), 'set encoder.sharing'),
    (dict(inner_group_num=2), 'set encoder.sharing'),
  ],
)
def test_an_impossible_encoder_is_refused_with_a_remedy(changes, message):
  with pytest.raises(errors.UserError, match=message):
    small.encoder(**changes)


def test_rows_longer_than_the_position_table_are_refused(params):
  with pytest.raises(errors.UserError, match='max_positions=41'):
    run(small.encoder(), params, small.batch(length=41))


# Of the papers note: exact numbers, encoder with pooler, MLM and pair head (tied decoder).
BERT_COUNTS = {
  (2, 128): 4_433_468,
  (4, 256): 11_267_900,
  (4, 512): 29_058_876,
  (8, 512): 41_668_412,
  (12, 768): 110_106_428,
  (24, 1024): 336_226_108,
}


def count(objective):
  return sum(x.size for x in jax.tree.leaves(jax.eval_shape(objective.init, jax.random.key(0))))


@pytest.mark.parametrize('layers, width', BERT_COUNTS)
def test_bert_has_as_many_parameters_as_the_paper_s(layers, width):
  sizes = dict(num_heads=width // 64, intermediate_size=4 * width, vocab_size=30522)
  section = parts.transformer(num_layers=layers, hidden_size=width)
  objective = small.objective('mlm_pair', **{**section, **sizes})
  assert count(objective) == BERT_COUNTS[layers, width]


@pytest.mark.parametrize('size, cased', [('base', 108_932_934), ('large', 334_661_958)])
def test_the_configured_bert_has_as_many_parameters_with_the_cased_vocabulary(size, cased):
  objective = small.objective('mlm_pair', vocab_size=28996, **bert.get_config(size).encoder)
  assert count(objective) == cased


@pytest.mark.parametrize('size, published', [('base', 124_697_433), ('large', 355_412_057)])
def test_roberta_has_as_many_parameters_as_published_in_hugging_face_s_layout(size, published):
  encoder = roberta.get_config(size).encoder
  zeros = 3 * encoder.hidden_size  # two position rows and a segment row that only the layout has
  assert count(small.objective('mlm', vocab_size=50265, **encoder)) + zeros == published


# Table 4 of the paper, of the encoder with its pooler.
TABLE_4 = {
  0: dict(all=31.11, attention=83.08, feed_forward=57.12, none=109.08),
  128: dict(all=11.68, attention=63.65, feed_forward=37.69, none=89.65),
}


@pytest.mark.parametrize(
  'sharing, width, millions',
  [(s, width, m) for width in TABLE_4 for s, m in TABLE_4[width].items()],
)
def test_albert_s_sharing_has_the_counts_of_its_table_4(sharing, width, millions):
  config = albert.get_config('base')
  config.encoder.update(sharing=sharing, embedding_size=width)
  objective = small.objective('mlm_pair', vocab_size=30_000, **config.encoder)
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  body = [shapes['encoder'], shapes['pair_head']['pooler']]
  assert round(sum(x.size for x in jax.tree.leaves(body)) / 1e6, 2) == millions


@pytest.mark.parametrize(
  'size, total, body, generator',
  [
    ('small', 14_196_219, 13_483_008, 647_162),
    ('base', 119_386_427, 108_891_648, 9_903_418),
    ('large', 354_655_291, 334_092_288, 19_512_378),
  ],
)
def test_electra_trains_as_many_parameters_as_the_paper_s(size, total, body, generator):
  config = electra.get_config(size)
  sizes = dict(vocab_size=30_522, width=config.objective.width)
  objective = small.objective('replaced_token', **sizes, **config.encoder)
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  sizes = {name: sum(x.size for x in jax.tree.leaves(tree)) for name, tree in shapes.items()}
  assert (sum(sizes.values()), sizes['encoder'], sizes['generator']) == (total, body, generator)


def test_a_batch_with_an_order_is_read_from_left_to_right(params):
  encoder, batch = small.encoder(), {k: v for k, v in small.batch(rows=2).items() if k in ROW}
  order = np.broadcast_to(np.arange(24), (2, 24))
  causal = run(encoder, params, {**batch, 'order': order})
  for length in (5, 24):
    part = {name: x[:, :length] for name, x in batch.items()}
    part['order'] = order[:, :length]
    assert small.worst(causal[:, :length], run(encoder, params, part)) < 1e-5
  assert small.worst(causal, run(encoder, params, batch)) > 0.1


def test_parameters_that_only_predictions_need_are_initialised_and_learn():
  class Enhanced(transformer.Transformer):
    def setup(self):
      super().setup()
      self.more = layers.Dense((self.hidden_size,), self.kernel_init, self.dtype)

    def predictions(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, memory=()):
      found = protocol.gathered(self, batch, dropout_keys_B2, ops, memory)
      return found._replace(states_BPD=self.more(found.states_BPD))

  fields = {k: v for k, v in small.SECTION.items() if k != 'name'}
  encoder = Enhanced(vocab_size=small.VOCAB, dtype=jnp.float32, **fields)
  objective, batch = objectives.BY_NAME['mlm'](encoder), small.batch()
  params = jax.jit(objective.init)(jax.random.key(0))
  plain = jax.jit(small.objective('mlm').init)(jax.random.key(0))
  assert small.worst(params['encoder']['layers'], plain['encoder']['layers']) == 0
  loss = lambda p: objective.loss(p, batch, objective.normalizers(batch), (), None, False)[0]
  assert np.abs(jax.jit(jax.grad(loss))(params)['encoder']['more']['kernel']).max() > 0
