"""Hugging Face directories: names and layouts of weights, config.json, tokenizer files, the model card. numpy only."""

from bertzoo_jax.hf.weights import Report
from bertzoo_jax.hf.weights import load
from bertzoo_jax.hf.weights import merge

__all__ = ['Report', 'load', 'merge']
