"""EuroEval's fine-tuning (euroeval.com): ten draws of the examples, and the mean with its interval.

    python -m bertzoo_jax.finetune --config configs/tasks/euroeval.py:classify --init I \\
      --workdir F --config.source.files.train=hf:EuroEval/NAME:train …

`classify`, `tag` and `qa` read the files of own.py. Values are those of its code (finetuning.py,
data_loading.py and scores.py of EuroEval/EuroEval, and the Trainer's defaults). Each run draws
train, dev and test anew, with replacement. Its data have 1,024, 256 and 2,048 examples; here larger
train and dev files are cut to that. Its score is `mean ± 95 %` of the split test in table.md.

Not as there: rows have 512 tokens; draws are of another generator.
"""

import functools

from bertzoo_jax import parts
from bertzoo_jax.configs.tasks import arguments
from bertzoo_jax.configs.tasks import own

_FINETUNING = dict(
  seeds=tuple(range(4242, 4252)),
  draw='bootstrap',
  max_train=1024,
  max_dev=256,
  length=512,
  batch_size=32,
  steps=10_000,
  warmup=0.01,
  choose='lowest_loss',
  choose_every=30,
  patience=2,
  encoder={},
  optimizer=functools.partial(parts.adamw, b2=0.999, eps=1e-8, weight_decay=0.0, clip_norm=1.0),
  schedule=functools.partial(parts.linear_after_warmup, learning_rate=2e-5, warmup=0),
)
TASKS = {name: own.TASKS[name] | _FINETUNING for name in ('classify', 'tag', 'qa')}
TASKS['classify']['metrics'] = ('matthews', 'macro_f1')
TASKS['tag']['metrics'] = ('entity_f1_no_misc', 'entity_f1')


def get_config(argument='classify'):
  return arguments.config(argument, TASKS)
