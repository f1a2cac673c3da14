"""Fine-tuning of several numbers per row: --config.source.label=valence,arousal."""

from bertzoo_jax import parts
from configs.tasks import own


def get_config(argument='regress'):
  config = own.get_config(argument)
  config.source.label = 'valence,arousal'
  config.objective = parts.part('tests.outside.ratings:ratings')
  config.metrics = ('rmse',)
  return config
