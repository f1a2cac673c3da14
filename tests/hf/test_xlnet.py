"""XLNet's class of transformers: weights and config.json in both directions."""

import json

import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture as hf_architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights

pytest.importorskip('transformers', reason='parity needs transformers')
pytest.importorskip('torch', reason='parity needs torch')

LM = architectures.choose('XLNetLMHeadModel')


def written(folder, kind, **changes):
  """(encoder, parameters) of an objective, and its directory."""
  objective = small.with_memory(kind, **changes)
  params, encoder = small.parameters(objective), objective.networks[0].encoder
  tensors, config = export.convert(LM, weights.flatten(params), encoder, small.BERT_IDS)
  weights.save(folder / 'model.safetensors', tensors)
  (folder / 'config.json').write_text(json.dumps(config))
  return encoder, params


@pytest.mark.parametrize(
  'kind, changes', [('permutation_lm', dict(clamp_length=6)), ('memory_mlm', {})]
)
def test_transformers_computes_the_same_from_what_we_write(tmp_path, kind, changes):
  encoder, params = written(tmp_path, kind, **changes)
  batch = verify.random_batch(small.VOCAB, 24, encoder.type_vocab_size, small.BERT_IDS['pad'])
  ours = verify.our_logits(encoder, params, batch)
  rows = verify.compare_logits(ours, verify.logits(tmp_path, LM, batch), batch['pack_ids'])
  assert len(rows) == 2 and all(r.holds for r in rows), verify.table(rows)


def test_what_we_write_we_read_back_bit_for_bit(tmp_path):
  encoder, params = written(tmp_path, 'permutation_lm', clamp_length=6, activation='gelu_tanh')
  loaded, report = weights.load(tmp_path)
  assert report.encoder == {name: getattr(encoder, name) for name in report.encoder}
  assert {'clamp_length', 'activation', 'num_layers'} <= report.encoder.keys()
  flat, loaded = weights.flatten(params), weights.flatten(loaded)
  assert loaded.keys() == flat.keys() and not report.ignored
  for path, x in flat.items():
    np.testing.assert_array_equal(loaded[path], x, err_msg=path)


def test_an_encoder_without_streams_and_a_decoder_are_refused():
  with pytest.raises(errors.UserError, match='architecture'):
    hf_architecture.config(LM, small.encoder(), small.BERT_IDS, small.VOCAB)
  for content, message in (({'attn_type': 'uni'}, 'decoder'), ({'clamp_len': 'x'}, 'clamp_len=x')):
    with pytest.raises(errors.UserError, match=message):
      hf_architecture.encoder(LM, content)
