import pathlib

import pytest

from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.preflight.tpu import hlo_text

TEXT = pathlib.Path(__file__).with_name('toy.hlo').read_text()  # written by hand


def text(known=''):
  return TEXT.replace('body=%body\n', f'body=%body{known}\n')


def test_a_loop_counts_as_often_as_is_known_or_its_condition_says_or_is_said():
  assert hlo.read(text()).cycles == 5 * 100 + 70 + 1000
  found = hlo.read(text(', backend_config={"known_trip_count":{"n":"3"}}')).cycles
  assert found == (3 * 100 + 70 + 1000)
  reading = hlo.read(text().replace('constant(5)', 'parameter(1)'))
  assert reading.unknown_trips == ['loop'] and reading.cycles == 100 + 70 + 1000
  assert not hlo.read(text()).unknown_trips


def test_a_loop_whose_number_grows_by_more_takes_fewer_turns():
  for grows, turns in ((1, 5), (2, 3), (5, 1)):
    by = f'  %by = s32[]{{:T(128)}} constant({grows})\n  %i.2 = s32[]{{:T(128)}} add(%i, %by)\n'
    counted = text().replace('  ROOT %next', f'{by}  ROOT %next')
    found = hlo.read(counted.replace('tuple(%i, %sum)', 'tuple(%i.2, %sum)'))
    assert found.cycles == turns * 100 + 70 + 1000
    assert found.collectives[0].times == turns and not found.unknown_trips


def test_kernels_keep_their_names_and_take_their_cycles_from_the_table():
  reading = hlo.read(text())
  assert reading.kernels == {'attend': 1}
  assert reading.without_estimate() == [('attend', 1, 8192), ('tan', 1, 8192)]
  assert hlo.read(text(), {'attend': 30}).cycles == reading.cycles + 30
  assert hlo.read(text(), {'attend [128]': 5, 'attend': 30}).cycles == reading.cycles + 8 * 5
  assert hlo.read(text().replace('/attend/', '/transpose(jvp(attend))/')).kernels == {'attend': 1}


def test_collectives_and_bytes_are_read_and_what_is_not_reached_is_listed():
  [found] = hlo.read(text()).collectives
  assert found[:4] == ('all-reduce', 4096, 4, 5)
  reading = hlo.read(text())
  # one row of eight is read and its number, and the result stays on the chip
  assert next(c for c in reading.costs if c.name == 'row').hbm == 512 + 4
  assert next(c for c in reading.costs if c.name == 'out').hbm == 2 * 4096
  assert reading.unvisited == ['lost']
  with pytest.raises(ValueError):
    hlo_text.parse('%body (x: f32[]) -> f32[] {\n}')


GROUPS = {
  '{{0,1,2},{3,4,5}}': 3,
  '[2,4]<=[8]': 4,
  "mesh['axis_0'=4,'axis_1'=2] {'axis_1'}": 2,
  "mesh['axis_0'=4,'axis_1'=2] {'axis_0','axis_1'}": 8,
  "mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_0'}": 4,
  "mesh['axis_0'=8] {'axis_0':(2)4}": 4,
  '<not known yet>': 8,
}


def test_a_group_of_devices_is_read_in_every_way_it_is_written():
  of_eight = text().replace('is_scheduled=true', 'is_scheduled=true, num_partitions=8')
  for groups, size in GROUPS.items():
    assert hlo.read(of_eight.replace('[2,4]<=[8]', groups)).collectives[0].group == size, groups
  everyone = text().replace('[2,4]<=[8]', '{}')
  given = ('', 1), (', num_partitions=8', 8), (', replica_count=2, num_partitions=4', 8)
  for counts, size in given:
    made = everyone.replace('is_scheduled=true', f'is_scheduled=true{counts}')
    assert [c.group for c in hlo.read(made).collectives] == [size], counts


SCATTER = """%scatter (v: f32[8,128]) -> f32[2,128] {
  %v = f32[8,128]{1,0:T(8,128)} parameter(0)
  %all = f32[8,128]{1,0:T(8,128)} all-reduce(%v), replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %mine = f32[2,128]{1,0:T(8,128)} dynamic-slice(%all, %v, %v), dynamic_slice_sizes={2,128}
}

ENTRY"""


def test_a_sum_of_which_each_keeps_a_slice_is_a_reduce_scatter():
  made = text().replace('ENTRY', SCATTER)
  made = made.replace('tan(%kernel)', 'fusion(%kernel), kind=kCustom, calls=%scatter')
  found = [c[:3] for c in hlo.read(made).collectives]
  assert found == [('all-reduce', 4096, 4), ('reduce-scatter', 4096, 4)]


BATCHED = 'window={size=16x12 stride=15x11 lhs_dilate=16x12}, dim_labels=0b1f_0o1i->01bf'
HEADS = 'window={size=1x12 pad=0_0x11_11 rhs_reversal=0x1}, dim_labels=0bf1_i1o0->0b1f'


def test_products_written_as_convolutions_count_what_is_multiplied():
  for out, left, right, attributes, flops in (
    ('f32[64,16]', 'f32[64,32]', 'f32[32,16]', 'dim_labels=bf_io->bf', 2 * 64 * 32 * 16),
    (  # A batched product: batch axes are windows dilated so far that only equal indices meet.
      *('f32[16,12,128,128]', 'f32[16,128,12,64]', 'f32[16,128,12,64]', BATCHED),
      2 * 16 * 12 * 128 * 128 * 64,
    ),
    (  # Heads as an axis of the kernel, which the padding lets each meet the one place.
      *('bf16[16,128,12,64]', 'bf16[16,128,768,1]', 'bf16[768,12,64,1]', HEADS),
      2 * 16 * 128 * 768 * 12 * 64,
    ),
  ):
    assert hlo_text.convolution_flops(out, left, right, attributes) == flops, attributes
