import re

import numpy as np
import pytest

from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.hf import verify
from bertzoo_jax.tasks import features
from bertzoo_jax.tasks import frames
from bertzoo_jax.tasks.answering import answers
from bertzoo_jax.tasks.answering import question_metrics as metrics
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
TEXTS = ('the time machine stood there', 'x' * 45, 'a b', 'one two three four five six seven')


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
  kinds = test_open_folder.KINDS.items()
  return next(SHAPES[n] for n, k in kinds if dict(k[0]) == tokenizer.section)


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
  examples = asked(contexts, spans=spans)
  rows = made_rows(examples, tokenizers.open_folder(folder), shape_of(tokenizer))
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


def rows_of(**fields):
  return asked(TEXTS, 'abc'), in_characters(TEXTS, doc_stride=4, **fields)


def pairs(rows, starts, ends, most):
  """{question: [(score, begin, behind), …]}: all spans of all windows, by a plain search."""
  w, found, at = rows.detail, {}, 0
  for i, size in enumerate(w.size):
    row = rows.offsets[i] + w.place[i]
    for a in range(size):
      for b in range(a, min(a + most, size)):
        if w.best_context[at + a]:
          one = np.array([i])
          begin, behind = w.characters(one, one * 0 + a, one * 0 + b)
          score = float(starts[row + a]) + float(ends[row + b])
          found.setdefault(int(w.question[i]), []).append((score, int(begin[0]), int(behind[0])))
    at += size
  return found


def test_the_best_answers_are_those_of_a_search_over_all_spans():
  examples, rows = rows_of(max_answer=7)
  draw = np.random.default_rng(1)
  starts, ends = draw.normal(size=(2, len(rows.ids))).astype(np.float32)
  spans, odds = answers.from_scores(rows.detail, rows.offsets, starts, ends)
  said = answers.extract(rows.detail, examples, spans, odds, True, 0.0)
  cls = starts[rows.offsets[:-1]] + ends[rows.offsets[:-1]]
  for q, found in pairs(rows, starts, ends, 7).items():
    score, begin, behind = max(found)
    assert said.best[q] == TEXTS[q][begin:behind].strip()
    none = cls[rows.detail.question == q].min()
    np.testing.assert_allclose(odds[q], none - score, rtol=1e-5)
    assert said.texts[q] == ('' if none > score else said.best[q])
    others = [text for text, *_ in said.n_best[q]]
    assert len(others) == len(set(others)) <= 20
    shares = [p for _, p, _, _ in said.n_best[q]]
    assert shares == sorted(shares, reverse=True) and abs(sum(shares) - 1) < 1e-9


@pytest.mark.parametrize('most, wished', [(4, 'time'), (3, 'ime')])
def test_an_answer_has_as_many_tokens_as_allowed(most, wished):
  examples, rows = rows_of(max_answer=most)
  starts, ends = np.zeros((2, len(rows.ids)), np.float32)
  place = rows.detail.place[0]
  starts[[place + 3, place + 4]] = 9, 8  # 't' and 'i' of 'time', in the first window
  ends[place + 6] = 9
  spans, odds = answers.from_scores(rows.detail, rows.offsets, starts, ends)
  assert answers.extract(rows.detail, examples, spans, odds, False, 0.0).best[0] == wished


def test_a_higher_threshold_gives_more_answers_and_without_such_questions_all_have_one():
  examples, rows = rows_of()
  starts, ends = np.random.default_rng(2).normal(size=(2, len(rows.ids))).astype(np.float32)
  spans, odds = answers.from_scores(rows.detail, rows.offsets, starts, ends)
  said = lambda none, t: answers.extract(rows.detail, examples, spans, odds, none, t)
  given = [sum(map(bool, said(True, t).texts)) for t in (-99.0, *sorted(odds))]
  assert given == [0, 1, 2, 3, 4]
  assert said(False, -99.0).texts == said(True, 99.0).texts == said(True, 0.0).best


def test_a_beam_gives_the_answer_of_the_highest_product_that_is_a_span():
  examples, rows = rows_of()
  w, count = rows.detail, len(rows.labels)
  shapes = dict(start=(count, 2), end=(count, 2, 2))
  outputs = {f'{name}_share': np.full(shape, 0.0) for name, shape in shapes.items()}
  outputs |= {f'{name}_place': np.full(shape, -1.0) for name, shape in shapes.items()}
  outputs['impossible'] = np.arange(count, dtype=np.float32) - 1
  place = float(w.place[0])
  outputs['start_share'][0] = 0.6, 0.4
  outputs['start_place'][0] = 0, place + 3  # the special token; 't' of 'time'
  outputs['end_share'][0] = [[0.9, 0.1], [0.3, 0.7]]
  outputs['end_place'][0] = [[0, place + 4], [place + 6, place + 2]]  # the last is before its start
  spans, odds = answers.from_beams(w, outputs)
  said = answers.extract(w, examples, spans, odds, False, 0.0)
  assert said.best[0] == 'time' and said.best[1:] == ['', '', '']
  np.testing.assert_allclose(spans.start_score + spans.end_score, np.log(0.4 * 0.3))
  lowest = [outputs['impossible'][w.question == q].min() for q in range(len(TEXTS))]
  np.testing.assert_array_equal(odds, lowest)


def test_text_is_cut_without_blanks_and_with_its_accents():
  assert answers.cut('a cafe\u0301 b', 2, 6) == 'cafe\u0301'
  assert answers.cut(' \u3000two \u200b', 0, 7) == 'two'
  assert answers.cut('\ufeffthe end', 0, 4) == 'the' and answers.cut('', 0, 0) == ''


def test_odds_of_a_passage_without_a_token_are_finite():
  given = dict(contexts=('a b', ' '), question='abc', spans=[(0, 1), (0, 0)])
  examples = asked(**given)
  rows = in_characters(given.pop('contexts'), **given)
  starts, ends = np.zeros((2, len(rows.ids)), np.float32)
  spans, odds = answers.from_scores(rows.detail, rows.offsets, starts, ends)
  assert np.isfinite(odds).all() and odds[1] > 1e6
  assert answers.extract(rows.detail, examples, spans, odds, True, 0.0).texts[1] == ''


def said(texts, best=None, odds=None):
  texts = list(texts)
  best = best or texts
  odds = np.zeros(len(texts)) if odds is None else np.asarray(odds, float)
  return answers.Answers(texts, best, odds, [], best != texts or odds.any())


@pytest.mark.parametrize(
  'right, text, exact, f1',
  [
    (('The cat.',), 'cat', 1, 1),
    (('cat',), 'a  CAT!', 1, 1),
    (('theater',), 'a theater', 1, 1),
    (('in the house of cards',), 'house of', 0, 2 * 1 * 0.5 / 1.5),  # 'the' is gone: 2 of 4 words
    (('a b b c',), 'b b b', 0, 2 * 2 / (3 + 3)),  # 'a' is an article; b is shared twice
    (('x y', 'x'), 'x', 1, 1),
    (('rock-n-roll',), 'rocknroll', 1, 1),
    ((), '', 1, 1),
    ((), 'x', 0, 0),
    (('x',), '', 0, 0),
    (('the', 'x'), 'x', 1, 1),  # of 'the' nothing is left
    (('\u2014 x',), 'x', 0, 2 / 3),  # ASCII punctuation alone is left out
  ],
)
def test_english_scores_are_squad_s(right, text, exact, f1):
  assert metrics.exact_match([right], said([text])) == exact
  assert metrics.f1([right], said([text])) == pytest.approx(f1)


@pytest.mark.parametrize(
  'right, text, exact, f1',
  [
    (('\u5149\u8363\u548c\u03c9-force',), '\u5149\u8363\u548c\u03c9-force', 1, 1),
    (('\u300a\u6218\u56fd\u300b\u3002',), '\u6218\u56fd', 1, 1),
    # the longest common piece is \u5929\u5730, 2 of 4 and of 3
    (('\u5929\u5730\u7384\u9ec4',), '\u5929\u5730\u9ec4', 0, 4 / 7),
    (('\u5929\u5730\u7384\u9ec4',), '\u7384\u5929', 0, 2 / 6),
    (('2008\u5e74',), '2008\u5e74\u5e95', 0, 4 / 5),
    (('ABC\u516c\u53f8',), 'abc\u516c\u53f8', 1, 1),
    (('\u5929',), '\u5730', 0, 0),
    (('\u5929', '\u5730'), '\u5730', 1, 1),
    (('\u3002',), '\u3002', 1, 0),  # the script counts no character
    # NLTK leaves these signs in their word
    (('30\uff05',), '30', 0, 0),
    (('25\u00b0',), '25', 0, 0),
    (('\u7d0410\u339d',), '10\u339d', 0, 2 / 3),
    (('\u221214',), '14', 0, 0),
    (('\u7b49\u2026\u2026',), '\u7b49', 0, 2 / 3),
    # and splits these
    (('1974\u201375',), '1974', 0, 2 / 4),
    (('$5.5',), '5.5', 0, 2 / 3),
    (('1,000%',), '1,000', 0, 2 / 3),
    (("it's x.",), 'it x', 0, 2 / 6),
    ((), '', 1, 1),
  ],
)
def test_chinese_scores_are_cmrc_s(right, text, exact, f1):
  assert metrics.exact_match_zh([right], said([text])) == exact
  assert metrics.f1_zh([right], said([text])) == pytest.approx(f1)


def test_chinese_is_split_into_characters_and_words_of_other_scripts():
  text = ' \u4ed6\u7528iPhone 12\uff0c 3,000\u5143\u7684 v2.5-x! '
  wished = ['\u4ed6', '\u7528', 'iphone', '12', '3,000', '\u5143', '\u7684', 'v2.5x', '!']
  assert metrics.segments(text) == wished


def test_the_best_threshold_is_the_one_of_a_search_over_all():
  draw = np.random.default_rng(0)

  def score(right, best, odds, threshold):
    return metrics.f1(right, said('' if o > threshold else b for o, b in zip(odds, best)))

  for _ in range(30):
    right = [('x',) if draw.random() < 0.6 else () for _ in range(12)]
    best = ['x' if draw.random() < 0.7 else 'y' for _ in range(12)]
    odds = draw.integers(-3, 4, 12).astype(float)
    found = said([''] * 12, best, odds)
    wished = max(score(right, best, odds, t) for t in (*odds, odds.min() - 1))
    assert metrics.best_f1(right, found) == pytest.approx(wished)
    assert metrics.best_exact_match(right, found) == pytest.approx(wished)
    at = metrics.best_threshold(right, found)
    assert score(right, best, odds, at) == pytest.approx(wished)


def test_without_questions_without_an_answer_the_best_score_is_the_score():
  found = answers.Answers(['x', 'y'], ['x', 'y'], np.array([9.0, -9.0]), [], False)
  assert metrics.best_f1([('x',), ('z',)], found) == metrics.f1([('x',), ('z',)], found) == 0.5
