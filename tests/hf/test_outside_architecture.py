import json
import pathlib
import re

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import hf
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from bertzoo_jax.hf.architecture import HEADS_BIAS
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architectures import modernbert
from tests.export.test_export import make_workdir
from tests.hf import directories
from tests.outside import convolved_config
from tests.outside import convolved_hf
from tests.outside import roformer
from tests.outside import roformer_hf

pytest.importorskip('transformers', reason='verification needs transformers')
pytest.importorskip('torch', reason='verification needs torch')

NAME = 'tests.outside.convolved_hf:MASKED_LM'
QKV = tuple(f'encoder/layers/attention/{x}' for x in ('query', 'key', 'value'))
SMALL = dict(hidden_size=24, num_heads=4, intermediate_size=40)

# Classes of this module, which names them itself.
HERE = 'test_outside_architecture'
MASKED_LM, MASKED_CONVOLVED = roformer_hf.MASKED_LM, convolved_hf.MASKED_LM
PRETRAINING = MASKED_LM._replace(
  name='RoFormerForPreTraining',
  rows=(*MASKED_LM.rows, Row('pair_head/pooler/kernel', 'pooler.weight', architecture.KERNEL)),
)
WITHOUT_TOKENIZER = MASKED_CONVOLVED._replace(tokens=None)
# Several parameters in one tensor that an encoder may lack.
BIASES = Row(
  tuple(f'{x}/bias' for x in QKV),
  'model.layers.{i}.attn.Wqkv.bias',
  architecture.joined(HEADS_BIAS, HEADS_BIAS, HEADS_BIAS),
  lambda sizes: None,
)
WITH_BIASES = modernbert.MASKED_LM._replace(rows=(*modernbert.MASKED_LM.rows, BIASES))

SIZES = architecture.Sizes(4, 3, 3, 24, 24)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """(workdir, weights) of a run of an encoder from outside."""
  config, path = convolved_config.get_config('tiny').unlock(), tmp_path_factory.mktemp('convolved')
  config.phases, config.tokenizer = ((1000, {}),), parts.wordpiece(vocab_size=600)
  sizes = dict(num_layers=2, hidden_size=32, num_heads=2, intermediate_size=48, max_positions=32)
  return path, make_workdir(path, config, sizes)


def params_of():
  """Flat random parameters of the modern encoder with an MLM head and biases of attention; no norm
  in layer 0.
  """
  encoder = small.encoder(section=parts.modern(num_layers=3, window=10, **SMALL))
  params = weights.flatten(small.parameters(objectives.BY_NAME['mlm'](encoder=encoder)))
  draw = np.random.default_rng(1)
  biases = {f'{x}/bias': draw.normal(size=(3, 4, 6)).astype(np.float32) for x in QKV}
  return params | biases


def test_it_is_exported_verified_and_described(run, tmp_path, capsys):
  rows = export.export(str(run[0]), tmp_path / 'hf')
  assert all(r.holds for r in rows)
  compared = [r.what.split()[0] for r in rows]
  assert compared == ['tensors', 'mlm', 'ids', 'specials', 'special']
  said = capsys.readouterr().out
  assert NAME in said and 'no architecture' not in said
  tensors, _ = weights.load(tmp_path / 'hf', NAME)
  content = json.loads((tmp_path / 'hf/config.json').read_text())
  assert content['model_type'] == 'convolved' and content['num_layers'] == 2
  card = (tmp_path / 'hf/README.md').read_text()
  facts = '# ConvolvedForMaskedLM', '2 layers of 32, 2 heads', 'It fills masks', 'at most 32'
  assert not [fact for fact in facts if fact not in card]
  assert 'Reloaded with the reference of ConvolvedForMaskedLM' in card and 'pipeline' not in card
  # a class without a tokenizer has its logits compared
  found = export.export(str(run[0]), tmp_path / 'bare', f'{HERE}:WITHOUT_TOKENIZER')
  assert [r.what.split()[0] for r in found] == ['tensors', 'mlm'] and all(r.holds for r in found)
  files = {p.name for p in (tmp_path / 'bare').iterdir()}
  assert files == {'README.md', 'config.json', 'model.safetensors'}
  # Also where another class is the run's own.
  config = json.loads((run[0] / 'config.json').read_text())
  (run[0] / 'config.json').write_text(json.dumps({**config, 'hf': 'BertForMaskedLM'}))
  try:
    assert export.export(str(run[0]), tmp_path / 'again', NAME) == rows
    with pytest.raises(errors.UserError, match='BertForMaskedLM has no place for'):
      export.export(str(run[0]), tmp_path / 'third')
  finally:
    (run[0] / 'config.json').write_text(json.dumps(config))


def test_another_class_of_its_module_takes_its_place_and_other_types_are_read_by_the_table():
  encoder = roformer.RoFormer(small.VOCAB, jnp.float32, num_layers=2, **SMALL)
  paths = weights.flatten(small.parameters(objectives.BY_NAME['mlm'](encoder=encoder)))
  wished, other = f'{HERE}:PRETRAINING', f'{HERE}:MASKED_LM'
  assert architectures.fitting(wished, 'gelu', paths) == other
  assert hf.fitting_note(other, 'gelu', paths) is None
  assert f'export writes {other}' in hf.fitting_note(wished, 'gelu', paths)
  assert 'no activation relu' in hf.fitting_note(other, 'relu', paths)
  for kind, named, run, reader in (
    ('bert', 'BertForMaskedLM', NAME, 'BertForPreTraining'),
    ('electra', 'ElectraForMaskedLM', NAME, 'ElectraForMaskedLM'),
    ('roformer', 'RoFormerForPreTraining', other, 'RoFormerForPreTraining'),
  ):
    content = {'model_type': kind, 'architectures': [named]}
    assert architectures.reader(content, run).name == reader
  for name in (None, 'BertForMaskedLM'):
    with pytest.raises(errors.UserError, match="No readable model type is called 'roformer'"):
      architectures.reader({'model_type': 'roformer'}, name)


def changed_tensor(tensor, rows):
  honest = export.convert

  def wrong(*args):
    tensors, config = honest(*args)
    tensors[f'blocks.{tensor}'][rows] *= 1.01
    return tensors, config

  return wrong


MLM, DIFFERS = 'mlm logits: ', 'The reference of Convolved.* differently .*mlm logits'
WRONG = [  # a tensor and its rows, or a change of what the reference says; words
  (('1.query.weight', slice(8, 16)), DIFFERS),
  (('0.convolution.weight', 0), DIFFERS),
  (('1.in.weight', 3), DIFFERS),
  (lambda x: {'unloaded': []}, f'{MLM}only the trained network has this head'),
  (lambda x: {**x, 'unloaded': ['a.weight']}, 'tensors not loaded: a.weight'),
  (lambda x: {'mlm': x['mlm']}, 'tensors not loaded: the reference does not say'),
  (lambda x: {**x, 'span': x['mlm']}, 'span logits: only the reference has this head'),
  (lambda x: {**x, 'mlm': x['mlm'][:, :, :1]}, f'{MLM}.*600.* here, .*1.* there'),
  (lambda x: {**x, 'mlm': x['mlm'] * np.nan}, 'mlm logits .*nan'),
]


@pytest.mark.parametrize('change, message', WRONG)
def test_a_wrong_tensor_or_reference_is_not_exported(run, tmp_path, monkeypatch, change, message):
  if callable(change):
    says = MASKED_CONVOLVED._replace(logits=lambda *args: change(convolved_hf.logits(*args)))
    monkeypatch.setattr(convolved_hf, 'MASKED_LM', says)
  else:
    monkeypatch.setattr(export, 'convert', changed_tensor(*change))
  with pytest.raises(errors.UserError, match=message):
    export.export(str(run[0]), tmp_path / 'hf')
  assert not list(tmp_path.iterdir())


def test_nothing_compared_fails():
  segment_ids, x = np.ones((2, 3), np.int32), np.zeros((2, 3, 4))
  said = lambda ours, theirs, ids=segment_ids: verify.compare_logits(ours, theirs, ids)
  rows = said({}, {'unloaded': []})
  assert [r.holds for r in rows] == [True, False]
  assert rows[1].difference == 'neither side has a head to compare'
  for empty in (np.zeros((2, 3, 0)), np.zeros((0, 3, 4))):
    rows = said({'mlm': empty}, {'mlm': empty, 'unloaded': []})
    assert not rows[1].holds and rows[1].difference == 'no number to compare'
  rows = said({'mlm': x}, {'mlm': x, 'unloaded': []}, 0 * segment_ids)
  assert not rows[1].holds  # padding alone


def test_a_tensor_that_transformers_does_not_take_fails(tmp_path):
  sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
  directories.theirs('BertForMaskedLM', **sizes).save_pretrained(tmp_path)
  batch = verify.random_batch(small.VOCAB, 8, 2, 0)
  a = architectures.choose('BertForMaskedLM')
  assert not verify.logits(tmp_path, a, batch)['unloaded']

  tensors = safetensors.numpy.load_file(tmp_path / 'model.safetensors')
  # transformers says of none of these that it left it out or made it up.
  tensors['bert.embeddings.position_ids'] = np.arange(512, dtype=np.float32)[None]
  weights.save(tmp_path / 'model.safetensors', tensors)
  unloaded = verify.logits(tmp_path, a, batch)['unloaded']
  assert unloaded == {'bert.embeddings.position_ids': 'the class has no such tensor'}


def test_several_parameters_are_one_tensor_and_a_layer_may_lack_it():
  depth, params, sizes = 3, params_of(), SIZES
  tensors = architecture.to_hf(WITH_BIASES, params, sizes)
  norms = {f'model.layers.{i}.attn_norm.weight' for i in range(1, depth)}
  assert {k for k in tensors if 'attn_norm' in k} == norms
  assert tensors['model.layers.0.attn.Wqkv.weight'].shape == (72, 24)
  key, kernel = 'encoder/layers/attention/key', tensors['model.layers.0.attn.Wqkv.weight']
  assert np.array_equal(kernel[24:48].T, params[f'{key}/kernel'][0].reshape(24, 24))
  bias = tensors['model.layers.0.attn.Wqkv.bias']
  assert np.array_equal(bias[24:48], params[f'{key}/bias'][0].reshape(-1))
  assert tensors['model.layers.0.mlp.Wi.weight'].shape == (80, 24)
  again, unread = architecture.to_ours(WITH_BIASES, tensors, sizes)
  assert unread == [] and again.keys() == params.keys()
  assert all(np.array_equal(x, params[k]) for k, x in again.items())
  del tensors[f'model.layers.{depth - 1}.attn.Wqkv.weight']
  with pytest.raises(errors.UserError, match=f'lacks .*layers.{depth - 1}.attn.Wqkv.weight'):
    architecture.to_ours(WITH_BIASES, tensors, sizes)


@pytest.mark.parametrize(
  'rows, shapes, some',
  [
    (  # one parameter is several tensors
      [
        Row('x', ('{i}.q', '{i}.k', '{i}.v'), architecture.parted(*[architecture.KERNEL] * 3)),
        Row('y', ('l', 'r'), architecture.parted(*[architecture.KERNEL] * 2)),
      ],
      {'x': (3, 3, 5, 7), 'y': (2, 5, 7)},
      {'1.k': lambda x: x['x'][1, 1].T, 'r': lambda x: x['y'][1].T},
    ),
    (  # a parameter has copies only for the layers that have the tensor
      [
        Row('global', '{i}.w', where=lambda i, sizes: i % 2 == 0),
        Row('local', '{i}.w', where=lambda i, sizes: i % 2 == 1),
      ],
      {'global': (2, 4), 'local': (1, 4)},
      {'1.w': lambda x: x['local'][0], '2.w': lambda x: x['global'][1]},
    ),
  ],
)
def test_rows_of_tensors_and_of_layers_are_written_and_read(rows, shapes, some):
  a, rng = MASKED_LM._replace(rows=rows), np.random.default_rng(0)
  params = {k: rng.normal(size=shape).astype(np.float32) for k, shape in shapes.items()}
  tensors = architecture.to_hf(a, params, SIZES)
  assert len(tensors) == sum(shape[0] for shape in shapes.values()) + 6 * ('x' in shapes)
  assert all(np.array_equal(tensors[name], of(params)) for name, of in some.items())
  again, unread = architecture.to_ours(a, tensors, SIZES)
  assert unread == [] and all(np.array_equal(x, again[k]) for k, x in params.items())


def test_a_part_of_a_row_s_parameters_and_a_tensor_of_another_shape_are_refused_by_name():
  params = params_of()
  tensors = architecture.to_hf(WITH_BIASES, params, SIZES)
  tensors['model.layers.1.attn.Wqkv.weight'] = np.zeros((71, 24), np.float32)
  with pytest.raises(errors.UserError, match=r'layers.1.attn.Wqkv.weight has the shape \(71, 24\)'):
    architecture.to_ours(WITH_BIASES, tensors, SIZES)
  del params['encoder/layers/attention/key/bias']
  with pytest.raises(errors.UserError, match="needs 'encoder/layers/attention/key/bias'"):
    architecture.check(WITH_BIASES, params)
  for x in ('query', 'value'):
    del params[f'encoder/layers/attention/{x}/bias']
  architecture.check(WITH_BIASES, params)  # all absent may be


@pytest.mark.parametrize(
  'name, message',
  [
    ('BertForMaskedLn', "mean 'BertForMaskedLM'"),
    ('no_such_module:MASKED_LM', "no module 'no_such_module'"),
    ('tests.outside.roformer_hf:MASKED', "roformer_hf has no 'MASKED'"),
    ('tests.outside.convolved_hf:logits', 'is no Architecture but of type function'),
    (':MASKED_LM', 'write package.module:name'),
    ('roformer_hf:', 'write package.module:name'),
  ],
)
def test_a_name_that_is_no_architecture_is_refused_in_a_sentence(name, message):
  with pytest.raises(errors.UserError, match=message):
    architectures.choose(name)


def test_only_the_architectures_folder_names_architectures():
  folder = pathlib.Path(hf.__file__).parent
  types_ = {a.model_type for a in architectures.ARCHITECTURES.values()} | {'xlnet', 'deberta-v2'}
  names = re.compile(
    '|'.join([*architectures.ARCHITECTURES, *(f"""['"]{name}['"]""" for name in types_)])
  )
  for path in sorted(folder.glob('*.py')):
    assert not names.search(path.read_text()), path
