import re

import jax.numpy as jnp
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import hf
from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture as hf_architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import weights
from tests.hf import test_architectures as cases

transformers = cases.transformers
ALBERT, BERT = cases.ALBERT, cases.BERT
ELECTRA_CLASS, MODERN_CLASS = cases.ELECTRA_CLASS, cases.MODERN_CLASS
NO_PLACE, FITS = 'no place for ', '.*architecture={} fits'
CANNOT_HOLD = [  # class, objective, changes of the encoder, words
  ('RobertaForMaskedLM', 'mlm_pair', {'activation': 'gelu'}, f"{NO_PLACE}'pair_head{FITS}", BERT),
  (BERT, 'mlm', {}, f"needs 'pair_head{FITS}", 'BertForMaskedLM'),
  ('RobertaForMaskedLM', 'mlm', {}, 'always applies gelu.*{}', 'BertForMaskedLM'),
  (BERT, 'mlm_pair', {'embedding_size': 16}, f"{NO_PLACE}'encoder/embedding_proj{FITS}", ALBERT),
  ('BertForMaskedLm', 'mlm', {}, "mean '{}'", 'BertForMaskedLM'),
  ('BertForMaskedLM', 'mlm_span_boundary', {}, 'No known architecture fits: write one', ''),
  ('DebertaV2ForMaskedLM', 'mlm', {}, 'encoder=disentangled', ''),
  ('BertForMaskedLM', 'no row', {}, 'encoder/conv/kernel.*No known arch', ''),
  # a first version with buckets is written as the second
  ('DebertaForMaskedLM', 'mlm', {**cases.DEBERTA_V1, 'buckets': 8}, '=DebertaV2ForMaskedLM', ''),
  (MODERN_CLASS, 'mlm', dict(section=small.MODERN, norm='rms'), 'no class of Hugging|arch', ''),
  (MODERN_CLASS, 'mlm', dict(section=small.MODERN, feed_forward='plain'), 'no class of|arch', ''),
  ('XLNetLMHeadModel', 'mlm', {}, 'architecture', ''),
]
GELU, RELU, NARROW = dict(activation='gelu'), dict(activation='relu'), dict(embedding_size=16)
ROBERTA_CLASS = 'RobertaForMaskedLM'


@pytest.mark.parametrize('architecture, objective, changes, message, other', CANNOT_HOLD)
def test_a_network_that_a_class_cannot_hold_is_refused_with_one_that_can(
  architecture, objective, changes, message, other
):
  flat = weights.flatten(cases.trained(objective.replace('no row', 'mlm'), **changes))
  flat |= {'encoder/conv/kernel': jnp.zeros(3)} if objective == 'no row' else {}
  with pytest.raises(errors.UserError, match=message.format(other)):
    choice = architectures.choose(architecture)
    export.convert(choice, flat, small.encoder(**changes), small.BERT_IDS)


@pytest.mark.parametrize(
  'name, objective, changes, expected, note',
  [
    (BERT, 'mlm_pair', {}, BERT, None),
    (ROBERTA_CLASS, 'mlm', GELU, ROBERTA_CLASS, None),
    (ROBERTA_CLASS, 'mlm_pair', GELU, BERT, 'cannot hold pair_head/.*: '),
    (BERT, 'mlm', RELU, 'BertForMaskedLM', 'needs pair_head/.*not trained here: '),
    (ROBERTA_CLASS, 'mlm', RELU, 'BertForMaskedLM', 'always applies gelu.*is relu: '),
    (BERT, 'mlm', GELU, 'BertForMaskedLM', ''),
    (ALBERT, 'mlm', NARROW, 'AlbertForMaskedLM', ''),
    (BERT, 'mlm_pair', NARROW, ALBERT, 'cannot hold encoder/embedding_projec.*: '),
    (ELECTRA_CLASS, 'mlm_pair', NARROW, ALBERT, 'cannot hold mlm_head.*: '),
  ],
)
def test_a_config_s_class_that_does_not_fit_is_noticed_before_training(
  name, objective, changes, expected, note
):
  paths = weights.flatten(cases.trained(objective, **changes))
  activation = {**small.SECTION, **changes}['activation']
  assert architectures.fitting(name, activation, paths) == expected
  said = hf.fitting_note(name, activation, paths)
  assert said is None if note is None else re.search(f'{note}export writes {expected}', said)
  with pytest.raises(errors.UserError, match=f"mean '{name}'"):
    hf.fitting_note(name[:-1], activation, paths)


def test_config_json_equals_the_one_that_transformers_would_write():
  encoder = small.encoder(**{**cases.ROBERTA, 'max_positions': 512})
  a = architectures.choose('RobertaForMaskedLM')
  ours = hf_architecture.config(a, encoder, small.ROBERTA_IDS, small.VOCAB)
  theirs = transformers.RobertaConfig(**ours).to_dict()
  assert (ours['max_position_embeddings'], ours['type_vocab_size']) == (514, 1)
  assert ours['hidden_act'] == 'gelu'
  assert (ours['bos_token_id'], ours['pad_token_id'], ours['eos_token_id']) == (0, 1, 2)
  both = (ours.keys() & theirs.keys()) - {'dtype', 'torch_dtype', 'architectures'}
  assert {k: theirs[k] for k in both} == {k: ours[k] for k in both}


def test_a_projection_that_no_encoder_here_has_is_refused(tmp_path):
  cases.their_network('AlbertForPreTraining', embedding_size=48).save_pretrained(tmp_path)
  with pytest.raises(errors.UserError, match='as wide as its layers and a projection'):
    hf.load(tmp_path)


# What the releases' config.json has in the place of what transformers 5 writes.
RELEASED = dict(global_attn_every_n_layers=3, global_rope_theta=1.6e5, local_rope_theta=1e4)


def test_the_config_json_of_the_releases_and_of_transformers_5_are_read_alike():
  content = transformers.ModernBertConfig(num_hidden_layers=4, local_attention=8).to_dict()
  lm = architectures.choose(MODERN_CLASS)
  read = keys.fields(lm.keys, content)
  assert (read['window'], read['global_base']) == (8, 160_000.0)
  old = {k: v for k, v in content.items() if k not in ('layer_types', 'rope_parameters')}
  assert keys.fields(lm.keys, {**old, **RELEASED}) == read
  tanh = dict.fromkeys(('hidden_activation', 'classifier_activation'), 'gelu_pytorch_tanh')
  assert keys.fields(lm.keys, {**content, **tanh})['activation'] == 'gelu_tanh'


ROTARY, YARN = 'says of rotary positions .*', {'rope_type': 'yarn'}
V2 = {'model_type': 'deberta-v2', 'hidden_size': 48, 'num_attention_heads': 4, **cases.RELEASE_V2}
MODERN = {'model_type': 'modernbert', 'num_hidden_layers': 5}
OF_TASK = lambda family: {'architectures': [f'{family}ForSequenceClassification']}
XLNET = {'model_type': 'xlnet', **OF_TASK('XLNet')}
EURO = {'model_type': 'eurobert', **OF_TASK('EuroBert')}
BOS = {**EURO, 'classifier_pooling': 'bos'}
REFUSED = [  # content, changes, words
  (V2, dict(pos_att_type='c2p|p2p'), 'pos_att_type=c2p|p2p.*no encoder here can express'),
  (V2, dict(pos_att_type=['c2p', 'c2p']), 'no encoder here can express'),
  (V2, dict(relative_attention=False), 'none without relative attention'),
  (V2, dict(attention_head_size=7), 'attention_head_size=7, and an encoder here has .*=12'),
  (V2, dict(talking_head=True), 'talking_head=True'),
  (V2, dict(conv_kernel_size=3), "No readable conv_act is called 'tanh'"),
  (V2, dict(conv_kernel_size=3, conv_act='gelu', conv_groups=2), 'conv_groups=2'),
  (V2, dict(position_buckets='8'), 'position_buckets=8: a whole number from -1'),
  (MODERN, dict(norm_bias=True), 'says norm_bias=True, and an encoder here has norm_bias=False'),
  (MODERN, dict(classifier_activation='relu'), 'says classifier_activation=relu'),
  (MODERN, dict(hidden_activation='quick_gelu'), "readable hidden_activation is called 'quick_g"),
  (MODERN, dict(layer_types=['sliding_attention'] * 5), 'has a global layer first'),
  (MODERN, dict(local_attention=1), 'local_attention=1, so that a token .* sees itself alone'),
  (MODERN, dict(rope_parameters={'full_attention': YARN}), f'{ROTARY}yarn'),
  (MODERN, dict(rope_scaling={'type': 'linear', 'factor': 2.0}), f'{ROTARY}linear'),
  (MODERN, dict(rope_parameters=YARN), f'{ROTARY}yarn'),
  (MODERN, {**OF_TASK('ModernBert'), 'classifier_pooling': 'mean'}, 'classifier_pooling=mean'),
  (XLNET, dict(attn_type='uni'), '=uni'),
  (XLNET, dict(clamp_len='x'), '=x'),
  (XLNET, dict(summary_type='mean'), 'summary_type=mean, and an encoder here has .*=last'),
  (XLNET, dict(summary_use_proj=False), 'summary_use_proj=False'),
  (EURO, {}, 'classifier_pooling=late'),
  (BOS, {'rope_scaling': {'rope_type': 'dynamic'}}, 'rotary positions .*dynamic'),
  (BOS, {'num_key_value_heads': 3}, 'num_key_value_heads=3, .* has 12 only'),
  ({'model_type': 'deberta', **OF_TASK('Deberta')}, dict(pooler_hidden_act='tanh'), '_act=tanh'),
]


@pytest.mark.parametrize('content, changes, message', REFUSED)
def test_a_config_json_that_no_encoder_here_computes_is_refused(content, changes, message):
  content = {**content, **changes}
  with pytest.raises(errors.UserError, match=message):
    hf_architecture.encoder(architectures.reader(content), content)
