"""Fills the masks of a text with a Hugging Face directory; needs torch and transformers.

python -m bertzoo_jax.hf.fill_mask --model DIR --text 'The United [MASK] have the power.'

transformers computes the guesses. If the network was trained with a decoder that no class of
transformers has, bertzoo_jax computes them.
"""

import numpy as np
from absl import flags

from bertzoo_jax.common import cli
from bertzoo_jax.common import errors
from bertzoo_jax.common import parts
from bertzoo_jax.common import storage
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights


def fill(model: str, text: str, top: int) -> list[list[tuple[str, float]]]:
  """For each mask of the text, the `top` likeliest pieces with their probabilities.

  Raises UserError without torch and transformers, without a model, and for a text without a mask or
  too long.
  """
  try:
    import torch
    import transformers
  except ImportError as e:
    raise errors.UserError(
      f'Filling masks needs torch and transformers ({e.name} is missing): pip install '
      '"bertzoo_jax[hf]".'
    ) from e
  transformers.utils.logging.disable_progress_bar()
  # A pair head has no place in the class that fills masks
  transformers.utils.logging.set_verbosity_error()
  if not (storage.path(model) / 'config.json').exists():
    raise errors.UserError(
      f'{model} has no config.json: give a directory that `python -m bertzoo_jax.export` wrote. If '
      'it wrote two networks, give the folder generator.'
    )
  tokenizer = transformers.AutoTokenizer.from_pretrained(model, trust_remote_code=False)
  ours = _trained_decoder(model)
  inputs = tokenizer(text.replace('[MASK]', tokenizer.mask_token), return_tensors='pt')
  ids = inputs['input_ids'][0]
  if not (ids == tokenizer.mask_token_id).any():
    raise errors.UserError(
      f'The text has no {tokenizer.mask_token}: write one where a word is missing.'
    )
  if len(ids) > tokenizer.model_max_length:
    raise errors.UserError(
      f'The text has {len(ids)} tokens; this model takes {tokenizer.model_max_length}.'
    )
  if ours is not None:
    logits = torch.tensor(ours(inputs))
  else:
    network = transformers.AutoModelForMaskedLM.from_pretrained(model, trust_remote_code=False)
    with torch.no_grad():
      logits = network.eval()(**inputs).logits[0]
  probabilities = logits.softmax(-1)
  best = probabilities[ids == tokenizer.mask_token_id].topk(top)
  return [
    [(tokenizer.decode([int(i)]).strip(), float(p)) for p, i in zip(ps, rows, strict=True)]
    for ps, rows in zip(best.values, best.indices, strict=True)
  ]


def _trained_decoder(model: str):
  """A function from transformers' inputs to logits_LV of our network, if its predictions come from
  a decoder that transformers lacks; else None. Raises UserError if the network cannot fill masks.
  """
  content = weights.read_json(storage.path(model) / 'config.json')
  if content.get('model_type') not in {a.model_type for a in architectures.ARCHITECTURES.values()}:
    return None
  a = architectures.reader(content)
  if not any('mlm_head/bias' in row.ours for row in a.rows):
    raise errors.UserError(
      f'{model} is a {a.name}, which has no head that fills masks: give the folder of the '
      'generator, or of a masked language model.'
    )
  if a.computes is architecture.Computed:
    return None
  params, report = weights.load(model)
  from bertzoo_jax.model import encoder as encoders

  section = architecture.section(a, report.encoder)
  words = weights.vocabulary_size(params)
  encoder = parts.build(section, encoders.BY_NAME, 'encoder', vocab_size=words, dtype=np.float32)
  if a.computes(encoder).encoder is encoder:
    return None

  def logits(inputs):
    ids = inputs['input_ids'].numpy().astype(np.int32)
    batch = {'input_ids': ids, 'segment_ids': np.zeros_like(ids), 'pack_ids': np.ones_like(ids)}
    return verify.our_logits(encoder, params, batch)['mlm'][0]

  return logits


def table(text: str, filled: list[list[tuple[str, float]]]) -> str:
  """The text and a line for each mask, its guesses in quotes: a comma may be one."""
  lines = [
    f'mask {n}: ' + ' · '.join(f'"{piece}" {100 * p:.1f} %' for piece, p in guesses)
    for n, guesses in enumerate(filled, 1)
  ]
  return '\n'.join([text, *lines])


def main(_):
  print(table(_TEXT.value, fill(_MODEL.value, _TEXT.value, _TOP.value)))


if __name__ == '__main__':
  _MODEL = flags.DEFINE_string('model', None, 'Hugging Face directory.', required=True)
  _TEXT = flags.DEFINE_string(
    'text',
    None,
    "A text with one or more masks, written [MASK] or as the model's own mask token.",
    required=True,
  )
  _TOP = flags.DEFINE_integer('top', 5, 'Guesses shown for each mask.', lower_bound=1)
  cli.run(main)
