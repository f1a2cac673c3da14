"""ERNIE 1.0 (Sun et al. 2019): BERT's tensors by other names, and no task ids."""

from bertzoo_jax.hf import keys
from bertzoo_jax.hf.architectures import bert

# task ids, of ERNIE 2.0 and 3.0, have no place in an encoder here
PRETRAINING, MASKED_LM, TASKS, MODEL = bert.family(
  'ernie', 'Ernie', family=(keys.fixed('use_task_id', False, usual=False),)
)
