import functools
import json
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small

import bertzoo_jax
from bertzoo_jax import export
from bertzoo_jax import pretrained
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from bertzoo_jax.objectives import networks
from bertzoo_jax.pretrained import loading
from configs import albert
from configs import bert
from configs import deberta
from configs import deberta_v3
from configs import electra
from configs import modernbert
from configs import roberta
from configs import xlnet
from tests.export import test_export as made

SIZES = dict(num_layers=2, hidden_size=32, num_heads=2, intermediate_size=48)
SIZED = {**SIZES, 'max_positions': 32}
FAMILIES = {  # config, sizes of the encoder
  'bert': (bert, SIZED),
  'roberta': (roberta, SIZED),
  'albert': (albert, SIZED),
  'electra': (electra, SIZED),
  'deberta': (deberta, {**SIZED, 'max_distance': 16}),
  'deberta_v3': (deberta_v3, {**SIZED, 'max_distance': 32, 'buckets': 8}),
  'xlnet': (xlnet, {**SIZES, 'memory_length': 8, 'reuse_length': 8}),
  'modern': (modernbert, SIZED),
  'left to right': (types.SimpleNamespace(get_config=lambda size: _causal(size)), SIZED),
}
_causal = lambda size: bert.get_config(f'{size},objective=left_to_right,masking=in_order')
PAIRS = ('electra', 'deberta_v3')
TEXTS = ['The time machine stood there.', '', ' '.join(['I looked at the traveller.'] * 3), 'Yes']


def make_run(folder, family):
  """A run of a family in `folder`; returns its parameters."""
  module, sizes = FAMILIES[family]
  config = module.get_config('tiny')
  config.unlock()
  config.phases = ((1000, {}),)
  config.tokenizer.vocab_size = 600
  if 'num_offsets' in config.objective:
    config.objective.num_offsets = 8
  return made.make_workdir(folder, config, sizes)


def written(run, out):
  verified = export._verify
  export._verify = lambda *_: None
  try:
    export.export(str(run), out)
  finally:
    export._verify = verified
  return out


@pytest.fixture(scope='module')
def places(tmp_path_factory):
  """family → (run, export), each made once."""

  @functools.cache
  def made(family):
    folder = tmp_path_factory.mktemp(family)
    (folder / 'run').mkdir()
    make_run(folder / 'run', family)
    return folder / 'run', written(folder / 'run', folder / 'hf')

  return made


@pytest.mark.parametrize('family', FAMILIES)
def test_every_address_of_a_family_opens_to_the_same_network(places, family):
  run, directory = places(family)
  first = pretrained.open(str(run))
  kept = weights.flatten(first.params)
  assert first.step == 7
  assert first.tokenizer_section['vocab_size'] == 600 and first.tokenizer_section['name']
  lone = [f'hf:{directory}/discriminator'] if family in PAIRS else []
  for address in (str(run), f'{run}@7', f'hf:{directory}', *lone):
    found = pretrained.open(address)
    assert ('replaced_head' in found.params) == (family in PAIRS)  # the discriminator
    flat = weights.flatten(found.params)
    lost = {path for path in kept.keys() - flat.keys() if path.split('/')[0] == 'encoder'}
    assert not lost and found.vocab_size == first.vocab_size == len(kept[weights.WORD_TABLE])
    for path in flat.keys() & kept.keys():
      np.testing.assert_array_equal(flat[path], kept[path], err_msg=path)
    assert found.section.keys() == first.section.keys() and found.shape == first.shape
    trained = {'dropout', 'attention_dropout', 'initializer', 'vocab_multiple'}
    trained |= {'memory_length', 'reuse_length', 'attention_output_dropout'}
    differing = {k for k in found.section if found.section[k] != first.section[k]}
    assert differing <= trained, differing
    assert (found.step is None) == address.startswith('hf:')
    assert architectures.choose(found.hf).model_type == architectures.choose(first.hf).model_type
    assert pretrained.encoder(found, dropout=0.0).num_layers == SIZES['num_layers']
    assert found.shape.padding == pretrained.encoder(found).padding_side


def test_an_address_by_revision_is_fetched_with_its_tokenizer(places, monkeypatch):
  hub = pytest.importorskip('huggingface_hub')
  asked = {}

  def fetch(name, revision, allow_patterns):
    asked.update(name=name, revision=revision, patterns=allow_patterns)
    return str(places('bert')[1])

  monkeypatch.setattr(hub, 'snapshot_download', fetch)
  found = pretrained.open('hf:someone/something@v2')
  assert (asked['name'], asked['revision']) == ('someone/something', 'v2')
  assert set(asked['patterns']) == set(pretrained.FILES)
  assert found.params.keys() == {'encoder', 'mlm_head', 'pair_head'}


NOWHERE = {'nowhere': 'has no checkpoint', 'hf:no/where/at/all': 'no folder here'}
NOWHERE |= {'a,b': 'several addresses', 'run@x': 'no checkpoint address'}
NOWHERE |= dict.fromkeys((None, b'run', 3), 'address of a network as text, not')


def test_an_address_without_a_network_is_one_sentence(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for address, words in NOWHERE.items():
    with pytest.raises(errors.UserError, match=words):
      bertzoo_jax.load(address)


@pytest.mark.parametrize('family', ['bert', 'deberta_v3', 'xlnet'])
def test_apply_gives_the_vectors_and_the_outputs_of_the_heads(places, family):
  model = bertzoo_jax.load(str(places(family)[0]))
  batch = verify.random_batch(600, 24, model.encoder.type_vocab_size, 0)
  out = jax.jit(model.apply)(model.params, batch)
  assert out['vectors'].shape == (4, 24, 32) and out['vectors'].dtype == jnp.float32
  heads = networks.predict(model.encoder, model.params, batch)
  assert out.keys() == {'vectors', *heads} and heads
  for name, x in heads.items():
    np.testing.assert_allclose(out[name], x, atol=2e-5)
  alone = model._compiled['none', False](model.params, batch)
  np.testing.assert_allclose(out['vectors'], alone, atol=1e-5)


def test_features_that_are_left_out_of_a_batch_are_those_of_one_text(places):
  model = bertzoo_jax.load(str(places('bert')[0]))
  ids = np.arange(20).reshape(2, 10)
  zeros, ones = np.zeros_like(ids), np.ones_like(ids)
  whole = model.apply(model.params, dict(input_ids=ids, token_type_ids=zeros, segment_ids=ones))
  assert small.worst(model.apply(model.params, dict(input_ids=ids)), whole) == 0


@pytest.mark.parametrize('family, types', [('bert', [0] * 6 + [1] * 4), ('xlnet', [0] * 9 + [2])])
def test_a_batch_with_the_names_of_before_is_refused(places, family, types):
  model = bertzoo_jax.load(str(places(family)[0]))
  ids, types = np.arange(10)[None], np.array([types])
  for old in (dict(segment_ids=types), dict(segment_ids=types, pack_ids=np.ones_like(ids))):
    with pytest.raises(errors.UserError, match='token_type_ids'):
      model.apply(model.params, dict(input_ids=ids, **old))


@pytest.mark.parametrize('changed', ['segment_ids', 'token_type_ids', 'input_ids'])
def test_rows_of_any_length_are_applied_from_numpy_arrays(places, changed, monkeypatch):
  model = bertzoo_jax.load(f'hf:{places("xlnet")[1]}')
  batch = {name: jnp.asarray(x) for name, x in verify.random_batch(600, 520, 2, 0).items()}
  given = {**batch, changed: np.asarray(batch[changed])}
  out = jax.eval_shape(lambda params: model.apply(params, given), model.params)
  assert out['vectors'].shape[1:] == (520, 32)


def test_three_lines_of_python_give_vectors(places):
  model = bertzoo_jax.load(f'hf:{places("bert")[1]}')
  vectors = model.encode(TEXTS)
  assert vectors.shape == (4, 32) and vectors.dtype == np.float32
  assert model.config['encoder']['num_layers'] == 2 and model.config['hf'] == 'BertForPreTraining'
  assert isinstance(model.tokenizer, tokenizers.published.Published)
  assert model.encode([]).shape == (0, 32) and model.encode([], 'none') == []
  for line in ("model = bertzoo_jax.load('run')", "vectors = model.encode(['A sentence."):
    assert line in bertzoo_jax.load.__doc__


@pytest.mark.parametrize('family, first', [('bert', 0), ('xlnet', -1)])
def test_vectors_are_pooled_in_order_and_do_not_depend_on_the_batch(places, family, first):
  model = bertzoo_jax.load(str(places(family)[0]))
  tokens, rows = model.encode(TEXTS, 'none'), model.rows(TEXTS)
  assert [len(x) for x in tokens] == [len(row.ids) for row in rows]
  assert rows[0].ids[first] == model.tokenizer.special['cls']
  for pooling, of in (('mean', lambda x: x.mean(0)), ('first', lambda x: x[first])):
    wanted = np.stack([of(x) for x in tokens])
    np.testing.assert_allclose(model.encode(TEXTS, pooling), wanted, atol=1e-5)
  texts = [*TEXTS, *TEXTS[::-1]]
  for pooling in loading.POOLING:
    whole = model.encode(texts, pooling)
    for text, x in zip(texts, whole):
      [alone] = model.encode([text], pooling, batch_size=1)
      np.testing.assert_allclose(x, alone, atol=1e-5)
    assert np.ptp([x.mean() for x in whole[:4]]) > 1e-3


@pytest.mark.parametrize('family, side', [('bert', 'right'), ('xlnet', 'left')])
def test_rows_are_padded_on_the_side_of_the_encoder(places, family, side):
  model = bertzoo_jax.load(str(places(family)[0]))
  batch = model._batch(model.rows(['The time machine', 'Yes']), 2)
  real = batch['segment_ids'] > 0
  assert (batch['input_ids'][~real] == model.tokenizer.special['pad']).all() and (~real).any()
  sides = {'left': real[:, -1], 'right': real[:, 0]}
  assert sides[side].all() and model.pretrained.shape.padding == side
  segments = batch['token_type_ids'][real]
  assert segments.max() == (2 if family == 'xlnet' else 0)


@pytest.mark.parametrize('family', ['bert', 'roberta', 'xlnet', 'deberta_v3'])
def test_rows_of_pairs_are_those_of_transformers(places, family):
  transformers = pytest.importorskip('transformers', reason='parity needs transformers')
  directory = places(family)[1]
  network = f'hf:{directory}'
  if family in PAIRS:
    directory = directory / 'discriminator'
  tokenizer = transformers.AutoTokenizer.from_pretrained(str(directory))
  long = 'I looked at the traveller. ' * 4
  pairs = [('The time machine', 'stood there.'), (long, 'Yes'), ('Yes', long), (long, long)]
  for length in (11, 24):
    rows = bertzoo_jax.load(network).rows([*pairs, 'alone'], length)
    for pair, row in zip([*pairs, ('alone',)], rows):
      wanted = tokenizer(*pair, truncation=True, max_length=length, return_token_type_ids=True)
      assert row.ids.tolist() == wanted['input_ids']
      segments = wanted['token_type_ids']
      assert row.segments.tolist() == (segments if family != 'roberta' else [0] * len(segments))
      assert row.cut == (len(tokenizer(*pair)['input_ids']) > length)
    assert {*zip(rows[0].starts, rows[0].ends)} >= {(-1, -1), (0, 3)}


NO_LIST, NO_TEXT = 'list of texts', r'texts\[{}\] is '
REFUSED = [  # texts, settings, words
  *((x, {}, NO_LIST) for x in ('a text', None, b'a text')),
  *((x, {}, NO_TEXT.format(0)) for x in ([None], [('a', None)], [('a', 'b', 'c')], [()])),
  (['a', 3], {}, NO_TEXT.format(1)),
  (['a', None], {}, r"texts\[1\] is 'None' of type NoneType"),
  ([3.0], {}, r"texts\[0\] is '3.0' of type float"),
  (TEXTS, dict(max_length=33), 'takes at most 32'),
  (TEXTS, dict(max_length=2), 'no room beside the 2 special'),
  (TEXTS, dict(pooling='max'), 'No pooling'),
]


def test_long_texts_are_cut_and_lengths_that_cannot_be_are_one_sentence(places):
  model = bertzoo_jax.load(str(places('bert')[0]))
  rows = model.rows(TEXTS, 8)
  assert [len(row.ids) for row in rows] == [8, 2, 8, 4] and rows[0].cut and not rows[3].cut
  assert [row.ids[-1] for row in rows] == [model.tokenizer.special['sep']] * 4
  assert max(len(row.ids) for row in model.rows(['a b ' * 99])) == model.max_length == 32
  for texts, settings, words in REFUSED:
    with pytest.raises(errors.UserError, match=words):
      model.encode(texts, **settings)
  again = bertzoo_jax.load(places('bert')[0])  # a pathlib.Path
  assert again.pretrained.address == model.pretrained.address


def test_few_programs_are_compiled_for_texts_of_many_lengths(places):
  model = bertzoo_jax.load(str(places('bert')[0]))
  model.encode(['time ' * n for n in range(1, 29)] * 4, batch_size=4)
  assert model._compiled['mean', False]._cache_size() <= 2  # 16 and 32 tokens


def test_a_tokenizer_of_other_weights_is_refused(places, tmp_path):
  run, directory = places('bert')
  shutil.copytree(directory, tmp_path / 'hf')
  tokenizer = json.loads((tmp_path / 'hf' / 'tokenizer.json').read_text())
  tokenizer['added_tokens'].append({**tokenizer['added_tokens'][0], 'id': 600, 'content': '[NEW]'})
  (tmp_path / 'hf' / 'tokenizer.json').write_text(json.dumps(tokenizer))
  model = bertzoo_jax.load(f'hf:{tmp_path}/hf')
  with pytest.raises(errors.UserError, match='601 pieces and the word table'):
    model.encode(TEXTS)


@pytest.mark.parametrize('family', FAMILIES)
def test_vectors_are_those_of_transformers(places, family):
  """Vectors of the base model of an export, at tokens that are no padding."""
  transformers = pytest.importorskip('transformers', reason='parity needs transformers')
  torch = pytest.importorskip('torch', reason='parity needs torch')
  run, directory = places(family)
  directory = directory / 'discriminator' if family in PAIRS else directory
  transformers.utils.logging.set_verbosity_error()
  tokenizer = transformers.AutoTokenizer.from_pretrained(str(directory))
  network = transformers.AutoModel.from_pretrained(str(directory)).float().eval()
  inputs = tokenizer(TEXTS, padding=True, truncation=True, max_length=32, return_tensors='pt')
  with torch.no_grad():
    hidden = network(**inputs).last_hidden_state
  mask = inputs['attention_mask'][..., None].float()
  wanted = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
  for address in (str(run), f'hf:{directory}'):
    model = bertzoo_jax.load(address)
    np.testing.assert_allclose(model.encode(TEXTS, max_length=32), wanted, atol=1e-5)
    real = inputs['attention_mask'].bool()
    for x, own, theirs in zip(model.encode(TEXTS, 'none', max_length=32), real, hidden):
      np.testing.assert_allclose(x, theirs[own].numpy(), atol=2e-5)
