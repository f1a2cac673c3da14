"""Directories of Hugging Face that tests write, and comparisons with transformers on them."""

import json

from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights


def put(folder, tensors, config):
  """Writes a directory of tensors and a config.json, as `export.convert` makes them."""
  weights.save(folder / 'model.safetensors', tensors)
  (folder / 'config.json').write_text(json.dumps(config))


def compared(folder, a, encoder, params, batch):
  """The comparisons of a directory with the network that it was written from."""
  computed = a.computes(encoder)
  return verify.compare_logits(
    verify.our_logits(computed.encoder, params, batch),
    verify.logits(folder, a, batch),
    batch['pack_ids'],
    computed.unread,
  )
