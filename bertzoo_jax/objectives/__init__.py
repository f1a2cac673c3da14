"""Objectives by name: BY_NAME[name](encoder=…, attend=…, constrain=…, **fields of the config's section) → Objective."""

from bertzoo_jax.objectives import input_only
from bertzoo_jax.objectives import mlm

BY_NAME = {'mlm': mlm.mlm, 'mlm_pair': mlm.mlm_pair, 'input_only': input_only.input_only}
