import types

import jax
import numpy as np
import pytest
import small_networks as small
from flax import traverse_util

from bertzoo_jax import hf
from bertzoo_jax import parts
from bertzoo_jax import pretrained
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.pretrained import initial_weights
from bertzoo_jax.tokenizers import kinds

WORDS = 'encoder/embeddings/word/embedding'
POSITIONS = 'encoder/embeddings/position/embedding'


def flat(tree):
  return traverse_util.flatten_dict(tree, sep='/')


def disentangled(shared):
  """Replaced token detection. 'added': the discriminator reads E_G + Δ (He et al. 2021 §3.3)."""
  pair = dict(width=1.0, depth=0.34, shared=shared, head='token_and_row')
  return small.objective('replaced_token', **small.DISENTANGLED, **pair)


def directories(monkeypatch, params):
  """Lets hf:NAME be a directory with these parameters. params: {name: parameters}."""
  report = hf.Report('a directory', 'SomeClass', {}, ())
  monkeypatch.setattr(pretrained, 'directory', lambda address: address.removeprefix('hf:'))
  monkeypatch.setattr(initial_weights.hf, 'load', lambda folder, *_: (params[folder], report))


@pytest.mark.parametrize('whose', [('d', 'g'), ('d',)])
@pytest.mark.parametrize('shared', ['added', 'none'])
def test_the_parameter_of_a_sum_is_what_makes_the_sum_the_loaded_array(shared, whose, monkeypatch):
  objective = disentangled(shared)
  fresh = small.parameters(objective, seed=1)
  trained = small.parameters(objective, seed=2)
  found = dict(zip('dg', (network.extract(trained) for network in objective.networks)))
  directories(monkeypatch, found)
  monkeypatch.setattr(initial_weights, 'check_vocabulary', lambda *_: None)
  addresses = ','.join(f'hf:{name}' for name in whose)
  params, _ = initial_weights.parameters(fresh, addresses, objective, None)
  lent = objective.networks[0].places(fresh).get(POSITIONS) == f'generator/{POSITIONS}'
  for name, network in zip('dg', objective.networks):
    ours, theirs = network.extract(params), found[name] if name in whose else network.extract(fresh)
    for path, x in flat(theirs).items():
      if lent and 'g' not in whose and name == 'g' and path == POSITIONS:
        x = flat(found['d'])[path]  # the discriminator's file has it too
      np.testing.assert_allclose(flat(ours)[path], x, atol=1e-6, err_msg=path)
  assert jax.tree.structure(params) == jax.tree.structure(fresh)


@pytest.mark.parametrize('theirs, ours', [('none', 'added'), ('added', 'none'), ('token', 'added')])
def test_a_run_that_shares_word_vectors_in_another_way_gives_what_its_networks_read(
  theirs, ours, monkeypatch
):
  run, objective = disentangled(theirs), disentangled(ours)
  trained, fresh = small.parameters(run, seed=2), small.parameters(objective, seed=1)
  own = {'name': 'replaced_token'}
  config = types.SimpleNamespace(encoder={}, hf='DebertaV2Model', objective=own)
  opened = pretrained.Run(trained, 5, 'W', config, run.networks)
  monkeypatch.setattr(pretrained, 'open_run', lambda _: opened)
  params, _ = initial_weights.parameters(fresh, 'W', objective, None)
  for their, our in zip(run.networks, objective.networks):
    if ours == 'token' and our.name == 'generator':
      continue  # it has the discriminator's word vectors
    read, wanted = flat(our.extract(params)), flat(their.extract(trained))
    for path in read.keys() & wanted.keys():
      np.testing.assert_allclose(read[path], wanted[path], atol=1e-6, err_msg=path)


def test_pieces_behind_those_of_the_run_are_no_other_vocabulary(tmp_path):
  ours, theirs = (tmp_path / name for name in ('ours', 'theirs'))
  for folder in (ours, theirs):
    folder.mkdir()
    (folder / 'vocab.txt').write_text('a\nb\n')
  check = lambda: initial_weights.check_vocabulary('hf:D', theirs, ours)
  for text in ('a\nb\n\n', 'a\nb\n[E1]\n', 'a\nb\n[E1]\ncovid\n'):
    (theirs / 'vocab.txt').write_text(text)
    assert check(), text
  for text in ('b\na\n', '[E1]\na\nb\n', 'a\n'):
    (theirs / 'vocab.txt').write_text(text)
    with pytest.raises(errors.UserError, match='another vocabulary.*--tokenizer hf:D'):
      check()


def test_rows_of_words_without_a_piece_are_left_out_only_where_the_pieces_are_the_same(
  tmp_path, monkeypatch
):
  objective = small.objective('mlm')
  fresh = small.parameters(objective, seed=1)
  trained = small.parameters(objective, seed=2)
  flat_trained = flat(trained)
  for path in (WORDS, 'mlm_head/bias'):
    spare = np.ones((3, *flat_trained[path].shape[1:]), np.float32)
    flat_trained[path] = np.concatenate([flat_trained[path], spare])
  found = traverse_util.unflatten_dict(flat_trained, sep='/')
  report = hf.Report('a directory', 'SomeClass', {}, ())
  monkeypatch.setattr(initial_weights, '_weights', lambda *_: (found, report, tmp_path, False))
  with pytest.raises(errors.UserError, match=r'word/embedding is \(101, 48\) here and \(104, 48\)'):
    initial_weights.parameters(fresh, 'a', objective, None)
  (tmp_path / 'vocab.txt').write_text('a\nb\n')
  params, lines = initial_weights.parameters(fresh, 'a', objective, tmp_path)
  assert small.worst(params, trained) == 0
  assert "words: the first 101 of the checkpoint's 104 rows were loaded" in '\n'.join(lines)


def words_of(count, order):
  """A WordPiece vocabulary of `count` pieces, words in the given order."""
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *[f'w{i}' for i in order]]
  section = dict(parts.wordpiece(vocab_size=count))
  return tokenizers.Tokenizer(section, kinds.Vocabulary(pieces[:count]))


@pytest.mark.parametrize('shared', ['added', 'none'])
def test_each_network_reads_the_carried_rows_of_the_table_that_it_read(shared, monkeypatch):
  objective, before = disentangled(shared), 90
  fresh, trained = (small.parameters(objective, seed=seed) for seed in (1, 2))
  folders = {name: words_of(before, range(200)) for name in 'dg'}
  folders['ours'] = words_of(101, range(150, 0, -1))
  found = {}
  for name, network in zip('dg', objective.networks):
    params = flat(network.extract(trained))
    own = {p: x[:before] if p in (WORDS, 'mlm_head/bias') else x for p, x in params.items()}
    found[name] = traverse_util.unflatten_dict(own, sep='/')
  directories(monkeypatch, found)
  monkeypatch.setattr(initial_weights.tokenizers, 'open_folder', folders.get)
  params, lines = initial_weights.parameters(fresh, 'hf:d,hf:g', objective, 'ours', carry=True)
  assert sum('vocabulary: of 101 pieces 35 have the row of one old piece' in x for x in lines) == 2
  for name, network in zip('dg', objective.networks):
    read, old = flat(network.extract(params)), flat(found[name])
    mean = old[WORDS].mean(axis=0)
    for i, piece in enumerate(folders['ours'].pieces):
      row = old[WORDS][folders[name].pieces.index(piece)] if piece in folders[name].pieces else mean
      np.testing.assert_allclose(read[WORDS][i], row, atol=1e-6, err_msg=piece)
    assert len(read['mlm_head/bias']) == 101 if 'mlm_head/bias' in read else name == 'd'
