"""Hugging Face directories: weights, config.json, tokenizer files, the model card. numpy only."""

from bertzoo_jax.hf.architectures import fitting_note
from bertzoo_jax.hf.architectures import task_class_of
from bertzoo_jax.hf.weights import Report
from bertzoo_jax.hf.weights import flatten
from bertzoo_jax.hf.weights import load
from bertzoo_jax.hf.weights import merge
from bertzoo_jax.hf.weights import only_layers
from bertzoo_jax.hf.weights import unflatten
from bertzoo_jax.hf.weights import vocabulary_size
from bertzoo_jax.hf.weights import without_spare_words

__all__ = [
  'Report',
  'fitting_note',
  'flatten',
  'load',
  'merge',
  'only_layers',
  'task_class_of',
  'unflatten',
  'vocabulary_size',
  'without_spare_words',
]
