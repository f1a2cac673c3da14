"""The train step of a small DeBERTa as a TPU compiles it."""

import jax
import ml_collections
import pytest

from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.preflight.tpu import hlo_text
from configs import deberta
from tests.preflight import asked
from tests.preflight.tpu.topologies import needs_libtpu

LENGTH, ROWS = 256, 12


pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def text():
  """The program of a step on four chips: one ordinary layer and the decoder's, one head, two
  relative terms.
  """
  config = ml_collections.ConfigDict(deberta.get_config('tiny'))
  encoder = dict(hidden_size=64, num_heads=1, intermediate_size=192)
  encoder |= dict(dropout=0.1, attention_dropout=0.1)
  config.update(dict(length=LENGTH, batch_size=ROWS, encoder=encoder, run=dict(dtype='bfloat16')))
  found = asked.preflight(config.lock(), topology='v5e:2x2', largest=False)
  jax.clear_caches()
  return found.phases[0].program.text


@needs_libtpu
def test_main_memory_holds_no_number_per_query_and_key(text):
  # A row of the relative tables belongs to a distance, of which there are 2L − 1.
  lengths = {LENGTH, 2 * LENGTH - 1, 2 * LENGTH}
  shapes = {dims for _, dims, _ in hlo_text.ARRAY.findall(text)}
  assert not [
    s for s in shapes if sum(n.isdecimal() and int(n) in lengths for n in s.split(',')) > 1
  ]


@needs_libtpu
def test_the_decoder_runs_its_layer_twice_and_no_more(text):
  kernels = hlo.read(text).kernels
  attention = {name: times for name, times in kernels.items() if name.startswith('attention')}
  assert sorted(attention.values()) == [1, 1, 2, 2], attention  # forward and backward
  decoder = {name for name, times in attention.items() if times == 2}
  assert decoder == {name for name in attention if '_at' in name}, attention
