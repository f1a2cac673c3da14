"""Fills the masks of a text with the network of a Hugging Face directory.

python -m bertzoo_jax.fill_mask --model DIR --text 'The United [MASK] have the power.'
"""

import os

import numpy as np
from absl import flags

from bertzoo_jax import cli
from bertzoo_jax.common import errors


def fill(model: str, text: str, top: int) -> list[list[tuple[str, float]]]:
  """For each mask of the text, the `top` likeliest pieces with their probabilities.

  Raises UserError if the directory cannot be opened or has no head that fills masks, if the text
  has no mask or is too long, and if `top` is above the number of pieces.
  """
  import jax  # --help does not wait for it

  from bertzoo_jax.objectives import networks
  from bertzoo_jax.objectives import objective
  from bertzoo_jax.pretrained import loading

  network = loading.load(f'hf:{os.fspath(model).removeprefix("hf:")}')
  params, tokenizer = network.params, network.tokenizer
  if 'mlm_head' not in params or objective.MASKED not in network.pretrained.learned:
    raise errors.UserError(
      f'{model} is a {network.config["hf"]}, which has no head that fills masks: give the folder '
      'of the generator, or of a masked language model.'
    )
  if top > tokenizer.vocab_size:
    raise errors.UserError(
      f'--top={top}: the model knows {tokenizer.vocab_size:,} pieces; ask for at most as many.'
    )
  mask = tokenizer.special['mask']
  (row,) = network.rows([text.replace('[MASK]', tokenizer.pieces[mask])], prompt='')
  if row.cut:
    raise errors.UserError(
      f'The text is longer than the {len(row.ids)} tokens of a row of this model: shorten it.'
    )
  places = np.flatnonzero(row.ids == mask)
  if not len(places):
    raise errors.UserError(
      f'The text has no {tokenizer.pieces[mask]}: write one where a word is missing.'
    )
  if network.pretrained.predicts_next:
    places = np.maximum(places - 1, 0)
  batch = {
    'input_ids': row.ids,
    'token_type_ids': row.segments,
    'segment_ids': np.ones_like(row.ids),
    'masked_positions': places.astype(np.int32),
  }
  if 'query' in params['encoder']['embeddings']:  # a query stream reads no masks
    batch['order'] = (row.ids == mask).astype(np.int32)
  with jax.default_matmul_precision('highest'):
    batch = {name: x[None] for name, x in batch.items()}
    states_BPD = networks.predictions(network.encoder, params['encoder'], batch, None).states_BPD
    logits_PV = networks.vocabulary_logits(network.encoder, params, states_BPD)[0]
  shares_PV = np.asarray(jax.nn.softmax(logits_PV))[:, : tokenizer.vocab_size]
  best_PK = np.argsort(-shares_PV, axis=1, kind='stable')[:, :top]
  return [
    [(tokenizer.decode([i]).strip(), float(shares_V[i])) for i in best_K]
    for shares_V, best_K in zip(shares_PV, best_PK)
  ]


def table(text: str, filled: list[list[tuple[str, float]]]) -> str:
  """The text and a line for each mask, its guesses in quotes: a comma may be one."""
  lines = [
    f'mask {n}: ' + ' · '.join(f'"{piece}" {100 * p:.1f} %' for piece, p in guesses)
    for n, guesses in enumerate(filled, 1)
  ]
  return '\n'.join([text, *lines])


def main(asked):
  print(table(asked.text, fill(asked.model, asked.text, asked.top)))


if __name__ == '__main__':
  cli.required(
    model='Hugging Face directory.',
    text="A text with one or more masks, written [MASK] or as the model's own mask token.",
  )
  flags.DEFINE_integer('top', 5, 'Guesses shown for each mask.', lower_bound=1)
  cli.run(main)
