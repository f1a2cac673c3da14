"""Objectives by name: BY_NAME[name](encoder=…, attend=…, constrain=…, **fields of the config's section) → Objective."""

from bertzoo_jax.objectives import filled_mlm
from bertzoo_jax.objectives import input_only
from bertzoo_jax.objectives import mlm
from bertzoo_jax.objectives import replaced_token

BY_NAME = {
    'mlm': mlm.mlm,
    'mlm_pair': mlm.mlm_pair,
    'replaced_token': replaced_token.replaced_token,
    'replaced_token_adversarial': replaced_token.replaced_token_adversarial,
    'generator_mlm': replaced_token.generator_mlm,
    'replaced_token_frozen': replaced_token.replaced_token_frozen,
    'corruption_detection': replaced_token.corruption_detection,
    'replace_mlm': filled_mlm.replace_mlm,
    'all_tokens_mlm': filled_mlm.all_tokens_mlm,
    'input_only': input_only.input_only,
}
