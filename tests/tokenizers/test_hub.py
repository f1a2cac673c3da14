"""Tokenizers of hf:DIR and hf:OWNER/NAME."""

import pathlib

import pytest

from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import hub
from bertzoo_jax.hf import tokenizer as hf_tokenizer

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Tokenizers as `save` writes them and as Hugging Face directories (hf_…)."""
  folder = tmp_path_factory.mktemp('hub')
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
      model=b''.join(p.read_bytes() for p in (folder / name).glob('spiece.model')),
    )
    for file, data in files.items():
      (folder / f'hf_{name}' / file).write_bytes(data if isinstance(data, bytes) else data.encode())
  return folder


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
  words = 'splits .* into .*, config.tokenizer into .*: set the fields'
  with pytest.raises(errors.UserError, match=words):
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
  hub.folder('owner/name@refs/pr/1', ['*.json'])
  assert asked == [
    ('owner/name', None, list(hub.TOKENIZER)),
    ('owner/name', 'refs/pr/1', ['*.json']),
  ]
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
