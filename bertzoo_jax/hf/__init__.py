"""Hugging Face directories: weights, config.json, tokenizer files, the model card. numpy only."""

from bertzoo_jax.hf.architectures import fitting_note as fitting_note
from bertzoo_jax.hf.architectures import task_class_of as task_class_of
from bertzoo_jax.hf.weights import Report as Report
from bertzoo_jax.hf.weights import flatten as flatten
from bertzoo_jax.hf.weights import load as load
from bertzoo_jax.hf.weights import merge as merge
from bertzoo_jax.hf.weights import unflatten as unflatten
from bertzoo_jax.hf.weights import vocabulary_size as vocabulary_size
from bertzoo_jax.hf.weights import without_spare_words as without_spare_words
