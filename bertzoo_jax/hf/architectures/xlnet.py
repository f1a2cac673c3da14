"""XLNet (Yang et al. 2019): so far only how its tokenizer frames texts; its encoder is to come."""

from bertzoo_jax.hf import tokenizer

TOKENS = tokenizer.Shape('A:0 sep:0 cls:2', 'A:0 sep:0 B:1 sep:1 cls:2', padding='left')
