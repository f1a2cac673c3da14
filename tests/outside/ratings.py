"""A kind of task from outside the package: several numbers per row, as valence and arousal of a
text. `tests.outside.ratings:ratings` in a config.
"""

import jax.numpy as jnp
import numpy as np

from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import scored
from bertzoo_jax.tasks.kinds import rows
from bertzoo_jax.tasks.kinds.kind import rounded


def ratings(encoder, ops=operations.PLAIN, *, labels, head='auto', dropout=0.1):
  """Mean squared error of the numbers of a row, labels [B, C] float32."""

  def measures(outputs, batch):
    squares_BC = jnp.square(outputs['row'] - batch['labels'])
    return {'squared_error': jnp.mean(squares_BC, axis=-1)}

  of_rows = heads.row(head, len(labels), dropout)
  scorer = scored.Scorer(of_rows, 'rows', measures, {'squared_error': 1.0}, {'row': 'number'})
  return scored.objective_of(encoder, scorer, ops)


def rmse(labels, logits):
  return np.sqrt(np.mean(np.square(labels - logits)))


rmse.better = 'lower'

ratings.kind = rows.kind(
  'ratings',
  accept=rows.several_columns('ratings', 'name several columns of numbers, with commas between.'),
  names=rows.column_names,
  encode=lambda examples, split, names, source: (rows.numbers(examples, split), []),
  label_form=lambda names: ((len(names),), np.float32),
  metrics={'rmse': rmse},
  lines=lambda task: [f'{len(task.labels)} numbers per row'],
  answer=lambda names, logits, above: {'scores': rounded(logits, names)},
  predicted='scores',
  shown=lambda names, logits: ','.join(f'{x:.3f}' for x in logits),
  gold=lambda names, label: rounded(label, names),
  constant=lambda train, names: np.mean(train, axis=0),
  problem='regression',
)
