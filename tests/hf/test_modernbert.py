"""ModernBERT's classes of transformers: config.json, heads that begin a run, both networks."""

import json

import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf import weights
from configs import modern_rtd
from tests.export.test_export import make_workdir

transformers = pytest.importorskip('transformers', reason='parity needs transformers')
pytest.importorskip('torch', reason='parity needs torch')

LM = architectures.choose('ModernBertForMaskedLM')

# What the releases' config.json has in the place of what transformers 5 writes.
RELEASED = dict(
  global_attn_every_n_layers=3, global_rope_theta=160_000.0, local_rope_theta=10_000.0
)


def test_the_config_json_of_the_releases_and_of_transformers_5_are_read_alike():
  content = transformers.ModernBertConfig(num_hidden_layers=4, local_attention=8).to_dict()
  read = keys.fields(LM.keys, content)
  assert (read['window'], read['global_base']) == (8, 160_000.0)
  old = {k: v for k, v in content.items() if k not in ('layer_types', 'rope_parameters')}
  assert keys.fields(LM.keys, {**old, **RELEASED}) == read
  tanh = dict.fromkeys(('hidden_activation', 'classifier_activation'), 'gelu_pytorch_tanh')
  assert keys.fields(LM.keys, {**content, **tanh})['activation'] == 'gelu_tanh'


def test_fine_tuning_begins_with_the_layers_before_the_vocabulary_as_in_transformers():
  params = small.parameters(small.objective('mlm', section=small.MODERN))
  report = weights.Report('there', LM.name, {}, (), 'modernbert')
  transform = params['mlm_head']['transform']['kernel']
  classifier = {'kernel': np.zeros((48, 3)), 'bias': np.zeros(3)}
  for head in task_heads.KINDS:
    fresh = {**params, head: {**params['mlm_head'], 'classifier': classifier}}
    del fresh['mlm_head'], fresh[head]['bias']
    fresh[head]['transform'] = {'kernel': np.zeros_like(transform)}
    merged, lines = weights.merge(fresh, params, report)
    assert np.array_equal(merged[head]['transform']['kernel'], transform)
    assert f'{head}/transform: from mlm_head, with its norm' in lines


def test_both_networks_of_replaced_token_detection_are_exported(tmp_path):
  config = modern_rtd.get_config('tiny')
  config.tokenizer.vocab_size, config.phases = 600, ((1000, {}),)
  config.encoder.max_positions = 40
  sizes = dict(num_layers=4, hidden_size=32, num_heads=4, intermediate_size=48)
  (tmp_path / 'run').mkdir()
  make_workdir(tmp_path / 'run', config, sizes)
  rows = export.export(str(tmp_path / 'run'), tmp_path / 'hf')
  assert all(row.holds for row in rows)
  classes = {
    p.parent.name: json.loads(p.read_text())['architectures'][0]
    for p in (tmp_path / 'hf').glob('*/config.json')
  }
  assert classes == {'discriminator': 'ModernBertModel', 'generator': 'ModernBertForMaskedLM'}
  assert (tmp_path / 'hf/discriminator' / weights.HEADS_FILE).exists()
