"""ModernBERT's network with DeBERTaV3's objective: replaced tokens, and word vectors that are the
generator's plus a table of its own. Which of the two makes a better encoder, the network or the
objective, is the question of Antoun et al. 2025 (arXiv:2504.08716).

    python -m bertzoo_jax.pretrain --config configs/modern_rtd.py:base \
      --corpus CORPUS --workdir WORKDIR

Sizes: as in configs/modernbert.py, the runs at 1,024 tokens. Network, optimizer, rate, batches and
tokens are the same, too. Objective and masking are as in configs/deberta_v3.py: a generator
as wide and half as deep, weight 50, 15 % of the tokens, all [MASK].

No paper has this recipe. A run with the same network and masked language modelling is
configs/modernbert.py of the same size. The gradients of the two networks are not clipped, as there.
No results of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments
from bertzoo_jax.configs import modernbert


def _rtd(size):
  config = modernbert.get_config(size)
  config.masking, config.moving = parts.token(rate=0.15, corruption=(1.0, 0.0, 0.0)), ()
  config.objective = parts.replaced_token(
    width=1.0, depth=0.5, shared='added', head='token_and_row', discriminator_weight=50.0
  )
  config.hf = 'ModernBertModel'
  return config


def _tiny():
  """As configs/modernbert.py:tiny; the generator learns at a fifth of the rate, as
  configs/deberta_v3.py:tiny says.
  """
  config = _rtd('tiny')
  config.optimizer.rates = (('^generator/', 0.2),)
  return config


_SIZES = 'base', 'large', '17m', '32m', '68m', '150m', '400m'
SIZES = {'tiny': _tiny} | {size: lambda size=size: _rtd(size) for size in _SIZES}

# Both networks, with both tables of word vectors.
PARAMETERS = {
  'tiny': 1_397_377,
  'base': 244_098_497,
  'large': 620_116_161,
  '17m': 32_105_409,
  '32m': 57_843_521,
  '68m': 116_804_289,
  '150m': 244_098_497,
  '400m': 620_116_161,
}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
