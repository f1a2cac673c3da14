"""Pretraining encoder language models in JAX on TPUs: text → corpus → batch → step → checkpoint →
Hugging Face directory.
"""

import os
import sys

__version__ = '0.1.0'

# `python -m` looks in the current folder first. It may hold a stranger's files, and one of them
# would be imported in place of a package. common/trust.py looks there for the user's own modules.
if (
  sys.argv[:1] == ['-m']
  and not sys.flags.safe_path
  and sys.path[0] != os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
):
  del sys.path[0]
  os.environ['PYTHONSAFEPATH'] = '1'  # workers and other children would look there too


def load(address: str, dtype: str = 'float32', trust_code: bool = False):
  """Opens a trained network without training.

      import bertzoo_jax
      model = bertzoo_jax.load('run')
      vectors = model.encode(['A sentence.', 'Another one.'])  # [2, D] float32

  Further: model.config, model.params, model.apply(params, batch) and model.tokenizer; see
  bertzoo_jax/pretrained/loading.py:Loaded.

  Args:
    address: W, W@STEP or W@best (a run of pretrain or finetune), hf:DIR or
      hf:OWNER/NAME[@REVISION]. Of a pair of networks the discriminator is opened.
    dtype: dtype of matrix products: float32, or bfloat16, which is faster on TPUs.
    trust_code: whether code outside bertzoo_jax that the files name may run: for a run of your own
      whose config names parts as `package.module:name`.

  Returns loading.Loaded.

  Raises errors.UserError: nothing at the address, files that cannot be read, or that name code
  which is not trusted.
  """
  # here: jax takes seconds to import, and the commands import this file
  from bertzoo_jax.pretrained import loading

  return loading.load(address, dtype, trust_code)
