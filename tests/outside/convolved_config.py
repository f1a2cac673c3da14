"""The encoder of convolved.py on contiguous sentences. Sizes: tiny, on the English sample."""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments
from configs import bert


def _tiny():
  config = bert.get_config('tiny')
  config.format, config.objective = parts.full_sentences(), parts.mlm()
  sizes = dict(num_layers=3, hidden_size=64, num_heads=2, intermediate_size=128, max_positions=128)
  config.encoder = parts.part('tests.outside.convolved:Convolved', **sizes)
  config.hf = 'tests.outside.convolved_hf:MASKED_LM'
  return config


SIZES = {'tiny': _tiny}
PARAMETERS = {'tiny': 282_912}


def get_config(argument='tiny'):
  return arguments.config(argument, SIZES)
