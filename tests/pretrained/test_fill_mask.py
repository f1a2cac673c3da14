"""fill_mask opens a directory as every other command does, and refuses what they refuse."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

import bertzoo_jax
from bertzoo_jax import fill_mask
from bertzoo_jax.common import errors
from tests.pretrained import test_loading as made

TEXT = 'The time [MASK] stood in the [MASK].'
POINTER = b'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 44\n'


@pytest.fixture(scope='module')
def exports(tmp_path_factory):
  """family → a directory, made once."""
  known = {}

  def of(family):
    if family not in known:
      folder = tmp_path_factory.mktemp(family)
      (folder / 'run').mkdir()
      made.make_run(folder / 'run', family)
      known[family] = made.written(folder / 'run', folder / 'hf')
    return known[family]

  return of


@pytest.mark.parametrize('family', ['bert', 'roberta'])
def test_guesses_are_those_of_transformers(exports, family):
  torch = pytest.importorskip('torch', reason='parity needs torch')
  transformers = pytest.importorskip('transformers', reason='parity needs transformers')
  directory = str(exports(family))
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


def test_a_query_stream_sees_no_mask(exports):
  directory = exports('xlnet')
  alone, both = (fill_mask.fill(str(directory), text, 600) for text in ('a [MASK] b', TEXT))
  assert len(alone) == 1 and len(both) == 2
  for row in (*alone, *both):
    assert sum(p for _, p in row) == pytest.approx(1, abs=1e-4)


def without(start):
  def change(directory):
    file = directory / 'model.safetensors'
    tensors = safetensors.numpy.load_file(file)
    kept = {name: x for name, x in tensors.items() if not name.startswith(start)}
    safetensors.numpy.save_file(kept, file, metadata={'format': 'pt'})

  return change


def without_type(directory):
  content = json.loads((directory / 'config.json').read_text())
  content.pop('model_type')
  (directory / 'config.json').write_text(json.dumps(content))


def without_tokenizer(directory):
  for name in ('tokenizer.json', 'vocab.txt', 'tokenizer_config.json'):
    (directory / name).unlink()


@pytest.mark.parametrize(
  'change, words',
  [
    (without('bert.encoder.layer.1.attention'), 'lacks'),
    (without(''), 'the weights have 0 tensors'),
    (without_type, 'does not say its model_type'),
    (without_tokenizer, 'no tokenizer'),
    (lambda d: (d / 'model.safetensors').write_bytes(POINTER), 'cannot be read'),
    (lambda d: (d / 'model.safetensors').unlink(), 'holds no weights'),
    (lambda d: (d / 'config.json').unlink(), 'config.json does not exist'),
  ],
)
def test_a_directory_is_refused_with_the_sentence_of_encode(exports, tmp_path, change, words):
  directory = shutil.copytree(exports('bert'), tmp_path / 'hf')
  change(directory)
  with pytest.raises(errors.UserError, match=words) as e:
    fill_mask.fill(str(directory), TEXT, 3)
  with pytest.raises(errors.UserError) as other:
    bertzoo_jax.load(f'hf:{directory}').encode(['a'])
  assert str(e.value) == str(other.value)


@pytest.mark.parametrize(
  'change, text, top, words',
  [
    (without('cls.predictions'), TEXT, 3, 'which has no head that fills masks'),
    (None, TEXT * 9, 3, 'longer than the 32 tokens of a row'),
    (None, TEXT, 100_000, 'knows 600 pieces'),
    (None, 'no mask', 3, r'has no \[MASK\]'),
  ],
)
def test_a_text_that_cannot_be_filled_is_refused(exports, tmp_path, change, text, top, words):
  directory = shutil.copytree(exports('bert'), tmp_path / 'hf')
  if change:
    change(directory)
  with pytest.raises(errors.UserError, match=words):
    fill_mask.fill(str(directory), text, top)
