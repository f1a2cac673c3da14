import io
import json
import pathlib
import re

import numpy as np
import pytest
import rich.console

from bertzoo_jax import parts
from bertzoo_jax import prepare
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.show import __main__ as show
from bertzoo_jax.show import measures
from configs import bert
from tests import commands

ROOT = pathlib.Path(__file__).parent.parent
_SIZES = {'tokenizer.vocab_size': 500, 'corpus.held_out': 0.2, 'batch_size': 4}


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  folder = tmp_path_factory.mktemp('show')
  paragraphs = (ROOT / 'data/sample/time_machine.txt').read_text().split('\n\n')
  # a paragraph a document
  (folder / 'text.txt').write_text('\n\n'.join(' '.join(p.split()) for p in paragraphs[10:110]))
  source = [str(folder / 'text.txt')]
  prepare.prepare(_config(), source, folder / 'corpus', workers=1, say=lambda line: None)
  return folder / 'corpus'


def _config(**changes):
  config = bert.get_config('tiny')
  config.phases = ((900, {'length': 64}), (100, {}))
  config.update_from_flattened_dict({'length': 128} | _SIZES | changes)
  return config


def _show(corpus, config=None, colour=False, **fields):
  look = dict(force_terminal=True, color_system='standard') if colour else {}
  out = io.StringIO()
  console = rich.console.Console(file=out, width=160, highlight=False, soft_wrap=True, **look)
  show.show(config or _config(), corpus, console=console, **fields)
  return out.getvalue()


def _pipe(corpus, config, **fields):
  made = dict(format=config.format, masking=config.masking, batch_size=config.batch_size)
  return pipeline.build(corpora.open(corpus), **made, length=64, seed=0, **fields)


# to the mask token, to another token, kept
MARKS = r'\[(?!CLS\]|SEP\])[^\]]+\]', r'\{[^}]*→[^}]*\}', '<[^>]+>'
MARK = '|'.join(MARKS)


def test_the_marks_say_what_became_of_a_token(corpus):
  for n, mark in enumerate(MARKS):
    corruption = tuple(float(n == i) for i in range(3))
    text = _show(corpus, _config(**{'masking.corruption': corruption}), rows=1)
    row = re.search(r'^\[CLS\].*$', text, re.MULTILINE)[0]
    assert len(re.findall(mark, row)) >= 8


def test_segments_special_tokens_predictions_and_borders_of_spans_differ_in_colour(corpus):
  text = _show(corpus, _with(MASKINGS['span']), colour=True, rows=2)
  for code in ('\x1b[1;31m[', '\x1b[2m', '\x1b[36m'):  # bold red, dim, cyan
    assert code in text
  assert text.count('\x1b[4m') > 4  # underlined


def test_stats_measure_what_the_config_asks(corpus):
  text = _show(corpus, _config(batch_size=64), stats=True, steps=(0, 8))
  number = lambda name: _measured(text, name)
  assert number('rows') == 512 and '[CLS]' not in text
  assert abs(number('corrupted to the mask token') - 80) < 4 and abs(number('… kept') - 10) < 3
  assert 14 < number('predicted, of all tokens') < 17.5 and 0 < number('padding') < 40
  assert 50 < number('random second segments') < 85


@pytest.mark.parametrize(
  'change, words',
  [
    (dict(objective=parts.mlm_span_boundary()), 'needs span_left, .* masking=token does not write'),
    (dict(masking=parts.permutation(num_predictions=9)), "for a network that reads 'order'"),
    (dict(objective={'name': 'mlm_par'}), "is called 'mlm_par'. Did you mean 'mlm_pair'"),
    (dict(objective={'name': 'mlm', 'pair_weight': 2.0}), "no 'pair_weight'"),
  ],
)
def test_rows_that_the_objective_cannot_learn_from_are_shown_with_the_reason(corpus, change, words):
  config = _config()
  for section, part in change.items():
    config[section] = part
  with pytest.warns(UserWarning, match=f'pretrain refuses this config: .*{words}'):
    assert '[CLS]' in _show(corpus, config, rows=1)


def test_packed_pieces_are_set_apart(corpus):
  config = bert.get_config('tiny,format=doc_sentences,objective=mlm')
  config.update_from_flattened_dict(_SIZES)
  text = _show(corpus, config, rows=4, steps=(0, 30))
  for heading, row in re.findall(r'^(step .*)\n(.*)$', text, re.MULTILINE):
    packed = re.search(r'(\d+) packed segments', heading)
    assert row.count('│ [CLS]') == (int(packed[1]) - 1 if packed else 0)


@pytest.mark.parametrize('split', ['train', 'held_out'])
def test_npz_holds_the_batches_and_what_they_are(corpus, tmp_path, split):
  config, file = _config(), tmp_path / 'batches.npz'
  steps = (2, 5) if split == 'train' else (0, 2)
  _show(corpus, config, npz=str(file), steps=steps, split=split)
  opened, pipe = corpora.open(corpus), _pipe(corpus, config, split=split)
  expected = [pipe.batch(step) for step in range(*steps)]
  if split == 'held_out':
    expected = list(pipe.evaluation_batches(2))
  with np.load(file) as z:
    meta = json.loads(bytes(z['__meta__']))
    assert set(z.files) == {*pipe.features, '__meta__'}
    for name, (shape, dtype) in pipe.features.items():
      assert z[name].dtype == dtype and z[name].shape == (len(expected), *shape)
      np.testing.assert_array_equal(z[name], np.stack([b[name] for b in expected]))
  same = {name: opened.manifest[name] for name in ('tokenizer_hash', 'tokenizer', 'corpus')}
  same |= dict(vocab_size=500, special=opened.special, corpus_hash=opened.hash, steps=list(steps))
  assert meta | same | dict(format_version=2, batch_size=4, length=64, phase=0) == meta
  assert [p.name for p in tmp_path.iterdir()] == ['batches.npz']


def test_the_second_phase_is_found_by_its_steps_or_its_index(corpus, tmp_path):
  for name, fields in (('steps.npz', dict(steps=(900, 901))), ('phase.npz', dict(phase=1))):
    _show(corpus, npz=str(tmp_path / name), **fields)
    with np.load(tmp_path / name) as z:
      assert json.loads(bytes(z['__meta__']))['steps'] == [900, 901]
      assert z['input_ids'].shape == (1, 4, 128)
  before = (tmp_path / 'steps.npz').read_bytes()
  assert before == (tmp_path / 'phase.npz').read_bytes()  # the same batches make the same file
  with pytest.raises(errors.UserError, match='is not overwritten'):
    _show(corpus, npz=str(tmp_path / 'steps.npz'), steps=(0, 1))
  assert (tmp_path / 'steps.npz').read_bytes() == before


@pytest.mark.parametrize(
  'fields,message',
  [
    (dict(steps=(899, 901)), 'is not within one phase'),
    (dict(steps=(0, 1), phase=1), 'is not within one phase'),
    (dict(phase=2), 'phases 0 to 1'),
    (dict(steps=(0, 10_000), split='held_out', npz='never.npz'), 'There are only'),
    (dict(config=_config(**{'tokenizer.vocab_size': 501})), 'of 500, the config one of 501'),
  ],
)
def test_rows_that_cannot_be_shown_are_refused_in_a_sentence(
  corpus, fields, message, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(errors.UserError, match=message):
    _show(corpus, **fields)
  assert not list(tmp_path.iterdir())


def test_the_command_works_and_a_mistake_exits_with_2(corpus):
  line = '-m bertzoo_jax.show --config configs/bert.py:tiny --config.tokenizer.vocab_size=500'
  line = [*line.split(), '--config.corpus.held_out=0.2', f'--corpus={corpus}']
  done = commands.run(*line, '--rows=1')
  assert done.returncode == 0 and '[CLS]' in done.stdout, done.stderr
  done = commands.run(*line, '--steps=5')
  assert done.returncode == 2 and 'Traceback' not in done.stderr
  assert done.stderr.strip().splitlines()[-1].startswith('error: --steps=5')


MASKINGS = {
  'token': parts.token(),
  'whole_word': parts.whole_word(),
  'ngram': parts.ngram(),
  'span': parts.span(),
  'ngram_windows': parts.ngram_windows(),
  'permutation': parts.permutation(num_predictions=10, block=32),
  'in_order': parts.in_order(),
}


def _with(masking, form=None):
  config = _config(batch_size=32)
  config.masking = masking
  if form is not None:
    config.format = form
  return config


def _measured(text, name):
  return float(re.search(rf'│ {re.escape(name)} *│ *([\d.]+)', text)[1])


@pytest.mark.parametrize('name', MASKINGS)
def test_rows_of_every_masking_are_printed_with_their_predictions_marked(corpus, name):
  config = _with(MASKINGS[name])
  text = _show(corpus, config, rows=2)
  batch = _pipe(corpus, config).batch(0)
  labels = {0: 'follows the first', 1: 'is random'}
  rows = re.findall(r'^(\[CLS\].*\[SEP\])$', text, re.MULTILINE)
  assert len(rows) == 2 or name == 'permutation'
  for row, line in enumerate(rows):
    assert labels[int(batch['pair_labels'][row])] in text.split(f'row {row}:')[1].split('\n')[0]
    marks = re.findall(MARK, line)
    assert len(marks) == batch['masked_weights'][row].sum() > 0
    if name == 'permutation':
      places = [int(re.fullmatch(r'<.* (\d+)>', m)[1]) for m in marks]
      # 1, 2, … in each of the two blocks
      assert sorted(places) == sorted([*range(1, 6), *range(1, len(places) - 4)])
    if name == 'in_order':
      places = [int(re.fullmatch(r'<.* (\d+)>', m)[1]) for m in marks]
      assert places == [*range(1, len(places) + 1)]


@pytest.mark.parametrize('name', MASKINGS)
def test_stats_of_every_masking_stand_beside_what_the_config_says(corpus, name):
  text = _show(corpus, _with(MASKINGS[name]), stats=True, steps=(0, 12))
  assert _measured(text, 'predicted padding') == 0 == _measured(text, 'predicted special tokens')
  whole = _measured(text, 'words of several tokens, all of them predicted or none')
  assert whole == 100 if name not in ('token', 'permutation') else whole < 75
  if name in ('ngram', 'span', 'ngram_windows', 'permutation'):
    says = re.search(r'│ runs of 1 word *│ *([\d.]+)% │ *([\d.]+)% │', text)
    assert abs(float(says[1]) - float(says[2])) < 30  # rows are short, so budgets cut many
  if name == 'span':
    assert 50 < _measured(text, 'predictions with borders') < 100
  if name == 'permutation':
    assert 'corrupted' not in text
    assert 10 < _measured(text, 'tokens of its row that a prediction sees') < 64
  elif name == 'in_order':
    assert 'corrupted' not in text
    assert 20 < _measured(text, 'tokens of its row that a prediction sees') < 40
  else:
    assert abs(_measured(text, 'corrupted to the mask token') - 80) < 5


def test_a_row_read_from_the_right_is_printed_from_the_left(corpus):
  lanes = parts.memory_segments(reuse_length=32)
  config = _with(parts.permutation(num_predictions=10, block=32), lanes)
  text = _show(corpus, config, rows=2)
  heading, right = text.split('row 1:')[1].split('\n')[:2]
  assert heading.startswith(' 64 tokens, 10 to predict, ')
  how = ', read from right to left (printed from left to right), begins without memory'
  assert heading.endswith(how)
  assert right.startswith('[CLS] [SEP]')
  opened, row = corpora.open(corpus), _pipe(corpus, config).batch(0)['input_ids'][1]
  ids = [i for i in row[::-1].tolist() if i not in opened.special.values()]
  plain = re.sub(r'<([^ ]*) \d+>', r'\1', right.replace('[SEP]', '').replace('[CLS]', ''))
  assert re.sub(r'\s|##', '', plain) == re.sub(r'\s|##', '', opened.tokenizer().decode(ids))


def test_swapped_segments_are_called_swapped(corpus):
  form = parts.segment_pairs(pairs='sop', lone_sentences='skip')
  text = _show(corpus, _with(parts.ngram(), form), rows=8)
  assert 'the segments are swapped (1)' in text and 'in order (0)' in text
  text = _show(corpus, _with(parts.ngram(), form), stats=True, steps=(0, 8))
  assert 40 < _measured(text, 'swapped segments') < 60


def test_similar_words_are_measured_as_other_words():
  special = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
  meter = measures.Meter(special)
  batch = dict(
    input_ids=np.array([[special['cls'], 9, 11, 12, special['sep']]]),
    segment_ids=np.ones((1, 5), int),
    masked_positions=np.array([[1, 2]]),
    masked_targets=np.array([[10, 11]]),
    masked_weights=np.ones((1, 2)),
  )
  meter.add(batch)
  fields = _with(parts.whole_word(corrupted='units', substitute='similar'))
  found = {name: (value, says) for name, value, _, says in meter.measures(fields)}
  assert found['replaced by other words'] == (0.5, 0.9) and found['… kept'] == (0.5, 0.1)
