import importlib
import pathlib
from unittest import mock

import pytest

from bertzoo_jax.cli import config_file
from bertzoo_jax.common import config
from bertzoo_jax.configs import bert
from tests import commands
from tests.refused import refused

ROOT = pathlib.Path(__file__).parents[2]
OWN = 'from bertzoo_jax.configs import bert\n\n'
OWN += 'def get_config(argument="tiny"):\n  return bert.get_config(argument)'

SHIPPED = {
  'bert:tiny': 'bert',
  'bert': 'bert',
  'tasks/glue:mrpc': 'tasks.glue',
  'tables/albert_table4:tiny': 'tables.albert_table4',
  f'{ROOT}/configs/bert.py:tiny': 'bert',
  'there/configs/tasks/../bert.py:tiny': 'bert',  # through a link
}


def test_a_shipped_config_is_one_module_and_a_file_of_ones_own_is_none(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('there').symlink_to(ROOT)
  own = ('configs.py:tiny', 'package.py:tiny', 'bert.py')
  for address, name in {**SHIPPED, **dict.fromkeys(own)}.items():
    file, _, argument = address.partition(':')
    if name is None:
      pathlib.Path(file).write_text(OWN)
    module = importlib.import_module(f'bertzoo_jax.configs.{name or "bert"}')
    wished = module.get_config(*[argument] * bool(argument)) if name else bert.get_config('tiny')
    get_config = mock.Mock(side_effect=module.get_config)
    with monkeypatch.context() as patch:
      patch.setattr(module, 'get_config', get_config)
      loaded = config_file.load(address)
    assert config.to_json(loaded) == config.to_json(wished) and loaded.is_locked, address
    asked = argument or ('' if name else 'tiny')
    get_config.assert_called_once_with(*[asked] * bool(asked))


FILES_OF_ONES_OWN = {
  'mine': 'def get_config():\n  return {}',
  'none': 'get_config = 3',
  'number': 'get_config = lambda: 3',
  'nothing': 'get_config = lambda: None',
  'other': 'import broken',
  'broken': 'x = 1\ny = (\n',
  'raises': '1 // 0',
  'half': 'def get_config():\n  return int(1, 2, 3)',
  'sentence': 'def f():\n  raise ValueError("a sentence")',
  'called': 'import sentence\n\ndef get_config():\n  return sentence.f()',
  'here': 'def get_config():\n  raise ValueError("a sentence")',
  'attribute': 'from bertzoo_jax import configs\nconfigs.bret',
  'module': 'import nowhere',
  'part': 'from bertzoo_jax import parts\nparts.transformer(num_layer=3)',
  'key': "{}['masking']",
  'parses': 'from json import loads\nloads("{")',
  'opens': 'open("missing.txt")',
  'size': 'from bertzoo_jax.configs import bert\nbert.get_config("tinny")',
}
TAKES = 'mine.py:1: TypeError: get_config() takes 0 positional arguments but 1 was given. Write def'
WRONG = [
  ('bret:tiny', "there is no shipped config 'bret'. Did you mean --config bert:tiny?"),
  ('glue:mrpc', 'Did you mean --config tasks/glue:mrpc?'),
  ('tables/albert_tabel4:tiny', 'Did you mean --config tables/albert_table4:tiny?'),
  ('mine:tiny', 'Did you mean --config mine.py:tiny?'),
  ('configs/bert:tiny', 'Did you mean --config bert:tiny?'),
  ('configs/bert.py:tiny', 'no config file configs/bert.py. Did you mean --config bert:tiny?'),
  ('bert.py', 'Did you mean --config bert?'),
  ('nummber.py:tiny', 'no config file nummber.py. Did you mean --config number.py:tiny?'),
  ('../configs/arguments', 'there is no shipped config'),
  ('folder.py', 'no config file folder.py. --config is FILE.py:SIZE, or a shipped one: albert,'),
  ('', 'or a shipped one: albert, babylm'),
  ('mine.py:tiny', TAKES),
  ('none.py', 'none.py has no function get_config(argument)'),
  ('number.py', 'number.py: get_config() returns a int'),
  ('nothing.py', 'nothing.py: get_config() returns None: return parts.experiment(…)'),
  ('other.py', 'broken.py:2: SyntaxError: '),
  ('latin.py', 'latin.py:'),
  ('half.py', 'half.py:2: TypeError: '),
  ('raises.py', 'raises.py:1: ZeroDivisionError: integer division'),
  ('called.py', '--config: a sentence'),
  ('here.py', 'here.py:2: ValueError: a sentence. Mend'),
  ('attribute.py', "attribute.py:2: AttributeError: module 'bertzoo_jax.configs' has no"),
  ('module.py', "module.py:1: ModuleNotFoundError: No module named 'nowhere'"),
  ('part.py', 'part.py:2: TypeError: transformer() got an unexpected'),
  ('key.py', 'key.py:1: KeyError: masking'),
  ('parses.py', 'parses.py:2: JSONDecodeError'),
  ('opens.py', 'opens.py:1: FileNotFoundError'),
  ('size.py', "--config: no size 'tinny'"),
]


def test_an_address_without_a_config_is_told_what_it_is_near_to(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('folder.py').mkdir()
  for name, text in FILES_OF_ONES_OWN.items():
    pathlib.Path(f'{name}.py').write_text(text)
  pathlib.Path('latin.py').write_bytes('x = "ä"'.encode('latin-1'))
  for address, words in WRONG:
    refused(words, config_file.load, address)


# What a stranger's folder may hold; each says that it ran.
FILES = ('bert.py', 'configs/__init__.py', 'configs/bert.py', 'arguments.py')


@pytest.mark.parametrize('address, runs', [('bert:tiny', ()), ('bert.py:tiny', ('bert.py',))])
def test_nothing_of_the_current_folder_runs_that_the_user_did_not_name(address, runs, tmp_path):
  (tmp_path / 'configs').mkdir()
  for file in FILES:
    (tmp_path / file).write_text(f'print({file!r} + " runs")\n')
  line = ('-m', 'bertzoo_jax.prepare', '--config', address, '--source=a', '--out=b')
  done = commands.run(*line, cwd=tmp_path)
  assert done.stdout == ''.join(f'{file} runs\n' for file in runs) and done.returncode == 2
  assert ('no function get_config' if runs else 'a: no file') in done.stderr, done.stderr


def test_a_package_configs_of_ones_own_stays_it(tmp_path):
  (tmp_path / 'configs').mkdir()
  (tmp_path / 'configs/__init__.py').touch()
  (tmp_path / 'configs/mine.py').write_text('X = 3')
  program = 'import bertzoo_jax.configs.bert; from configs import mine; print(mine.X)'
  environment = commands.environment(PYTHONPATH=f'{tmp_path}:{ROOT}')
  done = commands.run('-c', program, cwd=tmp_path, env=environment)
  assert done.stdout == '3\n', done.stderr
