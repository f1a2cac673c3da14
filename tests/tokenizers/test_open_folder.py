import functools
import json
import pathlib
import shutil

import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import hub
from bertzoo_jax.common import vocabulary
from bertzoo_jax.hf import tokenizer as hf_tokenizer
from bertzoo_jax.hf import verify
from bertzoo_jax.hf.architectures import deberta_v2
from bertzoo_jax.hf.architectures import roberta
from bertzoo_jax.hf.architectures import xlnet
from bertzoo_jax.tokenizers import published

SAMPLE = (pathlib.Path(__file__).parents[2] / 'data/sample/time_machine.txt').read_text()[:60_000]
PIECES = dict(vocab_size=700, lowercase=False)
KINDS = {  # section, how its class frames texts, its model type
  'wordpiece': (parts.wordpiece(vocab_size=900), hf_tokenizer.Shape(), 'bert'),
  'byte_bpe': (parts.byte_bpe(vocab_size=700), roberta.MASKED_LM.tokens, 'roberta'),
  'sentencepiece': (parts.sentencepiece(vocab_size=700), hf_tokenizer.Shape(), 'albert'),
  'classifier last': (parts.sentencepiece(specials='angled', **PIECES), xlnet.TOKENS, 'xlnet'),
}
LAST = parts.sentencepiece(specials='mask_last', **PIECES)
KINDS['mask last'] = LAST, deberta_v2.TOKENS, 'deberta-v2'
TEXTS = [*verify.PROBES, *SAMPLE.split('\n\n')[:20]]
AUTO = dict(parts.wordpiece(vocab_size='auto'))
TOLD = {'[E1]': 900, 'xyzzy': 901}  # added tokens: a marker, and a word
ADDED = {str(i): dict(content=x, special=x == '[E1]') for x, i in TOLD.items()}


@pytest.fixture(scope='module', params=KINDS)
def both(request, tmp_path_factory):
  """(tokenizer, its folder, the directory of an export)"""
  section, shape, model_type = KINDS[request.param]
  tokenizer = tokenizers.train(dict(section), lambda: iter(SAMPLE.split('\n\n')))
  folder, directory = (tmp_path_factory.mktemp(name) for name in ('own', 'hf'))
  tokenizer.save(folder)
  content, special = hf_tokenizer.read(folder)
  model = b''.join(p.read_bytes() for p in folder.glob('spiece.model'))
  how = dict(shape=shape, max_length=64, segments=2, model=model)
  for name, data in hf_tokenizer.files(content, special, **how).items():
    (directory / name).write_bytes(data if isinstance(data, bytes) else data.encode('utf-8'))
  (directory / 'config.json').write_text(json.dumps({'model_type': model_type}))
  return tokenizer, folder, directory


def theirs(directory, texts=TEXTS):
  transformers = pytest.importorskip('transformers', reason='their ids need transformers')
  tokenizer = transformers.AutoTokenizer.from_pretrained(str(directory))
  return [tokenizer(text, add_special_tokens=False)['input_ids'] for text in texts]


def ids(tokenizer, texts=TEXTS):
  return [list(map(int, x)) for x in tokenizer.encode_as_transformers(texts)]


def test_the_ids_of_a_folder_are_those_of_transformers(both):
  _, folder, directory = both
  wanted = theirs(directory)
  assert any(wanted)
  for place in (folder, directory):
    assert ids(tokenizers.open_folder(place)) == wanted, place


def test_both_folders_of_a_tokenizer_have_the_same_pieces_and_special_ids(both):
  tokenizer, folder, directory = both
  own, found = tokenizers.open_folder(folder), tokenizers.open_folder(directory)
  assert isinstance(own, tokenizers.Tokenizer) and isinstance(found, published.Published)
  assert own.pieces == found.pieces == tokenizer.pieces
  assert own.vocab_size == found.vocab_size == tokenizer.vocab_size
  roles = {role: tokenizer.special[role] for role in ('pad', 'unk', 'cls', 'sep', 'mask')}
  assert found.special == roles and own.special == tokenizer.special
  row = tokenizer.encode(['The time machine.'])[0]
  assert own.decode(row) == found.decode(row)
  again = tokenizers.load(f'hf:{directory}', tokenizer.section)  # as prepare --tokenizer
  assert (again.pieces, again.special) == (tokenizer.pieces, tokenizer.special)
  if tokenizer.section['name'] == 'byte_bpe':
    other = {**tokenizer.section, 'add_prefix_space': True}
    with pytest.raises(errors.UserError, match='splits .* into .*, config.tokenizer into .*: set'):
      tokenizers.load(f'hf:{directory}', other)


@pytest.mark.parametrize('special_text', [False, True])
def test_offsets_come_with_the_ids_and_are_alike_in_both_folders(both, special_text):
  tokenizer, folder, directory = both
  texts = [*TEXTS, f'a {tokenizer.pieces[tokenizer.special["mask"]]} b']
  offsets = lambda place: tokenizers.open_folder(place).encode_with_offsets(texts, special_text)
  own, found = offsets(folder), offsets(directory)
  encode = tokenizer.encode_as_transformers if special_text else tokenizer.encode
  for text, a, b, wanted in zip(texts, own, found, encode(texts)):
    np.testing.assert_array_equal(a[0], wanted)
    np.testing.assert_array_equal(b[0], wanted)
    assert (a[1] <= a[2]).all() and (a[2] <= len(text)).all()
    if special_text:
      first = int(text[:1] == ' ')  # GPT2Tokenizer counts that blank into the first token
      np.testing.assert_array_equal(np.array(a)[:, first:], np.array(b)[:, first:])
  assert (tokenizer.special['mask'] in own[-1][0]) == special_text


def test_special_pieces_that_no_file_names_have_their_usual_spelling_and_a_lacking_one_is_named(
  both, tmp_path
):
  tokenizer, _, directory = both
  shutil.copy(directory / 'tokenizer.json', tmp_path)
  special = tokenizers.open_folder(tmp_path).special
  assert special == {role: tokenizer.special[role] for role in special} and len(special) == 5
  with pytest.raises(errors.UserError, match='no piece <none>: name its cls_token'):
    tokenizers.open_folder(told(tmp_path, cls_token={'content': '<none>'}))


@functools.cache
def small_wordpiece():
  section = dict(parts.wordpiece(vocab_size=900))
  return tokenizers.train(section, lambda: iter(SAMPLE.split('\n\n')))


@pytest.fixture
def bare(tmp_path):
  """A function that writes tokenizer_config.json beside a vocab.txt."""
  (tmp_path / 'vocab.txt').write_text('\n'.join(small_wordpiece().pieces) + '\n')
  (tmp_path / 'config.json').write_text('{"model_type": "bert"}')
  return lambda **content: told(tmp_path, **content)


def test_a_vocabulary_alone_is_read_where_the_directory_says_whether_it_is_lower_cased(bare):
  folder = bare(do_lower_case=True)
  assert ids(tokenizers.open_folder(folder)) == theirs(folder)
  with pytest.raises(errors.UserError, match='do_lower_case'):
    tokenizers.open_folder(bare())


@pytest.mark.parametrize('content', [dict(strip_accents=False), {}])
def test_a_class_sets_the_normalizer_of_tokenizer_json(bare, content):
  other = tokenizers.load(bare(do_lower_case=True), AUTO)
  folder = bare(tokenizer_class='BertTokenizer', do_lower_case=True, **content)
  raw = json.loads(other.parsing_engine().to_str())
  raw['normalizer']['lowercase'] = False
  (folder / 'tokenizer.json').write_text(json.dumps(raw))
  opened = tokenizers.open_folder(folder)
  assert isinstance(opened, published.Published)
  assert ids(opened) == theirs(folder)
  assert ids(opened, ['Time']) == ids(opened, ['time'])


@pytest.mark.parametrize(
  'change, more',
  [
    (lambda d: vocabulary_text(d, after='\n'), {}),
    (lambda d: vocabulary_text(d, after='\n\r\n\n'), {}),
    (lambda d: vocabulary_text(d, before='\ufeff'), {}),
    (lambda d: vocabulary_text(d, end='\r\n'), {}),
    (lambda d: (d / 'added_tokens.json').write_text(json.dumps(TOLD)), TOLD),
    (lambda d: told(d, do_lower_case=True, added_tokens_decoder=ADDED), TOLD),
    (lambda d: with_tokenizer_json(d, [dict(t, id=int(i)) for i, t in ADDED.items()]), TOLD),
  ],
)
def test_every_command_reads_the_same_vocabulary(bare, change, more):
  folder = bare(do_lower_case=True)
  wanted = {piece: i for i, piece in enumerate(tokenizers.open_folder(folder).pieces)} | more
  change(folder)
  prepared, found = tokenizers.load(f'hf:{folder}', AUTO), tokenizers.open_folder(folder)
  prepared.save(folder / 'corpus')
  assert vocabulary.read_folder(folder) == vocabulary.read_folder(folder / 'corpus') == wanted
  assert prepared.pieces == found.pieces == [*wanted]
  plain = ['the time xyzzy', 'Déjà vu']
  assert ids(prepared, plain) == ids(found, plain)
  if not more:  # transformers keeps the mark, and counts the empty line
    return
  assert ids(found, ['a [E1] b']) == theirs(folder, ['a [E1] b'])


def test_a_vocabulary_with_a_piece_twice_is_refused_alike_and_the_remedy_works(bare):
  folder, sentences = bare(do_lower_case=True), set()
  pieces = (folder / 'vocab.txt').read_text().split('\n')[:-1]
  write = lambda *lines: (folder / 'vocab.txt').write_text('\n'.join([*lines, '']))
  write(*pieces, pieces[700])
  load = lambda: tokenizers.load(f'hf:{folder}', AUTO)
  opened = lambda: tokenizers.open_folder(folder)
  for reader in (load, opened, lambda: vocabulary.read_folder(folder)):
    with pytest.raises(errors.UserError, match=r'twice, in lines 701 and 901.*\[unused701\]') as e:
      reader()
    sentences.add(str(e.value))
  assert len(sentences) == 1
  write(*pieces[:700], '[unused701]', *pieces[701:], pieces[700])
  assert opened().pieces == load().pieces


def vocabulary_text(folder, before='', after='', end='\n'):
  text = (folder / 'vocab.txt').read_text()
  (folder / 'vocab.txt').write_bytes((before + text + after).replace('\n', end).encode())


def told(folder, **content):
  (folder / 'tokenizer_config.json').write_text(json.dumps(content))
  return folder


def with_tokenizer_json(folder, added):
  content = json.loads(tokenizers.load(folder, AUTO).parsing_engine().to_str())
  more = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
  content['added_tokens'] += [{**more, **token} for token in added]
  (folder / 'tokenizer.json').write_text(json.dumps(content))


@pytest.mark.parametrize('with_json', [False, True])
def test_prepare_follows_the_file_that_transformers_follows(bare, with_json):
  folder = bare(do_lower_case=True)
  if with_json:
    with_tokenizer_json(folder, [])
  for here, there in (
    (dict(lowercase=True), dict(do_lower_case=False)),
    (dict(strip_accents=False), dict(do_lower_case=True, strip_accents=True)),
    (dict(split_chinese=True), dict(do_lower_case=True, tokenize_chinese_chars=False)),
  ):
    told(folder, tokenizer_class='BertTokenizer', **there)
    with pytest.raises(errors.UserError, match='config.tokenizer into .*: set the fields'):
      tokenizers.load(f'hf:{folder}', AUTO | dict(lowercase=True, strip_accents=True) | here)


@pytest.mark.parametrize('both', ['byte_bpe'], indirect=True)
def test_merges_alone_are_read(both, tmp_path):
  _, _, directory = both
  for name in ('vocab.json', 'merges.txt'):
    shutil.copy(directory / name, tmp_path)
  assert ids(tokenizers.open_folder(tmp_path)) == theirs(directory)


def test_files_that_do_not_say_how_text_is_split_are_one_sentence(tmp_path):
  for file, content, place, words in (
    ('x', '', '', 'has no tokenizer and no tokenizer.json'),
    ('spm.model', 'x', '', 'has spm.model and no tokenizer.json.*save_pretrain'),
    ('x', '', 'nowhere', 'does not exist'),
    ('tokenizer.json', '{"model": 7}', '', 'tokenizer.json is not one'),
  ):
    (tmp_path / file).write_text(content)
    with pytest.raises(errors.UserError, match=words):
      tokenizers.open_folder(tmp_path / place)


def test_a_name_of_the_hub_is_fetched_without_weights(tmp_path, monkeypatch):
  asked = []
  huggingface_hub = pytest.importorskip('huggingface_hub')
  fetch = lambda name, revision, allow_patterns: (
    asked.append((name, revision, allow_patterns)) or tmp_path
  )
  monkeypatch.setattr(huggingface_hub, 'snapshot_download', fetch)
  small_wordpiece().save(tmp_path)
  assert tokenizers.load('hf:owner/name', AUTO).pieces == small_wordpiece().pieces
  hub.folder('owner/name@refs/pr/1', ['*.json'])
  every = ('owner/name', None, list(hub.TOKENIZER))
  assert asked == [every, ('owner/name', 'refs/pr/1', ['*.json'])]
  assert not any('safetensors' in p or '*' in p for p in hub.TOKENIZER)


@pytest.mark.parametrize(
  'reason, offline, code',
  [
    (ConnectionError('no route\nto host'), False, 75),
    (ConnectionError('told to stay offline'), True, 2),
    (FileNotFoundError('no such name'), False, 2),
  ],
)
def test_a_hub_that_gives_nothing_is_one_sentence_and_what_may_pass_is_tried_again(
  monkeypatch, reason, offline, code
):
  huggingface_hub = pytest.importorskip('huggingface_hub')
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', offline)

  def nothing(name, revision, allow_patterns):
    try:
      raise reason
    except OSError as e:
      # as that library says it also of a network that is down
      raise ValueError(f'the files were not found: {e}') from e

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', nothing)
  words = r'hf:owner/name is no folder here, and the hub gives no such files \(the files were'
  with pytest.raises(errors.UserError, match=words) as said:
    hub.folder('owner/name', hub.TOKENIZER)
  assert said.value.code == code
  with pytest.raises(errors.UserError, match='no OWNER/NAME'):
    hub.folder('a/b/c', hub.TOKENIZER)
