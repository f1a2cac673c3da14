"""DeBERTa v2 and v3 (He et al. 2021): so far only the name of the tokenizer's model; their encoder
is to come.
"""

from bertzoo_jax.hf import tokenizer

TOKENS = tokenizer.Shape(model='spm.model')
