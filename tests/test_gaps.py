"""gaps from the outside: a run's screen says what a direct computation over the same rows says."""

import pathlib
import re
import types

import jax
import numpy as np
import pytest

from bertzoo_jax import gaps
from bertzoo_jax import objectives
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.evaluate import held_out
from bertzoo_jax.evaluate import scores
from bertzoo_jax.objectives import networks
from configs import parts
from tests import test_evaluate as made

ROOT = pathlib.Path(__file__).parents[1]


def config(**changes):
  return made.config(**{'objective': parts.mlm(), 'format': parts.full_sentences(), **changes})


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return made.make_corpus(tmp_path_factory.mktemp('text'), config())


@pytest.fixture(scope='module')
def run(corpus, tmp_path_factory):
  """(workdir, weights): of step 7, with two rows of metrics before it and one after it."""
  path = tmp_path_factory.mktemp('run')
  params = made.make_workdir(path, config(), corpus)
  (path / 'metrics.jsonl').write_text(
    '{"step": 3, "held_out_mlm_loss": 6.0}\n{"step": 5, "loss": 6.0}\n'
    '{"step": 7, "held_out_mlm_loss": 5.0}\n{"step": 9, "held_out_mlm_loss": 4.0}\n'
  )
  return path, params


@pytest.fixture(scope='module')
def found(run, corpus):
  return gaps.find(str(run[0]), str(corpus), gaps=4, top=3, batches=made.BATCHES)


def logits(params, batch):
  encoder = made.small.encoder(vocab_size=made.VOCAB, **made.SIZES)
  states, _, _ = networks.predictions(encoder, params['encoder'], batch, None)
  return np.asarray(networks.vocabulary_logits(encoder, params, states))


def rows(corpus):
  return held_out.rows_of(corpora.open(corpus), config(), config().format, 'held_out', made.BATCHES)


def test_the_accuracies_are_those_of_all_masked_tokens(run, corpus, found):
  opened = corpora.open(corpus)
  right = frequent = count = 0
  for batch in rows(corpus):
    counts = batch['masked_weights'] > 0
    right += ((logits(run[1], batch).argmax(-1) == batch['masked_targets']) & counts).sum()
    frequent += ((opened.unigrams.argmax() == batch['masked_targets']) & counts).sum()
    count += counts.sum()
  assert found.predictions == count > 100
  assert found.accuracy == pytest.approx(right / count)
  assert found.frequent_accuracy == pytest.approx(frequent / count)
  assert found.bigram_accuracy > found.frequent_accuracy


def test_the_truth_is_among_the_likeliest_where_the_row_does_not_show_it(run, corpus, found):
  most = np.argsort(-corpora.open(corpus).unigrams)[:3]
  likely = frequent = count = 0
  for batch in rows(corpus):
    scores = logits(run[1], batch)
    for row, slot in zip(*np.nonzero(batch['masked_weights'])):
      target = batch['masked_targets'][row, slot]
      if batch['input_ids'][row, batch['masked_positions'][row, slot]] == target:
        continue
      likely += target in np.argsort(-scores[row, slot])[:3]
      frequent, count = frequent + (target in most), count + 1
  assert 100 < count < found.predictions
  assert found.top == (3, count, pytest.approx(likely / count), pytest.approx(frequent / count))


def test_the_curve_starts_before_training_and_ends_at_the_checkpoint(corpus, found):
  [network] = (whole := objectives.of(config(), made.VOCAB)).networks
  measured = scores.masked_scores('', network.encoder, whole.init(jax.random.key(0)), rows(corpus))
  assert found.curve == [(0, pytest.approx(measured[1].value)), (3, 6.0), (7, 5.0)]
  assert found.curve[0][1] == pytest.approx(np.log(made.VOCAB), abs=0.1)


def test_a_gap_is_filled_by_the_weights_before_and_after(run, corpus, found):
  tokenizer = corpora.open(corpus).tokenizer()
  assert len(found.gaps) == 4
  fresh = objectives.of(config(), made.VOCAB).init(jax.random.key(0))
  for gap in found.gaps:
    assert gap.sentence.count('____') == 1 and gap.truth.isalpha()
  # one of them by hand: the row in the text, with one mask
  batches, masks = rows(corpus), corpora.open(corpus).special
  text = gaps.masked.Masked(batches, masks)
  n = gaps.masked.drawn(text, tokenizer, 4, 0)[0]
  ids = text.originals[text.row[n]].copy()
  ids[text.position[n]] = masks['mask']
  batch = {name: x[text.row[n]][None] for name, x in text.rows.items()}
  batch |= dict(input_ids=ids[None], masked_positions=np.array([[text.position[n]]]))
  for params, said in ((fresh, found.gaps[0].before), (run[1], found.gaps[0].after)):
    assert tokenizer.decode([logits(params, batch)[0, 0].argmax()]).strip() == said


def test_a_run_that_began_with_other_weights_fills_the_gaps_with_those(run, corpus, tmp_path):
  made.make_workdir(tmp_path, config(), corpus)
  (tmp_path / 'attempts.jsonl').write_text('{"start_step": 0, "init": "%s"}\n' % run[0])
  found = gaps.find(str(tmp_path), str(corpus), batches=made.BATCHES)
  assert [g.before for g in found.gaps] == [g.after for g in found.gaps]
  assert found.curve == [(0, pytest.approx(found.loss))]


def test_what_was_required_and_is_not_reached_is_one_sentence_and_code_3(found):
  good = found._replace(loss=found.entropy - 2.0, accuracy=0.5, bigram_accuracy=0.4)
  gaps.check(good, 1.5)
  for bad, said in (
    (good._replace(loss=good.entropy - 1.4), '1.40 nats below the unigram entropy, 1.5 nats below'),
    (good._replace(loss=good.entropy + 1.0), '1.00 nats above the unigram entropy, 1.5 nats below'),
    (good._replace(loss=float('nan')), 'is nan nats'),
    (good._replace(accuracy=0.39), 'right for 39.0% of the masked tokens, bigrams for 40.0%'),
  ):
    with pytest.raises(gaps.NotLearned, match=said) as caught:
      gaps.check(bad, 1.5)
    assert caught.value.code == 3


def test_the_screen_prints_each_gap_and_three_accuracies(run, corpus, found, monkeypatch, capsys):
  flags = dict(
    _WORKDIR=str(run[0]),
    _CORPUS=str(corpus),
    _GAPS=4,
    _DRAW=0,
    _TOP=3,
    _BATCHES=made.BATCHES,
    _REQUIRE=None,
    _CACHE_DIR=None,
  )
  for name, value in flags.items():
    monkeypatch.setattr(gaps, name, types.SimpleNamespace(value=value), raising=False)
  gaps.main(None)
  said = capsys.readouterr().out
  assert said == gaps.screen(found) + '\n'
  assert all(gap.sentence in said for gap in found.gaps)
  assert len(re.findall(r'%.* of 4$', said, re.M)) == 3
  assert f'Truth among 3 tokens, of {found.top.predictions} masked tokens' in said
  monkeypatch.setattr(gaps, '_REQUIRE', types.SimpleNamespace(value=9.0))
  with pytest.raises(gaps.NotLearned):
    gaps.main(None)
  assert capsys.readouterr().out == said, 'the screen comes before the sentence'


def test_a_tick_marks_what_is_as_in_the_text(found):
  gap = gaps.Gap('a ____ b', 'word', 'word', 'of', 'word', 'the')
  lines = gaps.screen(found._replace(gaps=[gap], top=None)).splitlines()
  at = next(n for n, line in enumerate(lines) if line.endswith('a ____ b'))
  assert lines[at + 1].split() == ['word', 'word', '✓', 'of', 'word', '✓', 'the']
  assert [line.split()[-3:] for line in lines[-3:]] == [[n, 'of', '1'] for n in ('0', '1', '0')]


def test_an_objective_that_fills_no_masks_is_one_sentence(corpus, tmp_path):
  made.make_workdir(tmp_path, config(objective=parts.corruption_detection()), corpus)
  with pytest.raises(errors.UserError, match='objective=corruption_detection .* fills masks'):
    gaps.find(str(tmp_path), str(corpus))


def test_of_two_networks_the_one_that_fills_masks_is_asked(corpus, tmp_path):
  made.make_workdir(tmp_path, config(objective=parts.replaced_token()), corpus)
  found = gaps.find(str(tmp_path), str(corpus), batches=made.BATCHES)
  assert len(found.gaps) == 10 and 0 <= found.accuracy < 0.2


def test_the_demo_ends_with_the_gaps_and_fails_where_they_are_not_filled():
  makefile, ci = (ROOT / 'Makefile').read_text(), (ROOT / '.ci' / 'run').read_text()
  demo = re.search(r'^demo:.*?(?=^\S)', makefile, re.M | re.S)[0]
  last = demo.rstrip().splitlines()[-1]
  assert '-m bertzoo_jax.gaps' in last and last.endswith('--require 1.5')
  assert re.search(r'^make demo$', ci, re.M), 'the demo alone decides'
