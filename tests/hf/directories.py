"""Directories of Hugging Face that tests write, and comparisons with transformers on them."""

import json

import numpy as np
import small_networks as small

from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights


def put(folder, tensors, config):
  """Writes a directory of tensors and a config.json, as `export.convert` makes them."""
  weights.save(folder / 'model.safetensors', tensors)
  (folder / 'config.json').write_text(json.dumps(config))


def theirs(architecture, scale=0.1, **fields):
  """A network of transformers' own making, every parameter perturbed, padding's row included."""
  import torch
  import transformers

  made = getattr(transformers, architecture)
  torch.manual_seed(0)
  network = made(made.config_class(vocab_size=small.VOCAB, **fields)).eval()
  with torch.no_grad():
    for p in network.parameters():
      p.add_(scale * torch.randn_like(p))
  return network


def compared(folder, a, encoder, params, batch):
  """The comparisons of a directory with the network that it was written from."""
  computed = a.computes(encoder)
  return verify.compare_logits(
    verify.our_logits(computed.encoder, params, batch),
    verify.logits(folder, a, batch),
    batch['segment_ids'],
    computed.unread,
  )


def changed(change, name):
  """A change of tensors and config.json: of the tensor of this name."""
  return lambda tensors, config: tensors.update({name: np.ascontiguousarray(change(tensors[name]))})


def with_fields(**fields):
  return lambda tensors, config: config.update(fields)
