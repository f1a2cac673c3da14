import ast
import functools
import pathlib
import re
import shlex

import pytest

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import trust
from configs.tasks import own
from tests import commands
from tests import found
from tests.cli import forked
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
  return _page(name).split(f'\n{heading}', 1)[1].split(f'```{language}\n', 1)[1].split('```')[0]


BY_HAND = _block('README.md', 'The same by hand, in five commands:', 'bash').splitlines()
FINE_TUNE = _block('README.md', '## Fine-tune on your own labels', 'bash').replace('\\\n', ' ')
MY_LANGUAGE = _block('docs/my_language.md', '1. Write a config', 'python')
MY_RATINGS = _block('CONTRIBUTING.md', '`my_ratings.py`', 'python')
MY_ENCODER = _block('docs/my_parts.md', '## An encoder of my own', 'python')

_COMMAND = re.compile(r'(.*?)(?:\bbertzoo |python -m bertzoo_jax\.)(\w+ --[^`]+)')


def _commands():
  """Every `bertzoo COMMAND --flags` of a page, without those that leave something out. An array of
  flags that a page makes is not read.
  """
  for page in PAGES:
    text = page.read_text().replace('\\\n', ' ').replace(' "${OVERRIDES[@]}"', '')
    for line in text.splitlines():
      for before, command in re.findall(_COMMAND, line):
        if before.count("'") % 2:  # inside --command='…'
          command = command.rpartition("'")[0]
        if '…' not in command and '[--' not in command:
          yield shlex.join(shlex.split(command, comments=True))


COMMANDS = sorted(set(_commands()))


def _run(line, cwd):
  env = commands.on_one_device(JAX_PLATFORMS='cpu')
  done = commands.run('-m', 'bertzoo_jax', *line, cwd=cwd, env=env)
  assert done.returncode == 0, f'{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}'
  return done.stdout


@pytest.fixture
def checkout(tmp_path):
  for name in ('configs', 'data', 'bertzoo_jax'):
    (tmp_path / name).symlink_to(ROOT / name)
  return tmp_path


@pytest.mark.slow
def test_the_commands_by_hand_make_a_model_that_fills_a_mask(checkout):
  lines = [line.split(' ', 1)[1] for line in BY_HAND if line.startswith('bertzoo ')]
  assert [line.split()[0] for line in lines] == 'prepare show pretrain export fill_mask'.split()
  for line in lines:
    output = _run(shlex.split(line.replace('bert.py:tiny', 'bert.py:tiny,steps=20')), checkout)
  assert output.count('%') == 5  # five fillings with their shares


def test_one_line_of_the_readme_fine_tunes_on_labels(checkout):
  made.make_run(checkout / 'demo' / 'run', 'bert')
  assert FINE_TUNE.count('bertzoo ') == 1
  few = ('steps=3', 'length=32', 'run.dtype=float32')
  line = [*shlex.split(FINE_TUNE)[1:], *(f'--config.{field}' for field in few)]
  output = _run(line, checkout)
  assert 'Majority baseline' in output and 'dev accuracy' in output
  assert (checkout / 'mine' / 'table.md').read_text() in output


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
def clone(tmp_path_factory):
  """A folder where readers' own configs exist."""
  folder = tmp_path_factory.mktemp('clone')
  (folder / 'configs').mkdir()
  for path in (*(ROOT / 'configs').glob('*.py'), ROOT / 'configs/tasks', ROOT / 'configs/tables'):
    (folder / 'configs' / path.name).symlink_to(path)
  (folder / 'tests').symlink_to(ROOT / 'tests')
  (folder / 'configs/estonian.py').write_text(MY_LANGUAGE)
  (folder / 'DIR').mkdir()
  (folder / 'DIR/config.json').write_text('{"model_type": "bert"}')
  (folder / 'my_config.py').write_text(MY_ENCODER)
  (folder / 'my_ratings.py').write_text(MY_RATINGS)
  return folder


def test_every_command_has_flags_that_exist(clone):
  wrong = 'export --workdir W --outt hf'
  for command in (*COMMANDS, wrong):
    done = forked.run(forked.COMMAND, *shlex.split(command), '--only_check_args', cwd=clone)
    assert done.returncode == (2 if command == wrong else 0), f'{command}\n{done.stderr[-2000:]}'


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


def test_the_tables_of_systems_have_every_config_and_no_other():
  assert _systems('README.md') == _systems('docs/systems.md')
  rows = re.findall(r'^\|.*`configs/(\w+)\.py:\{?([\w,]+)', README, re.M)
  assert sorted(system for system, _ in rows) == sorted(found.SYSTEMS)
  assert not [s for s, sizes in rows if set(sizes.split(',')) - set(found.module(s).SIZES)]


@pytest.mark.parametrize('page', PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_resolves_and_every_file_named_exists(page):
  text = page.read_text()
  for target in re.findall(r'\]\(([^)\s]+)\)', text):
    file, _, anchor = target.partition('#')
    path = page.parent / file if file else page
    assert '://' in target or path.exists(), target
    assert '://' in target or not anchor or anchor in _anchors(path), target
  named = re.compile(r'(?<![\w/.:~*])((?:[\w.-]+/)+[\w-]+\.(?:py|md|sh|txt|example))\b')
  places = (ROOT, ROOT / 'bertzoo_jax', page.parent)
  for code in re.findall(r'`([^`\n]+)`', text):
    for name in named.findall(code):
      assert THEIRS.search(name) or any((p / name).exists() for p in places), name


def _anchors(page):
  headings = re.findall(r'^#+ (.*)$', page.read_text(), re.M)
  return {re.sub(r'[^\w\- ]', '', h.lower()).replace(' ', '-') for h in headings}


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


WITH_FLAGS = """commands electra finetuning my_language my_parts preflight tokenizers
troubleshooting word_masking without_tensorflow""".split()


def test_every_flag_that_a_page_names_exists():
  known = {*_flags(), 'name', 'config.steps'}
  for page in ('README.md', *(f'docs/{name}.md' for name in WITH_FLAGS)):
    for code in re.findall(r'`([^`\n]+)`', _page(page)):
      if not code.startswith(('pip ', 'iconv ')):
        for flag in re.findall(r'(?<![\w-])--([a-zA-Z_-]+(?:\.[a-z_.]*[a-z_])?)', code):
          assert flag in known, (page, code)


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


def test_every_message_of_the_troubleshooting_page_is_in_the_source():
  tables = r'\| message \|.*\n\|[-|]+\n((?:\|.*\n)+)'
  rows = ''.join(re.findall(tables, _page('docs/troubleshooting.md'))).splitlines()
  for message in (re.match(r'\| `([^`]+)` \|', row)[1] for row in rows):
    fragments = [re.escape(f.strip()) for f in message.split('…') if f.strip()]
    wanted = re.compile('.*'.join(fragments), re.S if len(fragments) < 2 else 0)
    assert max(map(len, fragments)) > 8
    assert any(wanted.search(t) for t in _templates()), f'not in the source: {message}'


def test_every_code_of_preflight_is_explained():
  from bertzoo_jax.preflight import readiness

  codes = set(re.findall(r'\b[PW]\d\d\b', readiness.__doc__))
  assert codes == set(re.findall(r'\| ([PW]\d\d) \|', _page('docs/preflight.md')))


@pytest.mark.parametrize('page', ['docs/reliability.md', 'docs/verified.md'])
def test_every_test_that_a_page_names_exists(page):
  named = re.findall(r'`(tests/[\w/]+\.py)::(\w+)`', _page(page))
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
