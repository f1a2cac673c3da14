"""A part may be named `package.module:name` in a config, and is used as the package's own parts."""

import pathlib
import sys
import types

import jax
import ml_collections
import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.batches import formats
from bertzoo_jax.batches import masking as maskings
from bertzoo_jax.batches import pipeline
from bertzoo_jax.cli import settings
from bertzoo_jax.common import config as configuration
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import check
from bertzoo_jax.experiment import resolve
from bertzoo_jax.parts import named as part_lib
from bertzoo_jax.training import schedules
from bertzoo_jax.training import step as steps
from configs import bert
from tests.refused import refused

ROOT = pathlib.Path(__file__).parents[2]
SPECIAL = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
V = 50
SMALL = dict(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32, dropout=0.0)

HOST = '''
"""Parts of the host program."""

import dataclasses
from typing import Annotated

import numpy as np

from bertzoo_jax.batches.formats import format as formats
from bertzoo_jax.batches.masking import Masking
from bertzoo_jax.batches.rows import Spans
from bertzoo_jax.parts import fields as definitions
from bertzoo_jax.parts import tokenizers as parts
from bertzoo_jax.tokenizers import wordpiece

VERSION = 3


def single_sentences(text, length, *, longest=6):
  def spans(key, rows, numbers):
    begin = text.sentence_starts[numbers]
    size = np.minimum(text.sentence_starts[numbers + 1] - begin, longest)
    ones = np.ones(len(numbers), np.int64)
    return Spans(np.arange(len(numbers)), begin, size, ones, ones, 0 * ones, ones, None)

  rows = lambda key: range(text.num_sentences)
  return formats.Format(rows, spans, every_epoch=False, has_pairs=False, packed=False)


class Family:
  @staticmethod
  def first_tokens(length, corpus, *, count=2):
    def apply(features, keys_B2):
      ids = features['input_ids']
      targets = ids[:, 1 : count + 1]
      masks = np.full_like(targets, corpus.special['mask'])
      return {
        **features,
        'input_ids': np.concatenate([ids[:, :1], masks, ids[:, count + 1 :]], 1),
        'masked_positions': np.tile(np.arange(1, count + 1, dtype=np.int32), (len(ids), 1)),
        'masked_targets': targets,
        'masked_weights': np.ones(targets.shape, np.float32),
      }

    return Masking(count, 0, apply)

  def nothing(length, corpus):
    Family.first_tokens(length, corpus)


def changed(change):
  return lambda length, corpus: change(Family.first_tokens(length, corpus))


def writing(change):
  """A masking whose features are changed."""
  return changed(lambda made: made._replace(apply=lambda *args: change(made.apply(*args))))


Family.bare = changed(lambda made: made.apply)
Family.generous = changed(lambda made: made._replace(num_predictions=4))
Family.borders = changed(lambda made: made._replace(features={'span_left': ((2,), np.int32)}))
Family.old = changed(lambda made: made._replace(
  apply=lambda features, keys: made.apply(features, features['pack_ids'])))
Family.untyped = writing(lambda x: {**x, 'masked_weights': x['masked_weights'].astype(np.int32)})
Family.forgetful = writing(lambda x: {k: y for k, y in x.items() if k != 'masked_targets'})
Family.listed = writing(lambda x: {**x, 'masked_targets': x['masked_targets'].tolist()})


@dataclasses.dataclass(frozen=True, kw_only=True)
class First:
  count: Annotated[definitions.COUNT, 'of tokens.'] = 2


def declared(fields: First, length, corpus):
  return Family.first_tokens(length, corpus, count=fields.count)


def cased(*, vocab_size=120):
  fields = parts.Wordpiece(vocab_size=vocab_size, lowercase=False, strip_accents=False)
  return wordpiece.wordpiece(fields)
'''
DEVICE = '''
"""Parts of the device program."""

import jax
import optax

from bertzoo_jax.objectives import mlm


def weighted(encoder, ops, *, weight=0.5):
  whole = mlm.mlm(encoder, ops)

  def loss(*args):
    value, rest = whole.loss(*args)
    return weight * value, rest

  return whole._replace(loss=loss)


def plain(schedule, paths, *, factor=1.0):
  def update(updates, state, params=None, *, step, **_):
    return jax.tree.map(lambda g: -factor * schedule(step) * g, updates), state

  return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def constant(total_steps, *, learning_rate=0.1):
  return lambda step: learning_rate
'''


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
  """The modules in the folder where Python looks; they are forgotten afterwards."""
  (tmp_path / 'mine').mkdir()
  broken = dict(needy='import a_module_of_nobody', broken='x = 1\ny = x.z', garbled='def f(:')
  for name, text in {'__init__': '', 'host': HOST, 'device': DEVICE, **broken}.items():
    (tmp_path / 'mine' / f'{name}.py').write_text(text)
  monkeypatch.syspath_prepend(tmp_path)
  yield
  for name in [m for m in sys.modules if m.partition('.')[0] == 'mine']:
    del sys.modules[name]


SWAPS = (
  'format=mine.host:single_sentences,masking=mine.host:Family.first_tokens,'
  'objective=mine.device:weighted,optimizer=mine.device:plain,schedule=mine.device:constant'
)


def text():
  draw = np.random.default_rng(0)
  starts = np.append(0, np.cumsum(draw.integers(3, 9, 80)))
  return corpora.in_memory(draw.integers(5, V, starts[-1]), starts, np.arange(0, 81, 8), V, SPECIAL)


def rows(config):
  return pipeline.build(
    text(), format=config.format, masking=config.masking, length=16, batch_size=8, seed=0
  )


def test_parts_from_outside_train_and_their_own_defaults_apply():
  config = bert.get_config(f'tiny,{SWAPS},steps=26')
  config.encoder = parts.transformer(**SMALL)
  assert config.format.to_dict() == {'name': 'mine.host:single_sentences'}
  config = configuration.from_json(configuration.to_json(ml_collections.ConfigDict(config).lock()))
  assert config.masking.name == 'mine.host:Family.first_tokens'
  run = check.config(resolve.run(config))
  batch = rows(config).batch(0)
  assert batch['masked_targets'].shape == (8, 2) and (batch['segment_ids'].sum(1) <= 8).all()
  assert (batch['input_ids'][:, 1:3] == SPECIAL['mask']).all()

  made = build.network(run, run.phases[0], V)
  state = jax.jit(lambda: steps.init(made.objective, made.tx, 0, 8))()
  assert state.params['encoder']['embeddings']['word']['embedding'].shape == (V, 16)
  update = jax.jit(steps.make_train_step(made.objective, made.tx, made.schedule, seed=0))
  state, first = update(state, batch)
  state, second = update(state, batch)
  assert second['loss'] < first['loss']
  np.testing.assert_allclose(first['loss'], first['mlm_loss'] / 2, rtol=1e-5)


MASKINGS = {
  'bare': 'gives a function: return a Masking',
  'nothing': 'gives a NoneType: return a Masking',
  'generous': r'declares masked_positions as int32 \[8, 4\] and writes int32 \[8, 2\]',
  'untyped': r'declares masked_weights as float32 .* writes int32',
  'forgetful': 'declares masked_targets as .* writes nothing',
  'listed': 'declares masked_targets as .* writes a list, not a numpy array',
  'old': 'masking=mine.host:Family.old: pack_ids are called segment_ids .*: rename both',
  'borders': 'declares span_left as .* writes nothing',
}


def test_a_masking_that_writes_other_than_it_declares_is_refused_at_the_start():
  config = bert.get_config('tiny')
  config.format = parts.part('mine.host:single_sentences')
  for masking, words in MASKINGS.items():
    config.masking = parts.part(f'mine.host:Family.{masking}')
    refused(words, rows, config)
  config.masking = parts.part('mine.host:Family.first_tokens')
  features = rows(config).features
  old = types.SimpleNamespace(reads=('input_ids', 'segment_ids', 'pack_ids'), may_read=())
  words = 'objective=mlm.*: pack_ids are called segment_ids'
  refused(words, check.rows, config, features, None, old)


@pytest.mark.parametrize('masking', ['Family.first_tokens', 'declared'])
def test_fields_of_a_part_from_outside_are_the_sections(masking):
  config = bert.get_config('tiny')
  config.masking = parts.part(f'mine.host:{masking}', count=3)
  config.format = parts.part('mine.host:single_sentences', longest=4)
  config.phases = ((5, {'masking.count': 1}), (5, {}))
  first, second = configuration.phases(ml_collections.ConfigDict(config).lock())
  assert rows(first.config).num_predictions == 1 and rows(second.config).num_predictions == 3
  assert configuration.science(config)['masking.count'] == 3
  config.masking = parts.part(f'mine.host:{masking}')
  settings.apply(config, {'masking.count': '1'})
  assert rows(config).num_predictions == 1


def test_a_tokenizer_from_outside_trains_and_a_schedule_may_restart_with_each_phase(tmp_path):
  section = parts.part('mine.host:cased').to_dict()
  words = (ROOT / 'data/sample/time_machine.txt').read_text()[:20_000]
  made = tokenizers.train({**section, 'vocab_size': 150}, [words])
  assert made.vocab_size == 150 and tokenizers.vocab_size_of(section) == 120
  made.save(tmp_path / 'tokenizer')
  assert tokenizers.load(tmp_path / 'tokenizer').hash == made.hash
  section = dict(name='mine.device:constant', learning_rate=0.2, across_phases='restart')
  assert schedules.for_phase(section, 5, 5, 10)(7) == 0.2


MASKING = (maskings.BY_NAME, 'masking')


WRONG_NAMES = [
  ('nobodys.parts:f', "no module 'nobodys': modules are looked for in the current folder (/"),
  ('mine.hots:f', "no module 'mine.hots'"),
  ('mine.needy:f', "imports 'a_module_of_nobody', and there is no such module: install it"),
  ('mine.broken:f', 'AttributeError in '),
  ('mine.broken:f', "broken.py:2: 'int' object has no attribute 'z'): mend it first"),
  ('mine.garbled:f', 'fails when it is imported (SyntaxError: '),
  ('math:pi.foo', "math:pi.foo', and math:pi.foo has no 'foo'"),
  ('os:environ.x', "has no 'x'"),
  ('mine.host:single_sentence', "has no 'single_sentence'. Did you mean 'single_sentences'?"),
  ('mine.host:Family.frist_tokens', "has no 'frist_tokens'. Did you mean 'first_tokens'?"),
  ('mine.host:VERSION', 'is a int and cannot be called: name a function or class'),
  ('mine.host:', 'write package.module:name'),
  ('mine/host.py:f', 'write package.module:name'),
  ('tokn', "No masking is called 'tokn'. Did you mean 'token'?"),
]


def test_a_part_that_is_not_there_is_one_sentence_with_the_remedy():
  for name, words in WRONG_NAMES:
    refused(words, part_lib.resolve, name, *MASKING)
  for name in ('mine.host:', ':f', 'mine:host:f', 'a/b.py:f'):
    with pytest.raises(ValueError, match='write package.module:name'):
      bert.get_config(f'tiny,masking={name}')


FIRST = 'mine.host:Family.first_tokens'


@pytest.mark.parametrize(
  'fields, words',
  [
    (dict(name=FIRST, cuont=3), "it has no 'cuont'. Did you mean 'count'? Write the section in a"),
    (dict(name=FIRST, cuont=3), f"config file as parts.part('{FIRST}', field=value, …)."),
    (dict(name='mine.device:constant'), 'called as name(length, corpus) with the fields of the'),
    (dict(name='permutation', context=6), 'fields are missing: max_span, num_predictions'),
    (dict(name='permutation', contxt=6), 'Build the section with bertzoo_jax.parts'),
  ],
)
def test_fields_that_do_not_fit_are_named(fields, words):
  error = refused(words, part_lib.build, fields, *MASKING, 16, text())
  assert ('bertzoo_jax.parts' in str(error)) == (':' not in fields['name'])


def test_a_missing_field_is_named():
  section = {'name': 'mine.host:single_sentences'}
  words = "config.format has no width, which is needed, and 'm"
  refused(words, part_lib.field, section, 'width', formats.BY_NAME, 'format')
