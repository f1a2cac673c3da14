"""Pretraining encoder language models in JAX on TPUs: text → corpus → batch → step → checkpoint →
Hugging Face directory.
"""

__version__ = '0.1.0'
