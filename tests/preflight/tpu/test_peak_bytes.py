"""The memory of a step of the shipped configs stays below the figures here."""

import importlib

import jax
import ml_collections
import pytest

from bertzoo_jax.preflight.tpu import chips
from tests.preflight import asked

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
QUICK = ('bert:tiny',)


@pytest.mark.parametrize(
  ('config', 'kind'),
  [
    pytest.param(*key, marks=() if key[0] in QUICK else pytest.mark.slow, id=key[0])
    for key in BOUNDS
  ],
)
def test_a_step_needs_no_more_memory_than_is_written(config, kind, monkeypatch):
  monkeypatch.delenv('LIBTPU_INIT_ARGS', raising=False)
  name, size = config.split(':')
  found = asked.preflight(
    ml_collections.ConfigDict(importlib.import_module(f'configs.{name}').get_config(size)).lock(),
    tpu=kind,
    largest=False,
  )
  jax.clear_caches()
  peaks = [phase.program.peak / chips.GIB * 1024 for phase in found.phases]
  assert all(peak <= bound for peak, bound in zip(peaks, BOUNDS[config, kind], strict=True)), (
    f'{config}: {peaks} MiB per device'
  )


@pytest.mark.slow
def test_recomputed_activations_are_not_kept(monkeypatch):
  # All layers side by side, where the compiler is free to keep what it likes.
  monkeypatch.delenv('LIBTPU_INIT_ARGS', raising=False)
  bounds = {'sublayers': 3540, 'feed_forward': 2970, 'full': 2690}
  for remat, bound in bounds.items():
    config = ml_collections.ConfigDict(importlib.import_module('configs.bert').get_config('base'))
    config.update(dict(length=512, phases=((100_000, {}),), run=dict(remat=remat, unroll=0)))
    [phase] = asked.preflight(config.lock(), tpu='v5e-8', largest=False).phases
    jax.clear_caches()
    assert (peak := phase.program.peak / chips.GIB * 1024) <= bound, f'{remat}: {peak} MiB'


@pytest.mark.slow
def test_the_memory_that_goes_from_step_to_step_is_in_the_peak(monkeypatch):
  monkeypatch.delenv('LIBTPU_INIT_ARGS', raising=False)
  config = ml_collections.ConfigDict(importlib.import_module('configs.xlnet').get_config('tiny'))
  config.run.kernels, found = 'xla', {}
  for tokens in (48, 512):
    config.encoder.memory_length = tokens
    said = asked.preflight(ml_collections.ConfigDict(config).lock(), tpu='v5e-4', largest=False)
    jax.clear_caches()
    [found[tokens]] = said.phases
    # rows of a device, layers, tokens, width, bytes of float32
    assert found[tokens].carry == 16 * 2 * tokens * 128 * 4
    assert found[tokens].program.peak > found[tokens].carry + found[tokens].parameters
  more = found[512].program.peak - found[48].program.peak
  assert more > found[512].carry - found[48].carry
