import json

from bertzoo_jax.common import vocabulary
from tests.refused import refused

ADDED = [{'id': 2, 'content': '<x>'}]
MODELS = {
  'WordPiece': {'type': 'WordPiece', 'vocab': {'a': 0, 'b': 1}},
  'BPE': {'type': 'BPE', 'vocab': {'a': 0, 'b': 1}, 'merges': []},
  'Unigram': {'type': 'Unigram', 'vocab': [['a', -1.0], ['b', -2.0]]},
}
PIECES = {f'p{i}': i for i in range(4096)}
TURNED = {piece: (i + 1) % 4096 if i < 3960 else i for piece, i in PIECES.items()}


def test_pieces_and_added_tokens_of_every_kind_of_tokenizer_are_read(tmp_path):
  assert vocabulary.read_folder(tmp_path) is None
  (tmp_path / 'vocab.txt').write_bytes('[PAD]\na\u2028b\n\u00e9\n'.encode())
  assert vocabulary.read_folder(tmp_path) == {'[PAD]': 0, 'a\u2028b': 1, '\u00e9': 2}
  file = tmp_path / 'tokenizer.json'
  for model in MODELS.values():
    file.write_text(json.dumps({'model': model, 'added_tokens': ADDED}))
    assert vocabulary.read_folder(tmp_path) == {'a': 0, 'b': 1, '<x>': 2}
  for text in ('{', '{}', '{"model": {"vocab": 3}}'):
    file.write_text(text)
    refused('no readable tokenizer|is not JSON', vocabulary.read_folder, tmp_path)


def test_a_folder_of_prepare_whose_vocabulary_has_two_lines_swapped_is_refused(tmp_path):
  (tmp_path / 'tokenizer.json').write_text(json.dumps({'model': MODELS['WordPiece']}))
  (tmp_path / 'bertzoo.json').write_text('{}')
  ids = ('vocab.json', '{"b": 0, "a": 1}', '{"a": 0, "b": 1}')
  for name, swapped, right in (('vocab.txt', 'b\na\n', 'a\nb\n'), ids):
    (tmp_path / name).write_text(swapped)
    refused(f'{name} and the tokenizer.json beside it', vocabulary.read_folder, tmp_path)
    (tmp_path / name).write_text(right)
    assert vocabulary.read_folder(tmp_path) == {'a': 0, 'b': 1}


def test_the_difference_of_two_vocabularies_is_counted_with_an_example():
  one, both, example = {'a': 0}, {'a': 0, 'b': 1}, 'pieces have another id, e.g. '
  for here, there, words in (
    (PIECES, dict(reversed(PIECES.items())), None),
    (PIECES, TURNED, f"3,960 of 4,096 {example}'p0' is 0 here and 1 there."),
    (both, one, f"1 of 2 {example}'b' is 1 here and not a piece there."),
    (one, both, "1 pieces are only there, e.g. 'b'; the 1 pieces here have the same ids."),
  ):
    assert vocabulary.difference_of(here, there) == words
