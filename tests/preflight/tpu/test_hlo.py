"""What is read off a program's text: on text written by hand, and on small programs with known
answers compiled for v5e.
"""

import functools
import types

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from topologies import mesh_of
from topologies import needs_libtpu
from topologies import shaped

from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.preflight.tpu import hlo_text
from bertzoo_jax.preflight.tpu import program

IDEAL = 2 * 4096**3 / 131_072  # cycles of a product of 4096³ on v5e: 4 matrix units of 128 × 128

ESTIMATE = 'backend_config={"window_config":{"estimated_cycles":"%d"}}'
BLOCK = 'f32[8,128]{1,0:T(8,128)}'
ROW = 'f32[1,128]{1,0:T(1,128)}'
NEAR = 'f32[1,128]{1,0:T(1,128)S(1)}'  # a row in the memory of the core
STATE = f'(s32[]{{:T(128)}}, {BLOCK})'
AT_ROW = 'metadata={op_name="jit(f)/while/body/row"}'
AT_KERNEL = 'metadata={op_name="jit(f)/attend/pallas_call"}'
TEXT = f"""HloModule toy, is_scheduled=true

%fused (p0: f32[8,128], p1: s32[]) -> f32[1,128] {{
  %p0 = {BLOCK} parameter(0)
  %p1 = s32[]{{:T(128)S(6)}} parameter(1)
  %zero = s32[]{{:T(128)}} constant(0)
  ROOT %slice = {ROW} dynamic-slice(%p0, %p1, %zero), dynamic_slice_sizes={{1,128}}
}}

%body (state: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {{
  %state = {STATE} parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%state), index=0
  %x = {BLOCK} get-tuple-element(%state), index=1
  %row = {NEAR} fusion(%x, %i), kind=kLoop, calls=%fused, {AT_ROW}, {ESTIMATE % 100}
  %sum = {BLOCK} all-reduce(%x), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %next = {STATE} tuple(%i, %sum)
}}

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[]{{:T(128)}} parameter(0)
  %b = f32[]{{:T(128)}} parameter(1)
  ROOT %c = f32[]{{:T(128)}} add(%a, %b)
}}

%condition (state.1: (s32[], f32[8,128])) -> pred[] {{
  %state.1 = {STATE} parameter(0)
  %i.1 = s32[]{{:T(128)}} get-tuple-element(%state.1), index=0
  %turns = s32[]{{:T(128)}} constant(5)
  ROOT %less = pred[]{{:T(512)}} compare(%i.1, %turns), direction=LT
}}

%cheap (q: f32[8,128]) -> f32[8,128] {{
  %q = {BLOCK} parameter(0)
  ROOT %q2 = {BLOCK} copy(%q), {ESTIMATE % 7}
}}

%dear (r: f32[8,128]) -> f32[8,128] {{
  %r = {BLOCK} parameter(0)
  ROOT %r2 = {BLOCK} multiply(%r, %r), {ESTIMATE % 70}
}}

%called (s: f32[8,128]) -> f32[8,128] {{
  %s = {BLOCK} parameter(0)
  ROOT %s2 = {BLOCK} negate(%s), {ESTIMATE % 1000}
}}

%lost (t: f32[]) -> f32[] {{
  ROOT %t = f32[]{{:T(128)}} parameter(0)
}}

ENTRY %main (arg: f32[8,128], which: s32[]) -> f32[8,128] {{
  %arg = {BLOCK} parameter(0)
  %which = s32[]{{:T(128)}} parameter(1)
  %start = {STATE} tuple(%which, %arg)
  %loop = {STATE} while(%start), condition=%condition, body=%body%s
  %y = {BLOCK} get-tuple-element(%loop), index=1
  %z = {BLOCK} conditional(%which, %y, %y), branch_computations={{%cheap, %dear}}
  %w = {BLOCK} call(%z), to_apply=%called
  %kernel = {BLOCK} custom-call(%w), custom_call_target="tpu_custom_call", {AT_KERNEL}
  ROOT %out = {BLOCK} tan(%kernel)
}}
""".replace('%s\n', '%(known)s\n')


def text(known=''):
  return TEXT.replace('%(known)s', known)


def test_a_loop_counts_as_often_as_its_condition_says():
  assert hlo.read(text()).cycles == 5 * 100 + 70 + 1000


def test_a_known_number_of_turns_comes_first():
  assert (
    hlo.read(text(', backend_config={"known_trip_count":{"n":"3"}}')).cycles == 3 * 100 + 70 + 1000
  )


@pytest.mark.parametrize('grows, turns', [(1, 5), (2, 3), (5, 1)])
def test_a_loop_whose_number_grows_by_more_takes_fewer_turns(grows, turns):
  counted = text().replace(
    '  ROOT %next',
    f'  %by = s32[]{{:T(128)}} constant({grows})\n  %i.2 = s32[]{{:T(128)}} add(%i, %by)\n  ROOT '
    '%next',
  )
  found = hlo.read(counted.replace('tuple(%i, %sum)', 'tuple(%i.2, %sum)'))
  assert (
    found.cycles == turns * 100 + 70 + 1000
    and found.collectives[0].times == turns
    and not found.unknown_trips
  )


def test_a_loop_that_does_not_tell_its_turns_is_said():
  reading = hlo.read(text().replace('constant(5)', 'parameter(1)'))
  assert reading.unknown_trips == ['loop'] and reading.cycles == 100 + 70 + 1000
  assert not hlo.read(text()).unknown_trips


def test_a_kernel_keeps_its_name_where_it_is_differentiated():
  assert hlo.read(text().replace('/attend/', '/transpose(jvp(attend))/')).kernels == {'attend': 1}


def test_kernels_take_their_cycles_from_the_table_and_are_listed_without_it():
  reading = hlo.read(text())
  assert reading.kernels == {'attend': 1}
  assert reading.without_estimate() == [('attend', 1, 8192), ('tan', 1, 8192)]
  assert hlo.read(text(), {'attend': 30}).cycles == reading.cycles + 30
  assert hlo.read(text(), {'attend [128]': 5, 'attend': 30}).cycles == reading.cycles + 8 * 5


def test_collectives_have_bytes_group_and_turns():
  [found] = hlo.read(text()).collectives
  assert found[:4] == ('all-reduce', 4096, 4, 5)


@pytest.mark.parametrize(
  'groups, size',
  [
    ('{{0,1,2},{3,4,5}}', 3),
    ('[2,4]<=[8]', 4),
    ("mesh['axis_0'=4,'axis_1'=2] {'axis_1'}", 2),
    ("mesh['axis_0'=4,'axis_1'=2] {'axis_0','axis_1'}", 8),
  ],
)
def test_a_group_of_devices_is_read_in_every_way_it_is_written(groups, size):
  assert hlo.read(text().replace('[2,4]<=[8]', groups)).collectives[0].group == size


def test_bytes_are_those_of_hbm_and_of_the_part_that_is_read():
  reading = hlo.read(text())
  row = next(c for c in reading.costs if c.name == 'row')
  assert row.hbm == 512 + 4, (
    'one row of eight is read and its number, and the result stays on the chip'
  )
  assert next(c for c in reading.costs if c.name == 'out').hbm == 2 * 4096


def test_what_nothing_reaches_is_listed():
  assert hlo.read(text()).unvisited == ['lost']


def test_text_without_an_entry_is_refused():
  with pytest.raises(ValueError):
    hlo_text.parse('%body (x: f32[]) -> f32[] {\n}')


def test_a_sum_of_which_each_keeps_a_slice_is_a_reduce_scatter():
  inner = """%scatter (v: f32[8,128]) -> f32[2,128] {
  %v = f32[8,128]{1,0:T(8,128)} parameter(0)
  %all = f32[8,128]{1,0:T(8,128)} all-reduce(%v), replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %mine = f32[2,128]{1,0:T(8,128)} dynamic-slice(%all, %v, %v), dynamic_slice_sizes={2,128}
}

ENTRY"""
  made = (
    text()
    .replace('ENTRY', inner)
    .replace('tan(%kernel)', 'fusion(%kernel), kind=kCustom, calls=%scatter')
  )
  assert [c[:3] for c in hlo.read(made).collectives] == [
    ('all-reduce', 4096, 4),
    ('reduce-scatter', 4096, 4),
  ]


@pytest.mark.parametrize(
  'counts, size', [('', 1), (', num_partitions=8', 8), (', replica_count=2, num_partitions=4', 8)]
)
def test_groups_without_a_device_are_one_of_all_devices(counts, size):
  made = (
    text()
    .replace('is_scheduled=true', 'is_scheduled=true' + counts)
    .replace('replica_groups=[2,4]<=[8]', 'replica_groups={}')
  )
  assert [c.group for c in hlo.read(made).collectives] == [size]


@pytest.mark.parametrize(
  'shape, left, right, attributes, flops',
  [
    ('f32[64,16]', 'f32[64,32]', 'f32[32,16]', 'dim_labels=bf_io->bf', 2 * 64 * 32 * 16),
    # A batched product: batch axes are windows dilated so far that only equal indices meet.
    (
      'f32[16,12,128,128]',
      'f32[16,128,12,64]',
      'f32[16,128,12,64]',
      'window={size=16x12 stride=15x11 lhs_dilate=16x12}, dim_labels=0b1f_0o1i->01bf',
      2 * 16 * 12 * 128 * 128 * 64,
    ),
    # Heads as an axis of the kernel, which the padding lets each meet the one place.
    (
      'bf16[16,128,12,64]',
      'bf16[16,128,768,1]',
      'bf16[768,12,64,1]',
      'window={size=1x12 pad=0_0x11_11 rhs_reversal=0x1}, dim_labels=0bf1_i1o0->0b1f',
      2 * 16 * 128 * 768 * 12 * 64,
    ),
  ],
)
def test_products_written_as_convolutions_count_what_is_multiplied(
  shape, left, right, attributes, flops
):
  assert hlo_text.convolution_flops(shape, left, right, attributes) == flops


def test_optimal_seconds_lose_their_whole_seconds():
  assert hlo.repaired_optimal_seconds({'optimal_seconds': -53.958}) == pytest.approx(0.042)
  assert hlo.repaired_optimal_seconds({'optimal_seconds': 0.0087}) == pytest.approx(0.0087)
  assert hlo.repaired_optimal_seconds({}) is None


# --- programs with known answers ---


def product_chain(x, w):
  for i in range(len(w)):
    x = jnp.tanh(x @ w[i])
  return x


def product_scan(x, w):
  return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0]


@functools.cache
def reading(what):
  mesh = mesh_of('v5e:2x2')
  n = 4096
  made = {
    'product': lambda: (lambda x, w: x @ w, shaped(mesh, (n, n)), shaped(mesh, (n, n))),
    'unrolled': lambda: (product_chain, shaped(mesh, (n, n)), shaped(mesh, (4, n, n))),
    'scanned': lambda: (product_scan, shaped(mesh, (n, n)), shaped(mesh, (4, n, n))),
  }[what]()
  compiled = program.compiled(jax.jit(made[0]), *made[1:])
  return hlo.read(compiled.text), compiled


@needs_libtpu
def test_a_product_is_estimated_within_a_fifth_of_its_ideal():
  found, compiled = reading('product')
  assert IDEAL < found.cycles < 1.2 * IDEAL
  assert found.flops == 2 * 4096**3 == compiled.analysis['flops']
  assert found.hbm == 3 * 2 * 4096**2, 'two operands read, one result written'


@needs_libtpu
def test_a_scan_is_estimated_as_its_unrolled_self():
  unrolled, scanned = reading('unrolled')[0], reading('scanned')[0]
  assert 4 * IDEAL < unrolled.cycles < 4.8 * IDEAL
  # A scan moves its carry once a turn more, at the estimate of a copy (three times too dear): 369 k
  # cycles beside a product's 1.08 M.
  assert unrolled.cycles < scanned.cycles < 1.4 * unrolled.cycles
  assert scanned.flops == unrolled.flops == 4 * 2 * 4096**3
  assert scanned.hbm == pytest.approx(unrolled.hbm, rel=0.2)


@needs_libtpu
@pytest.mark.parametrize('what, once', [('product', 1), ('unrolled', 4), ('scanned', 1)])
def test_what_was_visited_has_the_compilers_own_count_of_operations(what, once):
  found, compiled = reading(what)
  assert found.visited == once * 2 * 4096**3
  assert found.visited == pytest.approx(compiled.analysis['flops'], rel=0.01)
  assert not found.unvisited and not found.unknown_trips


@needs_libtpu
def test_a_sum_over_devices_has_its_exact_bytes():
  mesh = mesh_of('v5e:2x2')
  add = jax.shard_map(
    lambda x: jax.lax.psum(x, 'data'),
    mesh=mesh,
    in_specs=PartitionSpec('data'),
    out_specs=PartitionSpec(),
  )
  x = jax.ShapeDtypeStruct(
    (4, 1 << 18), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec('data'))
  )
  [found] = hlo.read(program.compiled(jax.jit(add), x).text).collectives
  assert found[:4] == ('all-reduce', 4 << 18, 4, 1)


@needs_libtpu
def test_a_kernel_is_found_by_the_name_it_was_given():
  mesh = mesh_of('v5e:2x2', 1)

  def double(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2

  call = lambda x: pl.pallas_call(
    double,
    out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    name='doubled',
    cost_estimate=pl.CostEstimate(flops=1000, bytes_accessed=2, transcendentals=3),
  )(x)
  made = program.compiled(jax.jit(lambda x: call(call(x))), shaped(mesh, (256, 128), jnp.float32))
  assert hlo.read(made.text).kernels == {'doubled': 2}
  assert hlo.read(made.text, {'doubled [128]': 50}).cycles == 2 * 256 * 50
  assert hlo.read(made.text).flops == 2000


@needs_libtpu
def test_the_limit_of_memory_is_the_compilers():
  mesh = mesh_of('v5e:2x2', 1)
  usable = chips.CHIPS['v5e'].usable
  total, rows = jax.jit(jnp.sum), usable // 4096
  fits = program.compiled(total, shaped(mesh, (rows - 2048, 1024), jnp.float32))
  assert fits.fits and fits.peak == pytest.approx(usable, rel=0.01) and fits.peak < usable
  beyond = program.compiled(total, shaped(mesh, (rows + 2048, 1024), jnp.float32))
  assert (
    not beyond.fits
    and beyond.memory is None
    and beyond.peak == pytest.approx(usable, rel=0.01)
    and beyond.peak > usable
  )


def layers(w, x):
  """A loop whose backward pass reads what each turn kept."""
  step = lambda x, w: (jnp.tanh(x @ w), None)
  return jax.grad(lambda w: jax.lax.scan(step, x, w)[0].astype(jnp.float32).sum())(w)


@needs_libtpu
@pytest.mark.parametrize(
  'function, shapes, donated',
  [
    (jnp.sum, [(1 << 14, 1024)], ()),
    (layers, [(8, 512, 512), (4096, 512)], ()),
    (layers, [(8, 512, 512), (4096, 512)], 0),
  ],
)
def test_what_the_compiler_tells_of_memory_on_its_way_is_what_it_says_at_the_end(
  tmp_path, function, shapes, donated
):
  arguments = [shaped(mesh_of('v5e:2x2', 1), shape) for shape in shapes]
  lowered = program._lowered(jax.jit(function, donate_argnums=donated), *arguments)
  assert program.dumped(tmp_path) is None
  made = lowered.compile({'xla_dump_to': str(tmp_path)})
  told, analysis = program.dumped(tmp_path), made.memory_analysis()
  assert told.arguments == analysis.argument_size_in_bytes
  parts = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
  parts += analysis.temp_size_in_bytes - analysis.alias_size_in_bytes
  assert told.peak == pytest.approx(parts, abs=1 << 17), 'but for constants'
  [passed] = tmp_path.glob('*_after_buffer_assignment.txt')
  code = analysis.generated_code_size_in_bytes
  assert program.dumped(tmp_path, limit=told.peak + code) is None, 'the code decides'
  assert program.dumped(tmp_path, limit=told.peak + 32 * code) == told
  passed.unlink()
  assert program.dumped(tmp_path) is None and program.dumped(tmp_path, refused=True) == told
  quick = program.finished(lowered, quick=True)
  assert quick.memory.arguments == told.arguments
  assert quick.peak - told.peak == pytest.approx(code, rel=0.5), 'and the code'
  assert hlo.read(quick.text).cycles == pytest.approx(hlo.read(made.as_text()).cycles, rel=0.005)


@needs_libtpu
@pytest.mark.parametrize('lacks', ['a file', 'an option'])
def test_a_libtpu_that_tells_nothing_on_its_way_is_asked_at_the_end(monkeypatch, lacks):
  if lacks == 'a file':
    monkeypatch.setattr(program, 'dumped', lambda *_, **__: None)
  else:
    monkeypatch.setattr(program, '_LEFT_OUT', {'xla_no_such_option': 'true'})
  x = shaped(mesh_of('v5e:2x2', 1), (1 << 14, 1024))
  found = program.finished(program._lowered(jax.jit(jnp.sum), x), quick=True)
  assert found.text and found.memory.arguments == 2 << 24 and found.peak > 2 << 24


@pytest.mark.parametrize(
  ('temporaries', 'live', 'peak'),
  [
    pytest.param(70, 75, 78, id='temporaries that take turns'),
    pytest.param(50, 90, 75, id='fast memory among what lives'),
    pytest.param(50, 0, 75, id='one count alone'),
  ],
)
def test_a_peak_is_the_lower_of_the_compilers_two_counts_and_the_code(temporaries, live, peak):
  found = program.memory_of(
    types.SimpleNamespace(
      argument_size_in_bytes=20,
      output_size_in_bytes=17,
      alias_size_in_bytes=15,
      temp_size_in_bytes=temporaries,
      peak_memory_in_bytes=live,
      generated_code_size_in_bytes=3,
    )
  )
  assert found == (20, peak) and found.temporaries == peak - 20
