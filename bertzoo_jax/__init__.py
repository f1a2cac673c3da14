"""Pretraining encoder language models in JAX on TPUs: text → corpus → batch → step → checkpoint →
Hugging Face directory.
"""

__version__ = '0.1.0'


def load(address: str, dtype: str = 'float32'):
  """Opens a trained network without training.

      import bertzoo_jax
      model = bertzoo_jax.load('run')
      vectors = model.encode(['A sentence.', 'Another one.'])  # [2, D] float32

  Further: model.config, model.params, model.apply(params, batch) and model.tokenizer; see
  bertzoo_jax/loading.py:Loaded.

  Args:
    address: W, W@STEP or W@best (a run of pretrain or finetune), hf:DIR or
      hf:OWNER/NAME[@REVISION]. Of a pair of networks the discriminator is opened.
    dtype: of matrix products: float32, or bfloat16, which is faster on TPUs.

  Returns:
    loading.Loaded.

  Raises:
    errors.UserError: nothing at the address, or files that cannot be read.
  """
  from bertzoo_jax import loading  # jax takes seconds to import, and the commands import this file

  return loading.load(address, dtype)
