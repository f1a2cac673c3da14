import types

import jax
import numpy as np
import pytest
import small_networks as small

import bertzoo_jax
from bertzoo_jax import hf
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.pretrained import initial_weights
from tests import tuned
from tests.export import test_export_row_heads as rows
from tests.pretrained import test_loading as loading

DEEP = 6


def of_depth(num_layers, **fields):
  return parts.transformer(max_positions=160, **{**rows.SIZES, 'num_layers': num_layers, **fields})


def classifier(num_layers, **fields):
  encoder = small.encoder(vocab_size=600, section=of_depth(num_layers, **fields))
  return rows.classes(encoder, 'tanh', ('a', 'b'))


@pytest.fixture(scope='module')
def deep(tmp_path_factory):
  """(workdir of a network of six layers, its parameters)."""
  folder = tmp_path_factory.mktemp('deep')
  return folder, rows.pretrained(folder, of_depth(DEEP))[1]


@pytest.mark.parametrize(
  'words, numbers, as_directory',
  [('first:3', [0, 1, 2], False), ('every:2', [0, 2, 4], True), ('1,5', [1, 5], False)],
)
def test_the_layers_that_are_said_are_taken(deep, tmp_path, words, numbers, as_directory):
  address, theirs = str(deep[0]), deep[1]['encoder']
  if as_directory:
    address = f'hf:{loading.written(address, tmp_path / "hf")}'
  made = classifier(len(numbers))
  params, lines = initial_weights.parameters(
    small.parameters(made), address, made, deep[0] / 'tokenizer', layers=words
  )
  ours = params['encoder']
  taken = jax.tree.map(lambda x: x[np.array(numbers)], theirs['layers'])
  assert small.worst(ours['layers'], taken) == 0
  assert small.worst(ours['embeddings'], theirs['embeddings']) == 0
  said = f'layers: {", ".join(map(str, numbers))} (from 0) of the 6 of'
  assert any(said in line for line in lines)
  assert not any('num_layers' in line for line in lines)


def test_layers_that_all_share_stay_one(tmp_path):
  _, theirs = rows.pretrained(tmp_path, of_depth(DEEP, sharing='all'))
  made = classifier(2, sharing='all')
  fresh = small.parameters(made)
  params, _ = initial_weights.parameters(fresh, str(tmp_path), made, None, layers='first:2')
  assert small.worst(params['encoder'], theirs['encoder']) == 0


@pytest.mark.parametrize(
  'words, said',
  [
    ('last:3', 'write first:3, every:4'),
    ('first:x', 'write first:3, every:4'),
    ('every:0', 'write first:3, every:4'),
    ('first:0', 'write first:3, every:4'),
    ('first:7', 'have 6 layers'),
    ('2,1', 'from 0 to 5 in order, each at most once'),
    ('5,6', 'from 0 to 5 in order, each at most once'),
    ('first:3', 'selects 3 layers of 6, but the network has 2'),
  ],
)
def test_words_that_name_no_layers_are_one_sentence(deep, words, said):
  made = classifier(2)
  with pytest.raises(errors.UserError, match=said):
    initial_weights.parameters(small.parameters(made), str(deep[0]), made, None, layers=words)


def test_layers_that_share_in_groups_are_not_taken_apart():
  loaded = {'encoder': {'layers': {'kernel': np.zeros((2, 3))}}}
  report = hf.Report('W', '', {'num_layers': DEEP}, ())
  with pytest.raises(errors.UserError, match='share parameters in groups'):
    initial_weights._shallower(loaded, report, 'every:2', types.SimpleNamespace(num_layers=3))


@pytest.mark.parametrize(
  'words, every, changed',
  [
    ('1,2', 3, ['layer 1 was local and is global now, as layer 0: take first:2']),
    ('every:3', 3, ['layer 3 was global and is local now, as layer 1']),
    ('first:2', 3, []),
    ('1,2', 1, []),
    ('0,2', 2, ['layer 2 was global and is local']),
  ],
)
def test_layers_that_become_local_or_global_are_named(words, every, changed):
  fields = dict(global_every=every, window=16)
  report = hf.Report('W', '', dict(num_layers=DEEP, **fields), ())
  loaded = {'encoder': {'layers': {'kernel': np.zeros((DEEP, 3))}}}
  encoder = types.SimpleNamespace(num_layers=2, **fields)
  lines = initial_weights._shallower(loaded, report, words, encoder)[2][1:]
  assert len(lines) == len(changed) and all(c in x for c, x in zip(changed, lines))


def test_a_fine_tuning_of_fewer_layers_has_so_many(tmp_path, capsys):
  world = tuned.world(tmp_path, 'bert')
  tuned.finetune(world, tmp_path / 'f', tuned.config(steps=2, init_layers='first:1'))
  assert 'layers: 0 (from 0) of the 2 of' in capsys.readouterr().out
  model = bertzoo_jax.load(tmp_path / 'f')
  assert model.encoder.num_layers == 1 and model.predict(['the traveller'])
