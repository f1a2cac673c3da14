"""Any objective keeps what bertzoo_jax/objectives/objective.py promises of it."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small
from flax import linen as nn

from bertzoo_jax import objectives
from bertzoo_jax.common import trees
from bertzoo_jax.hf import weights
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.objectives import generator
from bertzoo_jax.parts import named
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.training import cost
from bertzoo_jax.training import optimizers
from tests.outside import coupled

LENGTH, PREDICTIONS = 40, 5  # of all rows: an objective is compiled for few shapes


def rows(objective, **sizes):
  """A batch as the step hands it to an objective, of lanes if it reads a memory."""
  batch = small.rows(**{'length': LENGTH, 'predictions': PREDICTIONS, **sizes})
  if 'causal' in objective.reads:
    batch['causal'] = (np.arange(len(batch['input_ids'])) % 2).astype(np.int32)
  if 'resets' not in objective.reads:
    return batch
  found = small.lanes(batch)
  return found if 'order' in objective.reads else {k: x for k, x in found.items() if k != 'order'}


@pytest.fixture(scope='module')
def learned(objective_of):
  """(objective, parameters moved off their initial values), on small_networks' encoder if the case
  brings none.
  """
  section, own = objective_of
  encoder = small.encoder()
  if section is not None:
    rates = {k: 0.0 for k in section if k == 'dropout' or k.endswith('_dropout')}
    given = dict(vocab_size=small.VOCAB, dtype=jnp.float32)
    encoder = named.build({**section, **rates}, encoders.BY_NAME, 'encoder', **given)
  objective = named.build(own, objectives.BY_NAME, 'objective', encoder=encoder)
  if unknown := set(objective.reads) - set(rows(objective)):
    pytest.skip(f'the batches of this test have no {", ".join(sorted(unknown))}')
  return objective, small.parameters(objective)


def evaluate(objective, params, batch, normalizers=None):
  """`small.evaluate` as one program of each shape of a batch."""
  given = objective.normalizers(batch) if normalizers is None else normalizers
  return small.evaluate(objective, params, batch, given)


def test_parts_of_a_batch_add_up_to_the_whole(learned):
  parts_add_up(*learned)


@pytest.mark.parametrize('how', coupled.HOW)
def test_an_objective_that_couples_rows_and_does_not_say_so_is_found(how):
  objective = coupled.coupled(small.encoder(), how=how)
  params = small.parameters(objective)
  parts_add_up(objective, params)
  with pytest.raises(AssertionError, match='objective.coupled'):
    parts_add_up(objective._replace(vectors=None, couple=None), params)
  padding_is_silent(objective, params)
  all_rows = lambda batch: {**objective.normalizers(batch), 'rows': len(batch['input_ids'])}
  with pytest.raises(AssertionError, match='a row of padding is counted by normalizers'):
    padding_is_silent(objective._replace(normalizers=all_rows), params)


def parts_add_up(objective, params):
  """Holds the sum over two halves of a batch to the whole: of losses, or of what `vectors` returns,
  with the loss that couples all rows.
  """
  batch = rows(objective)
  normalizers = objective.normalizers(batch)
  vectors = objective.vectors or (lambda *args: ((), objective.loss(*args)))

  def by_parts(params, batch, *rest):
    halves = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), batch)
    tree, (value, (_, sums)) = jax.lax.map(lambda half: vectors(params, half, *rest), halves)
    value, sums = jax.tree.map(lambda x: jnp.sum(x, axis=0), (value, sums))
    if objective.couple is None:
      return value, ((), sums)
    tree = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)
    return objective.couple(tree, (value, ((), sums)), batch, normalizers)

  carry = objective.carry(2)
  pieces = small.evaluate(objective._replace(loss=by_parts), params, batch, normalizers, carry)
  whole = small.evaluate(objective, params, batch, normalizers)
  (loss, (_, sums)), gradients = whole
  added = small.worst((pieces[0][0], pieces[1]), (loss, gradients))
  assert added < 5e-5 * max(1, abs(float(loss))), (
    'the losses of two halves of a batch are not its loss: divide by normalizers, not by a sum of '
    'the batch, or return objective.coupled(…) if the loss of a row depends on other rows'
  )
  # Sums over all tokens are larger than their quotients.
  for a, b in zip(jax.tree.leaves(pieces[0][1][1]), jax.tree.leaves(sums), strict=True):
    np.testing.assert_allclose(a, b, rtol=5e-6, atol=5e-5)


def test_fillers_contribute_nothing_even_where_a_real_prediction_shares_their_position(learned):
  objective, params = learned
  batch = rows(objective)
  batch['masked_positions'][0, 0] = 0  # real, at the place that fillers point to
  targets = np.where(batch['masked_weights'] > 0, batch['masked_targets'], 17).astype(np.int32)
  other = {**batch, 'masked_targets': targets}
  assert (batch['masked_weights'] == 0).any()
  ours, theirs = (evaluate(objective, params, x) for x in (batch, other))
  assert small.worst(ours, theirs) == 0


def test_a_row_of_padding_changes_neither_loss_nor_metrics(learned):
  objective, params = learned
  if 'resets' in objective.reads:
    pytest.skip('lanes fill all batches')
  padding_is_silent(objective, params)


def padding_is_silent(objective, params):
  """The last row of a batch is a copy, as `Pipeline.evaluation_batches` fills the last one."""
  batch = rows(objective)
  batch['segment_ids'][-1], batch['masked_weights'][-1] = 0, 0
  fewer = {name: x[:-1] for name, x in batch.items()}
  counted = [objective.normalizers(b) for b in (batch, fewer)]
  assert counted[0] == counted[1], 'a row of padding is counted by normalizers'
  other = {name: np.concatenate([x[:-1], x[:1]]) for name, x in batch.items()}
  other['segment_ids'], other['masked_weights'] = batch['segment_ids'], batch['masked_weights']
  one, two = (evaluate(objective, params, b, counted[0]) for b in (batch, other))
  assert small.worst(one, two) < 1e-6, 'a row of padding counts: weigh rows by networks.row_weights'


def test_a_batch_of_fillers_has_a_finite_loss_and_no_gradient_of_the_masked_tokens(learned):
  fillers_are_silent(*learned)


def test_an_objective_that_learns_from_fillers_is_found():
  plain = objectives.BY_NAME['mlm'](small.encoder())
  ones = np.ones((4, PREDICTIONS), np.float32)
  loss = lambda params, batch, *rest: plain.loss(params, {**batch, 'masked_weights': ones}, *rest)
  with pytest.raises(AssertionError, match=r'gradient of a batch without a masked token.*\[\]'):
    fillers_are_silent(plain._replace(loss=loss), small.parameters(plain))


def all_finite(*trees):
  return all(np.isfinite(x).all() for x in jax.tree.leaves(trees))


def fillers_are_silent(objective, params):
  batch = {**rows(objective), 'masked_weights': np.zeros((4, PREDICTIONS), np.float32)}
  (loss, _), gradients = evaluate(objective, params, batch)
  assert all_finite(loss, gradients)
  counted = [name for name, x in objective.normalizers(batch).items() if x > 0]
  of_predictions = only_for_predictions(objective, params)
  for path, x in weights.flatten(gradients).items():
    assert not np.asarray(x).any() or (counted and path not in of_predictions), (
      f'{path} gets a gradient of a batch without a masked token; above 0 are the normalizers '
      f'{counted}'
    )


def only_for_predictions(objective, params):
  """Paths of the parameters that only heads at the masked positions read."""
  read = {}
  for network in objective.networks:
    own = network.extract(params)
    heads = {name: network.heads_of(own).get(name) for name in own if name != 'encoder'}
    kinds = {name: head and head.reads for name, head in heads.items()}
    for path, place in network.places(params).items():
      part = path.split('/')[0]
      read.setdefault(place, set()).update([kinds[part]] if part in kinds else kinds.values())
  return {place for place, kinds in read.items() if kinds == {'predictions'}}


def test_an_encoder_sees_no_id_outside_the_vocabulary_where_a_position_comes_twice(learned):
  ids_stay(*learned)


def test_an_objective_that_puts_a_token_back_twice_is_found(monkeypatch):
  def fill(batch, ids_BP):
    rows_B1 = np.arange(len(ids_BP))[:, None]
    at_BP, ids_BL = batch['masked_positions'], jnp.asarray(batch['input_ids'])
    changes_BP = (ids_BP - ids_BL[rows_B1, at_BP]) * (batch['masked_weights'] > 0)
    return (ids_BL.at[rows_B1, at_BP].add(changes_BP),) * 2

  objective = objectives.BY_NAME['left_to_right'](small.encoder())
  monkeypatch.setattr(generator, 'fill', fill)
  with pytest.raises(AssertionError, match='generator.fill'):
    ids_stay(objective, small.parameters(objective))


def ids_stay(objective, params):
  """Holds the ids that an encoder gets, of rows where two predictions are at one position, as
  sampling='independent' draws them.
  """
  batch = rows(objective)
  for name, x in (('positions', 3), ('targets', small.VOCAB - 1), ('weights', 1)):
    batch[f'masked_{name}'][:, :2] = x
  batch['input_ids'][:, 3] = small.BERT_IDS['mask']

  @jax.jit
  def seen(params, batch):
    found = []

    def note(call, args, kwargs, context):
      del context
      own = [x for x in (*args, *kwargs.values()) if isinstance(x, dict)]
      found.extend(x['input_ids'] for x in own if 'input_ids' in x)
      return call(*args, **kwargs)

    with nn.intercept_methods(note):
      carry = objective.carry(len(batch['input_ids']))
      objective.loss(params, batch, objective.normalizers(batch), carry, None, False)
    return found

  for ids_BL in seen(params, batch):
    assert ((ids_BL >= 0) & (ids_BL < small.VOCAB)).all(), (
      'an id outside the vocabulary, from a position that comes twice in masked_positions: '
      "generator.fill(batch, batch['masked_targets'])[0] is the row before masking"
    )


def test_an_objective_reads_the_features_it_says(learned):
  objective, params = learned
  batch = rows(objective)

  def program(names):
    def loss(params, batch):
      batch = {name: batch[name] for name in names}
      rest = objective.normalizers(batch), objective.carry(len(batch['input_ids'])), None, False
      return objective.loss(params, batch, *rest)

    return re.sub('0x[0-9a-f]+', '', str(jax.make_jaxpr(loss)(params, batch)))

  reads = (*objective.reads, *objective.may_read, 'row_keys')
  assert program([name for name in batch if name in reads]) == program(batch)
  # An encoder without segments reads none.
  for name in set(objective.reads) - {'token_type_ids'}:
    with pytest.raises(KeyError):
      program([k for k in batch if k != name])


def test_vocabulary_scores_are_computed_at_predicted_positions_only(learned):
  objective, params = learned
  heads = [head for n in objective.networks for head in n.heads_of(n.extract(params)).values()]
  reads = {head.reads for head in heads if head.tied}
  program = str(jax.make_jaxpr(functools.partial(evaluate, objective))(params, rows(objective)))
  assert (f'f32[4,{PREDICTIONS},{small.VOCAB}]' in program) == ('predictions' in reads)
  assert (f'[4,{LENGTH},{small.VOCAB}]' in program) == ('tokens' in reads)


def test_every_parameter_gets_a_gradient(learned):
  objective, params = learned
  gradients = evaluate(objective, params, rows(objective))[1]
  for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
    if optimizers.matching(trees.path_of(path), objective.frozen):
      assert not np.asarray(leaf).any(), path
    elif path[-2].key != 'key':  # a bias of all keys alike moves no softmax
      assert np.abs(leaf).max() > 1e-7, path


def test_a_batch_of_padding_has_a_finite_loss_and_one_with_nothing_to_count_none(learned):
  objective, params = learned
  batch = {**rows(objective), 'masked_weights': np.zeros((4, PREDICTIONS), np.float32)}
  batch['segment_ids'] = np.zeros((4, LENGTH), np.int32)
  (loss, _), gradients = evaluate(objective, params, batch)
  assert all_finite(loss, gradients)
  if not any(float(total) for total in objective.normalizers(batch).values()):
    assert loss == 0 and not any(np.asarray(x).any() for x in jax.tree.leaves(gradients))


def test_each_metric_is_a_sum_over_a_total_that_the_objective_counts(learned):
  objective, params = learned
  batch = rows(objective)
  _, sums = evaluate(objective, params, batch)[0][1]
  totals = objective.normalizers(batch)
  assert sums.keys() <= totals.keys()
  assert all(x.shape == () and x.dtype == jnp.float32 for x in totals.values())
  names = [metric for of_total in sums.values() for metric in of_total]
  assert len(set(names)) == len(names) > 0, f'metrics twice, or none: {names}'
  means = {m: x / totals[t] for t, of_total in sums.items() for m, x in of_total.items()}
  final = objective.finalize_metrics(means)
  assert all(np.shape(x) == () and np.isfinite(x) for x in final.values()), final


def test_each_array_of_a_network_has_its_place_among_the_parameters(learned):
  objective, params = learned
  paths = set(weights.flatten(params))
  for network in objective.networks:
    places = network.places(params)
    assert set(places.values()) <= paths
    assert any(path.startswith('encoder/') for path in places)
  assert len({network.name for network in objective.networks}) == len(objective.networks)


def test_its_cost_is_that_of_the_compiled_gradient(learned):
  objective, params = learned
  batch = rows(objective)
  given = objective.normalizers(batch), objective.carry(len(batch['input_ids']))
  lowered = small._evaluate.lower(objective.loss, objective.normalizers, params, batch, *given)
  counted = hlo.read(lowered.compile().as_text()).flops
  assert cost.step_flops(objective, params, batch) == pytest.approx(counted, rel=0.1)
