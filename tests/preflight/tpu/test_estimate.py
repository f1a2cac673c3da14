import collections
import functools
import itertools
import math

import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import estimate
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.preflight.tpu import program


def test_an_accelerator_type_names_a_slice():
  for name, topology, hosts, devices in (
    ('v2-8', 'v2:2x2', 1, 8),
    ('v3-8', 'v3:2x2', 1, 8),
    ('v3-32', 'v3:4x4', 4, 32),
    ('v4-8', 'v4:2x2x1', 1, 4),
    ('v4-16', 'v4:2x2x2', 2, 8),
    ('v4-32', 'v4:2x2x4', 4, 16),
    ('v4-128', 'v4:4x4x4', 16, 64),
    ('v5e-1', 'v5e:1x1', 1, 1),
    ('v5e-8', 'v5e:2x4', 1, 8),
    ('v5litepod-16', 'v5e:4x4', 4, 16),
    ('v6e-8', 'v6e:2x4', 1, 8),
    ('v6e-256', 'v6e:16x16', 64, 256),
    ('v5p-8', 'v5p:2x2x1', 1, 4),
  ):
    slice_ = chips.by_type(name)
    assert (slice_.topology, slice_.hosts, slice_.devices) == (topology, hosts, devices), name
    assert chips.by_topology(topology) == slice_
    assert chips.by_type(slice_.accelerator_type) == slice_


def test_an_unknown_name_ends_in_a_sentence_with_the_known_ones():
  for read, name, sentence in (
    (chips.by_type, 'v4-33', 'v4-32'),
    (chips.by_type, 'v7-8', 'no TPU generation'),
    (chips.by_type, 'v5-litepod8', 'Did you mean'),
    (chips.by_type, 'v5e8', 'Did you mean --tpu=v5e-8'),
    (chips.by_type, 'v4_32', 'Did you mean --tpu=v4-32'),
    (chips.by_topology, 'v4-2x2x4', 'Did you mean --topology=v4:2x2x4'),
    (chips.by_type, 'v4', 'v4-8'),
    (chips.by_topology, 'v4:2x2', 'v4 has 3 axes'),
    (chips.by_topology, 'v5e:3x5', 'steps of 2'),
    (chips.by_topology, 'v5e:32x32', 'at most 256'),
    (chips.by_topology, 'v4:', 'is no slice'),
    (chips.by_topology, 'x', 'no TPU generation'),
  ):
    with pytest.raises(errors.UserError, match=sentence):
      read(name)


def test_a_device_sends_over_the_links_that_its_slice_has():
  links = {'v5e-4': 100e9, 'v5e-256': 200e9, 'v4-8': 100e9, 'v4-128': 300e9, 'v5p-32': 300e9}
  for name, per_second in links.items():
    slice_ = chips.by_type(name)
    assert slice_.egress(slice_.devices) == per_second, name
    assert slice_.egress(1) == math.inf


def reading(*costs, collectives=()):
  return hlo.Reading(list(costs), list(collectives), [], [], 0.0)


def test_a_product_costs_its_cycles_and_the_rest_its_bytes_or_a_third_of_them():
  slice_ = chips.by_type('v5e-4')
  product = hlo.Cost('a', 'fusion', '', 2, 1_500_000, 1000, 1.0, '')
  bound = hlo.Cost('b', 'fusion', '', 1, 1_500_000, 819_000_000, 0.0, '')
  found = estimate.step_time(reading(product, bound), slice_)
  assert found.upper == pytest.approx(3e-3)
  assert found.likely == pytest.approx(3e-3)
  vector = estimate.step_time(reading(bound._replace(hbm=8)), slice_)
  assert vector.likely == pytest.approx(1e-3 / 3) and vector.upper == pytest.approx(1e-3)
  exact = estimate.step_time(reading(product._replace(flops=197e12)), slice_)
  assert exact.floor == pytest.approx(2.0)


def test_a_kernel_without_cycles_is_named_and_charged_by_its_bytes():
  kernel = hlo.Cost('k', 'tpu_custom_call', '', 1, None, 819_000, 0.0, 'attend')
  time_of = lambda cost: estimate.step_time(reading(cost), chips.by_type('v5e-4'))
  found = time_of(kernel)
  assert found.unknown == ('attend',) and found.likely == pytest.approx(1e-6)
  assert not time_of(kernel._replace(cycles=1500)).unknown


SHARES = {'all-reduce': 1.5, 'all-gather': 0.75, 'reduce-scatter': 0.75, 'collective-permute': 1}


@pytest.mark.parametrize('opcode, share', SHARES.items())
def test_collectives_take_what_a_ring_sends(opcode, share):
  made = hlo.Collective(opcode, 100_000_000, 4, 3, '')
  found = estimate.step_time(reading(collectives=[made]), chips.by_type('v5e-4'))
  assert found.exchange == found.likely == found.upper == pytest.approx(3 * share * 1e-3)
  assert estimate.exchange_time(made._replace(group=1), chips.by_type('v5e-4')) == 0.0


def busiest_link(shape, wrapped):
  """Shares that cross the link that most cross, while every chip sends one to every other, along
  one axis after the other.
  """
  loads = collections.Counter()
  for start, end in itertools.product(itertools.product(*map(range, shape)), repeat=2):
    at = list(start)
    for axis, n in enumerate(shape):
      ahead = (end[axis] - start[axis]) % n
      both = (1, ahead), (-1, n - ahead)
      ways = [x for x in both if x[1] == min(ahead, n - ahead)]  # where both are as long: halves
      if not wrapped:
        ways = [(1 if end[axis] > start[axis] else -1, abs(end[axis] - start[axis]))]
      for way, steps in ways:
        for step in range(steps):
          place = *at[:axis], (start[axis] + way * step) % n, *at[axis + 1 :]
          loads[*place, axis, way] += 1 / len(ways)
      at[axis] = end[axis]
  return max(loads.values())


@pytest.mark.parametrize(
  'topology, wrapped',
  [('v4:2x2x1', False), ('v4:2x2x4', False), ('v4:4x4x4', True), ('v5e:4x8', False)],
)
def test_an_exchange_of_all_with_all_takes_as_long_as_its_busiest_link(topology, wrapped):
  slice_ = chips.by_topology(topology)
  held = 100_000_000 * slice_.chips
  found = estimate.exchange_time(hlo.Collective('all-to-all', held, slice_.devices, 1, ''), slice_)
  busiest = busiest_link(slice_.shape, wrapped)
  assert found == pytest.approx(busiest * 100_000_000 / slice_.chip.link)


def test_days_and_dollars_of_all_phases_with_preemptions():
  time = estimate.Time(0.1, 0.2, 0.4, 0.0, ())
  rest = dict(price=3.0, save_minutes=20, compile_seconds=60)
  run = functools.partial(estimate.run, slice_=chips.by_type('v4-8'), **rest)
  quiet = run([(1000, time), (500, time)], preemptions=0)
  assert quiet.steps_seconds == pytest.approx(300) and quiet.lost_seconds == 0
  assert quiet.dollars == pytest.approx(300 / 3600 * 4 * 3.0)
  assert (quiet.least_days, quiet.most_days) == pytest.approx((150 / 86400, 600 / 86400))
  lossy = run([(1500, time)], preemptions=2)
  assert lossy.lost_seconds == pytest.approx(2 * (sum(estimate.RESTART.values()) + 60 + 600))


RAN_OUT = 'the total memory required for HLO temporaries (39.5G) exceeds available HBM (15.75G).'
PERMANENT = 'XLA:TPU compile permanent error. Ran out of memory in memory space hbm.'


def test_the_memory_of_a_program_is_read_from_the_refusal():
  for message, needed in (
    (f'RESOURCE_EXHAUSTED: Ran out of memory on HBM, {RAN_OUT}', 39.5 * 2**30),
    (f'RESOURCE_EXHAUSTED: {PERMANENT} Used 22.25G of 15.48G hbm.', 22.25 * 2**30),
    ('INVALID_ARGUMENT: nothing of memory', None),
  ):
    assert program.needed_bytes(message) == needed


@pytest.mark.parametrize(
  'system, machine, there, words',
  [
    ('Darwin', 'arm64', True, 'Linux on x86-64 only'),
    ('Linux', 'aarch64', True, 'Linux on x86-64 only'),
    ('Linux', 'x86_64', False, 'not installed'),
  ],
)
def test_without_the_compiler_one_sentence_says_where_to_run(
  monkeypatch, system, machine, there, words
):
  monkeypatch.setattr(program.platform, 'system', lambda: system)
  monkeypatch.setattr(program.platform, 'machine', lambda: machine)
  monkeypatch.setattr(program.importlib.util, 'find_spec', lambda name: object() if there else None)
  monkeypatch.delenv('TPU_LIBRARY_PATH', raising=False)
  with pytest.raises(errors.UserError, match=words):
    program.devices(chips.by_type('v4-8'))
