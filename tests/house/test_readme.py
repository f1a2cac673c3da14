"""The README, docs/ and the other pages are right: commands, flags, files, links, messages and the
names of tests.
"""

import ast
import functools
import json
import pathlib
import re
import shlex

import pytest

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import trust
from configs.tasks import own
from tests import commands
from tests import found
from tests.pretrained import test_loading as made

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / 'README.md').read_text()
MOST_WORDS, MOST_WORDS_OF_ALL = 1000, 33_000
PAGES = (
  *(ROOT / name for name in ('README.md', 'CHANGELOG.md', 'CONTRIBUTING.md')),
  *(ROOT / name for name in ('data/README.md', 'bench/README.md')),
  ROOT / 'bertzoo_jax/batches/README.md',
  *sorted((ROOT / 'docs').glob('*.md')),
  *sorted((ROOT / 'docs/results').glob('*.md')),
)
# What readers make themselves, so that nothing has such a name here.
THEIRS = re.compile(r'(^|/)(my_|yours|estonian|tpu\.env$)|LANG|^(run|corpus|hf|mine|FOLDER)/')


def _page(name):
  return (ROOT / name).read_text()


def _block(name, heading, language):
  """The first block of code below a line of a page."""
  return _page(name).split(f'\n{heading}', 1)[1].split(f'```{language}\n', 1)[1].split('```')[0]


BY_HAND = _block('README.md', 'The same by hand, in five commands:', 'bash').splitlines()
FINE_TUNE = _block('README.md', '## Fine-tune on your own labels', 'bash').replace('\\\n', ' ')
MY_LANGUAGE = _block('docs/my_language.md', '1. Write a config', 'python')
MY_RATINGS = _block('CONTRIBUTING.md', '`my_ratings.py`', 'python')
MY_ENCODER = _block('docs/my_parts.md', '## An encoder of my own', 'python')


_COMMAND = re.compile(r'(.*?)(?:\bbertzoo |python -m bertzoo_jax\.)(\w+ --[^`]+)')


def _commands():
  """Every `bertzoo COMMAND --flags` of a page, as python's arguments, without those that leave
  something out. An array of flags that a page makes is not read.
  """
  for page in PAGES:
    text = page.read_text().replace('\\\n', ' ').replace(' "${OVERRIDES[@]}"', '')
    for line in text.splitlines():
      for before, command in re.findall(_COMMAND, line):
        if before.count("'") % 2:  # inside --command='…'
          command = command.rpartition("'")[0]
        if '…' not in command and '[--' not in command:
          yield '-m bertzoo_jax.' + shlex.join(shlex.split(command, comments=True))


COMMANDS = sorted(set(_commands()))
WRONG = '-m bertzoo_jax.export --workdir W --outt hf'

# One process imports the libraries; a fork of it parses each command.
_PARSER = """
import contextlib, importlib, json, os, runpy, shlex, sys, traceback

commands, said = json.load(sys.stdin), {}
for module in {command.split()[1] for command in commands}:
  with contextlib.suppress(ImportError):  # its commands fail below
    package = hasattr(importlib.import_module(module), '__path__')
    importlib.import_module(f'{module}.__main__' if package else module)
for command in commands:
  read, write = os.pipe()
  if not (child := os.fork()):
    os.dup2(write, 2)
    _, module, *flags = shlex.split(command)
    sys.argv = [module, *flags, '--only_check_args']
    try:
      runpy.run_module(module, run_name='__main__', alter_sys=True)
    except SystemExit as e:
      sys.stderr.flush()
      os._exit(e.code or 0)
    except BaseException:
      traceback.print_exc()
    os._exit(99)
  os.close(write)
  with open(read, errors='replace') as f:
    error = f.read()
  said[command] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), error
json.dump(said, sys.stdout)
"""


def _run(arguments, cwd, text=None, **environment):
  env = commands.on_one_device(**{'JAX_PLATFORMS': 'cpu', **environment})
  return commands.run(*arguments, cwd=cwd, env=env, input=text, timeout=540)


@pytest.fixture
def checkout(tmp_path):
  for name in ('configs', 'data', 'bertzoo_jax'):
    (tmp_path / name).symlink_to(ROOT / name)
  return tmp_path


@pytest.mark.slow
def test_the_commands_by_hand_make_a_model_that_fills_a_mask(checkout):
  commands = [line for line in BY_HAND if line.startswith('bertzoo ')]
  assert [c.split()[1] for c in commands] == 'prepare show pretrain export fill_mask'.split()
  for command in commands:
    command = command.replace('bert.py:tiny', 'bert.py:tiny,steps=20')
    done = _run(['-m', 'bertzoo_jax', *shlex.split(command)[1:]], checkout)
    assert done.returncode == 0, f'{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}'
  assert done.stdout.count('%') == 5  # five fillings with their shares


def test_one_line_of_the_readme_fine_tunes_on_labels(checkout):
  made.make_run(checkout / 'demo' / 'run', 'bert')
  assert FINE_TUNE.count('bertzoo ') == 1
  few = ('steps=3', 'length=32', 'run.dtype=float32')
  line = ['-m', 'bertzoo_jax', *shlex.split(FINE_TUNE)[1:]]
  done = _run([*line, *(f'--config.{field}' for field in few)], checkout)
  assert done.returncode == 0, f'{done.stdout[-3000:]}\n{done.stderr[-3000:]}'
  assert 'Majority baseline' in done.stdout and 'dev accuracy' in done.stdout
  assert (checkout / 'mine' / 'table.md').read_text() in done.stdout


def _config(source, argument=None):
  namespace = {}
  exec(source, namespace)
  return namespace['get_config'](*([argument] if argument else []))


def test_my_own_language_and_encoder_are_ten_lines_on_top_of_another_config():
  assert len([line for line in MY_LANGUAGE.splitlines() if line]) <= 10
  config = _config(MY_LANGUAGE)
  assert not config.tokenizer.lowercase and sum(steps for steps, _ in config.phases) == 100_000
  small = _config(MY_LANGUAGE, 'tiny')  # what the page says of little text
  assert small.tokenizer == config.tokenizer and small.encoder.hidden_size == 128
  assert len(MY_ENCODER.strip().splitlines()) <= 10
  config = _config(MY_ENCODER)
  assert (config.objective.name, config.format.name) == ('mlm', 'full_sentences')
  assert config.encoder.name == 'my_package.encoder:MyEncoder'


@pytest.fixture(scope='module')
def parsed(tmp_path_factory):
  """{command: (exit code, output)}, where readers' own configs exist."""
  folder = tmp_path_factory.mktemp('clone')
  (folder / 'configs').mkdir()
  for path in (ROOT / 'configs').glob('*.py'):
    (folder / 'configs' / path.name).symlink_to(path)
  for name in ('tasks', 'tables'):
    (folder / 'configs' / name).symlink_to(ROOT / 'configs' / name)
  (folder / 'tests').symlink_to(ROOT / 'tests')
  (folder / 'configs' / 'estonian.py').write_text(MY_LANGUAGE)
  (folder / 'DIR').mkdir()
  (folder / 'DIR/config.json').write_text('{"model_type": "bert"}')
  (folder / 'my_config.py').write_text(MY_ENCODER)
  (folder / 'my_ratings.py').write_text(MY_RATINGS)
  done = _run(['-c', _PARSER], folder, text=json.dumps([*COMMANDS, WRONG]))
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(done.stdout)


@pytest.mark.parametrize('command', COMMANDS)
def test_every_command_has_flags_that_exist(command, parsed):
  code, said = parsed[command]
  assert code == 0, said[-2000:]


def test_a_command_with_a_flag_that_does_not_exist_is_noticed(parsed):
  assert parsed[WRONG][0] == 2


def test_the_readme_is_read_in_minutes_and_all_pages_in_two_hours():
  assert len(README.split()) <= MOST_WORDS
  first = README.split('\n## ')[0]
  for shown in ('make demo', *BY_HAND):
    assert shown in first
  texts = [text for page in PAGES if not (text := page.read_text()).startswith('<!-- Written by')]
  words = [w for text in texts for w in text.split() if re.search(r'\w', w)]
  assert len(words) <= MOST_WORDS_OF_ALL


def _systems(name):
  table = _page(name).split('\n| system |')[1].split('\n\n')[0]
  return [row.split('|')[1].strip() for row in table.splitlines()[2:]]


def test_the_page_of_systems_has_those_of_the_readme():
  assert _systems('README.md') == _systems('docs/systems.md')
  assert len(_systems('README.md')) == len(found.SYSTEMS)


@pytest.mark.parametrize('page', PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_resolves(page):
  for target in re.findall(r'\]\(([^)\s]+)\)', page.read_text()):
    if '://' in target:
      continue
    file, _, anchor = target.partition('#')
    path = page.parent / file if file else page
    assert path.exists(), target
    assert not anchor or anchor in _anchors(path), target


def _anchors(page):
  """The anchors that GitHub gives headings."""
  headings = re.findall(r'^#+ (.*)$', page.read_text(), re.M)
  return {re.sub(r'[^\w\- ]', '', h.lower()).replace(' ', '-') for h in headings}


@pytest.mark.parametrize('page', PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_file_named_exists(page):
  named = re.compile(r'(?<![\w/.:~*])((?:[\w.-]+/)+[\w-]+\.(?:py|md|sh|txt|example))\b')
  places = (ROOT, ROOT / 'bertzoo_jax', page.parent)
  for code in re.findall(r'`([^`\n]+)`', page.read_text()):
    for name in named.findall(code):
      assert THEIRS.search(name) or any((p / name).exists() for p in places), name


@functools.cache
def _flags():
  """Every flag of a command or a script, and every --config.field of a shipped config."""
  sources = [p.read_text() for p in (ROOT / 'bertzoo_jax').rglob('*.py')]
  named = r"""DEFINE_\w+\(\s*'(\w+)'|^    (\w+)=(?:['"]|cli)|cli\.required\((\w+)="""
  found_flags = [m for s in sources if 'flags' in s for m in re.findall(named, s, re.M)]
  out = {flag for match in found_flags for flag in match if flag}
  out |= {f'no{f}' for f in out} | {trust.FLAG}
  out |= {'help', 'config', 'dry-run', 'verbosity', 'only_check_args'}
  for files, pattern in (('tpu_scripts/*.sh', r'--([a-z-]+)'), ('bench/*.py', r"'(?:--)?(\w+)'")):
    out |= {flag for p in ROOT.glob(files) for flag in re.findall(pattern, p.read_text())}
  for system, size in found.SIZES:
    config = found.config(system, size)
    sections = [k for k in config if hasattr(config[k], 'keys')]
    out |= {f'config.{k}' for k in config}
    out |= {f'config.{k}.{field}' for k in sections for field in config[k]}
  configs = [
    *(own.get_config(f'{x},source={y}') for x in own.TASKS for y in own.TASKS[x]['sources']),
    *(found.module(f'tasks.{file}').get_config('all') for file in found.SUITES),
  ]
  return out | {f'config.{k}' for x in configs for k in ('suite', *x, *configuration.flatten(x))}


def _fields(text):
  """The fields of configs that a text sets; those of a table's row or column without its name."""
  part = r'--config\.(?:rows\.[\w$]+\.experiment|columns\.\w+\.task)\b\.?'
  text = re.sub(part, '--config.', text.replace('$at.', '--config.'))
  return re.findall(r'--(config\.[a-z_.]*[a-z_])\b', text)


def test_every_field_that_a_page_names_exists():
  known = {*_flags(), 'config.steps'}  # a mistake that a page explains
  fields = [(page.name, field) for page in PAGES for field in _fields(page.read_text())]
  assert not [x for x in fields if x[1] not in known]


@pytest.mark.parametrize('name', ['README.md', *(f'docs/{n}.md' for n in (
  'commands', 'electra', 'finetuning', 'my_language', 'my_parts', 'preflight', 'tokenizers',
  'troubleshooting', 'word_masking', 'without_tensorflow'))])  # fmt: skip
def test_every_flag_that_a_page_names_exists(name):
  known = _flags()
  inline = re.findall(r'`([^`\n]+)`', _page(name))
  for code in inline:
    if not code.startswith(('pip ', 'iconv ')):
      for flag in re.findall(r'(?<![\w-])--([a-zA-Z_-]+(?:\.[a-z_.]*[a-z_])?)', code):
        assert flag in known or flag in ('name', 'config.steps'), code


@functools.cache
def _templates():
  """Messages of the source: its strings, with … for values that are filled in."""
  return tuple(_strings())


def _strings():
  for path in (ROOT / 'bertzoo_jax').rglob('*.py'):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
      elif isinstance(node, ast.JoinedStr):
        yield ''.join(v.value if isinstance(v, ast.Constant) else '…' for v in node.values)
  configs = (ROOT / f'configs/{x}.py' for x in ('arguments', 'tasks/arguments', 'tasks/recipes'))
  for path in (*configs, *(ROOT / 'tpu_scripts').glob('*.sh')):
    yield path.read_text()


def _messages():
  """The first column of the tables of messages."""
  tables = r'\| message \|.*\n\|[-|]+\n((?:\|.*\n)+)'
  for table in re.findall(tables, _page('docs/troubleshooting.md')):
    for row in table.splitlines():
      yield re.match(r'\| `([^`]+)` \|', row)[1]


MESSAGES = list(_messages())


@pytest.mark.parametrize('message', MESSAGES)
def test_every_message_of_the_troubleshooting_page_is_in_the_source(message):
  fragments = [re.escape(f.strip()) for f in message.split('…') if f.strip()]
  wanted = re.compile('.*'.join(fragments), re.S if len(fragments) < 2 else 0)
  assert max(map(len, fragments)) > 8
  assert any(wanted.search(t) for t in _templates()), 'no message of the source has these words'


def test_every_code_of_preflight_is_explained():
  from bertzoo_jax.preflight import readiness

  codes = set(re.findall(r'\b[PW]\d\d\b', readiness.__doc__))
  assert codes == set(re.findall(r'\| ([PW]\d\d) \|', _page('docs/preflight.md')))


def _tests_of(page):
  return re.findall(r'`(tests/[\w/]+\.py)::(\w+)`', _page(page))


@pytest.mark.parametrize('page', ['docs/reliability.md', 'docs/verified.md'])
def test_every_test_that_a_page_names_exists(page):
  named = _tests_of(page)
  assert len(named) > 10
  for path, name in named:
    tree = ast.parse((ROOT / path).read_text())
    assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, f'{path}::{name}'


def test_every_fault_has_its_test():
  faults, tests = (
    re.findall(r'^\| (\d+) \|(.*)$', part, re.M)
    for part in _page('docs/reliability.md').split('## The tests')
  )
  for rows in (faults, tests):
    assert [int(number) for number, _ in rows] == list(range(1, len(faults) + 1))
  for number, row in tests:
    assert '::test_' in row, f'fault {number} has no test'


def test_the_makefile_has_the_two_commands():
  targets = re.findall(r'^([a-z0-9-]+):', (ROOT / 'Makefile').read_text(), re.M)
  assert {'demo', 'test'} <= set(targets)
  ci = (ROOT / '.ci' / 'run').read_text()
  assert 'make test' in ci and 'make demo' in ci
