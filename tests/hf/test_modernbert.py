"""ModernBERT's classes of transformers: weights and config.json in both directions, every leaf
perturbed.
"""

import json

import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax.common import errors
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from bertzoo_jax.model import modern
from configs import modern_rtd
from tests.export.test_export import make_workdir
from tests.hf import directories

pytest.importorskip('transformers', reason='parity needs transformers')
pytest.importorskip('torch', reason='parity needs torch')

LM = architectures.choose('ModernBertForMaskedLM')


def network(**changes):
  """(encoder, parameters) with a vocabulary head."""
  objective = small.objective('mlm', section=small.MODERN, **changes)
  return objective.networks[0].encoder, small.parameters(objective)


def written(folder, encoder, params):
  tensors, config = export.convert(LM, weights.flatten(params), encoder, small.BERT_IDS)
  directories.put(folder, tensors, config)
  return config


def compared(folder, encoder, params, length=40):
  batch = verify.random_batch(small.VOCAB, length, 0, small.BERT_IDS['pad'])
  return directories.compared(folder, LM, encoder, params, batch)


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
  """(folder, encoder, parameters)"""
  folder = tmp_path_factory.mktemp('modern')
  made = network()
  written(folder, *made)
  return folder, *made


LONG = dict(num_layers=4, hidden_size=16, num_heads=2, intermediate_size=16, max_positions=1024)


@pytest.mark.parametrize(
  'length, changes',
  [
    (40, {}),
    (7, dict(activation='silu', window=2, global_every=2)),
    (24, dict(num_layers=1)),
    (24, dict(window=0)),
    (1024, dict(LONG, window=128, global_base=10_000.0)),
  ],
)
def test_transformers_computes_the_same_from_what_we_write(length, changes, tmp_path):
  encoder, params = network(**changes)
  written(tmp_path, encoder, params)
  rows = compared(tmp_path, encoder, params, length)
  assert [r.what.split()[0] for r in rows] == ['tensors', 'mlm']
  assert all(r.holds for r in rows), verify.table(rows)


def test_what_we_write_we_read_back_bit_for_bit(directory):
  folder, encoder, params = directory
  loaded, report = weights.load(folder)
  assert report.encoder == {name: getattr(encoder, name) for name in report.encoder}
  assert {'window', 'global_base', 'local_base', 'global_every', 'norms'} <= report.encoder.keys()
  loaded, flat = weights.flatten(loaded), weights.flatten(params)
  assert loaded.keys() == flat.keys() and not report.ignored
  for path, x in flat.items():
    assert np.array_equal(loaded[path], x), path


# The releases' config.json, and the one that transformers 5 writes of it.
RELEASED = dict(
  global_attn_every_n_layers=3, global_rope_theta=160_000.0, local_rope_theta=10_000.0
)


def test_we_compute_the_same_from_what_transformers_writes(tmp_path):
  sizes = dict(hidden_size=48, num_hidden_layers=4, num_attention_heads=4, intermediate_size=80)
  ids = {f'{role}_token_id': 0 for role in ('pad', 'bos', 'eos', 'cls', 'sep')}
  directories.theirs(LM.name, **sizes, **ids, local_attention=8).save_pretrained(tmp_path)
  params, report = weights.load(tmp_path)
  assert report.ignored == () and report.architecture == LM.name
  assert (report.encoder['window'], report.encoder['global_base']) == (8, 160_000.0)
  section = {**small.MODERN, **report.encoder}
  rows = compared(tmp_path, small.encoder(section=section), params)
  assert all(r.holds for r in rows), verify.table(rows)
  content = json.loads((tmp_path / 'config.json').read_text())
  old = {k: v for k, v in content.items() if k not in ('layer_types', 'rope_parameters')}
  (tmp_path / 'config.json').write_text(json.dumps({**old, **RELEASED}))
  assert weights.load(tmp_path)[1].encoder == report.encoder
  tanh = dict.fromkeys(('hidden_activation', 'classifier_activation'), 'gelu_pytorch_tanh')
  assert keys.fields(LM.keys, {**content, **tanh})['activation'] == 'gelu_tanh'


class NormedAtOnce(modern.Modern):
  def _block(self, place, attention_norm=True):
    return super()._block(place)


PLANTED = {
  'window one more to each side': lambda e: e.clone(window=e.window + 2),
  'bases exchanged': lambda e: e.clone(global_base=e.local_base, local_base=e.global_base),
  'first layer with a norm': lambda e: NormedAtOnce(
    **{f: getattr(e, f) for f in e.__dataclass_fields__ if f not in ('parent', 'name')}
  ),
  'period of another': lambda e: e.clone(global_every=2),
}


@pytest.mark.parametrize('error', PLANTED)
def test_an_error_in_the_network_is_seen_by_the_comparison(error, directory):
  folder, encoder, params = directory
  assert not compared(folder, PLANTED[error](encoder), params)[1].holds


ROTARY = 'says of rotary positions .*'
YARN = {'full_attention': {'rope_type': 'yarn', 'rope_theta': 1.0}}


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(norm_bias=True), 'says norm_bias=True, and an encoder here has norm_bias=False'),
    (dict(classifier_activation='relu'), 'says classifier_activation=relu'),
    (dict(hidden_activation='quick_gelu'), "No readable hidden_activation is called 'quick_gelu'"),
    (dict(layer_types=['sliding_attention'] * 5), 'has a global layer first'),
    (dict(local_attention=1), 'says local_attention=1, so that a token .* sees itself alone'),
    (dict(rope_parameters=YARN), f'{ROTARY}yarn'),
    (dict(rope_scaling={'type': 'linear', 'factor': 2.0}), f'{ROTARY}linear'),
    (dict(rope_parameters={'rope_type': 'yarn'}), f'{ROTARY}yarn'),
  ],
)
def test_a_directory_that_no_encoder_here_computes_is_refused(changes, message, directory):
  content = json.loads((directory[0] / 'config.json').read_text())
  with pytest.raises(errors.UserError, match=message):
    keys.fields(LM.keys, {**content, **changes})


@pytest.mark.parametrize('changes', [dict(norm='rms'), dict(feed_forward='plain')])
def test_a_network_that_no_class_computes_is_not_written(changes, tmp_path):
  with pytest.raises(errors.UserError, match='no class of Hugging Face|architecture'):
    written(tmp_path, *network(**changes))


def test_fine_tuning_begins_with_the_layers_before_the_vocabulary_as_in_transformers(directory):
  folder, encoder, params = directory
  loaded, report = weights.load(folder)
  transform = params['mlm_head']['transform']['kernel']
  classifier = {'kernel': np.zeros((48, 3)), 'bias': np.zeros(3)}
  for head in task_heads.KINDS:
    fresh = {**params, head: {**params['mlm_head'], 'classifier': classifier}}
    del fresh['mlm_head'], fresh[head]['bias']
    fresh[head]['transform'] = {'kernel': np.zeros_like(transform)}
    merged, lines = weights.merge(fresh, loaded, report)
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
