import pathlib

import pytest

from bertzoo_jax import pretrain
from configs import deberta_v3
from configs import electra

ROOT = pathlib.Path(__file__).parents[2]
# Accuracy above that of calling every token original; 0.0098 was measured after all 2,000 steps
MARGIN = 0.004


@pytest.mark.slow
@pytest.mark.parametrize('system', [electra, deberta_v3])
def test_a_small_discriminator_beats_calling_every_token_original_on_text_kept_out_of_training(
  tmp_path, system
):
  from bertzoo_jax import prepare

  config, corpus = system.get_config('tiny'), str(tmp_path / 'corpus')
  names = ('federalist', 'sherlock', 'time_machine')
  prepare.prepare(config, [str(ROOT / f'data/sample/{name}.txt') for name in names], corpus)
  config.run.tensorboard = False
  found = pretrain.pretrain(config, str(tmp_path / 'run'), corpus=corpus)['held_out']
  print({name: round(value, 4) for name, value in found.items()})
  assert found['held_out_rtd_accuracy'] > found['held_out_rtd_base_rate'] + MARGIN
  assert found['held_out_rtd_auc'] > 0.7 and found['held_out_rtd_precision'] > 0.5
