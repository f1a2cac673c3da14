"""Fills the mask in a sentence with an exported model, through transformers' own classes.

    python -m bertzoo_jax.hf.fill_mask --model DIR --text 'The capital of France is [MASK].'
"""

from absl import flags

from bertzoo_jax import cli
from bertzoo_jax import errors

_MODEL = flags.DEFINE_string('model', None, 'Hugging Face directory that `export` wrote.', required=True)
_TEXT = flags.DEFINE_string('text', None, 'A sentence with one mask in it ([MASK] or <mask>, as the tokenizer has it).', required=True)
_TOP = flags.DEFINE_integer('top', 5, 'How many fillings to show.')


def main(argv):
  del argv
  try:
    import transformers
  except ImportError as e:
    raise errors.UserError('filling a mask needs torch and transformers: pip install -c constraints.txt -e .[hf]') from e
  transformers.logging.set_verbosity_error()
  tokenizer = transformers.AutoTokenizer.from_pretrained(_MODEL.value)
  if _TEXT.value.count(tokenizer.mask_token) != 1:
    raise errors.UserError(f'--text must hold the mask {tokenizer.mask_token} once.')
  fill = transformers.pipeline('fill-mask', model=transformers.AutoModelForMaskedLM.from_pretrained(_MODEL.value), tokenizer=tokenizer)
  for answer in fill(_TEXT.value, top_k=_TOP.value):
    print(f'{answer["score"]:7.1%}  {answer["sequence"]}')


if __name__ == '__main__':
  cli.run(main)
