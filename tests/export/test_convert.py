import json
import os
import pathlib
import pickle
import shutil
import sys

import numpy as np
import pytest
import safetensors.numpy

from bertzoo_jax import convert
from bertzoo_jax import hf
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import vocabulary
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import verify
from bertzoo_jax.model import encoder as encoders
from configs import deberta_v3

torch = pytest.importorskip('torch', reason='pickles need torch')
transformers = pytest.importorskip('transformers', reason='exports are opened with transformers')

SAMPLE = pathlib.Path(__file__).parents[2] / 'data/sample/time_machine.txt'
WIDTH, FEED_FORWARD, HEADS, LENGTH, BUCKETS, SPARE = 32, 48, 2, 64, 16, 9
DRAW = np.random.default_rng(0)
RELEASED = dict(
  **dict(attention_probs_dropout_prob=0.1, hidden_act='gelu', hidden_dropout_prob=0.1),
  **dict(hidden_size=WIDTH, initializer_range=0.02, intermediate_size=FEED_FORWARD),
  **dict(max_position_embeddings=LENGTH, relative_attention=True, position_buckets=BUCKETS),
  **dict(norm_rel_ebd='layer_norm', share_att_key=True, pos_att_type='p2c|c2p'),
  **dict(layer_norm_eps=1e-7, max_relative_positions=-1, position_biased_input=False),
  **dict(num_attention_heads=HEADS, attention_head_size=WIDTH // HEADS, num_hidden_layers=2),
  **dict(type_vocab_size=0, padding_idx=0),
)
LEGACY = {
  f'lm_predictions.lm_head.{layer}{x}': f'cls.predictions.{"transform." if layer else ""}{layer}{x}'
  for layer, names in {'dense.': 'weight bias', 'LayerNorm.': 'weight bias', '': 'bias'}.items()
  for x in names.split()
}
DELTA = 'deberta.embeddings.word_embeddings._weight'
WORDS, POSITIONS = (f'deberta.embeddings.{x}_embeddings.weight' for x in ('word', 'position'))


def shapes(layers, vocabulary, *heads):
  """{name: shape} of a network of the release (deberta.py, bert.py, disentangled_attention.py)."""
  dense = lambda name, out, inner=WIDTH: {f'{name}.weight': (out, inner), f'{name}.bias': (out,)}
  norm = lambda name: {f'{name}.weight': (WIDTH,), f'{name}.bias': (WIDTH,)}
  out = {
    WORDS: (vocabulary, WIDTH),
    POSITIONS: (LENGTH, WIDTH),
    **norm('deberta.embeddings.LayerNorm'),
    'deberta.encoder.rel_embeddings.weight': (2 * BUCKETS, WIDTH),
    **norm('deberta.encoder.LayerNorm'),
  }
  for i in range(layers):
    at = f'deberta.encoder.layer.{i}'
    for name in ('query', 'key', 'value'):
      out |= dense(f'{at}.attention.self.{name}_proj', WIDTH)
    out |= dense(f'{at}.attention.output.dense', WIDTH) | norm(f'{at}.attention.output.LayerNorm')
    out |= dense(f'{at}.intermediate.dense', FEED_FORWARD)
    out |= dense(f'{at}.output.dense', WIDTH, FEED_FORWARD) | norm(f'{at}.output.LayerNorm')
  for head in heads:
    out |= dense(f'{head}.dense', WIDTH) | norm(f'{head}.LayerNorm')
  if 'mask_predictions' in heads:
    out |= dense('mask_predictions.classifier', 1)
  if 'lm_predictions.lm_head' in heads:
    out['lm_predictions.lm_head.bias'] = (vocabulary,)
  return out


def random_tensors(named):
  make = lambda name, shape: DRAW.normal(
    1.0 if name.endswith('LayerNorm.weight') else 0.0, 0.1, shape
  ).astype(np.float32)
  return {name: torch.tensor(make(name, shape)) for name, shape in named.items()}


@pytest.fixture(scope='module')
def release(tmp_path_factory):
  """A folder as Microsoft releases V3: (path, {file: tensors})."""
  folder, spm = tmp_path_factory.mktemp('release'), tmp_path_factory.mktemp('spm')
  trained = tokenizers.train(
    deberta_v3.get_config('tiny').tokenizer.to_dict() | {'vocab_size': 300},
    lambda: iter(SAMPLE.read_text()[:60_000].split('\n\n')),
  )
  trained.save(spm)
  (folder / 'spm.model').write_bytes((spm / 'spiece.model').read_bytes())
  rows = trained.vocab_size + SPARE
  generator = random_tensors(shapes(1, rows, 'lm_predictions.lm_head'))
  discriminator = random_tensors(shapes(2, rows, 'mask_predictions', 'lm_predictions.lm_head'))
  discriminator[DELTA] = discriminator[WORDS] - generator[WORDS]
  torch.save(discriminator, folder / convert._WEIGHTS)
  torch.save(generator, folder / convert._GENERATOR)
  config = {**RELEASED, 'vocab_size': rows}
  (folder / 'config.json').write_text(json.dumps(config))
  return folder, {'discriminator': discriminator, 'generator': generator}


@pytest.fixture(scope='module')
def converted(release, tmp_path_factory):
  out = tmp_path_factory.mktemp('converted') / 'out'
  return out, convert.convert(str(release[0]), out)


def tensors_of(folder):
  return safetensors.numpy.load_file(folder / 'model.safetensors')


def same(a, b):
  assert a.keys() == b.keys()
  for name, x in a.items():
    np.testing.assert_array_equal(x, b[name], err_msg=name)


def test_every_tensor_of_the_pickles_is_written_and_strangers_are_named(release, converted):
  out, said = converted
  for name, tensors in release[1].items():
    same(tensors_of(out / name), {LEGACY.get(key, key): x.numpy() for key, x in tensors.items()})
  assert [line for line in said if 'DebertaV2' in line] == [
    f'{out}/discriminator: DebertaV2Model, 2 layers, {len(release[1]["discriminator"])} tensors',
    f'{out}/generator: DebertaV2ForMaskedLM, 1 layers, {len(release[1]["generator"])} tensors',
  ]
  strangers = {line.split()[0] for line in said if 'no network here' in line}
  assert strangers == {DELTA, *LEGACY.values()}  # of the discriminator
  for name in ('discriminator', 'generator'):
    assert (out / name / 'tokenizer.json').exists() and (out / name / 'spm.model').exists()
  assert vocabulary.read_folder(out / 'generator')['[MASK]'] == 299


def test_a_converted_generator_is_what_transformers_computes_with_it(converted):
  compare(converted[0] / 'generator', 'DebertaV2ForMaskedLM')
  bare = DELTA.removeprefix('deberta.')  # as transformers 4 names it
  compare(converted[0] / 'discriminator', 'DebertaV2Model', DELTA, bare, *LEGACY.values())


def compare(folder, name, *strangers):
  a, (params, report) = architectures.choose(name), hf.load(folder)
  words = hf.vocabulary_size(params)
  how = dict(initializer='normal', vocab_multiple=1, **report.encoder)
  encoder = encoders.BY_NAME[a.part](vocab_size=words, dtype=np.float32, **how)
  computed, batch = a.computes(encoder), verify.random_batch(words, LENGTH, 0, 0)
  ours = verify.our_logits(computed.encoder, params, batch)
  unread = (*computed.unread, *strangers)
  rows = verify.compare_logits(ours, verify.logits(folder, a, batch), batch['segment_ids'], unread)
  assert all(row.holds for row in rows), verify.table(rows)


class Command:
  def __reduce__(self):
    return os.system, ('true',)


def _gone(name):
  return lambda folder: (folder / name).unlink()


def _saved(content):
  return lambda folder: torch.save(content, folder / convert._WEIGHTS)


def _bytes(change):
  at = lambda folder: folder / convert._WEIGHTS
  return lambda folder: at(folder).write_bytes(change(at(folder).read_bytes()))


def _without_a_layer(folder):
  tensors = torch.load(folder / convert._GENERATOR, weights_only=True)
  del tensors['deberta.encoder.layer.0.output.dense.bias']
  tensors |= random_tensors({'deberta.encoder.layer.1.output.dense.bias': (WIDTH,)})
  torch.save(tensors, folder / convert._GENERATOR)


@pytest.mark.parametrize(
  'break_it, message',
  [
    (_gone(convert._WEIGHTS), 'has neither pytorch_model.bin nor .*ckpt'),
    (_bytes(lambda _: pickle.dumps({'x': Command()}, 2)), 'not a pickle of .*system.*can run code'),
    (_saved({'x': torch.zeros(2), 'epoch': 3}), "holds 'epoch' of type int"),
    (_saved(torch.zeros(2)), "holds 'an object' of type Tensor"),
    (_bytes(lambda data: data[: len(data) // 2]), 'pytorch_model.bin'),
    (_saved({'x.weight': torch.zeros(2)}), 'does not say its model_type'),
    (_without_a_layer, 'The checkpoint lacks'),
    (_gone('config.json'), 'config.json does not exist'),
  ],
)
def test_a_broken_release_is_refused_in_a_sentence(release, tmp_path, break_it, message):
  shutil.copytree(release[0], tmp_path / 'release')
  break_it(tmp_path / 'release')
  with pytest.raises(errors.UserError, match=message):
    convert.convert(str(tmp_path / 'release'), tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def test_a_pickle_in_parts_is_read_as_one(release, converted, tmp_path):
  shutil.copytree(release[0], tmp_path / 'release')
  (tmp_path / 'release' / convert._WEIGHTS).unlink()
  items = list(release[1]['discriminator'].items())
  parts = {f'pytorch_model-0000{n}-of-00002.bin': dict(items[n - 1 :: 2]) for n in (1, 2)}
  for name, own in parts.items():
    torch.save(own, tmp_path / 'release' / name)
  index = tmp_path / f'release/{convert._WEIGHTS}.index.json'
  index.write_text(json.dumps({'weight_map': {k: n for n, own in parts.items() for k in own}}))
  with pytest.raises(errors.UserError, match='bertzoo_jax.convert --model'):
    hf.load(tmp_path / 'release')
  convert.convert(str(tmp_path / 'release'), tmp_path / 'out')
  for name in ('discriminator', 'generator'):
    same(tensors_of(tmp_path / 'out' / name), tensors_of(converted[0] / name))
  index.write_text(json.dumps({'weight_map': {'x': '../pytorch_model.bin'}}))
  with pytest.raises(errors.UserError, match='does not name the files'):
    convert.convert(str(tmp_path / 'release'), tmp_path / 'again')


@pytest.mark.parametrize(
  'file, words',
  [
    ('pytorch_model-00001-of-00002.bin', r'pickles .*run python -m bertzoo_jax.convert --model'),
    ('bert_model.ckpt.index', r'TensorFlow checkpoint alone: run python -m bertzoo_jax.convert'),
    ('tf_model.h5', r'\*.h5 alone, .*with transformers 4.57, TensorFlow .*from_tf=True'),
    ('flax_model.msgpack', r'\*.msgpack alone, .*with transformers 4.57, flax .*from_flax=True'),
    ('README.md', 'no model.safetensors: .* run python -m bertzoo_jax.convert --model OWNER/NAME'),
  ],
)
def test_weights_in_files_that_are_not_read_are_refused_with_the_way_to_read_them(
  tmp_path, file, words
):
  (tmp_path / 'config.json').write_text('{"model_type": "bert"}')
  (tmp_path / file).touch()
  with pytest.raises(errors.UserError, match=words):
    hf.load(tmp_path)


def test_nothing_is_overwritten_and_torch_is_asked_for(release, tmp_path, monkeypatch):
  (tmp_path / 'out').mkdir()
  (tmp_path / 'out' / 'mine').write_text('x')
  with pytest.raises(errors.UserError, match='not empty'):
    convert.convert(str(release[0]), tmp_path / 'out')
  monkeypatch.setitem(sys.modules, 'torch', None)  # importing it fails
  with pytest.raises(errors.UserError, match='needs torch'):
    convert.convert(str(release[0]), tmp_path / 'else')
  with pytest.raises(errors.UserError, match='bertzoo_jax.convert --model'):
    hf.load(release[0])


def _first_version():
  """Shapes of the first version, which has queries, keys and values in one tensor."""
  named = shapes(1, 300, 'lm_predictions.lm_head')
  own = {name: shape for name, shape in named.items() if '_proj' not in name}
  own = {name: shape for name, shape in own.items() if 'encoder.LayerNorm' not in name}
  at = 'deberta.encoder.layer.0.attention.self'
  own['deberta.encoder.rel_embeddings.weight'] = (2 * LENGTH, WIDTH)
  own[f'{at}.in_proj.weight'] = (3 * WIDTH, WIDTH)
  own |= {f'{at}.{name}': (WIDTH,) for name in ('q_bias', 'v_bias', 'pos_q_proj.bias')}
  return own | {f'{at}.{name}.weight': (WIDTH, WIDTH) for name in ('pos_proj', 'pos_q_proj')}


@pytest.mark.parametrize('version', ['DebertaForMaskedLM', 'DebertaV2ForMaskedLM'])
def test_a_single_network_is_read_by_transformers(tmp_path, version):
  first = version == 'DebertaForMaskedLM'
  named = _first_version() if first else shapes(1, 300, 'lm_predictions.lm_head')
  torch.save(random_tensors(named), tmp_path / convert._WEIGHTS)
  content = {**RELEASED, 'num_hidden_layers': 1, 'vocab_size': 300}
  if first:
    content = {k: x for k, x in content.items() if k not in ('position_buckets', 'norm_rel_ebd')}
  (tmp_path / 'config.json').write_text(json.dumps(content))
  said = convert.convert(str(tmp_path), tmp_path / 'out')
  assert said[0].startswith(f'{tmp_path}/out: {version}, 1 layers')
  compare(tmp_path / 'out', version)
