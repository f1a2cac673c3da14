import json

import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax import pretrain
from bertzoo_jax import tokenizers
from bertzoo_jax.corpus import corpus
from bertzoo_jax.corpus import report
from bertzoo_jax.corpus import shards
from bertzoo_jax.experiment import resolve
from bertzoo_jax.text import sentences
from configs import roberta
from tests.prepare import made


def test_the_corpus_holds_the_text_and_the_report_counts_it(text, clean):
  out, said = clean
  opened = corpus.open(out)
  documents = [d.split('\n') for d in open(text, encoding='utf-8').read().strip().split('\n\n')]
  corpus.verify(out)
  tokenizer, read = opened.tokenizer(), {}
  for name, split in opened.splits.items():
    ids, starts = split.gather(np.arange(split.num_tokens)), split.sentence_starts
    for a, b in zip(split.document_starts[:-1], split.document_starts[1:]):
      read[tokenizer.decode(ids[starts[a] : starts[b]])] = name
  wanted = {}
  for d in documents:
    held = shards.below(shards.content_hash('\n'.join(d).encode())[0], 0.1)
    wanted[tokenizer.decode(tokenizer.encode([' '.join(d)])[0])] = 'held_out' if held else 'train'
  assert read == wanted
  report, splits = opened.manifest['report'], opened.manifest['splits']
  paragraphs, split = [p for d in documents for p in d], sentences.splitter('rules:en').split
  counted = dict(
    documents=len(documents),
    sentences=sum(len(split(p)) for p in paragraphs),
    bytes=sum(len(' '.join(d)) for d in documents),
    words=sum(len(p.replace('.', ' .').split()) for p in paragraphs),
    tokens=sum(s['tokens'] for s in splits.values()),
    **dict(duplicate_documents=0, unknown=0),
  )
  assert {name: report[name] for name in counted} == counted
  assert len(documents) == sum(s.num_documents for s in opened.splits.values())
  tokens = opened.splits['train'].gather(np.arange(splits['train']['tokens']))
  assert np.array_equal(opened.unigrams, np.bincount(tokens, minlength=100))
  assert f'{splits["train"]["tokens"]:,} tokens' in said and 'dropped: nothing' in said


def test_dropped_text_is_reported_and_duplicates_are_counted(tmp_path):
  words = ' '.join(made.WORDS)
  texts = f'One text here. {words}', f'One  text\nhere. {words}', f'Another. {words}'
  rows = [dict(text=x) for x in (*texts, '\u200b', '', 'lone \ud800 surrogate')]
  lines = [*(json.dumps(r).encode() for r in rows), b'{"text": "\xff"}', b'no json', b'']
  (tmp_path / 'a.jsonl').write_bytes(b'\n'.join(lines))
  config, said = made.tiny(vocab_size=60, held_out=0.0), []
  manifest = made.make(config, tmp_path / 'a.jsonl', tmp_path / 'c', say=said.append)
  report = manifest['report']
  assert report['documents'] == 2 and report['duplicate_documents'] == 1
  assert {reason: d['count'] for reason, d in report['dropped'].items()} == {
    'document that occurred before': 1,
    'empty document': 1,
    'text with a lone surrogate': 1,
    'line not in UTF-8': 1,
    'line that is not JSON': 1,
    'document without a token': 1,
    'sentence without a token': 1,
  }
  assert all(reason in said[-1] for reason in report['dropped'])
  assert 'cannot be evaluated' in said[-1]


def test_byte_bpe_sentences_join_to_the_text(tmp_path):
  body = 'One here. Two there!\nThree in a new paragraph. ' + ' '.join(made.WORDS)
  (tmp_path / 'a.txt').write_text(body)
  config = made.tiny(vocab_size=262, held_out=0.0, config=roberta)
  made.make(config, tmp_path / 'a.txt', tmp_path / 'c')
  opened = corpus.open(tmp_path / 'c')
  train = opened.splits['train']
  tokens = train.gather(np.arange(train.num_tokens))
  assert opened.tokenizer().decode(tokens) == body.replace('\n', ' ')
  assert train.num_sentences == 3 and opened.manifest['report']['words'] > 0


@pytest.mark.parametrize('body', ['word ' * 99 + 'x' * 250 + ' ' + 'y' * 64 + ' end', '字' * 300])
def test_a_long_sentence_is_cut_counted_and_whole_when_joined(clean, tmp_path, monkeypatch, body):
  tokenizer, encoded = tokenizers.load(clean[0] / 'tokenizer'), []
  monkeypatch.setattr(shards, 'MAX_SENTENCE', 64)
  encode = tokenizer.encode
  monkeypatch.setattr(tokenizer, 'encode', lambda texts: encoded.extend(texts) or encode(texts))
  for folder in (shards.PARTS, *corpus.SPLITS):
    (tmp_path / folder).mkdir()
  chunk = shards.Chunk(0, [body.encode(), b'short one'], '', 1)
  record = shards.write(tmp_path, chunk, tokenizer, shards.How('rules:en', 0.0))
  assert record['long'] == 1 and encoded[-1] == 'short one'
  assert ''.join(encoded[:-1]) == body and max(map(len, encoded)) <= 64 and len(encoded) < 20
  for a, b in zip(encoded[:-2], encoded[1:-1]):
    assert 'word' not in a + b or not (a[-1:].isalpha() and b[:1].isalpha())


def test_long_sentences_are_in_the_report_and_encoded_a_few_at_a_time(clean, tmp_path, monkeypatch):
  texts = ['a' * n for n in (5, 5, 9, 30, 1, 1, 1)]
  monkeypatch.setattr(shards, '_CHARACTERS', 10)
  monkeypatch.setattr(shards, '_TEXTS', 2)
  lengths = [[len(t) for t in batch] for batch in shards._batches(texts)]
  assert lengths == [[5, 5], [9], [30], [1, 1], [1]]
  (tmp_path / 'a.txt').write_text(f'{"word " * 20_000}\n{" ".join(made.WORDS)}')
  how, said = dict(tokenizer=clean[0] / 'tokenizer'), []
  made.make(made.tiny(held_out=0.0), tmp_path / 'a.txt', tmp_path / 'c', say=said.append, **how)
  assert '1 × sentence over 65,536 characters, cut' in said[-1]


def test_mostly_unknown_text_and_excluded_texts_that_leave_nothing_out_are_told(
  clean, text, tmp_path
):
  for name, content in (
    ('a.txt', '漢字 ' * 50),
    ('eval.txt', 'Nobody wrote this.'),
    ('seen.txt', open(text).read().split('\n\n')[3]),
  ):
    (tmp_path / name).write_text(content)
  for number, (source, excluded, words) in enumerate(
    (
      (tmp_path / 'a.txt', None, '100 % OF THE CHARACTERS ARE UNKNOWN'),
      (text, 'eval.txt', '--exclude left nothing out'),
      (text, 'seen.txt', None),
    )
  ):
    how, said = dict(tokenizer=clean[0] / 'tokenizer'), []
    how['exclude'] = [str(tmp_path / excluded)] if excluded else ()
    made.make(made.tiny(held_out=0.0), source, tmp_path / f'c{number}', say=said.append, **how)
    for other in ('OF THE CHARACTERS ARE UNKNOWN', '--exclude left nothing out'):
      assert (other in said[-1]) == (words is not None and words.endswith(other)), said


LONG = 'ดจนขบพถฮทผตแไลกคร' * 8  # 136 characters without a blank

LONGER, ACCENTS = {'max_word_chars': 200}, {'strip_accents': False}
LOST = [
  (f'ดจน ขบพ {LONG}', parts.wordpiece, '96 % OF THE CHARACTERS', LONGER),
  (f'かな です {"かなまつ" * 40}', parts.wordpiece, '98 % OF THE CHARACTERS', LONGER),
  (f'ငငဂ ဂဂဆ {LONG}', parts.wordpiece, '96 % OF THE CHARACTERS', LONGER),
  ('में पुल पल', parts.wordpiece, '38 % of the characters lose', ACCENTS),
  ('がまばた きて', parts.wordpiece, '33 % of the characters lose', ACCENTS),
  ('පුළුල් ගම් කම', parts.sentencepiece, 'of the characters lose', ACCENTS),
  ('می\u200cروم خانه', parts.wordpiece, '10.0 % of the characters are joiners', {}),
]


@pytest.mark.parametrize('line, part, words, remedy', LOST)
def test_lost_characters_are_told_with_the_setting_and_the_remedy_works(
  tmp_path, line, part, words, remedy
):
  (tmp_path / 'a.txt').write_text(f'{line}\n\n' * 60)

  def last_line(**fields):
    config, said = made.tiny(held_out=0.0), []
    size = dict(vocab_size='auto')
    if part is parts.sentencepiece:
      size = dict(vocab_size=21 + len(fields), coverage=1.0)
    config.tokenizer = part(**size, **fields)
    made.make(config, tmp_path / 'a.txt', tmp_path / f'c{len(fields)}', say=said.append)
    return said[-1]

  told = last_line()
  assert words in told
  for name in remedy:
    assert f'--config.tokenizer.{name}' in told
    assert 'WARNING' not in last_line(**remedy).replace('WARNING: a word has', '')


def test_words_by_blanks_that_are_sentences_are_told():
  for train, held_out, characters, words in (
    (600, 24, 11_856, 'one for 19 characters'),  # Chinese sentences
    (40, 0, 1_000, 'one for 25 characters'),  # Thai phrases
    (100, 20, 1_100, ''),  # long words of Tamil
  ):
    counted = {'train': train, 'held_out': held_out}
    lines = report.unlike_words({'words': counted, 'report': {'characters': characters}})
    assert len(lines) == bool(words) and words in ''.join(lines)


def test_keep_words_says_what_it_counts_where_no_blanks_part_words(tmp_path):
  (tmp_path / 'a.txt').write_text(
    '\n\n'.join(f'天地玄黄宇宙洪荒日月盈昃辰宿列张寒{c}。' for c in made.WORDS)
  )
  config, said = made.tiny(vocab_size='auto', held_out=0.0), []
  made.make(config, tmp_path / 'a.txt', tmp_path / 'c', say=said.append)
  assert '  note: words are counted by blanks' in said[-1]
  config.run.keep_words = '100'
  with pytest.warns(UserWarning, match=f'Corpus {tmp_path}/c: words are counted by blanks'):
    pretrain.open_data(resolve.run(config), tmp_path / 'c')
