"""What a step of the shipped configs needs of a chip stays below what is written here."""

import importlib

import jax
import ml_collections
import pytest

from bertzoo_jax import preflight
from bertzoo_jax.tpu import chips

# MiB a device, by phase: a tenth above what was compiled when it was written. The larger take minutes. The temporaries of the tiny ones
# live in fast memory as far as they fit there, and else are some 10 MiB here.
BOUNDS = {
    ('bert:tiny', 'v5e-4'): (28, 32),
    ('electra:tiny', 'v5e-4'): (36,),
    ('albert:tiny', 'v5e-4'): (18,),
    ('bert:small', 'v5e-4'): (1450, 4010),
    ('bert:base', 'v5e-8'): (3790, 8000),
    ('electra:small', 'v5e-4'): (680,),
    ('electra:base', 'v5e-8'): (10300,),
    ('albert:base', 'v5e-64'): (10960,),
}
QUICK = ('bert:tiny', 'electra:tiny')


@pytest.mark.parametrize(('config', 'kind'), [
    pytest.param(*key, marks=() if key[0] in QUICK else pytest.mark.slow, id=key[0]) for key in BOUNDS])
def test_a_step_needs_no_more_memory_than_is_written(config, kind, monkeypatch):
  monkeypatch.delenv('LIBTPU_INIT_ARGS', raising=False)
  name, size = config.split(':')
  found = preflight.preflight(ml_collections.ConfigDict(importlib.import_module(f'configs.{name}').get_config(size)).lock(), tpu=kind, largest=False)
  jax.clear_caches()
  peaks = [phase.program.peak / chips.GIB * 1024 for phase in found.phases]
  assert all(peak <= bound for peak, bound in zip(peaks, BOUNDS[config, kind], strict=True)), f'{config}: {peaks} MiB a device'


@pytest.mark.slow
def test_what_is_computed_again_is_not_kept(monkeypatch):
  # All layers side by side, where the compiler is free to keep what it likes.
  monkeypatch.delenv('LIBTPU_INIT_ARGS', raising=False)
  bounds = {'sublayers': 4000, 'feed_forward': 3400, 'full': 3050}
  for remat, bound in bounds.items():
    config = ml_collections.ConfigDict(importlib.import_module('configs.bert').get_config('base'))
    config.update(dict(length=512, phases=((100_000, {}),), run=dict(remat=remat, unroll=0)))
    [phase] = preflight.preflight(config.lock(), tpu='v5e-8', largest=False).phases
    jax.clear_caches()
    assert (peak := phase.program.peak / chips.GIB * 1024) <= bound, f'{remat}: {peak} MiB'
