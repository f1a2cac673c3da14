import gzip
import os

import pytest

from bertzoo_jax import parts
from bertzoo_jax import prepare as prepare_lib
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus
from bertzoo_jax.corpus import opening
from bertzoo_jax.corpus import shards
from tests.prepare import made


def test_held_out_text_does_not_shape_the_tokenizer(tmp_path):
  """Words of held-out documents alone have no piece."""
  held = lambda d: shards.below(shards.content_hash(d.encode())[0], 0.3)
  texts = [f'{made.WORDS[i % 30]} {i} {" ".join(made.WORDS)}' for i in range(200)]
  documents = [f'{"zebra " * 300 if held(d) else ""}{d}' for d in texts]
  documents = [d for d in documents if ('zebra' in d) == held(d)]
  assert sum('zebra' in d for d in documents) > 9
  (tmp_path / 'a.txt').write_text('\n\n'.join(documents))
  made.make(made.tiny(vocab_size=120, held_out=0.3), tmp_path / 'a.txt', tmp_path / 'c')
  pieces = corpus.open(tmp_path / 'c').tokenizer().pieces
  assert 'you' in pieces and not any('zeb' in p or 'bra' in p for p in pieces)


def test_a_given_tokenizer_is_used_and_wrong_ones_are_refused(text, clean, tmp_path):
  given, hash_ = str(clean[0] / 'tokenizer'), tokenizers.load(clean[0] / 'tokenizer').hash
  assert made.make(made.tiny(), text, tmp_path / 'c', tokenizer=given)['tokenizer_hash'] == hash_
  with pytest.raises(errors.UserError, match='vocab_size 100 there, 101 in the config'):
    made.make(made.tiny(vocab_size=101), text, tmp_path / 'd', tokenizer=given)
  assert not (tmp_path / 'd').exists()


@pytest.fixture
def trained_on(monkeypatch):
  """Function of the arguments of made.make → (texts that a tokenizer would be trained on, lines).
  There preparing ends.
  """

  def texts(*arguments, **more):
    seen, printed = [], []
    stop = lambda section, get, _: seen.extend(get()) or 1 / 0
    monkeypatch.setattr(prepare_lib.tokenizers, 'train', stop)
    with pytest.raises(ZeroDivisionError):
      made.make(*arguments, say=printed.append, **more)
    return seen, printed

  return texts


def test_a_tokenizer_is_trained_on_a_sample_of_a_large_text_the_same_every_time(
  text, tmp_path, monkeypatch, trained_on
):
  found = []
  for most in (1 << 30, os.path.getsize(text) // 3, os.path.getsize(text) // 3):
    monkeypatch.setattr(prepare_lib, 'TOKENIZER_BYTES', most)
    found.append(trained_on(made.tiny(held_out=0.0), text, tmp_path / str(len(found)))[0])
  everything, sample, again = found
  assert len(everything) == 120 and 20 < len(sample) < 60
  assert sample == again == [t for t in everything if t in sample]


def test_a_long_document_trains_the_tokenizer_in_parts(text, tmp_path, monkeypatch, trained_on):
  monkeypatch.setattr(shards, 'MAX_SENTENCE', 64)
  seen, _ = trained_on(made.tiny(held_out=0.0), [f'{text}#file'], tmp_path / 'c')
  assert max(map(len, seen)) <= 64
  assert ''.join(seen) == ' '.join(line for line in open(text).read().split('\n') if line)


def test_the_memory_for_training_depends_on_the_text_and_the_kind_not_on_how_files_are_packed(
  text, tmp_path, monkeypatch, trained_on
):
  with gzip.open(tmp_path / 'a.txt.gz', 'wb') as f:
    f.write(open(text, 'rb').read())
  kinds, numbers = (parts.wordpiece, parts.wordpiece, parts.sentencepiece), []
  for part, memory in zip(kinds, (8 << 30, 60_000, 60_000)):
    monkeypatch.setattr(prepare_lib, 'TOKENIZER_MEMORY', memory)
    config = made.tiny(held_out=0.0)
    config.tokenizer = part(vocab_size=config.tokenizer.vocab_size)
    sources = ([str(source)] for source in (text, tmp_path / 'a.txt.gz'))
    plain, packed = (trained_on(config, x, tmp_path / f'c{len(numbers)}') for x in sources)
    assert plain[0] == packed[0]
    assert [x.split('pieces')[1:] for x in plain[1]] == [x.split('pieces')[1:] for x in packed[1]]
    numbers.append(len(plain[0]))
  assert numbers[0] == 120 and 25 < numbers[1] < 100 and 0 < numbers[2] < 15, numbers


MY_LANGUAGE = """
from configs import bert


def get_config(argument='base,steps=100000'):
  config = bert.get_config(argument)
  config.tokenizer.update(vocab_size='auto', lowercase=False, strip_accents=False)
  config.corpus.splitter = 'rules:generic'
  return config
"""


def test_ten_lines_make_a_config_of_another_language_at_any_size_and_for_any_amount_of_text(
  text, tmp_path
):
  words = str.maketrans(dict(zip('aeio', 'äõöü')))
  (tmp_path / 'a.txt').write_text(open(text).read().translate(words))
  exec(MY_LANGUAGE, namespace := {})
  for size in ('tiny,steps=300', 'base,steps=100000'):
    config, printed = namespace['get_config'](size), []
    config.corpus.held_out = 0.1
    arguments = config, tmp_path / 'a.txt', tmp_path / size
    manifest = made.make(*arguments, say=printed.append)
    assert 'vocab_size=auto: 1,024 pieces for 0.1 MB of text' in printed[0], printed
    assert 100 < manifest['vocab_size'] == manifest['tokenizer']['vocab_size'] < 1024
    assert manifest['splitter'] == 'rules:generic' and 'WARNING' not in printed[-1]
    made.make(*arguments, say=printed.append)  # again, and as pretrain, show and evaluate do
    assert 'finished already' in printed[-1]
    opened = corpus.open(tmp_path / size)
    opening.check({opened.path: opened.manifest}, config)
    assert any('õ' in piece for piece in opened.tokenizer().pieces)
    config.tokenizer.vocab_size = 1024
    with pytest.raises(errors.UserError, match='the config one of 1024'):
      opening.check({opened.path: opened.manifest}, config)


def test_the_tokenizer_alone_can_be_made_and_then_given(text, clean, tmp_path):
  printed, out = [], tmp_path / 'tokenizer'
  prepare_lib.tokenizer_alone(made.tiny(), [text], out, say=printed.append)
  assert 'GiB of memory' in printed[0] and not (out / 'plan.json').exists()
  assert tokenizers.load(out).hash == tokenizers.load(clean[0] / 'tokenizer').hash
  with pytest.raises(errors.UserError, match='not empty'):
    prepare_lib.tokenizer_alone(made.tiny(), [text], out)
  run = made.command(f'--source={text}', f'--out={tmp_path}/c', '--only=tokenizer')
  assert run.returncode == 0 and (tmp_path / 'c/bertzoo.json').exists(), run
  assert not (tmp_path / 'c/manifest.json').exists()


def test_pieces_are_added_to_a_given_tokenizer(text, tmp_path):
  config, printed = made.tiny(vocab_size='auto'), []
  prepare_lib.tokenizer_alone(made.tiny(vocab_size=80), [text], tmp_path / 't', say=printed.append)
  old = tokenizers.load(tmp_path / 't')
  given = dict(tokenizer=str(tmp_path / 't'), workers=1, say=printed.append)
  add = lambda number: prepare_lib.prepare(config, [text], tmp_path / 'c', add=number, **given)
  manifest = add('10')
  assert corpus.open(tmp_path / 'c').tokenizer().pieces[:-10] == old.pieces
  assert manifest['vocab_size'] == 90
  assert any('10 pieces added' in line and 'fewer' in line for line in printed), printed
  assert add('10') == manifest and 'nothing to do' in printed[-1]
  with pytest.raises(errors.UserError, match='of other sources or settings'):
    add('11')
