"""prepare: the content of a corpus, and its report."""

import json
import pathlib
import re
import shlex

import ml_collections
import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax import pretrain
from bertzoo_jax import tokenizers
from bertzoo_jax.common import progress
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
  rows = [
    dict(text='One text here. ' + ' '.join(made.WORDS)),
    dict(text='One  text\nhere. ' + ' '.join(made.WORDS)),
    dict(text='Another. ' + ' '.join(made.WORDS)),
    dict(text='\u200b'),
    dict(text=''),
    dict(text='lone \ud800 surrogate'),
  ]
  (tmp_path / 'a.jsonl').write_bytes(
    b'\n'.join(json.dumps(r).encode() for r in rows) + b'\n{"text": "\xff"}\nno json\n'
  )
  said = []
  manifest = made.make(
    made.tiny(vocab_size=60, held_out=0.0), tmp_path / 'a.jsonl', tmp_path / 'c', say=said.append
  )
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


def test_mostly_unknown_text_is_said_loudly(clean, text, tmp_path):
  (tmp_path / 'a.txt').write_text('漢字 ' * 50)
  for source, loud in ((str(tmp_path / 'a.txt'), True), (text, False)):
    how, said = dict(tokenizer=clean[0] / 'tokenizer'), []
    made.make(made.tiny(held_out=0.0), [source], tmp_path / f'c{loud}', say=said.append, **how)
    assert ('100 % OF THE CHARACTERS ARE UNKNOWN' in said[-1]) == loud


LONG = 'ดจนขบพถฮทผตแไลกคร' * 8  # 136 characters without a blank


@pytest.mark.parametrize(
  'line, changes, words, remedy',
  [
    (f'ดจน ขบพ {LONG}', {}, '96 % OF THE CHARACTERS', {'max_word_chars': 200}),
    (f'かな です {"かなまつ" * 40}', {}, '98 % OF THE CHARACTERS', {'max_word_chars': 200}),
    (f'ငငဂ ဂဂဆ {LONG}', {}, '96 % OF THE CHARACTERS', {'max_word_chars': 200}),
    ('में पुल पल', {}, '38 % of the characters lose', {'strip_accents': False}),
    ('がまばた きて', {}, '33 % of the characters lose', {'strip_accents': False}),
    ('පුළුල් ගම් කම', {'sentencepiece': True}, 'of the characters lose', {'strip_accents': False}),
    ('می\u200cروم خانه', {}, '10.0 % of the characters are joiners', None),
  ],
)
def test_lost_characters_are_told_with_the_setting_and_the_remedy_works(
  tmp_path, line, changes, words, remedy
):
  (tmp_path / 'a.txt').write_text(f'{line}\n\n' * 60)

  def said(**fields):
    config = made.tiny(held_out=0.0)
    section = parts.wordpiece(vocab_size='auto')
    if changes:
      section = parts.sentencepiece(vocab_size=21 + len(fields), coverage=1.0)
    config.tokenizer = ml_collections.ConfigDict({**section, **fields})
    lines = []
    folder = tmp_path / f'c{len(fields)}'
    made.make(config, tmp_path / 'a.txt', folder, say=lines.append)
    return lines[-1]

  told = said()
  assert words in told
  if remedy is None:
    return
  assert f'--config.tokenizer.{next(iter(remedy))}' in told
  assert 'WARNING' not in said(**remedy).replace('WARNING: a word has', '')


@pytest.mark.parametrize(
  'words, characters, told',
  [
    ({'train': 600, 'held_out': 24}, 11_856, 'one for 19 characters'),  # Chinese sentences
    ({'train': 40, 'held_out': 0}, 1_000, 'one for 25 characters'),  # Thai phrases
    ({'train': 100, 'held_out': 20}, 1_100, ''),  # long words of Tamil
  ],
)
def test_words_by_blanks_that_are_sentences_are_told(words, characters, told):
  lines = report.unlike_words({'words': words, 'report': {'characters': characters}})
  assert len(lines) == bool(told) and told in ''.join(lines)


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


def test_excluded_texts_that_leave_nothing_out_are_told(text, clean, tmp_path):
  (tmp_path / 'eval.txt').write_text('Nobody wrote this.')
  (tmp_path / 'seen.txt').write_text(open(text).read().split('\n\n')[3])
  for name, told in (('eval.txt', True), ('seen.txt', False)):
    said, how = [], dict(tokenizer=clean[0] / 'tokenizer', exclude=[str(tmp_path / name)])
    made.make(made.tiny(), text, tmp_path / f'c-{name}', say=said.append, **how)
    assert ('--exclude left nothing out' in said[-1]) == told, said


def test_every_reading_of_the_text_has_a_name_of_its_own(text, tmp_path, monkeypatch):
  names, meter = [], progress.Meter
  named = lambda what, *more: names.append(what) or meter(what, *more)
  monkeypatch.setattr(progress, 'Meter', named)
  made.make(made.tiny(), text, tmp_path / 'c')
  of_tokenizer = ['reading for the tokenizer', 'learning pieces']
  assert names == ['looking for duplicates', *of_tokenizer, 'tokenising']


ROOT = pathlib.Path(__file__).parents[2]
DOC = (ROOT / 'docs' / 'preparing_at_scale.md').read_text()
BEAM_ARGS = [shlex.split(args) for args in re.findall(r"--beam_args='(--runner=[A-Z][^']*)'", DOC)]
ALTERNATIVES = re.findall(r'`(--[a-z_]+=?[^`]*)`', DOC.split('## Apache Beam')[1])
OURS = (
  '--runner',
  '--source',
  '--out',
  '--tokenizer',
  '--phrases',
  '--entities',
  '--beam_args',
  '--exclude',
)


def _unknown(args):
  from apache_beam.options import pipeline_options

  parsed = pipeline_options.PipelineOptions(args)
  return set(parsed.get_all_options(retain_unknown_options=True)) - set(
    parsed.get_all_options(retain_unknown_options=False)
  )


def test_every_runner_and_option_of_the_page_is_beams():
  from apache_beam.runners import runner

  assert len(BEAM_ARGS) == 4 and _unknown(['--runer=DirectRunner'])
  for args in BEAM_ARGS:
    assert not _unknown(args), args
    name = args[0].partition('=')[2]
    # Dataflow's needs apache-beam[gcp]
    assert name == 'DataflowRunner' or type(runner.create_runner(name)).__name__.endswith('Runner')
  others = [
    a
    for a in ALTERNATIVES
    if '=' in a and (a.partition('=')[0] not in OURS or re.match(r'--runner=[A-Z]', a))
  ]
  assert len(others) > 5
  for args in others:
    assert not _unknown(shlex.split(args)), args
