"""One update: accumulation, meshes, dropout keys, left-out updates, taking over a state."""

import dataclasses
import functools
import math
import weakref

import jax
import numpy as np
import pytest
import small_networks as small
import toys

from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.preflight.tpu import program
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding
from bertzoo_jax.training import step as steps
from tests.found import call_part
from tests.kernels import attended

STEPS = 3


def assert_same(a, b, **tolerance):
  a, b = toys.flat(a), toys.flat(b)
  assert a.keys() == b.keys()
  for k in a:
    np.testing.assert_allclose(a[k], b[k], err_msg=k, **tolerance)


BY_LAYER = dict(
  optimizer='lamb',
  no_decay=(*toys.NO_DECAY, 'layers/0/'),
  no_adaptation=(*toys.NO_DECAY, 'layers/1/'),
  rates=(('layers/0/', 0.5), ('embeddings/', 0.25)),
  clip_norm=0.05,  # below the norm of every group
  clip_groups=('embeddings/', 'layers/1/'),
)


@functools.cache
def stepped(mesh, accumulation, carry, by_layer):
  """(parameters and carry, losses) after steps with dropout, and with a carry of each row."""
  placed = sharding.mesh(mesh, jax.devices()[: math.prod(mesh)])
  how = dict(mesh=placed, accumulation=accumulation, **(BY_LAYER if by_layer else {}))
  made = toys.toy(dropout=0.3, with_carry=carry)
  state, losses = toys.run(toys.phase_run(objective=made, **how), STEPS)
  assert not carry or state.carry.shape == (8, toys.WIDTH)
  return {'params': state.params, 'carry': state.carry}, losses


@pytest.mark.parametrize(
  'mesh, accumulation, carry, by_layer',
  [((2, 2, 1), 2, True, False), ((2, 2, 2), 2, False, False), ((2, 2, 2), 2, False, True)],
)
def test_microbatches_and_meshes_give_the_same_update_dropout_included(
  mesh, accumulation, carry, by_layer
):
  ours, losses = stepped(mesh, accumulation, carry, by_layer)
  plain, expected = stepped((1, 1, 1), 1, carry, by_layer)
  np.testing.assert_allclose(losses, expected, rtol=1e-5)
  assert_same(ours, plain, rtol=1e-4, atol=1e-5)


def test_devices_add_up_gradients_once_however_many_microbatches():
  mesh = sharding.mesh((4, 1, 1), jax.devices()[:4])
  placed = sharding.batch_sharding(mesh)

  def collectives(accumulation):
    run = toys.phase_run(rows=32, mesh=mesh, accumulation=accumulation)
    batch = {k: jax.ShapeDtypeStruct(*v, sharding=placed) for k, v in run.data.features.items()}
    return hlo.read(
      phase_runs.train_step(run).lower(run.target[0], batch).compile().as_text()
    ).collectives

  once, parted = collectives(1), collectives(4)
  assert {c.opcode for c in parted} == {'all-reduce'} and all(c.times == 1 for c in parted)
  assert sum(c.bytes for c in parted) <= sum(c.bytes * c.times for c in once)


def test_dropout_is_a_function_of_the_step_not_of_the_history():
  phase_run = toys.phase_run()
  state, losses = toys.run(phase_run, 4)
  half, first = toys.run(phase_run, 2)
  resumed, second = toys.run(phase_run, 2, half)
  assert first + second == losses
  assert_same(resumed, state, rtol=0, atol=0)
  same_batch = toys.phase_run(batches=lambda a, b: (toys.batch(0) for _ in range(a, b)))
  of_run = same_batch.objective, same_batch.tx, same_batch.schedule
  a, b = (jax.jit(steps.make_train_step(*of_run, seed=seed)) for seed in (0, 1))
  loss = lambda step, state: float(step(state, toys.batch(0))[1]['loss'])
  start = phase_runs.fresh(same_batch)
  assert len({loss(a, start), loss(b, start), loss(a, start.replace(step=start.step + 1))}) == 3


@pytest.mark.parametrize('kind', ['mlm_pair', 'replaced_token'])
def test_a_call_of_several_steps_is_those_steps_to_the_bit(kind):
  fields = {k: v for k, v in getattr(parts, kind)().items() if k != 'name'}
  make = lambda encoder, ops: call_part(objectives, kind, encoder, ops, **fields)
  network = small.encoder(num_layers=1, dropout=0.1, attention_dropout=0.1)
  run = toys.of_an_encoder(make, network, toys.one_device(), rows=4, length=8)
  batches, alone = list(run.data.train.iterate(0, STEPS)), []
  state = phase_runs.fresh(run)
  for batch in batches:
    state, values = run.compiled()(state, sharding.to_devices(batch, run.mesh, run.rows))
    alone.append(jax.device_get(values))
  stacked = {k: np.stack([batch[k] for batch in batches]) for k in batches[0]}
  stacked = sharding.to_devices(stacked, run.mesh, run.rows, 1)
  together, values = run.compiled(STEPS)(phase_runs.fresh(run), stacked)
  assert_same(state, together, rtol=0, atol=0)
  assert_same(
    {k: [row[k] for row in alone] for k in alone[0]}, {k: [*v] for k, v in values.items()}, rtol=0
  )


def test_the_gradient_norm_in_the_metrics_is_that_of_all_clip_groups_together():
  phase_run = toys.phase_run(
    objective=toys.toy(dropout=0.0),
    **{k: BY_LAYER[k] for k in ('clip_norm', 'clip_groups')},
    accumulation=4,
  )
  objective, batch, state = phase_run.objective, toys.batch(0), phase_runs.fresh(phase_run)
  loss = lambda p: objective.loss(p, batch, objective.normalizers(batch), (), None, False)[0]
  gradients = toys.flat(jax.jit(jax.grad(loss))(state.params))
  squares = [np.sum(np.square(g)) for g in gradients.values()]
  of_run = phase_run.objective, phase_run.tx, phase_run.schedule
  found = jax.jit(steps.make_train_step(*of_run, seed=0, accumulation=4))(state, batch)[1]
  norm = found['grad_norm']
  assert norm == pytest.approx(math.sqrt(sum(squares)), rel=1e-5) and norm > 0.1
  # of the whole batch, too
  assert found['loss'] == pytest.approx(float(found['mlm_loss'] + found['pair_loss']), rel=1e-6)
  assert {'lr', 'nonfinite'} < found.keys()


def test_an_update_that_is_not_finite_is_left_out_and_counted():
  objective, update = toys.amplified(toys.toy()), None
  for weight in (math.nan, 1e38):  # of the second, the sum overflows
    phase_run = toys.phase_run(objective=objective, poison=(2, 3), weight=weight)
    update = update or phase_runs.train_step(phase_run)
    before, _ = toys.run(phase_run, 2, None, update)
    kept = toys.flat((before.params, before.opt_state))
    after, losses = toys.run(phase_run, 2, before, update)
    assert not np.isfinite(losses).any() and int(after.step) == 4
    for k, x in toys.flat((after.params, after.opt_state)).items():
      np.testing.assert_array_equal(x, kept[k], err_msg=k)
    counts = lambda state: {k: int(v) for k, v in state.nonfinite.items()}
    assert counts(after) == {'total': 2, 'consecutive': 2, 'last': 3}
    after, _ = toys.run(phase_run, 1, after, update)
    assert counts(after) == {'total': 2, 'consecutive': 0, 'last': 3}


@pytest.mark.parametrize('evaluation', [False, True])
def test_a_loss_that_returns_something_else_is_one_sentence_while_it_is_traced(evaluation):
  toy = toys.toy(dropout=0.0)
  for wrong in (
    lambda value, carry, sums: value,
    lambda value, carry, sums: (value, sums),
    lambda value, carry, sums: (value, (sums, carry)),
    lambda value, carry, sums: (value, (carry, {'mlm_loss': value})),
    lambda value, carry, sums: (value[None], (carry, sums)),
  ):
    loss = lambda *args, wrong=wrong: wrong((made := toy.loss(*args))[0], *made[1])
    run = toys.phase_run(objective=toy._replace(loss=loss))
    state, batch = run.target[0], toys.batch(0)
    if evaluation:
      one = steps.make_eval_step(run.objective)
      args = state.params, batch, toy.normalizers(batch), state.carry, 0
    else:
      one = steps.make_train_step(run.objective, run.tx, run.schedule, seed=0)
      args = state, batch
    with pytest.raises(errors.UserError, match='loss of the objective returns no') as e:
      jax.eval_shape(one, *args)
    assert '\n' not in str(e.value)


COMPILERS = [  # (name of a device, whether weights are split, changed environment, options)
  ('TPU v5 lite', False, {}, {'vmem'}),
  ('TPU v5', False, {}, {'vmem'}),
  ('TPU v5 lite', True, {}, {'vmem', 'einsum'}),
  ('TPU v4', True, {}, {'einsum'}),
  ('TPU v4', False, {}, set()),
  ('cpu', True, {}, set()),
  ('NVIDIA H200', True, {}, {'gemm'}),
  ('NVIDIA H200', True, {'XLA_FLAGS': '--xla_gpu_enable_triton_gemm=true'}, set()),
  ('TPU v5 lite', True, {'LIBTPU_INIT_ARGS': '--xla_tpu_scoped_vmem_limit_kib=65536'}, {'einsum'}),
]
OPTIONS = {
  'vmem': ('xla_tpu_scoped_vmem_limit_kib', '32768'),
  'einsum': ('xla_jf_spmd_threshold_for_windowed_einsum_mib', '1000000'),
  'gemm': ('xla_gpu_enable_triton_gemm', 'False'),
}


def test_the_compiler_gets_the_options_of_a_chip_unless_the_user_sets_others(monkeypatch):
  for kind, split, changes, names in COMPILERS:
    monkeypatch.delenv('LIBTPU_INIT_ARGS', raising=False)
    for name, value in changes.items():
      monkeypatch.setenv(name, value)
    options = phase_runs.compiler_options(kind, split)
    assert options == dict(OPTIONS[name] for name in names), (kind, split, changes)


def evaluated(**how):
  """(PhaseRun on two devices in two parts, parameters, held-out batches, all as one, totals)."""
  mesh = sharding.mesh((2, 1, 1), jax.devices()[:2])
  run = toys.phase_run(objective=toys.toy(**how), mesh=mesh, accumulation=2)
  batches = [batch for _, batch in run.data.evaluation_batches()]
  large = {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}
  return run, phase_runs.fresh(run).params, batches, large, run.objective.normalizers(large)


def test_evaluation_equals_one_large_batch_in_any_number_of_parts():
  run, params, _, large, normalizers = evaluated(dropout=0.5)
  loss, _ = jax.jit(lambda p: run.objective.loss(p, large, normalizers, (), None, False))(params)
  values = phase_runs.evaluation(run)(params)
  assert values['loss'] == pytest.approx(float(loss), rel=1e-5)
  assert values['loss'] == pytest.approx(values['mlm_loss'] + values['pair_loss'], rel=1e-5)


def test_evaluation_carries_each_rows_memory_from_batch_to_batch():
  run, params, batches, _, normalizers = evaluated(with_carry=True)
  loss_of = jax.jit(run.objective.loss, static_argnums=(4, 5))

  def plain(remembers):
    """The loss of the rows one by one, each through all batches with its own memory."""
    total = 0.0
    for row in range(run.rows):
      memory = run.objective.carry(1)
      for batch in batches:
        one = {k: v[row : row + 1] for k, v in batch.items()}
        loss, (carry, _) = loss_of(params, one, normalizers, memory, None, False)
        total, memory = total + float(loss), carry if remembers else memory
    return total

  evaluate = phase_runs.evaluation(run)
  values = evaluate(params)
  assert values['loss'] == pytest.approx(plain(remembers=True), rel=1e-5)
  assert abs(plain(remembers=False) / plain(remembers=True) - 1) > 1e-3
  assert evaluate(params) == values  # begins afresh


def test_held_out_batches_are_made_anew_and_not_kept():
  alive, most = set(), []

  class Held(list):
    def __iter__(self):
      for i in range(10):
        made = toys.batch(1000 + i)
        alive.add(i)
        weakref.finalize(made['input_ids'], alive.discard, i)
        most.append(len(alive))
        yield made
        del made

  run = toys.phase_run()
  run = dataclasses.replace(run, data=toys.rows_of(run.data.features, None, Held([0])))
  params, evaluate = phase_runs.fresh(run).params, phase_runs.evaluation(run)
  first = evaluate(params)
  for expected in (20, 30):  # the denominators are counted once
    assert len(most) == expected and evaluate(params) == first
  assert max(most) <= 4


def test_evaluation_holds_one_part_at_a_time():
  batch = toys.batch(0)
  objective = toys.toy()
  params = jax.eval_shape(objective.init, jax.random.key(0))

  def largest(accumulation):
    one = steps.make_eval_step(objective, accumulation=accumulation)
    jaxpr = jax.make_jaxpr(one)(params, batch, objective.normalizers(batch), (), 0).jaxpr
    products = [e for e in attended.equations(jaxpr) if e.primitive.name == 'dot_general']
    return max(leaf.aval.shape[0] for e in products for leaf in e.outvars)

  assert 4 * largest(4) == largest(1)


def test_entering_a_phase_holds_one_state_and_not_two():
  second = toys.phase_run(first=2)
  made = phase_runs.make_transition(second).lower(second.target[0]).compile()
  memory = made.memory_analysis()
  state = phase_runs.fresh(second)
  pointers = 16 * len(jax.tree.leaves(state))
  assert memory.argument_size_in_bytes == memory.alias_size_in_bytes
  assert memory.output_size_in_bytes + memory.temp_size_in_bytes <= (
    memory.alias_size_in_bytes + pointers
  )
  phase_runs.transition(state, second)
  assert all(x.is_deleted() for x in jax.tree.leaves((state.params, state.opt_state)))


def test_entering_a_phase_on_a_chip_needs_one_state_and_what_is_added():
  pytest.importorskip('libtpu', reason='the TPU compiler (libtpu) is not installed')
  mesh = sharding.mesh((2, 2, 1), program.devices(chips.by_topology('v5e:2x2')))
  whole, table = toys.toy(), jax.numpy.zeros((1 << 11, 1 << 12))  # of 32 MiB, in a state of 96
  with_table = lambda params: {**params, 'encoder': {**params['encoder'], 'bias': table}}
  small = whole._replace(init=lambda key: with_table({'encoder': whole.init(key)['encoder']}))
  whole = whole._replace(init=lambda key, init=whole.init: with_table(init(key)))
  before = toys.phase_run(objective=small, mesh=mesh)
  after = toys.phase_run(first=2, objective=whole, mesh=mesh)
  added = len(jax.tree.leaves(after.target[0])) - len(jax.tree.leaves(before.target[0]))
  found = program.finished(program.lowered_entering(before, after))
  room = 2 << 20  # of a chip, for the code and the small arrays that are added
  assert added > 0 and found.fits and found.memory.temporaries < room < found.memory.arguments


def test_a_phase_takes_over_moments_and_initialises_what_it_adds():
  whole = toys.toy()
  head = whole.init(jax.random.key(9))['pair_head']
  small = whole._replace(
    init=lambda key: {'encoder': whole.init(key)['encoder']},
    loss=lambda params, *rest: whole.loss({**params, 'pair_head': head}, *rest),
  )
  first = toys.phase_run(objective=small)
  state, _ = toys.run(first, 2)
  second = toys.phase_run(first=2, objective=whole)
  old = {k: x.copy() for k, x in toys.flat(state).items()}  # the state is donated
  entered = phase_runs.transition(state, second)
  new, fresh = toys.flat(entered), toys.flat(phase_runs.fresh(second))
  assert old.keys() < new.keys() and new.keys() == fresh.keys()
  for k in new:
    # a phase begins with statistics of its own
    kept = k in old and not k.startswith('spikes/')
    np.testing.assert_array_equal(new[k], old[k] if kept else fresh[k], err_msg=k)
  assert any('mu/pair_head' in k for k in new)
  state, _ = toys.run(second, 2, entered)
  assert int(state.step) == 4
