import pathlib
import shutil
import types

import numpy as np
import pytest
import safetensors.numpy

import bertzoo_jax
from bertzoo_jax import encode
from bertzoo_jax import fill_mask
from bertzoo_jax.common import errors
from bertzoo_jax.hf import sentence_vectors
from bertzoo_jax.pretrained import loading
from tests.pretrained import test_loading as made

ROOT = pathlib.Path(__file__).parents[2]
LINES = ['The time machine stood there.', '', ' '.join(['I looked at the traveller.'] * 3)]
LINES += ['a line\u2028that is one line', 'Yes']

places = made.places  # family → (run, export)
TEXT = 'The time [MASK] stood in the [MASK].'
POINTER = b'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 44\n'


def text(folder, lines=LINES, end='\n'):
  path = folder / 'text.txt'
  path.write_bytes(end.join([*lines, '']).encode())
  return str(path)


def test_a_line_is_a_row_in_order_and_only_the_file_is_left(places, tmp_path, monkeypatch):
  monkeypatch.setattr(loading, '_CHUNK', 1)  # chunks of two lines
  run, _ = places('bert')
  source, out = text(tmp_path), tmp_path / 'deep' / 'vectors.npy'
  found = encode.encode(str(run), source, str(out), pooling='first', batch_size=2)
  assert found == encode.Encoded((5, 32), 5, 0, 1, 2)
  assert [p.name for p in out.parent.iterdir()] == ['vectors.npy']
  got = np.load(out, mmap_mode='r')
  assert got.dtype == np.float32
  np.testing.assert_allclose(got, bertzoo_jax.load(str(run)).encode(LINES, 'first'), atol=1e-5)


@pytest.mark.parametrize('family', ['bert', 'xlnet'])
def test_tokens_come_with_the_rows_of_each_line_and_their_characters(
  places, family, tmp_path, monkeypatch
):
  monkeypatch.setattr(loading, '_CHUNK', 1)
  run, _ = places(family)
  how = dict(pooling='tokens', batch_size=2, length=32)
  encode.encode(str(run), text(tmp_path), str(tmp_path / 'v.npy'), **how)
  names = ['text.txt', 'v.npy', 'v.rows.npy', 'v.tokens.npy']
  assert sorted(p.name for p in tmp_path.iterdir()) == names
  vectors, rows, tokens = (np.load(tmp_path / name) for name in names[1:])
  assert rows.dtype == np.int64 and rows[0] == 0 and rows[-1] == len(vectors) == len(tokens)
  model = bertzoo_jax.load(str(run))
  wanted = model.encode(LINES, 'none', max_length=32)
  for n, (line, row) in enumerate(zip(LINES, model.rows(LINES, 32))):
    own = slice(rows[n], rows[n + 1])
    np.testing.assert_allclose(vectors[own], wanted[n], atol=1e-5)
    np.testing.assert_array_equal(tokens['id'][own], row.ids)
    special = [model.tokenizer.special[role] for role in ('cls', 'sep')]
    around = np.isin(tokens['id'][own], special)
    assert around.sum() == 2 and (tokens['start'][own][around] == -1).all()
    for i, start, end in tokens[own][~around]:
      piece = model.tokenizer.pieces[i].replace('▁', '').removeprefix('##').lower()
      same = line[start:end].strip().lower() == piece or (not piece and end - start <= 1)
      assert same or i == model.tokenizer.special['unk']


def test_a_directory_says_how_its_vectors_are_made(places, tmp_path):
  _, directory = places('bert')
  described = shutil.copytree(directory, tmp_path / 'hf')
  known = sentence_vectors.Vectors('first', True, (), {'query': 'the time: '}, 'query', 7)
  for name, content in sentence_vectors.files(known, 32, 'right').items():
    (described / name).parent.mkdir(exist_ok=True)
    (described / name).write_text(content)
  plain, model = bertzoo_jax.load(f'hf:{directory}'), bertzoo_jax.load(f'hf:{described}')
  prompted = [f'the time: {line}' for line in LINES]
  wanted = plain.encode(prompted, 'first', max_length=7)
  wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
  encode.encode(f'hf:{described}', text(tmp_path), str(tmp_path / 'v.npy'))
  np.testing.assert_allclose(np.load(tmp_path / 'v.npy'), wanted, atol=1e-5)
  means = model.encode(LINES, 'mean', prompt='', max_length=30)
  np.testing.assert_allclose(means, plain.encode(LINES, max_length=30), atol=1e-5)
  # characters are those of the line, not of the prompt
  for line, row, alone in zip(LINES, model.rows(LINES, 32), model.rows(LINES, 32, '')):
    if len(row.ids) == 32:
      continue
    inside = row.starts >= 0
    pieces = [line[a:b] for a, b in zip(row.starts[inside], row.ends[inside])]
    assert pieces == [line[a:b] for a, b in zip(alone.starts, alone.ends) if a >= 0]
    assert len(row.ids) > len(alone.ids)
  with pytest.raises(errors.UserError, match='prompt'):
    model.encode(LINES, prompt='passage')
  modules = (described / 'modules.json').read_text().replace('Normalize', 'Dense')
  (described / 'modules.json').write_text(modules)
  refused = bertzoo_jax.load(f'hf:{described}')
  with pytest.raises(errors.UserError, match='models.Dense.*Name a pooling'):
    refused.encode(LINES)
  assert refused.encode(LINES[:1], 'first').shape == (1, 32)


def test_a_header_a_byte_order_mark_and_the_ends_of_lines_are_no_text(places, tmp_path):
  run, _ = places('bert')
  (tmp_path / 'a').mkdir()
  plain = encode.encode(str(run), text(tmp_path), str(tmp_path / 'plain.npy'))
  source = text(tmp_path / 'a', ['\ufeffname', *LINES], end='\r\n')
  found = encode.encode(str(run), source, str(tmp_path / 'a.npy'), header=True)
  assert found == plain._replace(first_empty=3)
  (tmp_path / 'bom.txt').write_bytes('\ufeff'.encode() + '\n'.join(LINES).encode())
  encode.encode(str(run), str(tmp_path / 'bom.txt'), str(tmp_path / 'bom.npy'))
  for name in ('a.npy', 'bom.npy'):
    np.testing.assert_array_equal(np.load(tmp_path / name), np.load(tmp_path / 'plain.npy'))


def test_an_empty_line_has_the_vector_of_the_special_tokens_and_is_told(places, tmp_path):
  run, _ = places('bert')
  out = tmp_path / 'v.npy'
  found = encode.encode(str(run), text(tmp_path, ['a', '', ' ', 'b']), str(out))
  got = np.load(out)
  np.testing.assert_allclose(got[1], got[2], atol=1e-6)
  assert np.isfinite(got).all() and not np.allclose(got[0], got[1])
  said = encode.summary(found, 'v.npy', 'mean')
  assert '2 lines are empty, the first is line 2:' in said
  cut = encode.encode(str(run), text(tmp_path), str(tmp_path / 'w.npy'), length=6)
  assert '3 lines are longer than a row and were cut' in encode.summary(cut, 'w', 'mean')


@pytest.mark.parametrize(
  'change, said',
  [
    (dict(out='there.npy'), 'there.npy exists and is not overwritten'),
    (dict(out='v.npz'), 'ends with .npy'),
    (dict(out='gs://bucket/v.npy'), 'object store'),
    (dict(out='other.npy', pooling='tokens'), 'other.rows.npy exists'),
    (dict(text='nowhere.txt'), 'nowhere.txt is no file'),
    (dict(text='.'), 'is no file'),
    (dict(text='none.txt'), 'has no line'),
    (dict(text='latin.txt'), 'line 2 is not UTF-8'),
    (dict(text='pointer.txt'), 'a Git LFS pointer'),
    (dict(address='nowhere'), 'nowhere has no checkpoint'),
    (dict(length=33), 'takes at most 32'),
    (dict(length=2), 'no room'),
    (dict(pooling='max'), 'No pooling'),
    (dict(dtype='float16'), 'No dtype'),
  ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(places, tmp_path, monkeypatch, change, said):
  monkeypatch.chdir(tmp_path)
  text(tmp_path)
  for name in ('there.npy', 'other.rows.npy', 'none.txt'):
    (tmp_path / name).touch()
  (tmp_path / 'latin.txt').write_bytes(b'a\n\xe9t\xe9\n')
  (tmp_path / 'pointer.txt').write_text('version https://git-lfs.github.com/spec/v1\noid a\n')
  before = sorted(p.name for p in tmp_path.iterdir())
  given = {'address': str(places('bert')[0]), 'text': 'text.txt', 'out': 'v.npy', **change}
  with pytest.raises(errors.UserError, match=said):
    encode.encode(**given)
  assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_an_encode_that_fails_halfway_leaves_nothing(places, tmp_path, monkeypatch):
  monkeypatch.setattr(loading, '_CHUNK', 1)
  first = loading.Loaded.vectors

  def fail(self, rows, *others):
    if rows[-1].ids.shape == (4,):
      raise OSError('no space')
    return first(self, rows, *others)

  monkeypatch.setattr(loading.Loaded, 'vectors', fail)
  with pytest.raises(OSError, match='no space'):
    encode.encode(str(places('bert')[0]), text(tmp_path), str(tmp_path / 'v.npy'), batch_size=2)
  assert [p.name for p in tmp_path.iterdir()] == ['text.txt']


def test_the_command_prints_what_it_wrote(places, tmp_path, capsys):
  flags = dict(model=f'hf:{places("bert")[1]}', text=text(tmp_path), out=str(tmp_path / 'v.npy'))
  flags |= dict(pooling='mean', prompt=None, length=None, batch=2, header=False, dtype='bfloat16')
  encode.main(types.SimpleNamespace(**flags))
  found = '5 × 32 numbers, float32, means of the tokens of a line; 5 lines'
  assert found in (capsys.readouterr().out)
  exact = bertzoo_jax.load(flags['model']).encode(LINES)
  got = np.load(tmp_path / 'v.npy')
  assert 0 < np.abs(got - exact).max() < 0.2


@pytest.mark.parametrize('family', ['bert', 'roberta'])
def test_guesses_are_those_of_transformers(places, family):
  torch = pytest.importorskip('torch', reason='parity needs torch')
  transformers = pytest.importorskip('transformers', reason='parity needs transformers')
  directory = str(places(family)[1])
  transformers.utils.logging.set_verbosity_error()
  tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
  network = transformers.AutoModelForMaskedLM.from_pretrained(directory).eval()
  inputs = tokenizer(TEXT.replace('[MASK]', tokenizer.mask_token), return_tensors='pt')
  with torch.no_grad():
    shares = network(**inputs).logits[0].softmax(-1)
  best = shares[inputs['input_ids'][0] == tokenizer.mask_token_id].topk(3)
  found = fill_mask.fill(directory, TEXT, 3)
  assert [[piece for piece, _ in row] for row in found] == [
    [tokenizer.decode([int(i)]).strip() for i in row] for row in best.indices
  ]
  np.testing.assert_allclose([[p for _, p in row] for row in found], best.values, atol=1e-6)


def test_a_query_stream_sees_no_mask(places):
  directory = places('xlnet')[1]
  alone, both = (fill_mask.fill(str(directory), text, 600) for text in ('a [MASK] b', TEXT))
  assert len(alone) == 1 and len(both) == 2
  for row in (*alone, *both):
    assert sum(p for _, p in row) == pytest.approx(1, abs=1e-4)


def without_head(directory):
  file = directory / 'model.safetensors'
  tensors = safetensors.numpy.load_file(file)
  kept = {name: x for name, x in tensors.items() if not name.startswith('cls.predictions')}
  safetensors.numpy.save_file(kept, file, metadata={'format': 'pt'})


def without_tokenizer(directory):
  for name in ('tokenizer.json', 'vocab.txt', 'tokenizer_config.json'):
    (directory / name).unlink()


NOTHING = lambda directory: None
REFUSED = [  # change of the directory, text, number of guesses, words, whether encode says the same
  (without_tokenizer, TEXT, 3, 'no tokenizer', True),
  (lambda d: (d / 'model.safetensors').write_bytes(POINTER), TEXT, 3, 'cannot be read', True),
  (lambda d: (d / 'model.safetensors').unlink(), TEXT, 3, 'holds no weights', True),
  (without_head, TEXT, 3, 'which has no head that fills masks', False),
  (NOTHING, TEXT * 9, 3, 'longer than the 32 tokens of a row', False),
  (NOTHING, TEXT, 100_000, 'knows 600 pieces', False),
  (NOTHING, 'no mask', 3, r'has no \[MASK\]', False),
]


@pytest.mark.parametrize('change, text, top, words, same', REFUSED)
def test_what_cannot_be_filled_is_refused(places, tmp_path, change, text, top, words, same):
  directory = shutil.copytree(places('bert')[1], tmp_path / 'hf')
  change(directory)
  with pytest.raises(errors.UserError, match=words) as e:
    fill_mask.fill(str(directory), text, top)
  if same:
    with pytest.raises(errors.UserError) as other:
      bertzoo_jax.load(f'hf:{directory}').encode(['a'])
    assert str(e.value) == str(other.value)
