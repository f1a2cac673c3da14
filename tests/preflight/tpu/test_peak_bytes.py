import importlib

import jax
import ml_collections
import pytest

from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.preflight.tpu import hlo_text
from tests.preflight import asked

pytestmark = [pytest.mark.slow, asked.needs_libtpu]

# MiB per device, by phase: a tenth above the figure of `preflight`; of tiny, above it. Some 10 MiB
# of the tiny ones come and go with what fits in fast memory, which the compiler counts. Of
# electra:small's, 150 came with gradients of each device's own rows; 12 of them are in HBM. Those
# that are not tiny take minutes.
BOUNDS = {
  ('albert:tiny', 'v5e-4'): (18,),
  ('albert:base', 'v5e-64'): (9800,),
  ('albert:base_v2', 'v5e-64'): (9860,),
  ('bert:tiny', 'v5e-4'): (28,),
  ('bert:small', 'v5e-4'): (1160, 3150),
  ('bert:base', 'v5e-4'): (4530, 11800),
  ('bert_wwm:tiny', 'v5e-4'): (34,),
  ('electra:tiny', 'v5e-4'): (36,),
  ('electra:tiny_two_stage', 'v5e-4'): (28, 50),
  ('electra:small', 'v5e-4'): (830,),
  ('electra:base', 'v5e-4'): (15300,),
  ('electra:base_two_stage', 'v5e-4'): (11800, 13000),
  ('ernie:tiny', 'v5e-4'): (34, 34, 34),
  ('macbert:tiny', 'v5e-4'): (34,),
  ('roberta:tiny', 'v5e-4'): (28,),
  ('roberta:base', 'v6e-8'): (24500,),
}


@pytest.fixture
def phases(monkeypatch):
  """(config:size, slice, **changes) → the phases, compiled."""
  monkeypatch.delenv('LIBTPU_INIT_ARGS', raising=False)

  def compiled(address, tpu, **changes):
    name, size = address.split(':')
    made = ml_collections.ConfigDict(importlib.import_module(f'configs.{name}').get_config(size))
    made.update(changes)
    found = asked.preflight(made.lock(), tpu=tpu, largest=False)
    jax.clear_caches()
    return found.phases

  return compiled


def peak(phase):
  return phase.program.peak / chips.GIB * 1024


@pytest.mark.parametrize('config, kind', BOUNDS, ids=[config for config, _ in BOUNDS])
def test_a_step_needs_no_more_memory_than_is_written(config, kind, phases):
  peaks = [peak(phase) for phase in phases(config, kind)]
  within = [peak <= bound for peak, bound in zip(peaks, BOUNDS[config, kind], strict=True)]
  assert all(within), f'{config}: {peaks} MiB per device'


def test_recomputed_activations_are_not_kept(phases):
  # All layers side by side, where the compiler is free to keep what it likes.
  for remat, bound in {'sublayers': 3540, 'feed_forward': 2970, 'full': 2690}.items():
    run = dict(remat=remat, unroll=0)
    [phase] = phases('bert:base', 'v5e-8', length=512, phases=((100_000, {}),), run=run)
    assert peak(phase) <= bound, f'{remat}: {peak(phase)} MiB'


def test_the_memory_that_goes_from_step_to_step_is_in_the_peak(phases):
  found = {}
  for tokens in (48, 512):
    changes = dict(run=dict(kernels='xla'), encoder=dict(memory_length=tokens))
    [found[tokens]] = phases('xlnet:tiny', 'v5e-4', **changes)
    # rows of a device, layers, tokens, width, bytes of float32
    assert found[tokens].carry == 16 * 2 * tokens * 128 * 4
    assert found[tokens].program.peak > found[tokens].carry + found[tokens].parameters
  more = found[512].program.peak - found[48].program.peak
  assert more > found[512].carry - found[48].carry


def test_deberta_holds_no_number_per_query_and_key_and_its_decoder_runs_its_layer_twice(phases):
  """One ordinary layer and the decoder's, one head, two relative terms."""
  length = 256
  encoder = dict(hidden_size=64, num_heads=1, intermediate_size=192)
  changes = dict(length=length, batch_size=12, run=dict(dtype='bfloat16'))
  encoder |= dict(dropout=0.1, attention_dropout=0.1)
  [phase] = phases('deberta:tiny', 'v5e-4', encoder=encoder, **changes)
  text = phase.program.text
  # A row of the relative tables belongs to a distance, of which there are 2L − 1.
  long = {str(n) for n in (length, 2 * length - 1, 2 * length)}
  shapes = {dims for _, dims, _ in hlo_text.ARRAY.findall(text)}
  assert not [s for s in shapes if sum(n in long for n in s.split(',')) > 1]
  kernels = hlo.read(text).kernels
  attention = {name: times for name, times in kernels.items() if name.startswith('attention')}
  assert sorted(attention.values()) == [1, 1, 2, 2], attention  # forward and backward
  decoder = {name for name, times in attention.items() if times == 2}
  assert decoder == {name for name in attention if '_at' in name}, attention
