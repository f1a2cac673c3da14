import pathlib
import sys
import types

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
from configs import bert
from tests.refused import refused

ROOT = pathlib.Path(__file__).parents[2]
SPECIAL = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
V = 50
FIRST = 'mine.host:Family.first_tokens'
OWN = 'tests.outside.own_parts'
FORMAT, LION, RESTARTS = f'{OWN}:document_starts', f'{OWN}:lion', f'{OWN}:restarts'

HOST = '''
"""Parts of the host program."""

import numpy as np

from bertzoo_jax.batches.masking import Masking
from bertzoo_jax.parts import tokenizers as parts
from bertzoo_jax.tokenizers import wordpiece

VERSION = 3


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
Family.old = changed(lambda made: made._replace(apply=lambda x, _: made.apply(x, x['pack_ids'])))
Family.untyped = writing(lambda x: {**x, 'masked_weights': x['masked_weights'].astype(np.int32)})
Family.forgetful = writing(lambda x: {k: y for k, y in x.items() if k != 'masked_targets'})
Family.listed = writing(lambda x: {**x, 'masked_targets': x['masked_targets'].tolist()})


def cased(*, vocab_size=120):
  fields = parts.Wordpiece(vocab_size=vocab_size, lowercase=False, strip_accents=False)
  return wordpiece.wordpiece(fields)
'''


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
  """The modules in the folder where Python looks; they are forgotten afterwards."""
  (tmp_path / 'mine').mkdir()
  broken = dict(needy='import a_module_of_nobody', broken='x = 1\ny = x.z', garbled='def f(:')
  for name, text in {'__init__': '', 'host': HOST, **broken}.items():
    (tmp_path / 'mine' / f'{name}.py').write_text(text)
  monkeypatch.syspath_prepend(tmp_path)
  yield
  for name in [m for m in sys.modules if m.partition('.')[0] == 'mine']:
    del sys.modules[name]


def text():
  draw = np.random.default_rng(0)
  starts = np.append(0, np.cumsum(draw.integers(3, 9, 80)))
  return corpora.in_memory(draw.integers(5, V, starts[-1]), starts, np.arange(0, 81, 8), V, SPECIAL)


def rows(config):
  how = dict(length=16, batch_size=8, seed=0)
  return pipeline.build(text(), format=config.format, masking=config.masking, **how)


def test_a_config_names_parts_from_outside_whose_own_defaults_apply():
  named = dict(format=FORMAT, masking=FIRST, optimizer=LION, schedule=RESTARTS)
  swaps = ','.join(f'{section}={name}' for section, name in named.items())
  config = bert.get_config(f'tiny,{swaps},objective=mlm,steps=26')
  assert config.format.to_dict() == {'name': FORMAT}
  config = configuration.from_json(configuration.to_json(ml_collections.ConfigDict(config).lock()))
  assert {section: config[section].name for section in named} == named
  run = check.config(resolve.run(config))
  assert build.network(run, run.phases[0], V).tx is not None
  batch = rows(config).batch(0)
  assert batch['masked_targets'].shape == (8, 2)
  assert (batch['input_ids'][:, 1:3] == SPECIAL['mask']).all()


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
  config.format = parts.part(FORMAT)
  for masking, words in MASKINGS.items():
    config.masking = parts.part(f'mine.host:Family.{masking}')
    refused(words, rows, config)
  config.masking = parts.part('mine.host:Family.first_tokens')
  features = rows(config).features
  old = types.SimpleNamespace(reads=('input_ids', 'segment_ids', 'pack_ids'), may_read=())
  words = 'objective=mlm.*: pack_ids are called segment_ids'
  refused(words, check.rows, config, features, None, old)


def test_fields_of_a_part_from_outside_are_the_sections():
  config = bert.get_config('tiny')
  config.masking = parts.part(FIRST, count=3)
  config.format = parts.part(FORMAT)
  config.phases = ((5, {'masking.count': 1}), (5, {}))
  first, second = configuration.phases(ml_collections.ConfigDict(config).lock())
  assert rows(first.config).num_predictions == 1 and rows(second.config).num_predictions == 3
  assert configuration.science(config)['masking.count'] == 3
  config.masking = parts.part(FIRST)
  settings.apply(config, {'masking.count': '1'})
  assert rows(config).num_predictions == 1


def test_a_tokenizer_from_outside_trains_and_a_schedule_may_restart_with_each_phase(tmp_path):
  section = parts.part('mine.host:cased').to_dict()
  words = (ROOT / 'data/sample/time_machine.txt').read_text()[:20_000]
  made = tokenizers.train({**section, 'vocab_size': 150}, [words])
  assert made.vocab_size == 150 and tokenizers.vocab_size_of(section) == 120
  made.save(tmp_path / 'tokenizer')
  assert tokenizers.load(tmp_path / 'tokenizer').hash == made.hash
  section = dict(name=RESTARTS, learning_rate=0.2, cycles=1, across_phases='restart')
  assert float(schedules.for_phase(section, 5, 5, 10)(5)) == pytest.approx(0.2)


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
  ('mine.host:case', "has no 'case'. Did you mean 'cased'?"),
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


def test_fields_that_do_not_fit_are_named():
  for fields, words in (
    (dict(name=FIRST, cuont=3), "it has no 'cuont'. Did you mean 'count'? Write the section in a"),
    (dict(name=FIRST, cuont=3), f"config file as parts.part('{FIRST}', field=value, …)."),
    (dict(name=RESTARTS), 'called as name(length, corpus) with the fields of the'),
    (dict(name='permutation', context=6), 'fields are missing: max_span, num_predictions'),
    (dict(name='permutation', contxt=6), 'Build the section with bertzoo_jax.parts'),
  ):
    error = refused(words, part_lib.build, fields, *MASKING, 16, text())
    assert ('bertzoo_jax.parts' in str(error)) == (':' not in fields['name'])
  section = {'name': FORMAT}
  words = 'config.format has no width, which is needed, and'
  refused(words, part_lib.field, section, 'width', formats.BY_NAME, 'format')
