"""Tags of words: schemes, entities, and entity scores.

A tag is O, or PREFIX-TYPE. An entity is (type, first word, last word). The schemes are

    name    prefixes    an entity
    iob1    I B         I I I; its first word has B only after an entity of the same type
    iob2    B I         B I I
    bioes   B I E S     B I E; S of one word
    bilou   B I L U     B I L; U of one word
    io      I           I I I; neighbours of one type are one entity
    none    -           tags without prefixes, as parts of speech
"""

import re
from collections.abc import Iterable
from collections.abc import Sequence

OUTSIDE = 'O'
# {scheme: its prefixes, in the order in which labels are listed}
PREFIXES = {
  'iob1': ('B', 'I'),
  'iob2': ('B', 'I'),
  'bioes': ('B', 'I', 'E', 'S'),
  'bilou': ('B', 'I', 'L', 'U'),
  'io': ('I',),
  'none': (),
}
_SPELLED_ALIKE = {'L': 'E', 'U': 'S'}  # BILOU's prefixes in BIOES
_ALL = frozenset('BIESLU')


def parts(tag: str) -> tuple[str, str]:
  """(prefix, type) of a tag. O is ('O', ''). BILOU's L and U are E and S."""
  if tag == OUTSIDE:
    return OUTSIDE, ''
  prefix, _, type_ = tag.partition('-')
  return _SPELLED_ALIKE.get(prefix, prefix), type_


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
  """The entities of a sentence, whatever its scheme, as CoNLL's evaluation reads them.

  An entity begins at a tag with B or S, after O, E or S, and where the type changes. It ends before
  O and before the next entity. So I after O begins an entity, too.
  """
  from seqeval.metrics.sequence_labeling import get_entities  # with scikit-learn

  return get_entities(['-'.join(parts(tag)).strip('-') for tag in tags])


def detect(sentences) -> str:
  """The scheme of sentences of tags: the one that the prefixes allow and the fewest tags break."""
  tags = {tag for sentence in sentences for tag in sentence}
  prefixes = {tag.partition('-')[0] for tag in tags if tag != OUTSIDE}
  if not tags or any(tag != OUTSIDE and '-' not in tag for tag in tags) or not prefixes <= _ALL:
    return 'none'
  if prefixes & {'L', 'U'}:
    return 'bilou'
  if prefixes & {'E', 'S'}:
    return 'bioes'
  if prefixes == {'I'}:
    return 'io'
  counts = {scheme: sum(len(broken(t, scheme)) for t in sentences) for scheme in ('iob2', 'iob1')}
  return min(counts, key=counts.get)


def unknown_prefixes(tags: Iterable[str]) -> list[str]:
  """The prefixes of tags that no scheme has, as M of BMES."""
  letters = {tag.partition('-')[0] for tag in tags if '-' in tag}
  return sorted(letter for letter in letters if len(letter) == 1 and letter not in _ALL)


def misspelt(tags: Iterable[str]) -> str:
  """The first tag that is a misspelt one of a scheme (o, 0, b_PER, PER-B); '' without one."""
  tags = sorted(set(tags))
  ahead = lambda tag: re.sub('^(?!.[-_:/])(.+)[-_:/]([BIESLUbieslu])$', r'\2-\1', tag)
  right = lambda tag: re.sub(
    '^(.)[-_:/]', lambda m: f'{m[1].upper()}-', {'o': 'O', '0': 'O'}.get(tag, ahead(tag))
  )
  odd = [tag for tag in tags if right(tag) != tag]
  return odd[0] if odd and detect([[right(tag) for tag in tags]]) != 'none' else ''


def broken(tags: Sequence[str], scheme: str) -> list[int]:
  """Indices of the words whose tag the scheme does not allow at that place."""
  if scheme == 'none':
    return []
  allowed = {_SPELLED_ALIKE.get(p, p) for p in PREFIXES[scheme]}
  out, before = [], (OUTSIDE, '')
  for i, tag in enumerate([*tags, OUTSIDE]):
    prefix, type_ = parts(tag)
    goes_on = before[0] in ('B', 'I') and before[1] == type_
    wrong = prefix != OUTSIDE and (prefix not in allowed or not type_)
    if scheme == 'iob1':
      wrong |= prefix == 'B' and not goes_on
    elif scheme == 'iob2':
      wrong |= prefix == 'I' and not goes_on
    elif scheme in ('bioes', 'bilou'):
      open_ = before[0] in ('B', 'I')
      # an open entity must continue, and only an open entity may
      wrong |= open_ != (prefix in ('I', 'E')) or (open_ and not goes_on)
    word = min(i, len(tags) - 1)  # an entity that stays open is broken at the last word
    if wrong and out[-1:] != [word]:
      out.append(word)
    before = (prefix, type_)
  return out


def converted(tags: Sequence[str], scheme: str) -> list[str]:
  """The tags of a sentence in another scheme with the same `entities`.

  scheme: iob2 | bioes | bilou.
  """
  first, inside, last, single = {'iob2': 'BIIB', 'bioes': 'BIES', 'bilou': 'BILU'}[scheme]
  out = [OUTSIDE] * len(tags)
  for type_, begin, end in entities(tags):
    for i in range(begin, end + 1):
      prefix = first if i == begin else last if i == end else inside
      out[i] = f'{single if begin == end else prefix}-{type_}'
  return out


def completed(labels: Iterable[str], scheme: str) -> tuple[str, ...]:
  """All labels of a scheme for the types that these labels have: O, then by type and prefix.

  Without a scheme: the labels, sorted.
  """
  if scheme == 'none':
    return tuple(sorted(set(labels)))
  types = sorted({label.partition('-')[2] for label in labels if label != OUTSIDE})
  return (OUTSIDE, *(f'{prefix}-{type_}' for type_ in types for prefix in PREFIXES[scheme]))
