"""evaluate from the outside: three sets of rows, scored as a direct computation over the same
batches scores them.
"""

import json
import pathlib
import shutil
import types

import jax
import ml_collections
import numpy as np
import pytest
import small_corpora
import small_networks as small

from bertzoo_jax import parts
from bertzoo_jax import prepare
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.evaluate import __main__ as command
from bertzoo_jax.evaluate import held_out
from bertzoo_jax.evaluate import scores
from bertzoo_jax.objectives import probe
from bertzoo_jax.training import phase_run

pytestmark = pytest.mark.filterwarnings('ignore:Split')  # few rows, of long sentences
ROOT = pathlib.Path(__file__).parents[2]
LENGTH, BATCH, BATCHES, VOCAB = 64, 8, 3, 600
SIZES = dict(num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32, max_positions=LENGTH)


def config(**changes):
  text = dict(tokenizer=parts.wordpiece(vocab_size=VOCAB), corpus=parts.corpus(held_out=0.25))
  text |= dict(format=parts.segment_pairs(pairs='sop', lone_sentences='skip'))
  text |= dict(masking=parts.token(), length=LENGTH, batch_size=BATCH)
  network = dict(encoder=parts.transformer(**SIZES), objective=parts.mlm_pair())
  learned = dict(optimizer=parts.adamw_uncorrected(), schedule=parts.linear_from_start(warmup=3))
  made = dict(text, **network, **learned, phases=((100, {}),), run=parts.run())
  made |= dict(hf='BertForPreTraining')
  return ml_collections.ConfigDict(parts.experiment(**{**made, **changes})).lock()


def rows(corpus, pairs='', batches=BATCHES, made=None, split='held_out'):
  """Batches of `pairs`, or of the config's own format."""
  made = made or config()
  form = held_out.segment_pairs(pairs) if pairs else made.format
  return held_out.rows_of(corpora.open(corpus), made, form, split, batches)


def encoder_of(**changes):
  return small.encoder(vocab_size=VOCAB, **SIZES, **changes)


def make_corpus(folder, made):
  words = (ROOT / 'data/sample/time_machine.txt').read_text().split()[1000:]
  documents = [' '.join(words[i : i + 120]) for i in range(0, 9600, 120)]
  (folder / 'text.txt').write_text('\n\n'.join(documents))
  text, out = [str(folder / 'text.txt')], str(folder / 'corpus')
  prepare.prepare(made, text, out, workers=1, say=lambda line: None)
  return folder / 'corpus'


def corpus_with(folder, corpus, **changes):
  """A copy of a corpus with other entries in its manifest."""
  shutil.copytree(corpus, folder)
  small_corpora.seal(folder, {**corpora.read_manifest(corpus), **changes})
  return str(folder)


def make_workdir(path, made, corpus):
  """A workdir as a run leaves it at step 7, with perturbed weights; returns the weights."""
  shutil.copytree(corpus / 'tokenizer', path / 'tokenizer')
  (path / 'config.json').write_text(configuration.to_json(made))
  (path / 'corpus.json').write_text(json.dumps({'hash': corpora.read_manifest(corpus)['hash']}))
  params = small.parameters(small.objective(made.objective.name, vocab_size=VOCAB, **SIZES))
  if 'pair_head' in params:
    params['pair_head'] = pair_head(params, corpus)
  small.save(path, params, step=7)
  return params


def pair_head(params, corpus):
  """A head that says 0 of some rows and 1 of others."""
  first = np.concatenate([hidden(params, b)[:, 0] for b in rows(corpus)])
  kernel = np.eye(first.shape[1], dtype=np.float32) / first.std()
  classes = np.random.default_rng(0).normal(size=(first.shape[1], 2)).astype(np.float32)
  bias = (-np.median(first, axis=0) @ kernel).astype(np.float32)
  classifier = {'kernel': classes, 'bias': np.zeros(2, np.float32)}
  return {'pooler': {'kernel': kernel, 'bias': bias}, 'classifier': classifier}


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return make_corpus(tmp_path_factory.mktemp('text'), config())


@pytest.fixture(scope='module')
def run(corpus, tmp_path_factory):
  """(workdir, weights) of a network with a pair head."""
  path = tmp_path_factory.mktemp('run')
  return path, make_workdir(path, config(), corpus)


@pytest.fixture(scope='module')
def found(run, corpus):
  return scores.evaluate(str(run[0]), str(corpus), batches=BATCHES)


def by_rows(evaluation):
  return {(s.network, s.rows, s.measure): s for s in evaluation.scores}


@jax.jit
def encoded(params, batch):
  return encoder_of().apply({'params': params['encoder']}, batch)


def hidden(params, batch):
  return np.asarray(encoded(params, batch), np.float64)


def dense(params, x):
  kernel = params['kernel']
  return x @ kernel.reshape(x.shape[-1], -1) + params['bias'].reshape(-1)


def test_a_pair_head_scores_what_numpy_computes_over_the_same_rows(run, corpus, found):
  head = run[1]['pair_head']
  for pairs in ('nsp', 'sop'):
    batches = rows(corpus, pairs)
    labels = np.concatenate([b['pair_labels'] for b in batches])
    pooled = [np.tanh(dense(head['pooler'], hidden(run[1], b)[:, 0])) for b in batches]
    said = np.argmax(dense(head['classifier'], np.concatenate(pooled)), axis=1)
    right = np.mean(said == labels)
    score = by_rows(found)['network', pairs, 'accuracy']
    assert (score.value, score.count, score.how) == (right, BATCHES * BATCH, 'head')
    assert len(labels) == BATCHES * BATCH and score.base_rate == labels.mean()
    assert 0.2 < score.base_rate < 0.8 and 0.2 < said.mean() < 0.8
    np.testing.assert_allclose(score.standard_error, np.sqrt(right * (1 - right) / len(labels)))


def test_masked_tokens_score_what_numpy_computes_over_the_same_rows(run, corpus, found):
  losses, right = [], []
  for b in rows(corpus):
    states = hidden(run[1], b).astype(np.float32)
    logits = scores.networks.vocabulary_logits(encoder_of(), run[1], states)
    logits = np.asarray(logits, np.float64)
    for row, positions in enumerate(b['masked_positions']):
      for at, target, weight in zip(positions, b['masked_targets'][row], b['masked_weights'][row]):
        if weight:
          losses.append(np.log(np.exp(logits[row, at]).sum()) - logits[row, at, target])
          right.append(logits[row, at].argmax() == target)
  accuracy, loss = (by_rows(found)['network', 'mlm', m] for m in ('accuracy', 'loss'))
  assert (accuracy.value, accuracy.count) == (np.mean(right), len(right))
  assert accuracy.num_rows == BATCHES * BATCH
  error = np.std(losses) / np.sqrt(len(losses))
  np.testing.assert_allclose([loss.value, loss.standard_error], [np.mean(losses), error], rtol=1e-4)


def test_masked_tokens_of_another_run_s_masking_are_scored_on_its_rows(
  run, corpus, found, tmp_path
):
  other = config(masking=parts.token(rate=0.4))
  make_workdir(tmp_path, other, corpus)
  under_it = scores.evaluate(str(run[0]), str(corpus), batches=BATCHES, masking_of=str(tmp_path))
  own, theirs = by_rows(found), by_rows(under_it)
  count = sum(int(b['masked_weights'].sum()) for b in rows(corpus, made=other))
  score = theirs['network', 'mlm', 'accuracy']
  assert score.count == count > 2 * own['network', 'mlm', 'accuracy'].count
  assert theirs['network', 'nsp', 'accuracy'] == own['network', 'nsp', 'accuracy']
  ordered = config(masking=parts.permutation(num_predictions=4))
  with pytest.raises(errors.UserError, match='an order in which tokens are predicted'):
    (tmp_path / 'config.json').write_text(configuration.to_json(ordered))
    scores.evaluate(str(run[0]), str(corpus), batches=BATCHES, masking_of=str(tmp_path))


def test_held_out_accuracy_and_bits_per_byte_count_no_special_token(corpus):
  masking = parts.token(rounding='random', maskable='all_but_padding')
  made = config(masking=masking, format=parts.full_sentences(), objective=parts.mlm())
  opened = corpora.open(corpus)
  batches = rows(corpus, made=made, batches=1000)
  objective = small.objective('mlm', vocab_size=VOCAB, **SIZES)
  # says <cls> and <sep> everywhere, and all other tokens alike
  params = jax.tree.map(np.zeros_like, small.parameters(objective))
  frame = [opened.special['cls'], opened.special['sep']]
  params['mlm_head']['bias'][frame] = 3.0
  accuracy, loss, *places = scores.masked_scores('network', encoder_of(), params, batches)
  nats = np.log(VOCAB - 2 + 2 * np.exp(3.0))
  others = sum((~np.isin(b['masked_targets'], frame) * b['masked_weights']).sum() for b in batches)
  assert (accuracy.value, accuracy.count) == (0.0, others)
  assert abs(loss.value - nats) < 1e-5
  assert [s.places for s in places] == [(8 * i + 1, 8 * i + 8) for i in range(8)]
  assert sum(s.count for s in places) == loss.count
  shifted = [{**b, 'masked_positions': b['masked_positions'] - 1} for b in batches]
  ahead = scores.masked_scores('network', encoder_of(), params, shifted, ahead=True)[2:]
  assert [(s.places, s.count) for s in ahead] == [(s.places, s.count) for s in places]
  split = opened.manifest['splits']['held_out']
  total = phase_run.bits_per_byte(loss.value, split['tokens'] / split['bytes'])
  tokens = opened.splits['held_out'].gather(np.arange(split['tokens']))
  assert not np.isin(tokens, frame).any()  # the text that bits are counted over has none either
  assert abs(total - nats / np.log(2) * len(tokens) / split['bytes']) < 1e-5


def test_rows_of_one_set_are_there_once_also_where_they_are_few(corpus):
  few = rows(corpus, 'sop', 1, config(batch_size=4096))
  ids = np.concatenate([b['input_ids'] for b in few])
  assert len(few) == 1 and 16 < len(ids) < 4096 and len(np.unique(ids, axis=0)) == len(ids)
  train = [len(rows(corpus, 'sop', n, split='train')) for n in (2, 1000)]
  assert train[0] == 2 and 10 < train[1] < 100  # an epoch, and no row twice


def run_command(**values):
  """Runs the command with these flags; those that are not named are as without them."""
  none = 'corpus minimal_pairs similarity columns retrieval score_by gaps require cache_dir'
  none = f'{none} babylm glue submission'.split()
  usual = dict.fromkeys([*none, 'json', 'masking_of']) | dict(draw=0, top=0, group_by='')
  values = {k: str(v) if isinstance(v, pathlib.Path) else v for k, v in values.items()}
  command.main(types.SimpleNamespace(**{**usual, 'batches': BATCHES, **values}))


def test_the_same_command_gives_the_same_numbers_a_table_and_json(
  run, corpus, found, monkeypatch, tmp_path, capsys
):
  asked = dict(workdir=f'{run[0]}@7', corpus=[str(corpus)], json=tmp_path / 'new/scores.json')
  run_command(**asked)
  said = capsys.readouterr().out
  assert scores.table(found) in said and 'at step 7' in said
  lines = said.splitlines()[1:]
  assert len(lines) == 9 and lines[8].startswith("note: Split 'held_out': 12.6% of the tokens")
  assert lines[1].startswith('network  mlm 24')
  assert lines[3].startswith('network  nsp 24') and lines[3].endswith('head')
  assert json.loads(asked['json'].read_text()) == json.loads(scores.to_json(found))
  with pytest.raises(errors.UserError, match='not overwritten'):
    run_command(**asked)
  with pytest.raises(errors.UserError, match='--json and --submission name one file'):
    run_command(workdir=str(run[0]), babylm='data', json='scores', submission='scores')
  # of several corpora all are checked before the first is scored
  monkeypatch.setattr(scores, 'evaluate', None)
  with pytest.raises(errors.UserError, match='No corpus at .*/none'):
    run_command(workdir=f'{run[0]}@7', corpus=[str(corpus), str(tmp_path / 'none')])


def test_networks_without_a_pair_head_get_a_linear_probe_each(corpus, tmp_path):
  made = config(objective=parts.replaced_token(), format=parts.full_sentences())
  make_workdir(tmp_path, made, corpus)  # two networks, of which one has a vocabulary head
  found = scores.evaluate(str(tmp_path), str(corpus), batches=BATCHES)
  assert [f'{s.network} {s.rows}' for s in found.scores] == [
    *('discriminator nsp', 'discriminator sop'),
    *('generator mlm', 'generator mlm', 'generator nsp', 'generator sop'),
  ]
  for s in found.scores:
    how = ('head', None) if s.rows == 'mlm' else ('linear probe', BATCHES * BATCH)
    assert (s.how, s.fitted_rows) == how
  assert scores.table(found).count('linear probe on 24 train rows') == 4


def test_rows_come_back_once_and_in_order_and_a_network_that_never_saw_a_mask_reads_none(
  run, corpus, monkeypatch
):
  batches = rows(corpus, 'sop', 2)
  assert (batches[0]['input_ids'] == corpora.open(corpus).special['mask']).any()
  own, encoder = {'encoder': run[1]['encoder']}, encoder_of()
  masked = np.concatenate([hidden(own, b)[:, 0] for b in batches])
  read = [{**b, 'input_ids': small.with_targets(b)} for b in batches]
  plain = np.concatenate([hidden(own, b)[:, 0] for b in read])
  monkeypatch.setattr(scores, '_ROWS', 3)
  for params, expected in ((own, plain), ({**own, 'mlm_head': {}}, masked)):
    np.testing.assert_allclose(scores.row_vectors(encoder, params, batches), expected, atol=1e-5)
  assert np.abs(masked - plain).max() > 1e-3 and len(plain) == 2 * BATCH
  # of one segment both texts are read
  encoder = encoder_of(type_vocab_size=1)
  params = small.parameters(small.objective('mlm', vocab_size=VOCAB, **SIZES, type_vocab_size=1))
  assert np.isfinite(scores.row_vectors(encoder, params, batches[:1])).all()


def test_the_classifier_stands_last_where_a_network_reads_it_there(corpus):
  [before] = batches = rows(corpus, 'sop', 1)
  special = corpora.open(corpus).special
  after = scores._classifier_last({**before, 'order': before['input_ids']})
  for r, real in enumerate((before['segment_ids'] > 0).sum(axis=1)):
    row = before['input_ids'][r]
    assert row[0] == special['cls'] and after['token_type_ids'][r, real - 1] == 2
    expected = np.concatenate([row[1:real], row[:1], row[real:]])
    np.testing.assert_array_equal(after['input_ids'][r], expected)
    segments = after['token_type_ids'][r, : real - 1]
    np.testing.assert_array_equal(segments, before['token_type_ids'][r, 1:real])
    chosen = before['masked_weights'][r] > 0
    now, once = (x['masked_positions'][r, chosen] for x in (after, before))
    np.testing.assert_array_equal(expected[now], row[once])
  assert 'order' not in after and len(np.unique((before['segment_ids'] > 0).sum(axis=1))) > 1
  objective = small.objective('memory_mlm', vocab_size=VOCAB)
  encoder, params = objective.networks[0].encoder, small.parameters(objective)
  found = scores.row_vectors(encoder, params, batches)
  hidden_BLD = np.asarray(encoder.apply({'params': params['encoder']}, after))
  last = (before['segment_ids'] > 0).sum(axis=1) - 1
  np.testing.assert_allclose(found, hidden_BLD[np.arange(len(last)), last], atol=1e-5)


def test_a_probe_tells_separable_vectors_and_nothing_else():
  rng = np.random.default_rng(0)
  labels = rng.integers(0, 2, 1000)
  noise = 50 + 10 * rng.normal(size=(1000, 20))
  apart = noise.copy()
  apart[:, 3] += 100 * labels
  for vectors, low, high in ((apart, 0.99, 1.0), (noise, 0.4, 0.6)):
    fitted = probe.fit(vectors[:600], labels[:600])
    assert low <= np.mean(fitted.predict(vectors[600:]) == labels[600:]) <= high
  assert (probe.fit(apart, np.ones(1000)).predict(apart) == 1).all()
  with pytest.raises(ValueError, match='one label a vector'):
    probe.fit(apart, labels[:-1])


def test_text_that_was_not_split_has_masked_tokens_only_and_unheld_text_is_refused(
  run, corpus, tmp_path
):
  unsplit = corpus_with(tmp_path / 'unsplit', corpus, splitter='none')
  made = config(objective=parts.mlm(), format=parts.full_sentences())
  make_workdir(tmp_path / 'run', made, corpus)
  found = scores.evaluate(str(tmp_path / 'run'), unsplit, batches=1)
  assert {s.rows for s in found.scores} == {'mlm'}
  said = scores.table(found)
  assert 'note: nsp rows are left out. The corpus was not split' in said
  assert 'note: sop rows' in said
  splits = corpora.read_manifest(corpus)['splits']
  none = dict(documents=0, sentences=0, tokens=0, bytes=0, shards=[])
  unheld = corpus_with(tmp_path / 'unheld', corpus, splits={**splits, 'held_out': none})
  with pytest.raises(errors.UserError, match='no held-out text'):
    scores.evaluate(str(run[0]), unheld)
  with pytest.raises(errors.UserError, match='--batches is 0'):
    scores.evaluate(str(run[0]), str(corpus), batches=0)


def test_another_vocabulary_is_refused_and_other_text_remarked_on(run, corpus, found, tmp_path):
  other = tmp_path / 'other'
  shutil.copytree(run[0], other)
  (other / 'corpus.json').write_text(json.dumps({'hash': 'c0ffee'}))
  of_run = json.loads((other / 'config.json').read_text())
  of_run['corpus']['held_out'] = 0.01
  (other / 'config.json').write_text(json.dumps(of_run))
  again = scores.evaluate(str(other), str(corpus), batches=BATCHES)
  assert again.scores == found.scores and again.notes[1:] == found.notes
  assert 'trained on the corpus c0ffee' in again.notes[0]
  tokenizer = other / 'tokenizer' / 'tokenizer.json'
  kept, content = tokenizer.read_text(), json.loads(tokenizer.read_text())
  vocab = content['model']['vocab']
  a, b = [piece for piece in vocab if piece.isalpha()][:2]
  vocab[a], vocab[b] = vocab[b], vocab[a]
  tokenizer.write_text(json.dumps(content))
  (other / 'tokenizer' / 'vocab.txt').write_text('\n'.join(sorted(vocab, key=vocab.get)) + '\n')
  with pytest.raises(errors.UserError, match='another vocabulary.*2 of 600.*--tokenizer'):
    scores.evaluate(str(other), str(corpus))
  tokenizer.write_text(kept)  # now the lines of vocab.txt alone are swapped
  with pytest.raises(errors.UserError, match='vocab.txt and the tokenizer.json beside it'):
    scores.evaluate(str(other), str(corpus))


def test_a_config_is_that_of_the_phase_of_the_last_step():
  made = config(phases=((3, {'length': 16}), (4, {})))
  lengths = [configuration.phase_at(made, step).config.length for step in (0, 3, 4, 7, 8)]
  assert lengths == [16, 16, 64, 64, 64]
