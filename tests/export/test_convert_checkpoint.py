"""Variables are named from transformers' own tensors, by a table of its own for each release."""

import json

import numpy as np
import pytest

from bertzoo_jax import convert
from bertzoo_jax import fill_mask
from bertzoo_jax import hf
from bertzoo_jax import parts
from bertzoo_jax import pretrained
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import verify
from tests.hf import directories

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
transformers.BertModel  # noqa: B018 (torch's compiler must be imported before TensorFlow)
tf = pytest.importorskip('tensorflow')

SIZES = dict(
  **dict(vocab_size=120, hidden_size=128, num_hidden_layers=2, num_attention_heads=2),
  **dict(intermediate_size=48, max_position_embeddings=64),
)
LAYER = {  # of BERT and ELECTRA: transformers' name without .weight and .bias, Google's scope
  **{f'attention.self.{x}': f'attention/self/{x}' for x in ('query', 'key', 'value')},
  **{f'attention.output.{x}': f'attention/output/{x}' for x in ('dense', 'LayerNorm')},
  'intermediate.dense': 'intermediate/dense',
  **{f'output.{x}': f'output/{x}' for x in ('dense', 'LayerNorm')},
}
TABLES = ('word_embeddings', 'position_embeddings', 'token_type_embeddings', 'LayerNorm')
GROUPS = dict(num_hidden_groups=2)


def _layers(ours, theirs):
  return {
    f'{ours}.encoder.layer.{i}.{x}': f'{theirs}/encoder/layer_{i}/{y}'
    for i in range(2)
    for x, y in LAYER.items()
  }


BERT = {
  **{f'bert.embeddings.{x}': f'bert/embeddings/{x}' for x in TABLES},
  **_layers('bert', 'bert'),
  'bert.pooler.dense': 'bert/pooler/dense',
  'cls.predictions': 'cls/predictions/output',
  'cls.predictions.transform.dense': 'cls/predictions/transform/dense',
  'cls.predictions.transform.LayerNorm': 'cls/predictions/transform/LayerNorm',
  'cls.seq_relationship': 'cls/seq_relationship/output',
}


def _albert(prefix='', groups=1):
  at = 'bert/encoder/transformer/group_{}/inner_group_0'
  layer = {
    **{f'attention.{x}': f'attention_1/self/{x}' for x in ('query', 'key', 'value')},
    'attention.dense': 'attention_1/output/dense',
    'attention.LayerNorm': 'LayerNorm',
    'ffn': 'ffn_1/intermediate/dense',
    'ffn_output': 'ffn_1/intermediate/output/dense',
    'full_layer_layer_norm': 'LayerNorm_1',
  }
  named = {
    **{f'albert.embeddings.{x}': f'bert/embeddings/{x}' for x in TABLES},
    'albert.encoder.embedding_hidden_mapping_in': 'bert/encoder/embedding_hidden_mapping_in',
    **{
      f'albert.encoder.albert_layer_groups.{g}.albert_layers.0.{x}': f'{at.format(g)}/{y}'
      for g in range(groups)
      for x, y in layer.items()
    },
    'albert.pooler': 'bert/pooler/dense',
    'predictions': 'cls/predictions/output',
    'predictions.dense': 'cls/predictions/transform/dense',
    'predictions.LayerNorm': 'cls/predictions/transform/LayerNorm',
    'sop_classifier.classifier': 'cls/seq_relationship/output',
  }
  return {x: prefix + y for x, y in named.items()}


DISCRIMINATOR = {
  **{f'electra.embeddings.{x}': f'electra/embeddings/{x}' for x in TABLES},
  'electra.embeddings_project': 'electra/embeddings_project',
  **_layers('electra', 'electra'),
  'discriminator_predictions.dense': 'discriminator_predictions/dense',
  'discriminator_predictions.dense_prediction': 'discriminator_predictions/dense_1',
}
GENERATOR = {
  **{f'electra.embeddings.{x}': f'electra/embeddings/{x}' for x in TABLES},
  'electra.embeddings_project': 'generator/embeddings_project',
  **_layers('electra', 'generator'),
  'generator_predictions.dense': 'generator_predictions/dense',
  'generator_predictions.LayerNorm': 'generator_predictions/LayerNorm',
  'generator_lm_head': 'generator_predictions/output',
}
TIED = ('decoder', 'generator_lm_head.weight')


def _variable(tensor, named):
  at, _, end = tensor.rpartition('.')
  scope = named[at]
  if scope.endswith('/output') and at in ('cls.predictions', 'predictions', 'generator_lm_head'):
    return f'{scope}_bias'
  if scope.endswith('seq_relationship/output'):
    return f'{scope}_weights' if end == 'weight' else f'{scope}_bias'
  if scope.endswith('_embeddings'):
    return scope
  norm = scope.rpartition('/')[2].startswith('LayerNorm')
  kinds = {'weight': 'gamma', 'bias': 'beta'} if norm else {'weight': 'kernel', 'bias': 'bias'}
  return f'{scope}/{kinds[end]}'


def _network(name, **changes):
  """A network of transformers with random weights, biases and norms too."""
  cls = getattr(transformers, name)
  network = cls(cls.config_class(**{**SIZES, **changes})).eval()
  draw = np.random.default_rng(len(name))
  with torch.no_grad():
    for key, x in network.named_parameters():
      mean = 1.0 if 'LayerNorm.weight' in key or 'layer_norm.weight' in key else 0.0
      x.copy_(torch.tensor(draw.normal(mean, 0.1, x.shape), dtype=torch.float32))
  return network


def _checkpoint(folder, *of, file='bert_model.ckpt'):
  """Writes the checkpoint of networks with their tables, with an optimizer's slots."""
  variables = {'global_step': np.int64(7), 'beta1_power': np.float32(0.9)}
  for network, named in of:
    for key, x in network.state_dict().items():
      if any(word in key for word in TIED) or key.endswith(('position_ids', 'token_type_ids')):
        continue
      name, x = _variable(key, named), x.numpy()
      variables[name] = x.T if name.endswith('kernel') else x
      variables[f'{name}/adam_m'] = variables[f'{name}/adam_v'] = np.zeros_like(variables[name])
  folder.mkdir(exist_ok=True)
  tf.raw_ops.SaveV2(
    prefix=str(folder / file),
    tensor_names=list(variables),
    shape_and_slices=[''] * len(variables),
    tensors=[tf.constant(x) for x in variables.values()],
  )


def _same(folder, network):
  """Asserts that the directory holds the network's tensors, and that we compute what it does."""
  name = type(network).__name__
  again, info = type(network).from_pretrained(folder, output_loading_info=True)
  assert not info['missing_keys'] and not info['unexpected_keys'], info
  for key, x in network.state_dict().items():
    assert torch.equal(again.state_dict()[key], x), key
  ids = torch.tensor([[2, 7, 8, 9, 3]])
  with torch.no_grad():
    wanted, got = network(ids)[0], again.eval()(ids)[0]
  assert torch.equal(wanted, got)
  a, found = architectures.choose(name), pretrained.open(f'hf:{folder}', name)
  batch = verify.random_batch(found.vocab_size, SIZES['max_position_embeddings'], 2, 0)
  rows = directories.compared(folder, a, pretrained.encoder(found), found.params, batch)
  assert rows and all(row.holds for row in rows), verify.table(rows)


@pytest.mark.parametrize(
  'name, named, changes, said',
  [
    ('BertForPreTraining', BERT, {}, {'hidden_act': 'gelu'}),
    ('BertForMaskedLM', BERT, {}, {'hidden_act': 'gelu'}),
    ('AlbertForPreTraining', _albert(), dict(embedding_size=24), {'hidden_act': 'gelu'}),
    ('AlbertForPreTraining', _albert('module/'), dict(embedding_size=24), {}),
    ('AlbertForMaskedLM', _albert(groups=2), dict(GROUPS, embedding_size=24), GROUPS),
  ],
)
def test_a_checkpoint_becomes_the_directory_of_its_network(tmp_path, name, named, changes, said):
  network = _network(name, **changes)
  _checkpoint(tmp_path / 'release', (network, named))
  kind = name[:4].lower().replace('albe', 'albert')
  content = {**SIZES, 'num_hidden_layers': 2, **changes, **said}
  (tmp_path / f'release/{kind}_config.json').write_text(json.dumps(content))
  lines = convert.convert(str(tmp_path / 'release'), tmp_path / 'out')
  assert lines[0].startswith(f'{tmp_path}/out: {name}, 2 layers') and len(lines) == 1
  _same(tmp_path / 'out', network)


@pytest.mark.parametrize('heads', [(2, 1), (1, 2)])
def test_electra_s_checkpoint_becomes_two_directories_without_a_config(tmp_path, heads):
  sizes = [dict(hidden_size=64 * n, num_attention_heads=n, embedding_size=24) for n in heads]
  discriminator = _network('ElectraForPreTraining', **sizes[0])
  generator = _network('ElectraForMaskedLM', **sizes[1])
  generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
  pair = (generator, GENERATOR), (discriminator, DISCRIMINATOR)
  _checkpoint(tmp_path / 'release', *pair, file='electra_small')
  convert.convert(str(tmp_path / 'release'), tmp_path / 'out')
  _same(tmp_path / 'out/discriminator', discriminator)
  _same(tmp_path / 'out/generator', generator)


def _trained(folder, section, text):
  made = tokenizers.train(section.to_dict() | {'vocab_size': 'auto'}, lambda: [text])
  made.save(folder)
  return made


@pytest.mark.parametrize('lowercase', [True, False])
def test_a_release_s_vocabulary_goes_along_and_fills_masks(tmp_path, lowercase):
  section = parts.wordpiece(vocab_size=120, lowercase=lowercase, strip_accents=lowercase)
  text = 'The time machine stood there and He looked at It. ' * 9
  made = _trained(tmp_path / 'made', section, text)
  network = _network('BertForPreTraining', vocab_size=made.vocab_size)
  _checkpoint(tmp_path / 'release', (network, BERT))
  (tmp_path / 'release/bert_config.json').write_text(json.dumps(SIZES))
  (tmp_path / 'release/vocab.txt').write_bytes((tmp_path / 'made/vocab.txt').read_bytes())
  with pytest.raises(errors.UserError, match='TensorFlow checkpoint alone: .*bertzoo_jax.convert'):
    pretrained.open(f'hf:{tmp_path}/release')
  convert.convert(str(tmp_path / 'release'), tmp_path / 'out')
  found = tokenizers.open_folder(tmp_path / 'out')
  words = 'He looked at It'
  assert found.encode_as_transformers([words])[0].tolist() == made.encode([words])[0].tolist()
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')
  assert theirs(words, add_special_tokens=False)['input_ids'] == made.encode([words])[0].tolist()
  assert len(fill_mask.fill(str(tmp_path / 'out'), 'The [MASK] machine', 3)[0]) == 3


def test_albert_s_pieces_become_a_tokenizer(tmp_path):
  text = 'The time machine stood there and He looked at It, with 1,000 words. ' * 9
  made = _trained(tmp_path / 'made', parts.sentencepiece(vocab_size=120), text)
  network = _network('AlbertForPreTraining', embedding_size=24, vocab_size=made.vocab_size)
  _checkpoint(tmp_path / 'release', (network, _albert()), file='model.ckpt-best')
  (tmp_path / 'release/albert_config.json').write_text(json.dumps(SIZES))
  model = (tmp_path / 'made/spiece.model').read_bytes()
  (tmp_path / 'release/30k-clean.model').write_bytes(model)
  convert.convert(str(tmp_path / 'release'), tmp_path / 'out')
  ids = tokenizers.open_folder(tmp_path / 'out').encode_as_transformers([text])[0]
  assert ids.tolist() == made.encode([text])[0].tolist()
  assert hf.load(tmp_path / 'out')[1].model_type == 'albert'


def _cut(folder):
  data = folder / 'bert_model.ckpt.data-00000-of-00001'
  data.write_bytes(data.read_bytes()[:100])


def _two(folder):
  (folder / 'other.ckpt.index').write_bytes((folder / 'bert_model.ckpt.index').read_bytes())


STRANGE = {x: f'model/transformer/{y}'.replace('layer_', 'block') for x, y in BERT.items()}
HALF = 'damaged or incomplete'


@pytest.mark.parametrize(
  'break_it, message',
  [
    (_cut, f'{HALF}: download them again'),
    (lambda f: (f / 'bert_model.ckpt.data-00000-of-00001').unlink(), HALF),
    (lambda f: (f / 'bert_model.ckpt.index').write_bytes(b'x' * 99), HALF),
    (_two, 'has bert_model.ckpt.index, other.ckpt.index: give'),
    (lambda f: (f / 'bert_config.json').unlink(), 'number of heads: put the bert_config.json'),
    (lambda f: (f / 'bert_config.json').write_text('{'), 'no readable JSON'),
    (None, 'no variables of BERT, ALBERT or ELECTRA'),
  ],
)
def test_an_incomplete_release_is_refused_in_a_sentence(tmp_path, break_it, message):
  named = BERT if break_it else STRANGE
  _checkpoint(tmp_path / 'release', (_network('BertForPreTraining'), named))
  if break_it:
    (tmp_path / 'release/bert_config.json').write_text(json.dumps(SIZES))
    break_it(tmp_path / 'release')
  with pytest.raises(errors.UserError, match=message):
    convert.convert(str(tmp_path / 'release'), tmp_path / 'out')
  assert not (tmp_path / 'out').exists()
