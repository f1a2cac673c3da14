"""question_windows: rows as transformers' fast tokenizers make them, places of answers, windows
with the most context.
"""

import re

import numpy as np
import pytest

from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.hf import verify
from bertzoo_jax.tasks import features
from bertzoo_jax.tasks import frames
from bertzoo_jax.tasks.answering import answers
from bertzoo_jax.tasks.answering import questions
from tests.found import call_part
from tests.tasks import made
from tests.tokenizers import test_open_folder
from tests.tokenizers.test_open_folder import SAMPLE
from tests.tokenizers.test_open_folder import both

__all__ = ['both']

LENGTH, STRIDE = 48, 10
RETURNED = dict.fromkeys(('overflowing_tokens', 'offsets_mapping', 'token_type_ids'), True)
RETURNED = {f'return_{name}': x for name, x in RETURNED.items()}
SHAPES = {name: shape for name, (_, shape, _) in test_open_folder.KINDS.items()}
TRAPS = (
  'cafe\u0301 na\u00efve \u0130stanbul \u0131\u015f\u0131k a\u0302\u0300b',
  '\ufeffthe \U0001f600 smiles \U0001f468\u200d\U0001f469\u200d\U0001f467 family \u2764\ufe0f red',
  'zero\u200bwidth \ufb01ne of\ufb01ce \u00bd cup \uff28\uff45\uff4c\uff4c\uff4f soft\u00adhy',
  'non\u00a0breaking \u3000 wide\ttab\nline  two   three',
  '\u5929\u5730 \u7384\u9ec4 abc\u5b87 \u304b\u3099 ga',
  "don't 3,141.59 U.S. [MASK] <mask> </s> [SEP]",
  '\u0e04\u0e33\u0e16\u0e32\u0e21 \u0939\u093f\u0928\u094d\u0926\u0940 \u0645\u064e\u0631\u062d',
)


def asked(contexts, question='Who was there?', spans=None):
  """Questions about passages; spans: (start, end) of each answer."""
  spans = spans or [(0, len(c.split()[0])) for c in contexts]
  given = [(c, (c[a:b],), (a, b)) for c, (a, b) in zip(contexts, spans)]
  return made.examples(*(questions.Question(question, *one) for one in given))


def made_rows(examples, tokenizer, shape, length=LENGTH, segments=2, **fields):
  frame = frames.Frame(shape.single, shape.pair, dict(tokenizer.special), segments, length)
  fields = {'doc_stride': STRIDE, **fields}
  return call_part(features, 'question_windows', examples, None, tokenizer, frame, **fields)


def shape_of(tokenizer):
  return next(
    SHAPES[n] for n, k in test_open_folder.KINDS.items() if dict(k[0]) == tokenizer.section
  )


def test_windows_are_those_of_transformers(both):
  transformers = pytest.importorskip('transformers', reason='their rows need transformers')
  tokenizer, folder, directory = both
  theirs = transformers.AutoTokenizer.from_pretrained(str(directory))
  contexts = [t for t in (*verify.PROBES, *TRAPS, *SAMPLE.split('\n\n')[:12]) if t.strip()]
  shape, question = shape_of(tokenizer), 'Who was \ufb01rst?'
  rows = made_rows(asked(contexts, question), tokenizers.open_folder(folder), shape)
  w, number = rows.detail, 0
  passage_first = shape.single.split()[-1].startswith('cls')
  for context in contexts:
    texts = (context, question) if passage_first else (question, context)
    ids = theirs(question, add_special_tokens=False)['input_ids']
    room = LENGTH - len(ids) - sum(r.split(':')[0] not in 'AB' for r in shape.pair.split())
    cut = 'only_first' if passage_first else 'only_second'
    how = dict(truncation=cut, max_length=LENGTH, stride=room - STRIDE, **RETURNED)
    found = theirs(*texts, **how)
    for i, ids in enumerate(found['input_ids']):
      row = slice(*rows.offsets[number : number + 2])
      assert rows.ids[row].tolist() == ids
      assert rows.segments[row].tolist() == found['token_type_ids'][i]
      own = [s == (0 if passage_first else 1) for s in found.sequence_ids(i)]
      offsets = [pair for pair, mine in zip(found['offset_mapping'][i], own) if mine]
      if tokenizer.section['name'] == 'byte_bpe' and context[offsets[0][0]] == ' ':
        start, end = offsets[0]  # GPT2Tokenizer counts the blank of a window's first token
        offsets[0] = start + 1, max(start + 1, end)
      tokens = np.arange(w.size[number])
      starts, ends = w.characters(np.full(len(tokens), number), tokens, tokens)
      assert list(zip(starts.tolist(), ends.tolist())) == [tuple(pair) for pair in offsets]
      cls = ids[w.cls[number]]
      assert cls == theirs.cls_token_id
      mask = rows.token_features['answer_mask'][row].astype(bool)
      assert mask.tolist() == [mine or i == theirs.cls_token_id for mine, i in zip(own, ids)]
      number += 1
  assert number == len(w.size) > len(contexts)


def test_the_text_that_labels_stand_for_is_the_answer_letter_by_letter(both):
  tokenizer, folder, _ = both
  contexts, spans = [], []
  for context in (*TRAPS, *SAMPLE.split('\n\n')[2:6]):
    words = [(m.start(), m.end()) for m in re.finditer(r'\S+', context.lstrip('\ufeff'))]
    shift = len(context) - len(context.lstrip('\ufeff'))
    for i in range(0, len(words), max(1, len(words) // 9)):
      last = words[min(i + i % 3, len(words) - 1)]
      contexts.append(context)
      spans.append((words[i][0] + shift, last[1] + shift))
  rows = made_rows(
    asked(contexts, spans=spans), tokenizers.open_folder(folder), shape_of(tokenizer)
  )
  w, seen = rows.detail, set()
  for number, (start, end) in enumerate(rows.labels):
    q = w.question[number]
    if start == w.cls[number]:
      continue
    places = (np.array([x]) for x in (number, start - w.place[number], end - w.place[number]))
    begin, behind = w.characters(*places)
    text = answers.cut(contexts[q], int(begin[0]), int(behind[0]))
    assert text == contexts[q][slice(*spans[q])], contexts[q]
    seen.add(int(q))
  assert len(seen) == len(contexts)


def in_characters(texts, length=16, question='abc', spans=None, **fields):
  """Rows by a tokenizer of characters: 10 tokens of a passage beside the question."""
  examples = asked(texts, question, spans)
  return made_rows(examples, made.Characters(), made.SHAPE, length=length, **fields)


def characters(text, **fields):
  return in_characters([text], **fields)


def test_windows_begin_a_stride_apart_and_the_last_one_ends_with_the_passage():
  rows = characters('0123456789' * 2 + 'xyz', doc_stride=4)
  assert rows.detail.first.tolist() == [0, 4, 8, 12, 16]
  assert rows.detail.size.tolist() == [10, 10, 10, 10, 7]
  assert rows.uncut.tolist() == [29] * 5
  assert characters('0123456789', doc_stride=4).detail.first.tolist() == [0]
  far = characters('0123456789' * 2, doc_stride=99).detail  # no token is left out
  assert far.first.tolist() == [0, 10]
  empty = characters('', spans=[questions.NOWHERE])
  assert empty.detail.size.tolist() == [0] and empty.labels.tolist() == [[0, 0]]
  assert characters('0123', question='abcdefgh', max_question=5).offsets.tolist() == [0, 12]


def test_a_window_without_the_whole_answer_has_the_place_of_the_special_token():
  rows = characters('0123456789' * 2, doc_stride=5, spans=[(8, 12)])
  # windows begin at 0, 5, 10; the passage begins at place 5 of its row
  assert rows.labels.tolist() == [[0, 0], [5 + 3, 5 + 6], [0, 0]]
  assert rows.features['impossible'].tolist() == [1, 0, 1]
  for last, there in ((10, True), (11, False)):  # of the first window, which has 10 tokens
    rows = characters('0123456789' * 2, doc_stride=20, spans=[(8, last)])
    assert rows.labels[0].tolist() == ([5 + 8, 5 + 9] if there else [0, 0])
  nowhere = characters('0123456789' * 2, doc_stride=5, spans=[questions.NOWHERE])
  assert not nowhere.labels.any() and nowhere.features['impossible'].all()


def test_every_token_has_its_most_context_in_one_window():
  draw = np.random.default_rng(0)
  for _ in range(20):
    texts = ['x' * draw.integers(1, 60) for _ in range(3)]
    rows = in_characters(texts, doc_stride=int(draw.integers(1, 12)))
    w, at, found = rows.detail, 0, {}
    for i, (q, first, size) in enumerate(zip(w.question, w.first, w.size)):
      for p in range(size):
        score = min(p, size - 1 - p) + 0.01 * size
        found.setdefault((q, first + p), []).append((-score, i))
    for i, (q, first, size) in enumerate(zip(w.question, w.first, w.size)):
      wished = [min(found[q, first + p])[1] == i for p in range(size)]
      assert w.best_context[at : at + size].tolist() == wished
      at += size


def test_the_passage_may_be_the_first_text_and_needs_room():
  rows = characters('0123', order='passage_first')
  passage, question = ([10 + ord(c) for c in text] for text in ('0123', 'abc'))
  assert rows.ids.tolist() == [2, *passage, 3, *question, 3]
  assert rows.detail.place.tolist() == [1] and rows.labels.tolist() == [[1, 4]]
  with pytest.raises(errors.UserError, match='config.length=6 leaves no room'):
    characters('0123456789', length=6)
