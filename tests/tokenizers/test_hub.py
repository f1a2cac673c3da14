"""Tokenizers of hf:DIR and hf:OWNER/NAME."""

import pathlib

import pytest

from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import hub as shared_hub
from bertzoo_jax.tokenizers import hub

ROOT = pathlib.Path(__file__).parents[2]


def test_a_name_of_the_hub_is_fetched_without_weights(tmp_path, monkeypatch):
  asked = []
  huggingface_hub = pytest.importorskip('huggingface_hub')

  def fetch(name, revision, allow_patterns):
    asked.append((name, revision, allow_patterns))
    return tmp_path

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', fetch)
  section = parts.wordpiece(vocab_size='auto').to_dict()
  ours = tokenizers.train(section, lambda: ['a small text'] * 2)
  ours.save(tmp_path)
  assert tokenizers.load('hf:owner/name', section).pieces == ours.pieces
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
  words = r'hf:owner/name is no folder here, and the hub gives no such files \(the files were'
  with pytest.raises(errors.UserError, match=words) as said:
    hub.folder('owner/name')
  assert said.value.code == code
  with pytest.raises(errors.UserError, match='no OWNER/NAME'):
    hub.folder('a/b/c')
