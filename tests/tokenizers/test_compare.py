"""show --tokenizers: the numbers are those of the text, and every form of tokenizer can stand
beside every other.
"""

import io
import json
import pathlib
import subprocess
import sys

import pytest
import rich.console

from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import hub as shared_hub
from bertzoo_jax.hf import tokenizer as hf_tokenizer
from bertzoo_jax.show import __main__ as show
from bertzoo_jax.tokenizers import compare
from bertzoo_jax.tokenizers import hub
from configs import parts

ROOT = pathlib.Path(__file__).parents[2]
TEXT = 'the cat sat\n\nthe 猫 sat   unbelievable\n'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Tokenizers as `save` writes them and as Hugging Face directories (hf_…), and text.txt."""
  folder = tmp_path_factory.mktemp('compare')
  (folder / 'text.txt').write_text(TEXT)
  sections = dict(
    wordpiece=parts.wordpiece(vocab_size=800, coverage=1.0),
    byte_bpe=parts.byte_bpe(vocab_size=700),
    unigram=parts.sentencepiece(vocab_size=500),
  )
  sample = (ROOT / 'data/sample/time_machine.txt').read_text()[:60_000].split('\n\n')
  for name, section in sections.items():
    ours = tokenizers.train(section.to_dict(), lambda: iter(sample))
    ours.save(folder / name)
    (folder / f'hf_{name}').mkdir()
    content, special = hf_tokenizer.read(folder / name)
    files = hf_tokenizer.files(
      content,
      special,
      shape=hf_tokenizer.Shape(),
      max_length=64,
      segments=2,
      model=hf_tokenizer.sentencepiece_model(folder / name),
    )
    for file, data in files.items():
      (folder / f'hf_{name}' / file).write_bytes(data if isinstance(data, bytes) else data.encode())
  return folder


def one(name, folder, source='text.txt', section=None):
  (result,), size = compare.compare([str(name)], [str(folder / source)], section)
  return result, size


def test_words_are_cut_at_blanks_and_around_characters_of_scripts_without_them():
  assert compare.words(' a b\tc ') == ['a', 'b', 'c']
  assert compare.words('naïve café') == ['naïve', 'café']
  assert compare.words('ab猫犬c d、') == ['ab', '猫', '犬', 'c', 'd、']


def test_the_measures_are_those_of_the_text(folder):
  result, size = one(folder / 'wordpiece', folder)
  ours = tokenizers.load(folder / 'wordpiece')
  lines = [line for line in TEXT.split('\n') if line]
  ids = [i for row in ours.encode(lines) for i in row.tolist()]
  assert (result.tokens, result.words, size) == (
    len(ids),
    7,
    sum(len(line.encode()) for line in lines),
  )
  letters = sum(len(''.join(line.split())) for line in lines)
  assert result.unknown == pytest.approx(1 / letters) and '猫' not in ours.pieces
  word, pieces = result.hardest[0]
  assert (word, pieces) == ('unbelievable', len(ours.encode(['unbelievable'])[0]))
  assert ('猫', True) not in result.sample and result.sample[0] == ('the', False)


@pytest.mark.parametrize('name', ['wordpiece', 'byte_bpe', 'unigram'])
def test_a_tokenizer_measures_the_same_in_every_form(name, folder):
  ours, theirs = one(folder / name, folder)[0], one(f'hf:{folder}/hf_{name}', folder)[0]
  assert ours[1:] == theirs[1:] and ours.reading.vocab_size == theirs.reading.vocab_size
  bare = {'wordpiece': 'vocab.txt', 'byte_bpe': None, 'unigram': 'spiece.model'}[name]
  if bare:
    section = json.loads((folder / name / 'bertzoo.json').read_text())['section']
    assert one(folder / f'hf_{name}' / bare, folder, section=section)[0][1:] == ours[1:]


def test_bare_files_are_read_without_a_config(folder, tmp_path):
  for name, files in dict(
    wordpiece=['vocab.txt'], byte_bpe=['vocab.json', 'merges.txt'], unigram=['spiece.model']
  ).items():
    (tmp_path / name).mkdir()
    for file in files:
      (tmp_path / name / file).write_bytes((folder / f'hf_{name}' / file).read_bytes())
    # the text is in small letters
    assert one(tmp_path / name, folder)[0].tokens == one(folder / name, folder)[0].tokens, name


def test_bytes_of_one_character_are_dots_in_the_sample(folder, tmp_path):
  (tmp_path / 'zh.txt').write_text('猫' * 50)
  sample = one(folder / 'byte_bpe', tmp_path, 'zh.txt')[0].sample
  assert sample[:4] == [('猫', False), ('·', False), ('·', False), ('猫', False)]


def test_all_of_it_is_shown(folder):
  console = rich.console.Console(file=io.StringIO(), width=120)
  show.compare_tokenizers(
    [str(folder / 'wordpiece'), f'hf:{folder}/hf_unigram'],
    [str(folder / 'text.txt')],
    console=console,
  )
  text = console.file.getvalue()
  assert (
    '7 words' in text
    and '800' in text
    and '500' in text
    and 'Unigram' in text
    and 'the|' in text
    and 'in most pieces: unbelievable' in text
  )


@pytest.mark.parametrize(
  'name, source, words',
  [
    ('nothing', 'README.md', '--tokenizers=nothing does not exist'),
    ('configs', 'README.md', 'a tokenizer is read from'),
    ('README.md', '', '--source is missing'),
  ],
)
def test_a_wrong_name_is_one_sentence(name, source, words):
  with pytest.raises(errors.UserError, match=words):
    show.compare_tokenizers(
      [str(ROOT / name) if name != 'nothing' else name], [str(ROOT / source)] if source else None
    )


@pytest.mark.parametrize(
  'flags, words',
  [
    pytest.param(
      ['--tokenizers', 'nothing', '--source', 'README.md'],
      'does not exist',
      marks=pytest.mark.slow,
    ),
    (['--config', 'configs/bert.py:tiny'], '--corpus is missing'),
  ],
)
def test_a_wrong_line_is_one_sentence(flags, words):
  done = subprocess.run(
    [sys.executable, '-m', 'bertzoo_jax.show', *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 2 and words in done.stderr and done.stderr.count('\n') == 1, done.stderr


def test_a_text_of_blanks_is_refused(folder, tmp_path):
  (tmp_path / 'empty.txt').write_text(' \n')
  with pytest.raises(errors.UserError, match='no text'):
    one(folder / 'wordpiece', tmp_path, 'empty.txt')


# --- hf:… ---


@pytest.mark.parametrize('name', ['wordpiece', 'byte_bpe', 'unigram'])
def test_a_directory_of_hugging_face_is_read_by_the_config_it_was_made_with(name, folder):
  ours = tokenizers.load(folder / name)
  again = tokenizers.load(f'hf:{folder}/hf_{name}', ours.section)
  assert again.pieces == ours.pieces and again.special == ours.special


@pytest.mark.parametrize(
  'name, fields',
  [('wordpiece', dict(strip_accents=False)), ('byte_bpe', dict(add_prefix_space=True))],
)
def test_a_directory_that_splits_plain_text_otherwise_is_refused(name, fields, folder):
  section = {**tokenizers.load(folder / name).section, **fields}
  with pytest.raises(
    errors.UserError, match='splits .* into .*, config.tokenizer into .*: set its fields'
  ):
    tokenizers.load(f'hf:{folder}/hf_{name}', section)


def test_a_name_of_the_hub_is_fetched_without_weights(folder, monkeypatch):
  asked = []
  huggingface_hub = pytest.importorskip('huggingface_hub')

  def fetch(name, revision, allow_patterns):
    asked.append((name, revision, allow_patterns))
    return folder / 'hf_wordpiece'

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', fetch)
  ours = tokenizers.load(folder / 'wordpiece')
  assert tokenizers.load('hf:owner/name', ours.section).pieces == ours.pieces
  shared_hub.folder('owner/name@refs/pr/1', ['*.json'])
  assert asked == [
    ('owner/name', None, list(shared_hub.TOKENIZER)),
    ('owner/name', 'refs/pr/1', ['*.json']),
  ]
  assert not any('safetensors' in p or '*' in p for p in shared_hub.TOKENIZER)


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
  with pytest.raises(
    errors.UserError,
    match=r'hf:owner/name is no folder here, and the hub gives no such files \(the files were',
  ) as said:
    hub.folder('owner/name')
  assert said.value.code == code
  with pytest.raises(errors.UserError, match='no OWNER/NAME'):
    hub.folder('a/b/c')
