import pathlib

import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax.batches import mixture
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import amounts
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.corpus import opening as mixed_corpora
from bertzoo_jax.parts import ranges
from configs import roberta

WORDS = {'large': 90_000, 'small': 20_000}

SHARES = [
  ((), [100, 37]),
  ((0.9, 0.1), [5, 5]),
  ((3, 3, 2, 1, 1), [1] * 5),
  ((1, 0), [3, 4]),
  (('size', 0.5), [90_000, 300, 77]),
  (('size', 0), [9, 1]),
]


@pytest.mark.parametrize('given, rows', SHARES)
def test_after_any_number_of_examples_each_corpus_was_read_by_its_share_within_one(given, rows):
  turns, total = mixture.Turns(given, rows), 70_000
  which, number = turns.at(np.arange(total))
  weights = np.array(given or rows)
  if given[:1] == ('size',):
    weights = np.array(rows) ** float(given[1])
  read = np.cumsum(which[:, None] == np.arange(len(rows)), axis=0)
  rounding = 2 if given[:1] == ('size',) and given[1] else 0  # to 1 / 65,536
  wished = weights / weights.sum() * np.arange(1, total + 1)[:, None]
  assert np.abs(read - wished).max() < 1 + rounding
  for i, many in enumerate(turns.counts(total)):
    np.testing.assert_array_equal(number[which == i], np.arange(many))
  assert turns.counts(50_001).tolist() == read[50_000].tolist() and turns.rounding < 0.01
  # a corpus too small for its turns is known
  assert mixture.Turns((), [10_000_000, 10]).rounding == pytest.approx(14.3, abs=0.1)


def corpus_of(low, high, sentences):
  draw = np.random.default_rng(low)
  text = draw.integers(low, high, 10 * sentences), np.arange(0, 10 * sentences + 1, 10)
  special = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
  documents = np.arange(0, sentences + 1, 6)
  made = corpora.in_memory(*text, documents, 200, special, held_out=(*text, documents))
  made.manifest['words'] = {'train': WORDS['large' if low == 5 else 'small']}
  return made


@pytest.fixture(scope='module')
def alone():
  return {'large': corpus_of(5, 100, 180), 'small': corpus_of(100, 200, 48)}


@pytest.fixture(scope='module')
def both(alone):
  return mixed_corpora.mixed(alone)


def config(*phases, **changes):
  made = roberta.get_config('tiny')
  for key, value in dict(phases=phases or ((40, {}),), batch_size=6, length=32, **changes).items():
    made[key] = value
  made.schedule.warmup = 2
  return made


def lines(corpus, made, **options):
  return [pipeline.for_phase(corpus, p, **options) for p in configuration.phases(made)]


def rows_of(batches):
  """[(features of a row)] of batches, in order."""
  return [{k: v[i] for k, v in b.items()} for b in batches for i in range(len(b['input_ids']))]


def is_large(row):
  return ((row['input_ids'] >= 5) & (row['input_ids'] < 100)).sum() > 16


def equal(one, other):
  return all(np.array_equal(one[name], other[name]) for name in one)


def test_the_rows_of_the_first_corpus_are_those_of_a_run_on_it_alone_also_across_phases(
  alone, both
):
  made = config((20, {}), (15, {'batch_size': 10, 'mixture': (1, 4)}), (15, {'batch_size': 8}))
  rows = [r for p, n in zip(lines(both, made), (20, 15, 15)) for r in rows_of(p.iterate(0, n))]
  ours = [row for row in rows if is_large(row)]
  single = pipeline.for_phase(alone['large'], configuration.phases(config())[0])
  assert len(ours) > 2 * single.rows_per_epoch and len(ours) % 6
  theirs = rows_of(single.iterate(0, len(ours) // 6 + 1))
  assert all(map(equal, ours, theirs))


def test_each_epoch_of_each_corpus_has_each_of_its_rows_once(alone, both):
  made = config(mixture=(0.5, 0.5))
  line, single = lines(both, made)[0], {k: lines(c, made)[0] for k, c in alone.items()}
  sources = [line._source.at(np.arange(200))]
  ids = sources[0][0]['input_ids']
  large = np.array([((row >= 5) & (row < 100)).sum() > 16 for row in ids])
  for mine, name in ((large, 'large'), (~large, 'small')):
    many = single[name].rows_per_epoch
    expected = single[name]._source.rows(0, np.arange(many), shuffled=False)[0]['input_ids']
    for epoch in range(mine.sum() // many):
      found = ids[mine][epoch * many : (epoch + 1) * many]
      assert sorted(map(bytes, found)) == sorted(map(bytes, expected)), (name, epoch)


def test_a_mixed_batch_depends_on_its_step_alone_and_hosts_share_it(both):
  made = config((6, {}), (6, {'batch_size': 8, 'mixture': ('size', 0.3)}))
  made.moving = (('masking.rate', 0.4, 0.1, 2, 10, 'linear'),)
  whole, *halves = (lines(both, made, host=h) for h in ((0, 1), (0, 2), (1, 2)))
  for phase in (0, 1):
    for step, batch in enumerate(whole[phase].iterate(0, 6)):
      again = (lines(both, made) if (phase, step) == (1, 5) else whole)[phase].batch(step)
      hosts = [half[phase].batch(step) for half in halves]
      for name, x in batch.items():
        np.testing.assert_array_equal(x, again[name], err_msg=name)
        np.testing.assert_array_equal(x, np.concatenate([h[name] for h in hosts]), err_msg=name)


def test_held_out_rows_are_those_of_each_corpus_alone(alone, both):
  phase = configuration.phases(config(mixture=(0.2, 0.8)))[0]
  for name, line in pipeline.held_out(both, phase).items():
    single = pipeline.for_phase(alone[name], phase, split='held_out').evaluation_batches(3)
    assert all(map(equal, line.evaluation_batches(3), single)), name


def test_read_rows_are_counted_and_told(alone, both):
  made = config((20, {}), (15, {'mixture': (1, 3)}))
  first, second = lines(both, made)
  assert [r.rows for r in second.read(15)] in ([22, 68], [23, 67])
  large, small = first.read(20)
  assert (large.name, small.name, large.rows + small.rows) == ('large', 'small', 120)
  per_epoch = [lines(c, made)[0].rows_per_epoch for c in alone.values()]
  assert [large.per_epoch, small.per_epoch] == per_epoch
  assert large.epochs == pytest.approx(small.epochs, rel=0.05)  # by rows
  sentence = amounts.describe([large, small])
  assert sentence.startswith(f'large {large.epochs:.2f} epochs of {per_epoch[0]:,} ')
  words = large.epochs * WORDS['large'] + small.epochs * WORDS['small']
  assert amounts.words([large, small]) == words


@pytest.mark.parametrize('names', ['large', 'large small'])
def test_words_seen_are_kept_at_the_first_step_that_has_so_many(alone, both, names):
  corpus = both if ' ' in names else alone[names]
  made = config((20, {}), (15, {'batch_size': 10, 'mixture': (1, 3) if ' ' in names else ()}))
  phases = configuration.phases(made)
  read = {p.index: pipeline.for_phase(corpus, p).read for p in phases}
  # by adding up, step after step
  seen, step, expected, wanted = 0.0, 0, {}, [20_000, 50_000, 10**6]
  for phase in phases:
    for local in range(phase.steps):
      before, after = read[phase.index](local), read[phase.index](local + 1)
      seen += sum((b.rows - a.rows) / a.per_epoch * a.words for a, b in zip(before, after))
      step += 1
      while wanted and seen >= wanted[0] - 1e-6:
        expected.setdefault(step, []).append(wanted.pop(0))
  assert amounts.kept('20k,50000,1M', phases, read, 35) == expected and len(expected) == 2
  assert amounts.kept('20k', phases, read, 1) == {}
  uncounted = {0: lambda steps: (amounts.Reading('', steps, 10, None),)}
  with pytest.raises(errors.UserError, match='has no count of them'):
    amounts.kept('1M..1G', phases[:1], uncounted, 40)


def test_a_range_of_words_goes_by_its_first_digit():
  found = [n // 10**6 for n in amounts.numbers('1M..1G')]
  assert found == [*range(1, 11), *range(20, 101, 10), *range(200, 1001, 100)]
  assert amounts.numbers('7, 2k..4k,7') == [7, 2000, 3000, 4000] and amounts.numbers('') == []
  assert [amounts.numbers(text) for text in ('1M..', '1X', '0', '2..1', ',')] == [None] * 5


@pytest.mark.parametrize('given, epochs', [((), 2.0), ((1, 1), 3.5)])
def test_the_last_phase_ends_before_a_corpus_was_read_too_often(both, given, epochs):
  made = config((5, {}), (1, {'batch_size': 7}), mixture=given, epochs=epochs)
  ended = pipeline.with_epoch_steps(made, both)
  assert ended.phases[0] == (5, {}) and ended.phases[1][1] == {'batch_size': 7}
  before, line = (p.read for p in lines(both, ended))
  most = lambda steps: max(float(a.epochs + b.epochs) for a, b in zip(before(5), line(steps)))
  steps = ended.phases[1][0]
  assert most(steps) <= epochs < most(steps + 1)
  assert pipeline.with_epoch_steps(ended, both).phases == ended.phases
  with pytest.raises(errors.UserError, match='ends before phase 1 has a step'):
    pipeline.with_epoch_steps(config((50, {}), (1, {}), epochs=0.5), both)


REFUSED = [
  (dict(mixture=(1, 2, 3)), 'has 3 weights and there are 2 corpora'),
  (dict(mixture=(-1, 2)), 'a weight for each --corpus'),
  (dict(mixture=('sise', 2)), 'a weight for each --corpus'),
  (dict(mixture=(0, 0)), 'not all of them 0'),
  (dict(mixture=('size', 400.0)), 'a power from 0 to 10'),
  (dict(epochs=-1.0), 'a number of at least 0'),
  (dict(keep_words='1X'), 'numbers by comma'),
  (dict(format=parts.memory_segments(reuse_length=16)), 'reads each lane as one continuous text'),
]


def test_a_mixture_that_cannot_be_meant_is_refused(both):
  for changes, words in REFUSED:
    changes = dict(changes)
    keep_words = changes.pop('keep_words', '')
    made = config(**changes)
    made.run.keep_words = keep_words
    with pytest.raises(errors.UserError, match=words):
      ranges.check(made)
      lines(both, made)


def test_names_are_as_much_of_the_folders_as_tells_them_apart():
  names = mixed_corpora.names
  assert names(['/data/wiki', 'x/laws']) == ['wiki', 'laws']
  assert names(['/data/wiki/corpus', '/data/laws/corpus']) == ['wiki-corpus', 'laws-corpus']
  assert names([]) == [] and names(['.', 'wiki']) == [pathlib.Path.cwd().name, 'wiki']
  for other in ('a/b/', 'x/../a/b', pathlib.Path.cwd() / 'a/b'):
    with pytest.raises(errors.UserError, match='the same folder twice'):
      names(['a/b', other])
