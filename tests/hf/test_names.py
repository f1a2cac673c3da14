"""Weights and config.json against transformers itself: both directions, every leaf perturbed, padding and segments."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import errors
from bertzoo_jax import export
from bertzoo_jax import hf
from bertzoo_jax.hf import config as hf_config
from bertzoo_jax.hf import names
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights

transformers = pytest.importorskip('transformers', reason='parity needs transformers')
torch = pytest.importorskip('torch', reason='parity needs torch')

TOLERANCE = 1e-5
ROBERTA = dict(activation='gelu', norm_eps=1e-5, type_vocab_size=0)

CASES = {  # architecture, objective, changes of the encoder, special ids
    'bert': ('BertForPreTraining', 'mlm_pair', {}, small.BERT_IDS),
    'bert with exact gelu': ('BertForPreTraining', 'mlm_pair', dict(activation='gelu'), small.BERT_IDS),
    'bert without pairs': ('BertForMaskedLM', 'mlm', dict(activation='relu'), small.BERT_IDS),
    'bert without segments': ('BertForMaskedLM', 'mlm', dict(type_vocab_size=0), small.BERT_IDS),
    'roberta': ('RobertaForMaskedLM', 'mlm', ROBERTA, small.ROBERTA_IDS),
    'roberta with segments, pad 0': ('RobertaForMaskedLM', 'mlm', {**ROBERTA, 'type_vocab_size': 2}, small.BERT_IDS),
    'roberta with pairs': ('BertForPreTraining', 'mlm_pair', ROBERTA, small.ROBERTA_IDS),
}


@functools.lru_cache
def trained(objective, **changes):
  return small.perturbed(jax.jit(small.objective(objective, **changes).init)(jax.random.key(0)))


def save(folder, architecture, params, encoder, special):
  tensors, config = export.convert(architecture, weights.flatten(params), encoder, special)
  weights.save(folder / 'model.safetensors', tensors)
  (folder / 'config.json').write_text(json.dumps(config))


def worst_logits(rows):
  assert all(r.holds for r in rows), verify.table(rows)
  return max(float(r.difference) for r in rows[1:])


@pytest.mark.parametrize('case', CASES)
def test_transformers_computes_the_same_from_what_we_write(tmp_path, case):
  architecture, objective, changes, special = CASES[case]
  encoder = {**small.SECTION, **changes}
  params = trained(objective, **changes)
  save(tmp_path, architecture, params, encoder, special)
  for length in (40, 7):  # the whole position table, and a part
    batch = verify.random_batch(small.VOCAB, length, encoder['type_vocab_size'], special['pad'])
    theirs = verify.logits(tmp_path, architecture, batch)
    assert ('pair' in theirs) == (objective == 'mlm_pair') and not theirs['unloaded']
    assert worst_logits(verify.compare_logits(export.our_logits(params, encoder, batch), theirs, batch['pack_ids'])) < TOLERANCE


@pytest.mark.parametrize('case', CASES)
def test_what_we_write_we_read_back_bit_for_bit(tmp_path, case):
  architecture, objective, changes, special = CASES[case]
  encoder = {**small.SECTION, **changes}
  params = trained(objective, **changes)
  save(tmp_path, architecture, params, encoder, special)
  loaded, report = hf.load(tmp_path)
  merged, lines = hf.merge(params, loaded, report, encoder)
  assert small.worst(merged, params) == 0 and report.ignored == ()
  assert not [line for line in lines if line.startswith(('fresh', 'differs', 'ignored'))]
  if encoder['type_vocab_size']:
    assert {k: report.encoder[k] for k in report.encoder} == {k: encoder[k] for k in report.encoder}


def their_network(architecture, seed=0, **fields):
  """A network of transformers' own making, every parameter perturbed, the row of padding included."""
  config_class = transformers.BertConfig if architecture.startswith('Bert') else transformers.RobertaConfig
  config = config_class(vocab_size=small.VOCAB, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80, **fields)
  torch.manual_seed(seed)
  network = getattr(transformers, architecture)(config).eval()
  with torch.no_grad():
    for p in network.parameters():
      p.add_(0.1 * torch.randn_like(p))
  return network


@pytest.mark.parametrize('architecture, fields', [
    ('BertForPreTraining', dict(max_position_embeddings=40, hidden_act='gelu_new')),
    ('BertForMaskedLM', dict(max_position_embeddings=40, hidden_act='gelu')),
    ('RobertaForMaskedLM', dict(max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5)),
    ('RobertaForMaskedLM', dict(max_position_embeddings=44, type_vocab_size=2, pad_token_id=3)),
])
def test_we_compute_the_same_from_what_transformers_writes(tmp_path, architecture, fields):
  network = their_network(architecture, **fields)
  network.save_pretrained(tmp_path)
  params, report = hf.load(tmp_path)
  assert report.ignored == () and report.architecture == architecture
  if fields.get('type_vocab_size') == 1:  # its segment row is not zero and lives on in the positions
    assert 'type' not in params['encoder']['embeddings'] and report.encoder['type_vocab_size'] == 0
  segments = network.config.type_vocab_size
  batch = verify.random_batch(small.VOCAB, 40, segments, network.config.pad_token_id)
  encoder = {'name': 'transformer', 'initializer': 'normal', **report.encoder}
  ours = export.our_logits(params, encoder, batch)
  theirs = verify.logits(tmp_path, architecture, batch)
  assert worst_logits(verify.compare_logits(ours, theirs, batch['pack_ids'])) < TOLERANCE


@pytest.mark.parametrize('name', names.ARCHITECTURES)
def test_a_table_names_every_tensor_of_its_class_once_and_with_its_shape(name):
  a = names.choose(name)
  changes = {} if a.head_activation is None else ROBERTA
  objective = 'mlm_pair' if 'pair_head/pooler/bias' in {r.ours for r in a.rows} else 'mlm'
  tensors, config = export.convert(name, weights.flatten(trained(objective, **changes)), {**small.SECTION, **changes}, small.BERT_IDS)
  with torch.device('meta'):
    network = getattr(transformers, name)(getattr(transformers, f'{"Roberta" if a.head_activation else "Bert"}Config')(**config))
  theirs = {k: tuple(v.shape) for k, v in network.state_dict().items() if k not in a.tied}
  assert {k: v.shape for k, v in tensors.items()} == theirs


def test_config_json_is_what_transformers_itself_would_write():
  encoder = {**small.SECTION, **ROBERTA, 'max_positions': 512}
  ours = hf_config.to_hf('RobertaForMaskedLM', encoder, small.ROBERTA_IDS, small.VOCAB)
  theirs = transformers.RobertaConfig(**ours).to_dict()
  assert ours['max_position_embeddings'] == 514 and ours['type_vocab_size'] == 1 and ours['hidden_act'] == 'gelu'
  assert (ours['bos_token_id'], ours['pad_token_id'], ours['eos_token_id']) == (0, 1, 2)
  assert {k: theirs[k] for k in ours if k in theirs and k not in ('dtype', 'torch_dtype', 'architectures')} == {
      k: ours[k] for k in ours if k in theirs and k not in ('dtype', 'torch_dtype', 'architectures')}


@pytest.mark.parametrize('architecture, objective, changes, message', [
    ('RobertaForMaskedLM', 'mlm_pair', {'activation': 'gelu'}, "no place for 'pair_head.*architecture=BertForPreTraining fits"),
    ('BertForPreTraining', 'mlm', {}, "needs 'pair_head.*architecture=BertForMaskedLM fits"),
    ('RobertaForMaskedLM', 'mlm', {}, 'always applies gelu.*BertForMaskedLM'),
    ('BertForMaskedLm', 'mlm', {}, "mean 'BertForMaskedLM'"),
])
def test_what_an_architecture_cannot_hold_is_refused_with_one_that_can(architecture, objective, changes, message):
  with pytest.raises(errors.UserError, match=message):
    export.convert(architecture, weights.flatten(trained(objective, **changes)), {**small.SECTION, **changes}, small.BERT_IDS)


@pytest.mark.parametrize('name, objective, activation, expected, note', [
    ('BertForPreTraining', 'mlm_pair', 'gelu', 'BertForPreTraining', None),
    ('RobertaForMaskedLM', 'mlm', 'gelu', 'RobertaForMaskedLM', None),
    ('RobertaForMaskedLM', 'mlm_pair', 'gelu', 'BertForPreTraining', 'cannot hold pair_head/.*: export writes BertForPreTraining'),
    ('BertForPreTraining', 'mlm', 'relu', 'BertForMaskedLM', 'needs pair_head/.*not trained here: export writes BertForMaskedLM'),
    ('RobertaForMaskedLM', 'mlm', 'relu', 'BertForMaskedLM', 'always applies gelu.*is relu: export writes BertForMaskedLM'),
    ('BertForPreTraining', 'mlm', 'gelu', 'BertForPreTraining', '--architecture=BertForMaskedLM or RobertaForMaskedLM'),
])
def test_a_config_s_class_that_does_not_fit_is_noticed_before_training(name, objective, activation, expected, note):
  config = {'hf': name, 'encoder': {**small.SECTION, 'activation': activation}}
  paths = weights.flatten(trained(objective))
  assert hf_config.fitting(config, paths) == expected
  said = hf.fitting_note(config, paths)
  assert said is None if note is None else re.search(note, said)
  with pytest.raises(errors.UserError, match=f"mean '{name}'"):
    hf.fitting_note({**config, 'hf': name[:-1]}, paths)


def test_a_parameter_without_a_row_is_refused_by_name():
  params = {**weights.flatten(trained('mlm')), 'encoder/conv/kernel': jnp.zeros(3)}
  with pytest.raises(errors.UserError, match='encoder/conv/kernel.*No architecture'):
    export.convert('BertForMaskedLM', params, small.SECTION, small.BERT_IDS)


def test_every_transform_undoes_itself():
  sizes = names.Sizes(num_heads=4, num_layers=3, hidden_size=48, position_offset=2)
  shapes = {names.SAME: (5,), names.KERNEL: (5, 7), names.HEADS_KERNEL: (48, 4, 12), names.HEADS_BIAS: (4, 12), names.FROM_HEADS_KERNEL: (4, 12, 48),
            names.POSITIONS: (9, 48)}
  used = {row.transform for a in names.ARCHITECTURES.values() for row in a.rows}
  assert used == set(shapes)
  for transform, shape in shapes.items():
    x = np.random.default_rng(0).normal(size=shape)
    assert np.array_equal(transform.to_ours(transform.to_theirs(x, sizes), sizes), x)
