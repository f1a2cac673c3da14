import json
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import small_networks as small

from bertzoo_jax import hf
from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import weights
from bertzoo_jax.hf.architectures import bert


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A directory as transformers would have it: (path, tensors, random parameters by path)."""
  folder = tmp_path_factory.mktemp('made')
  params = weights.flatten(small.parameters(small.objective('mlm_pair'), scale=1.0))
  a, encoder = bert.PRETRAINING, small.encoder()
  tensors = architecture.to_hf(a, params, a.sizes(encoder, small.BERT_IDS))
  config = architecture.config(a, encoder, small.BERT_IDS, small.VOCAB)
  (folder / 'config.json').write_text(json.dumps(config))
  weights.save(folder / 'model.safetensors', tensors)
  return folder, tensors, params


@pytest.fixture
def params(made):
  return dict(made[2])


@pytest.fixture
def written(tmp_path, made):
  """A directory that a test may change: (path, tensors)."""
  shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
  return tmp_path, dict(made[1])


def read(directory):
  loaded, report = hf.load(directory)
  return weights.flatten(loaded), report


def same(a, b):
  return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_early_names_and_a_body_without_heads_and_prefix_are_understood(written, params):
  path, tensors = written
  early = lambda k: k.replace('Norm.weight', 'Norm.gamma').replace('Norm.bias', 'Norm.beta')
  old = {early(k): v for k, v in tensors.items()}
  old['bert.embeddings.position_ids'] = np.arange(40)[None]
  weights.save(path / 'model.safetensors', old)
  loaded, report = read(path)
  assert same(loaded, params) and report.ignored == ()
  bare = {k.removeprefix('bert.'): v for k, v in tensors.items() if k.startswith('bert.')}
  weights.save(path / 'model.safetensors', bare)
  body = ('encoder/', 'pair_head/pooler')
  assert same(read(path)[0], {k: v for k, v in params.items() if k.startswith(body)})


def test_tied_copies_are_ignored_and_an_untied_decoder_is_reported(written, params):
  path, tensors = written
  words = tensors['bert.embeddings.word_embeddings.weight']
  tied = {**tensors, 'cls.predictions.decoder.weight': words.copy()}
  # some files have only this name
  tied['cls.predictions.decoder.bias'] = tied.pop('cls.predictions.bias')
  weights.save(path / 'model.safetensors', tied)
  loaded, report = read(path)
  assert same(loaded, params) and report.ignored == ()
  untied = {**tensors, 'cls.predictions.decoder.weight': words + 1}
  weights.save(path / 'model.safetensors', untied)
  assert 'cls.predictions.decoder.weight' in read(path)[1].ignored[0]


def test_half_precision_files_become_float32_and_quantized_ones_are_refused(written, params):
  path, tensors = written
  as_type = lambda dtype: {k: v.astype(dtype) for k, v in tensors.items()}
  save = lambda dtype: weights.save(path / 'model.safetensors', as_type(dtype))
  for dtype in (np.float16, ml_dtypes.bfloat16):
    save(dtype)
    loaded, _ = read(path)
    assert {v.dtype for v in loaded.values()} == {np.dtype('float32')}
    assert max(np.abs(loaded[k] - params[k]).max() for k in params) < 0.05
  save(ml_dtypes.float8_e4m3fn)
  with pytest.raises(errors.UserError, match='cannot be read: .*float8'):
    read(path)


@pytest.mark.parametrize(
  'rows, how, said',
  [
    (16, 'copied', "the first 16 of the checkpoint's 40 rows were loaded, the rest is ignored"),
    (40, 'interpolated', None),
    (64, 'copied', 'rows 0 to 39 were loaded, rows 40 to 63 copy them'),
    (79, 'interpolated', '79 rows are interpolated from 40'),
  ],
)
def test_a_position_table_of_another_length_gives_the_rows_that_both_have(
  written, params, rows, how, said
):
  loaded, report = hf.load(written[0])
  place, both = weights.POSITION_TABLE, min(rows, 40)
  fresh = lambda table: weights.unflatten({**params, place: table})
  merged, lines = hf.merge(fresh(np.full((rows, 48), 7, np.float32)), loaded, report, positions=how)
  table, old = weights.flatten(merged)[place], params[place]
  assert table.shape == (rows, 48)
  if rows == 79:  # each old row, and the mean of each two neighbours
    assert np.array_equal(table[::2], old)
    np.testing.assert_allclose(table[1::2], (old[:-1] + old[1:]) / 2, atol=1e-6)
  else:
    assert np.array_equal(table[:both], old[:both])
    assert np.array_equal(table[40:], old[: max(0, rows - 40)])
  positions = [f'positions: {said}'] if said else []
  assert [line for line in lines if line.startswith('positions')] == positions
  with pytest.raises(errors.UserError, match='position/embedding'):
    hf.merge(fresh(np.zeros((rows, 32), np.float32)), loaded, report)


def test_weights_in_several_files_are_read_together(written, params):
  path, tensors = written
  (path / 'model.safetensors').unlink()
  files = {f'model-{i}.safetensors': dict(list(tensors.items())[i::2]) for i in range(2)}
  for name, part in files.items():
    weights.save(path / name, part)
  places = {k: name for name, part in files.items() for k in part}
  (path / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': places}))
  assert same(read(path)[0], params)


def test_loaded_fresh_and_ignored_are_told_apart(written, params):
  path, tensors = written
  tensors = {k: v for k, v in tensors.items() if 'seq_relationship' not in k}
  weights.save(path / 'model.safetensors', {**tensors, 'qa_outputs.weight': np.ones(2, np.float32)})
  loaded, report = hf.load(path)
  fresh = weights.unflatten({k: v for k, v in params.items() if not k.startswith('mlm_head')})
  merged, lines = hf.merge(fresh, loaded, report, {**small.SECTION, 'activation': 'gelu'})
  merged = weights.flatten(merged)
  assert merged['pair_head/classifier/kernel'] is params['pair_head/classifier/kernel']
  assert f'loaded: {len(merged) - 2} of {len(merged)} parameters' in '\n'.join(lines)
  told = lambda word: [line for line in lines if line.startswith(word)]
  fresh = ['fresh: pair_head/classifier/bias (2,)', 'fresh: pair_head/classifier/kernel (48, 2)']
  assert told('fresh') == fresh and len(told('ignored')) == 6
  assert {'ignored: qa_outputs.weight', 'ignored: mlm_head/bias'} <= {*lines}
  differs = 'differs: encoder.activation is gelu in the config and gelu_tanh in the checkpoint'
  assert told('differs') == [differs]


def test_an_encoder_without_segments_keeps_the_first_one_and_another_shape_is_refused(
  written, params
):
  loaded, report = hf.load(written[0])
  fresh = weights.unflatten({k: v for k, v in params.items() if k != weights.TYPE_TABLE})
  merged, lines = hf.merge(fresh, loaded, report)
  summed = params[weights.POSITION_TABLE] + params[weights.TYPE_TABLE][:1]
  assert np.array_equal(weights.flatten(merged)[weights.POSITION_TABLE], summed)
  assert any('row 0 was added' in line for line in lines)
  more = {**params, weights.WORD_TABLE: np.zeros((small.VOCAB + 1, 48), np.float32)}
  with pytest.raises(errors.UserError, match=r'word/embedding is \(102, 48\) here and \(101, 48\)'):
    hf.merge(weights.unflatten(more), loaded, report)


def wrote(text):
  return lambda path: (path / 'config.json').write_text(text)


def says(**fields):
  content = lambda path: json.loads((path / 'config.json').read_text())
  return lambda path: wrote(json.dumps({**content(path), **fields}))(path)


def without_words(path):
  safetensors.numpy.save_file(dict.fromkeys('xyz', np.ones(2)), str(path / 'model.safetensors'))


def without_a_bias(path):
  tensors = safetensors.numpy.load_file(path / 'model.safetensors')
  del tensors['bert.encoder.layer.1.output.dense.bias']
  weights.save(path / 'model.safetensors', tensors)


def cut_short(path):
  file = path / 'model.safetensors'
  file.write_bytes(file.read_bytes()[:-9])


def in_parts(index):
  def change(path):
    (path / 'model.safetensors').rename(path / 'model.safetensors.index.json').write_text(index)

  return change


@pytest.mark.parametrize(
  'break_it, message',
  [
    (lambda p: (p / 'config.json').unlink(), 'config.json does not exist'),
    (wrote('{'), 'no readable JSON'),
    (wrote('{"model_type": "gpt2"}'), "called 'gpt2'.* class of your own is read only by"),
    (wrote('{"model_type": "roberta", "hidden_act": "relu"}'), 'always applies gelu'),
    (wrote('{"model_type": "bert", "is_decoder": true}'), 'decoder'),
    (wrote('{"model_type": "ernie", "use_task_id": true}'), 'use_task_id=True, and an'),
    (wrote('null'), 'no readable JSON object'),
    (wrote('[' * 100_000), 'no readable JSON'),
    (lambda p: (p / 'config.json').write_bytes(b'\xff\xfe{}'), 'no readable JSON'),
    (says(model_type=['bert']), 'does not say its model_type'),
    (says(architectures=3), 'architectures=3: a list of names'),
    (says(architectures=[None]), 'a list of names'),
    (says(num_hidden_layers=None), 'num_hidden_layers=None: a whole number'),
    (says(num_hidden_layers=3.5), 'a whole number'),
    (says(num_hidden_layers=0), 'a whole number from 1'),
    (says(num_hidden_layers=10**9), '1,000,000,000 layers, but the weights have'),
    (says(num_hidden_layers=10**400), 'a whole number from 1'),
    (says(vocab_size=10**12), 'vocab_size=1000000000000, and the word table has'),
    (says(hidden_size=[48]), r'hidden_size=\[48\]: a whole number'),
    (says(num_attention_heads=7), 'does not fit config.json'),
    (says(layer_norm_eps=float('nan')), 'layer_norm_eps=nan: a number'),
    (says(hidden_act=None), 'hidden_act=None: a text'),
    (says(pad_token_id=-1), 'pad_token_id=-1: an id or null'),
    (says(model_type='roberta', hidden_act='gelu', pad_token_id=60), 'none is left'),
    (says(model_type='albert', num_hidden_groups=0), 'num_hidden_groups=0: a whole number from 1'),
    (in_parts('{}'), 'does not name the files'),
    (in_parts('{"weight_map": {"x": "../else.safetensors"}}'), 'does not name'),
    (in_parts('{"weight_map": {"x": 3}}'), 'does not name'),
    (lambda p: (p / 'model.safetensors').rename(p / 'pytorch_model.bin'), 'pickles'),
    (lambda p: (p / 'model.safetensors').unlink(), 'no model.safetensors'),
    (cut_short, 'cannot be read'),
    (without_a_bias, 'lacks .*layer.1.output.dense.bias'),
    (without_words, 'no word embeddings.*is it a whole model'),
    (lambda p: (says(legacy=False)(p), without_words(p)), 'save it with transformers 5'),
  ],
)
def test_an_unreadable_model_is_refused_in_a_sentence(written, break_it, message):
  break_it(written[0])
  with pytest.raises(errors.UserError, match=message):
    hf.load(written[0])
