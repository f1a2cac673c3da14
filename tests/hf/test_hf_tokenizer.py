import functools
import json
import pathlib

import pytest

from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.hf import tokenizer as hf_tokenizer
from bertzoo_jax.hf import verify
from bertzoo_jax.hf.architectures import deberta
from bertzoo_jax.hf.architectures import deberta_v2
from bertzoo_jax.hf.architectures import roberta
from bertzoo_jax.hf.architectures import xlnet

transformers = pytest.importorskip('transformers', reason='reading back needs transformers')

SAMPLE = (pathlib.Path(__file__).parents[2] / 'data/sample/time_machine.txt').read_text()[:60_000]
PLAIN = dict(collapse_blanks=False, digit_commas='keep', symbols='', strip_accents=False)
PLAIN['lowercase'] = False
CASED = dict(lowercase=False, straight_quotes=True)
OF_ITS_OWN = dict(strip_accents=False, normalization='nfkc', split_chinese=False)
# The second wordpiece has a pipeline that no class of transformers has: it survives only as
# PreTrainedTokenizerFast.
SECTIONS = {
  'wordpiece': parts.wordpiece(vocab_size=900),
  'wordpiece of its own': parts.wordpiece(vocab_size=900, **OF_ITS_OWN),
  'byte_bpe': parts.byte_bpe(vocab_size=700),
  'unigram': parts.sentencepiece(vocab_size=700),
  'unigram, classifier last': parts.sentencepiece(vocab_size=700, specials='angled', **CASED),
  'unigram, mask last': parts.sentencepiece(vocab_size=700, specials='mask_last', **PLAIN),
  'bpe': parts.sentencepiece(vocab_size=700, model='bpe'),
}
# Vocabulary files beside tokenizer.json, by kind.
BARE = {'wordpiece': {'vocab.txt'}, 'byte_bpe': {'vocab.json', 'merges.txt'}}
BARE['sentencepiece'] = {'spiece.model'}


@functools.cache
def tokenizer_of(name):
  return tokenizers.train(dict(SECTIONS[name]), lambda: iter(SAMPLE.split('\n\n')))


@pytest.fixture(scope='module', params=SECTIONS)
def trained(request, tmp_path_factory):
  """(tokenizer, folder it was saved to)"""
  folder = tmp_path_factory.mktemp('tokenizer')
  tokenizer_of(request.param).save(folder)
  return tokenizer_of(request.param), folder


SHAPES = {
  'bert': hf_tokenizer.Shape(),
  'roberta': roberta.MASKED_LM.tokens,
  'deberta': deberta.MASKED_LM.tokens,
  'xlnet': xlnet.TOKENS,
  'deberta-v2': deberta_v2.TOKENS,
}


def export(folder, target, model_type, segments):
  content, special = hf_tokenizer.read(folder)
  model = b''.join(p.read_bytes() for p in folder.glob('spiece.model'))
  how = dict(shape=SHAPES[model_type], max_length=64, segments=segments, model=model)
  written = hf_tokenizer.files(content, special, **how)
  for name, content in written.items():
    (target / name).write_bytes(content if isinstance(content, bytes) else content.encode('utf-8'))
  (target / 'config.json').write_text(json.dumps({'model_type': model_type}))
  return set(written)


@pytest.mark.parametrize(
  'model_type, segments', [('bert', 2), ('roberta', 1), ('roberta', 2), ('deberta', 0)]
)
def test_ids_of_a_nasty_list_are_equal_after_reloading(trained, tmp_path, model_type, segments):
  tokenizer, folder = trained
  export(folder, tmp_path, model_type, segments)
  encode, shape = tokenizer.encode_as_transformers, SHAPES[model_type]
  rows = verify.compare_tokens(tmp_path, encode, tokenizer.special, shape)
  assert all(r.holds for r in rows), verify.table(rows)
  reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
  assert reloaded.model_max_length == 64
  pair = reloaded('The time', 'machine', return_token_type_ids=True)
  a, b = (len(reloaded(t, add_special_tokens=False)['input_ids']) for t in ('The time', 'machine'))
  extra = 1 if model_type == 'roberta' else 0
  assert pair['token_type_ids'] == [0] * (a + 2) + [int(segments > 1)] * (extra + b + 1)
  assert ('token_type_ids' in reloaded('a', 'b')) == (segments == 2)


def test_padding_truncation_masks_and_bare_vocabularies_are_as_users_expect(trained, tmp_path):
  tokenizer, folder = trained
  names = export(folder, tmp_path, 'bert', 2)
  reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
  out = reloaded(['time ' * 100, 'a'], padding=True, truncation=True)
  assert [len(x) for x in out['input_ids']] == [64, 64]
  assert set(out['input_ids'][1][10:]) == {tokenizer.special['pad']}
  assert sum(out['attention_mask'][1]) < 6
  masked = reloaded(f'the {reloaded.mask_token} machine')['input_ids']
  assert masked.count(tokenizer.special['mask']) == 1
  # for older tools
  assert {'tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json'} < names
  kind, text = tokenizer.section['name'], lambda name: (tmp_path / name).read_text()
  assert {n for n in names if not n.endswith('.json') or n == 'vocab.json'} == BARE[kind]
  if kind == 'wordpiece':
    assert text('vocab.txt').split('\n')[:-1] == tokenizer.pieces
  elif kind == 'sentencepiece':
    assert (tmp_path / 'spiece.model').read_bytes() == tokenizer.vocabulary.model
  else:
    ids = json.loads(text('vocab.json'))
    assert sorted(ids, key=ids.get) == tokenizer.pieces
    assert text('merges.txt').startswith('#version')


def test_where_the_classifier_is_last_it_has_a_segment_and_padding_is_on_the_left(
  trained, tmp_path
):
  tokenizer, folder = trained
  export(folder, tmp_path, 'xlnet', 0)
  reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
  cls, sep, pad = (tokenizer.special[r] for r in ('cls', 'sep', 'pad'))
  a, b = (reloaded(t, add_special_tokens=False)['input_ids'] for t in ('The time', 'machine'))
  one, two = reloaded('The time'), reloaded('The time', 'machine')
  zeros, ones = [0] * (len(a) + 1), [1] * (len(b) + 1)
  assert (one['input_ids'], one['token_type_ids']) == ([*a, sep, cls], [*zeros, 2])
  assert two['input_ids'] == [*a, sep, *b, sep, cls]
  assert two['token_type_ids'] == [*zeros, *ones, 2]
  rows = reloaded(['The time', 'machine ' * 9], padding=True)
  assert rows['input_ids'][0][:3] == [pad] * 3 and rows['input_ids'][0][-1] == cls
  assert rows['attention_mask'][0][0] == 0


def test_a_sentencepiece_model_has_their_name_and_folders_without_a_tokenizer_are_refused(tmp_path):
  tokenizer_of('unigram').save(tmp_path / 'ours')
  (tmp_path / 'theirs').mkdir()
  assert 'spm.model' in export(tmp_path / 'ours', tmp_path / 'theirs', 'deberta-v2', 0)
  with pytest.raises(errors.UserError, match='copy CORPUS/tokenizer'):
    hf_tokenizer.read(tmp_path)
  with pytest.raises(errors.UserError, match='no gaps'):
    hf_tokenizer.vocabulary({'model': {'vocab': {'a': 0, 'b': 2}}})


WORDS = [
  ['The', 'time', 'machine', "didn't", 'stop', '.'],
  ['', 'a', ' ', '\u200b', '\x07', 'b'],
  [' lead', 'trail ', 'in side', 'naïve', 'ﬁx', 'A\u0301'],
  ['海', '钓比赛', '，', '1,000', '10,', '...'],
  ['[MASK]', '<mask>', 'a<mask>b', '<s>', '[SEP]', '▁', '▁x'],
  ['😀', '👩\u200d👩', '\ufffd', '\u3000', 'İ', 'ẞ'],
  [],
]


def test_ids_of_words_equal_transformers_with_is_split_into_words(trained, tmp_path):
  tokenizer, folder = trained
  with_blank = tokenizer.for_words().save(tmp_path / 'ours') or tmp_path / 'ours'
  assert export(with_blank, tmp_path, 'bert', 2)
  reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
  sentences = WORDS + [line.split() for line in SAMPLE.split('\n')[:200]]
  ours = tokenizer.encode_words(sentences)
  theirs = tokenizers.open_folder(tmp_path).encode_words(sentences)
  for words, (ids, of_word), (other, of_other) in zip(sentences, ours, theirs):
    wanted = reloaded(words, is_split_into_words=True, add_special_tokens=False)
    assert ids.tolist() == wanted['input_ids'] == other.tolist(), words
    assert of_word.tolist() == wanted.word_ids() == of_other.tolist(), words
  assert sum(len(ids) for ids, _ in ours) > 1000


@pytest.mark.parametrize('family', ['roberta', 'deberta'])
@pytest.mark.parametrize('words', [False, True])
def test_a_byte_level_bpe_puts_a_blank_before_words_where_it_is_asked_to(tmp_path, family, words):
  ours = tokenizer_of('byte_bpe')
  ours.save(tmp_path / 'ours')
  (tmp_path / 'theirs').mkdir()
  export(tmp_path / 'ours', tmp_path / 'theirs', family, 0)
  given = {'add_prefix_space': True}
  if words:  # the files of a directory that a fine-tuning on tags began with
    read = tokenizers.open_folder(tmp_path / 'theirs').for_words()
    for name, content in hf_tokenizer.published(tmp_path / 'theirs', 0, read.json).items():
      (tmp_path / 'theirs' / name).write_bytes(content)
    given = {}
  reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path / 'theirs', **given)
  for sentence, (ids, _) in zip(WORDS[:-1], ours.encode_words(WORDS[:-1])):
    found = reloaded(sentence, is_split_into_words=True, add_special_tokens=False)['input_ids']
    assert found == ids.tolist(), sentence
  offsets = reloaded('The time', return_offsets_mapping=True)['offset_mapping']
  assert offsets[1][0] == 0 and offsets[-2][1] == 8
