import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small
import torch

from bertzoo_jax import objectives
from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import pooling
from bertzoo_jax.objectives import contrastive
from bertzoo_jax.objectives import networks
from bertzoo_jax.parts import objectives as definitions
from tests.found import call_part

WIDTH = 12
LABELS = np.array([3.0, 5.0, 1.0, 3.0, 4.0, 9.0], np.float32)


def gradient(fields, x_BCD, ids_BC2, real_BC):
  """(loss, metrics, gradient by the vectors)."""
  loss = lambda x: contrastive.compare(fields, x, ids_BC2, real_BC)
  (value, sums), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.asarray(x_BCD))
  return float(value), {name: float(x) for name, x in sums.items()}, np.asarray(grads)


def loops(fields, x_BCD, texts, real_BC):
  """The same, unit by unit. texts: letters by unit and place."""
  x = torch.tensor(x_BCD, requires_grad=True)
  units = [i for i, real in enumerate(real_BC) if real[0]]

  def one(width):
    cosine = lambda a, b: torch.cosine_similarity(x[a][:width], x[b][:width], dim=0)
    total, first = 0.0, 0
    for i in units:
      ours = {*texts[i][:2]}
      others = [j for j in units if j != i and not ours & {*texts[j][:2]}]
      more = [(j, c) for j in units for c in range(2, len(texts[j])) if real_BC[j][c]]
      wrong = [(j, 1) for j in others] + [(j, c) for j, c in more if texts[j][c] not in ours]
      there = torch.stack([cosine((i, 0), to) for to in [(i, 1), *wrong]]) / fields.temperature
      back = torch.stack([cosine((j, 0), (i, 1)) for j in [i, *others]]) / fields.temperature
      both = ((1 - fields.backward, there), (fields.backward, back))
      total = total + sum(w * (torch.logsumexp(s, 0) - s[0]) for w, s in both)
      first += bool(there[0] >= there.max())
    return total, first

  value, first = one(WIDTH)
  sums = {'contrast_loss': value.item(), 'contrast_accuracy': first}
  for width, weight in zip(fields.widths, fields.width_weights):
    loss, _ = one(width)
    sums[f'contrast_loss_{width}'] = loss.item()
    value = value + weight * loss
  value.backward()
  return value.item(), sums, x.grad.numpy()


def vectors(units, texts, seed=0):
  return np.random.default_rng(seed).normal(size=(units, texts, WIDTH)).astype(np.float32)


def ids(texts):
  """[B, C, 2]: equal letters have equal numbers, of which either half may be that of another."""
  codes = np.array([[ord(letter) for letter in unit] for unit in texts], np.uint32)
  return np.stack([codes // 3, codes % 3], axis=-1)


# Units of letters: equal letters are equal texts.
@pytest.mark.parametrize(
  'texts, fillers, fields',
  [
    (('ab', 'cd', 'ef', 'gh'), (), dict(backward=0.0)),
    (('ab', 'cd', 'ac', 'eb', 'ff', 'da'), (), {}),
    (('abc', 'deb', 'fga', 'hii', 'jkl'), ((1, 2), (4, 0), (4, 1), (4, 2)), dict(backward=0.3)),
    (('abcd', 'efgh', 'ijkl'), ((2, 3),), dict(widths=(4, 8), width_weights=(0.5, 2.0))),
  ],
)
def test_loss_and_gradient_are_those_of_a_loop_over_the_units(texts, fillers, fields):
  fields = definitions.InBatch(temperature=0.1, **fields)
  x_BCD, real_BC = vectors(len(texts), len(texts[0])), np.ones((len(texts), len(texts[0])))
  for place in fillers:
    real_BC[place] = 0
  ours, theirs = gradient(fields, x_BCD, ids(texts), real_BC), loops(fields, x_BCD, texts, real_BC)
  assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
  assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
  np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-4, atol=1e-5)


BOTH_WAYS = dict(directions=('query_to_doc', 'doc_to_query'), partition_mode='per_direction')


@pytest.mark.slow
@pytest.mark.parametrize('backward, how', [(0.0, {}), (0.5, BOTH_WAYS)])
def test_loss_and_gradient_are_those_of_sentence_transformers(backward, how):
  losses = pytest.importorskip('sentence_transformers.sentence_transformer.losses')
  fields, x_BCD = definitions.InBatch(backward=backward), vectors(6, 3)
  texts = 'abc', 'def', 'ghi', 'jkl', 'mno', 'pqr'
  value, _, ours = gradient(fields, x_BCD, ids(texts), np.ones((6, 3), bool))
  x = torch.tensor(x_BCD, requires_grad=True)
  loss = losses.MultipleNegativesRankingLoss(None, scale=20.0, **how)
  theirs = loss.compute_loss_from_embeddings([*x.unbind(1)], None)
  theirs.backward()
  assert value / 6 == pytest.approx(theirs.item(), rel=1e-5)
  np.testing.assert_allclose(ours / 6, x.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_texts_have_equal_ids_only_if_their_tokens_are_equal_in_order():
  ids_BL = np.random.default_rng(0).integers(0, 3, (4000, 12)).astype(np.int32)
  ids_BL[1], ids_BL[2, :5], ids_BL[3, 1:6], ids_BL[4] = 0, 1, ids_BL[2, :5], ids_BL[1]
  real = np.arange(12) < np.random.default_rng(1).integers(5, 12, 4000)[:, None]
  found = np.asarray(contrastive.text_ids({'input_ids': ids_BL, 'segment_ids': real}))
  texts = [tuple(row[seen]) for row, seen in zip(ids_BL, real)]
  assert len({*map(tuple, found.tolist())}) == len({*texts}) < 4000
  both = {}
  assert all(both.setdefault(text, tuple(x)) == tuple(x) for text, x in zip(texts, found))


@pytest.mark.parametrize('kind', pooling.KINDS)
def test_a_row_is_told_from_others_by_another_draw_of_its_dropout_and_masks_are_undone(kind):
  objective = small.objective('contrastive', pooling=kind, mlm_weight=0.2, dropout=0.3)
  params, batch, key = small.parameters(objective), small.rows(), jax.random.key(3)
  encoder = objective.networks[0].encoder
  plain = small.objective('mlm', dropout=0.3)
  totals = objective.normalizers(batch)

  @jax.jit
  def both(params, batch):
    ours = objective.loss(params, batch, totals, (), key, True)
    mlm, (_, sums) = plain.loss(params, batch, totals, (), key, True)
    row = {**batch, 'input_ids': small.with_targets(small.rows())}
    keyed = ({**row, 'row_keys': row_keys.fold_in(batch['row_keys'], n)} for n in (0, 1))
    views = [networks.encode(encoder, params['encoder'], each, key) for each in keyed]
    pooled = {'mean': lambda x: pooling.mean(x, batch['segment_ids']), 'first': lambda x: x[:, 0]}
    x_B2D = jnp.stack([pooled[kind](x) for x in views], axis=1)
    fields = definitions.Contrastive(pooling=kind)
    ids_B12 = jnp.arange(8, dtype=jnp.uint32).reshape(4, 1, 2)
    ids_B22 = jnp.concatenate([ids_B12, ids_B12], axis=1)
    return ours, mlm, sums, contrastive.compare(fields, x_B2D, ids_B22, jnp.ones((4, 2))), x_B2D

  (value, (_, found)), mlm, sums, (contrast, parts), x_B2D = jax.tree.map(
    lambda x: np.asarray(x).tolist(), both(params, batch)
  )
  assert float(value) == pytest.approx(0.2 * mlm + contrast / 4, rel=1e-5)
  assert found['masked'] == pytest.approx(sums['masked'], rel=1e-5)
  assert found['rows'] == pytest.approx(parts, rel=1e-4)
  assert np.abs(np.subtract(*np.swapaxes(x_B2D, 0, 1))).max() > 1e-2
  alone = small.objective('contrastive', mlm_weight=0.0)
  assert {*jax.eval_shape(alone.init, key)} == {'encoder'} == {*params} - {'mlm_head'}
  assert {*alone.normalizers(batch)} == {'rows'}


def test_widths_that_do_not_fit_are_refused():
  for fields, words in (
    (dict(widths=(8, 48)), 'widths has 48, and the vectors have 48'),
    (dict(widths=(8, 16), width_weights=(1.0,)), 'width_weights has 1 numbers, and there are 2'),
  ):
    with pytest.raises(errors.UserError, match=words):
      small.objective('contrastive', **fields)


def regression(cosines, labels):
  return np.mean((cosines - labels / 5) ** 2)


def ranking(cosines, labels):
  pairs = [(i, j) for i in range(len(labels)) for j in range(len(labels)) if labels[i] > labels[j]]
  return np.log1p(sum(np.exp(7.0 * (cosines[j] - cosines[i])) for i, j in pairs))


FORMS = {'cosine_regression': (regression, dict(highest=5.0)), 'cosent': (ranking, dict(scale=7.0))}


@pytest.mark.parametrize('name', FORMS)
@pytest.mark.parametrize('pooling', ['mean', 'first'])
def test_losses_are_those_of_their_definitions(name, pooling):
  plain, fields = FORMS[name]
  encoder = small.encoder()
  wide = dict(widths=(8, 4), width_weights=(0.5, 2.0))
  objective = call_part(objectives, name, encoder, pooling=pooling, **wide, **fields)
  params = small.parameters(objective, scale=0.3)
  rng, shape = np.random.default_rng(0), (len(LABELS), 2, 9)
  batch = {'input_ids': rng.integers(5, small.VOCAB, shape), 'token_type_ids': np.zeros(shape, int)}
  batch['segment_ids'] = (np.arange(9) < rng.integers(2, 10, (*shape[:2], 1))).astype(int)
  # the last unit fills the batch
  batch |= dict(labels=LABELS, label_weights=np.array([1, 1, 1, 1, 1, 0], np.float32))
  batch['row_keys'] = np.zeros((len(LABELS), 2), np.uint32)
  vectors = np.asarray(contrastive.unit_vectors(encoder, params, batch, pooling), np.float64)
  rows = {k: x.reshape(-1, x.shape[-1]) for k, x in batch.items() if x.ndim == 3}
  hidden = np.asarray(encoder.apply({'params': params['encoder']}, rows), np.float64)
  real = rows['segment_ids'][..., None] > 0
  pooled = hidden[:, 0] if pooling == 'first' else (hidden * real).sum(1) / real.sum(1)
  np.testing.assert_allclose(vectors.reshape(pooled.shape), pooled, atol=1e-5)

  def wanted(width, weight):
    x = vectors[:-1, :, :width] / np.linalg.norm(vectors[:-1, :, :width], axis=-1, keepdims=True)
    return weight * plain((x[:, 0] * x[:, 1]).sum(-1), LABELS[:-1])

  loss, _ = objective.loss(params, batch, objective.normalizers(batch), (), None, False)
  total = wanted(None, 1.0) + wanted(8, 0.5) + wanted(4, 2.0)
  assert float(loss) == pytest.approx(total, rel=1e-5)
