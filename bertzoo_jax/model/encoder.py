"""Encoders by name: batch → hidden_BLD. B batch, L length, D width.

    encoder = BY_NAME['transformer'](vocab_size=V, dtype=jnp.bfloat16, num_layers=12, …)
    hidden_BLD = encoder.apply({'params': params}, batch, dropout_keys_B2, ops)

protocol.py describes the interface. A model does not depend on a mesh: operations that do are
arguments (operations.py).
"""

import jax.numpy as jnp

from bertzoo_jax.model import disentangled
from bertzoo_jax.model import modern
from bertzoo_jax.model import transformer
from bertzoo_jax.model import two_stream

# of matrix products
DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}

BY_NAME = {
  'transformer': transformer.Transformer,
  'disentangled': disentangled.Disentangled,
  'two_stream': two_stream.TwoStream,
  'modern': modern.Modern,
}
