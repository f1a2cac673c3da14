import random

import pytest
from seqeval import metrics as seqeval
from seqeval import scheme as seqeval_scheme

from bertzoo_jax.tasks import kinds
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks import schemes
from bertzoo_jax.tasks.kinds import kind

pytestmark = pytest.mark.filterwarnings('ignore')  # of seqeval, about tags

TYPES, SCORES = ('PER', 'LOC', 'ORG'), ('precision', 'recall', 'f1')
THEIRS = (seqeval.precision_score, seqeval.recall_score, seqeval.f1_score)


def sentences(rng, prefixes, count=30, longest=12):
  """Any tags, possible or not."""
  tags = ['O', *(f'{p}-{t}' for p in prefixes for t in TYPES)]
  return [rng.choices(tags, k=rng.randint(1, longest)) for _ in range(count)]


def lawful(rng, scheme, count=30):
  """Sentences that a scheme allows."""
  out = []
  for _ in range(count):
    tags, before = [], ''
    while len(tags) < rng.randint(1, 12):
      if rng.random() < 0.4:
        tags, before = [*tags, 'O'], ''
        continue
      type_, size = rng.choice(TYPES), rng.randint(1, 4)
      inside = [f'I-{type_}'] * (size - 1)
      if scheme == 'iob1':
        entity = [f'{"B" if before == type_ else "I"}-{type_}', *inside]
      else:
        entity = schemes.converted([f'B-{type_}', *inside], scheme)
      tags, before = [*tags, *entity], type_
    out.append(tags)
  return out


def test_entities_of_known_sentences():
  assert schemes.entities(['B-PER', 'I-PER', 'O', 'B-LOC']) == [('PER', 0, 1), ('LOC', 3, 3)]
  three = [('PER', 0, 0), ('PER', 1, 1), ('LOC', 2, 2)]
  assert schemes.entities(['I-PER', 'B-PER', 'I-LOC']) == three
  assert schemes.entities(['B-A', 'L-A', 'U-A', 'O']) == [('A', 0, 1), ('A', 2, 2)]
  assert schemes.entities([]) == schemes.entities(['O']) == []


def drawn(case, prefixes):
  """(true tags, predicted ones) of sentences, possible or not."""
  rng = random.Random(case)
  true = sentences(rng, prefixes) if case else [['O', 'O']]
  return true, [[rng.choice([tag, *tags]) for tag in tags] for tags in true]


@pytest.mark.parametrize('prefixes', ['BI', 'BIES', 'I', 'BILU'])
@pytest.mark.parametrize('case', range(4))
def test_entity_scores_equal_seqeval_s(case, prefixes):
  """The scores of a plain count, too; seqeval does not know L and U."""
  true, said = drawn(case, prefixes)
  ours = [metrics.TAGS[f'entity_{n}'](true, said, 'iob1') for n in SCORES]
  for type_ in ('', 'LOC'):
    found = [
      {(i, *e) for i, tags in enumerate(x) for e in schemes.entities(tags) if type_ in ('', e[0])}
      for x in (true, said)
    ]
    right, (n_true, n_said) = len(found[0] & found[1]), map(len, found)
    wanted = [right / max(n, 1) for n in (n_said, n_true)] + [2 * right / max(n_said + n_true, 1)]
    name = f'entity_{{}}/{type_}' if type_ else 'entity_{}'
    labels = ['O', *(f'B-{t}' for t in TYPES)]
    of = [kind.metric(kinds.BY_NAME['tagging'], name.format(n), labels) for n in SCORES]
    assert [f(true, said, 'iob1') for f in of] == pytest.approx(wanted, abs=1e-12)
  if prefixes != 'BILU':
    assert ours == pytest.approx([f(true, said, zero_division=0) for f in THEIRS], abs=1e-12)


@pytest.mark.parametrize(
  'name, own, prefixes',
  [('IOB2', 'iob2', 'BI'), ('IOBES', 'bioes', 'BIES'), ('BILOU', 'bilou', 'BILU')],
)
@pytest.mark.parametrize('case', range(4))
def test_strict_entity_scores_equal_seqeval_s(case, name, own, prefixes):
  true, said = drawn(case, prefixes)
  ours = [metrics.TAGS[f'strict_{n}'](true, said, own) for n in SCORES]
  more = dict(mode='strict', scheme=getattr(seqeval_scheme, name), zero_division=0)
  assert ours == pytest.approx([f(true, said, **more) for f in THEIRS], abs=1e-12)
  # tags that the scheme lacks are no entities
  true, said = [['B-A', 'I-A', 'E-A', 'O']], [['B-A', 'I-A', 'O', 'S-A']]
  assert metrics.TAGS['strict_f1'](true, said, 'iob2') == 1


@pytest.mark.parametrize('scheme', ['iob1', 'iob2', 'bioes', 'bilou'])
def test_a_scheme_is_detected_and_its_own_sentences_are_possible(scheme):
  own = lawful(random.Random(1), scheme)
  assert schemes.detect(own) == scheme
  assert not [i for tags in own for i in schemes.broken(tags, scheme)]


def test_other_schemes_are_detected():
  assert schemes.detect([['I-A', 'O', 'I-B']]) == 'io'
  assert schemes.detect([['NOUN', 'O', 'VERB']]) == 'none'
  assert schemes.detect([['X-A', 'O']]) == 'none'
  assert schemes.detect([['B-A', 'O']]) == 'iob2'
  # one sentence breaks it
  assert schemes.detect([['B-A', 'I-A', 'O']] * 5 + [['I-A']]) == 'iob2'


def test_impossible_tags_are_named_by_their_word():
  assert schemes.broken(['O', 'I-A', 'I-A', 'I-B'], 'iob2') == [1, 3]
  assert schemes.broken(['B-A', 'I-A', 'B-A', 'B-B'], 'iob1') == [0, 3]
  assert schemes.broken(['B-A', 'O', 'S-A', 'I-A', 'B-A'], 'bioes') == [1, 3, 4]
  assert schemes.broken(['B-A', 'L-A', 'U-A', 'E-A'], 'bilou') == [3]
  assert schemes.broken(['X', 'Y'], 'none') == []


@pytest.mark.parametrize('to', ['iob2', 'bioes', 'bilou'])
def test_conversion_keeps_the_entities_and_is_possible(to):
  for tags in lawful(random.Random(2), 'iob1') + sentences(random.Random(3), 'BIES'):
    new = schemes.converted(tags, to)
    assert schemes.entities(new) == schemes.entities(tags)
    assert not schemes.broken(new, to)


def test_labels_are_completed_by_their_scheme():
  completed = schemes.completed(['O', 'B-LOC', 'I-PER'], 'iob2')
  assert completed == ('O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER')
  assert schemes.completed(['VERB', 'NOUN'], 'none') == ('NOUN', 'VERB')
