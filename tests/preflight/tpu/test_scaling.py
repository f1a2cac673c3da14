"""The table of more and more chips, from a compiled program."""

import pathlib
import sys

import pytest

from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import hlo

BENCH = pathlib.Path(__file__).parents[3] / 'bench'


@pytest.fixture(scope='module')
def scaling():
  sys.path.insert(0, str(BENCH))
  try:
    import tpu_scaling

    return tpu_scaling
  finally:
    sys.path.remove(str(BENCH))


def reading(layers):
  """The reading of a step with a product and two collectives per layer, and one product and one
  collective besides.
  """
  product = hlo.Cost('p', 'fusion', '', layers + 1, 1_050_000, 1_000_000, 275e9, '')
  gathered = hlo.Collective('all-gather', 100_000_000, 4, 2 * layers, '')
  reduced = hlo.Collective('all-reduce', 50_000_000, 4, 1, '')
  return hlo.Reading([product], [gathered, reduced], [], [], 0.0)


def test_collectives_stand_apart_from_the_rest_and_both_are_carried_on(scaling, monkeypatch):
  monkeypatch.delenv('LIBTPU_INIT_ARGS', raising=False)
  slice_ = chips.by_topology('v4:2x2x1')
  low, high = ((n, scaling.read(reading(n), slice_, n * chips.GIB)) for n in (1, 3))
  found = scaling.compiled.at_depth(low, high, 24)
  assert found == pytest.approx(
    {
      **dict.fromkeys(('computing', 'least', 'most'), 25e-3),
      **dict.fromkeys(('reduce-scatter', 'all-to-all', 'collective-permute'), 0),
      'exchange': 48 * 0.75e-3 + 0.75e-3,
      'all-reduce': 50e6,
      'all-gather': 48 * 100e6,
      'peak': 24 * chips.GIB,
      'flops': 25 * 275e9,
      'hbm': 25e6,
    }
  )
  row = scaling.row(slice_, 'fsdp', found)
  assert {name: row[name] for name in row if name != 'jax'} == {
    'chips': 4,
    'mesh': 'fsdp v4:2×2×1',
    **{f'{bound}_ms': '25.0' for bound in ('computing', 'lower', 'upper')},
    **{f'{name}_mb': '0.0' for name in ('reduce-scatter', 'all-to-all', 'collective-permute')},
    'all-reduce_mb': '50.0',
    'all-gather_mb': '4800.0',
    'exchange_ms': '36.8',
    'exchange_share': '0.595',
    'peak_gib': '24.00',
    'matrix_tflop': '6.88',
    'hbm_gb': '0.0',
  }
  monkeypatch.setenv('LIBTPU_INIT_ARGS', '--xla_a=1')
  assert scaling.row(slice_, 'data', found)['mesh'] == 'data v4:2×2×1, `--xla_a=1`'
  line = scaling.check(slice_, 'fsdp', 24, found, {**found, 'exchange': 2 * found['exchange']})
  assert (line['computing'], line['exchange'], line['all-to-all']) == ('+0.0000', '-0.5000', '')


def test_an_operation_without_a_figure_is_refused(scaling):
  slice_ = chips.by_topology('v4:2x2x1')
  ragged = hlo.Collective('ragged-all-to-all', 1, 4, 1, '')
  with pytest.raises(ValueError, match='ragged-all-to-all'):
    scaling.read(hlo.Reading([], [ragged], [], [], 0.0), slice_, 0)
  kernel = hlo.Cost('k', 'tpu_custom_call', '', 1, None, 8, 0.0, 'attend')
  with pytest.raises(ValueError, match='attend'):
    scaling.read(hlo.Reading([kernel], [], [], [], 0.0), slice_, 0)
