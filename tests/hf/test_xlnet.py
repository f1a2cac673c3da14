"""XLNet's class of transformers: weights and config.json in both directions."""

import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture as hf_architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from tests.hf import directories

pytest.importorskip('transformers', reason='parity needs transformers')
pytest.importorskip('torch', reason='parity needs torch')

LM, MODEL = map(architectures.choose, ('XLNetLMHeadModel', 'XLNetModel'))


def written(folder, kind, a=LM, **changes):
  """(encoder, parameters that the class holds) of an objective, and its directory."""
  objective = small.with_memory(kind, **changes)
  network = objective.networks[0]
  params = hf_architecture.placed(a, weights.flatten(small.parameters(objective)))
  tensors, config = export.convert(a, params, network.encoder, small.BERT_IDS)
  directories.put(folder, tensors, config)
  return network.encoder, weights.unflatten(params)


@pytest.mark.parametrize(
  'kind, a, changes',
  [
    ('permutation_lm', LM, dict(clamp_length=6)),
    ('memory_mlm', LM, dict(pair_weight=1.0)),
    ('permutation_lm', MODEL, {}),
  ],
)
def test_transformers_computes_the_same_from_what_we_write(tmp_path, kind, a, changes):
  encoder, params = written(tmp_path, kind, a, **changes)
  assert params.keys() == {'encoder', 'mlm_head'} - ({'mlm_head'} if a is MODEL else set())
  batch = verify.random_batch(small.VOCAB, 24, encoder.type_vocab_size, small.BERT_IDS['pad'])
  left = {name: x[:, ::-1].copy() for name, x in batch.items()}  # as its tokenizer pads
  for rows in (batch, left):
    found = directories.compared(tmp_path, a, encoder, params, rows)
    assert len(found) == 2 and all(r.holds for r in found), verify.table(found)


def test_a_written_directory_is_read_back_bit_for_bit(tmp_path):
  encoder, params = written(tmp_path, 'permutation_lm', clamp_length=6, activation='gelu_tanh')
  loaded, report = weights.load(tmp_path)
  assert report.encoder == {name: getattr(encoder, name) for name in report.encoder}
  assert {'clamp_length', 'activation', 'num_layers'} <= report.encoder.keys()
  flat, loaded = weights.flatten(params), weights.flatten(loaded)
  assert loaded.keys() == flat.keys() and not report.ignored
  for path, x in flat.items():
    np.testing.assert_array_equal(loaded[path], x, err_msg=path)


@pytest.mark.parametrize(
  'content, message',
  [({}, 'architecture'), ({'attn_type': 'uni'}, '=uni'), ({'clamp_len': 'x'}, '=x')],
)
def test_an_encoder_without_streams_and_a_decoder_are_refused(content, message):
  with pytest.raises(errors.UserError, match=message):
    if content:
      hf_architecture.encoder(LM, content)
    hf_architecture.config(LM, small.encoder(), small.BERT_IDS, small.VOCAB)
