"""evaluate --gaps from the outside: a screen says what a direct computation over its rows says."""

import json
import pathlib
import re

import jax
import numpy as np
import pytest

from bertzoo_jax import demo
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.evaluate import gaps
from bertzoo_jax.objectives import networks
from tests.evaluate import test_evaluate as made

ROOT = pathlib.Path(__file__).parents[2]


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


@jax.jit
def logits(params, batch):
  encoder = made.encoder_of()
  states, _, _ = networks.predictions(encoder, params['encoder'], batch, None)
  return networks.vocabulary_logits(encoder, params, states)


def rows(corpus):
  return made.rows(corpus, made=config())


def test_accuracies_are_of_all_masked_tokens_and_the_truth_is_sought_where_rows_do_not_show_it(
  run, corpus, found
):
  unigrams = corpora.open(corpus).unigrams
  most = np.argsort(-unigrams)[:3]
  right = frequent = count = likely = often = hidden = 0
  for batch in rows(corpus):
    scores = np.asarray(logits(run[1], batch))
    for row, slot in zip(*np.nonzero(batch['masked_weights'])):
      target = batch['masked_targets'][row, slot]
      right, count = right + (scores[row, slot].argmax() == target), count + 1
      frequent += unigrams.argmax() == target
      if batch['input_ids'][row, batch['masked_positions'][row, slot]] != target:
        likely += target in np.argsort(-scores[row, slot])[:3]
        often, hidden = often + (target in most), hidden + 1
  network, bigrams, most_frequent = found.accuracies
  assert network.count == bigrams.count == count > hidden > 100
  assert network.value == pytest.approx(right / count)
  assert bigrams.value > most_frequent.value == pytest.approx(frequent / count)
  assert found.top == (3, hidden, pytest.approx(likely / hidden), pytest.approx(often / hidden))
  # the curve starts before training and ends at the checkpoint
  assert found.curve == [(0, pytest.approx(np.log(made.VOCAB), abs=0.1)), (3, 6.0), (7, 5.0)]


def test_a_gap_is_filled_by_the_weights_before_and_after(run, corpus, found):
  tokenizer = corpora.open(corpus).tokenizer()
  assert len(found.gaps) == 4
  fresh = jax.jit(objectives.build(config(), made.VOCAB).init)(jax.random.key(0))
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


def told(found, below=2.0, accuracy=0.5, bigrams=0.4):
  network, counts, most = found.accuracies
  values = [network._replace(value=accuracy), counts._replace(value=bigrams), most]
  return found._replace(loss=found.loss._replace(value=found.entropy - below), accuracies=values)


@pytest.mark.parametrize(
  'bad, said',
  [
    (dict(below=1.4), '1.40 nats below the unigram entropy, 1.5 nats below'),
    (dict(below=-1.0), '1.00 nats above the unigram entropy, 1.5 nats below'),
    (dict(below=float('nan')), 'is nan nats'),
    (dict(accuracy=0.39), 'right for 39.0% of the masked tokens, bigrams for 40.0%'),
  ],
)
def test_a_requirement_that_is_not_reached_is_one_sentence_and_code_3(found, bad, said):
  gaps.check(told(found), 1.5)
  with pytest.raises(gaps.NotLearned, match=said) as caught:
    gaps.check(told(found, **bad), 1.5)
  assert caught.value.code == 3


def test_the_screen_prints_each_gap_and_three_accuracies(
  run, corpus, found, monkeypatch, capsys, tmp_path
):
  asked, calls = dict(workdir=str(run[0]), corpus=[str(corpus)], gaps=4, top=3), []
  monkeypatch.setattr(gaps, 'find', lambda *given, **how: calls.append((given, how)) or found)
  made.run_command(**asked, json=tmp_path / 'gaps.json')
  said = capsys.readouterr().out
  how = dict(gaps=4, draw=0, top=3, batches=made.BATCHES, cache_dir=None)
  assert calls == [((str(run[0]), str(corpus)), how)] and said == gaps.screen(found) + '\n'
  assert all(gap.sentence in said for gap in found.gaps)
  assert len(re.findall(r'%.* of 4$', said, re.M)) == 3
  assert f'Truth among 3 tokens, of {found.top.predictions} masked tokens' in said
  written = json.loads((tmp_path / 'gaps.json').read_text())
  assert written['gaps'][0]['truth'] == found.gaps[0].truth
  assert [x['network'] for x in written['accuracies']] == [x.network for x in found.accuracies]
  with pytest.raises(gaps.NotLearned):
    made.run_command(**asked, require=9.0)
  assert capsys.readouterr().out == said, 'the screen comes before the sentence'


@pytest.mark.parametrize(
  'asked, words',
  [
    (dict(corpus=['c'], top=3), 'need --gaps'),
    (dict(corpus=['c'], require=0.0), 'need --gaps'),
    (dict(minimal_pairs='p', gaps=3), 'give one --corpus'),
    (dict(gaps=3), 'one of them'),
    (dict(corpus=['c'], minimal_pairs='p'), 'one of them'),
  ],
)
def test_flags_that_do_not_go_together_are_refused(asked, words):
  with pytest.raises(errors.UserError, match=words):
    made.run_command(workdir='W', **asked)


def test_a_tick_marks_what_is_as_in_the_text(found):
  gap = gaps.Gap('a ____ b', 'word', 'word', 'of', 'word', 'the')
  lines = gaps.screen(found._replace(gaps=[gap], top=None)).splitlines()
  at = next(n for n, line in enumerate(lines) if line.endswith('a ____ b'))
  assert lines[at + 1].split() == ['word', 'word', '✓', 'of', 'word', '✓', 'the']
  assert [line.split()[-3:] for line in lines[-3:]] == [[n, 'of', '1'] for n in ('0', '1', '0')]


def test_the_network_that_fills_masks_is_asked_also_with_the_weights_that_a_run_began_with(
  corpus, tmp_path
):
  made.make_workdir(tmp_path, config(objective=parts.replaced_token()), corpus)
  (tmp_path / 'attempts.jsonl').write_text('{"start_step": 0, "init": "%s@7"}\n' % tmp_path)
  (tmp_path / 'corpus.json').write_text('{"hash": "c0ffee"}')
  found = gaps.find(str(tmp_path), str(corpus), batches=made.BATCHES)
  assert len(found.gaps) == 10 and 0 <= found.accuracies[0].value < 0.2
  assert [g.before for g in found.gaps] == [g.after for g in found.gaps]
  assert found.curve == [(0, pytest.approx(found.loss.value))]
  assert 'trained on the corpus c0ffee' in gaps.screen(found).splitlines()[-1]
  made.make_workdir(tmp_path / 'none', config(objective=parts.corruption_detection()), corpus)
  with pytest.raises(errors.UserError, match='objective=corruption_detection .* fills masks'):
    gaps.find(str(tmp_path / 'none'), str(corpus))


def test_the_demo_ends_with_the_gaps_and_fails_where_they_are_not_filled():
  _, last = demo.steps('demo')[-1]
  assert last[0] == 'evaluate' and last[-2:] == ['--gaps=10', '--require=1.5']
  ci = (ROOT / '.ci' / 'run').read_text()
  assert re.search(r'^make demo > .* &\ndemo=\$!$', ci, re.M), 'beside the tests'
  assert re.search(r'^wait "\$demo" \|\| .*exit 1', ci, re.M), 'the demo alone decides'
