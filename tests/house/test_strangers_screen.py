import io
import json
import pathlib
import re
import sys
import types
from unittest import mock

import markdown_it
import pytest
import rich.table
import rich.text
import tqdm

from bertzoo_jax import cli
from bertzoo_jax.common import errors
from bertzoo_jax.common import progress
from bertzoo_jax.common import screen
from bertzoo_jax.common import tables
from bertzoo_jax.hf import card
from bertzoo_jax.hf import task_heads
from bertzoo_jax.reproduce import page
from bertzoo_jax.tasks import judged
from bertzoo_jax.tasks import kinds as kinds_lib
from tests import commands
from tests.hf import test_card as cards
from tests.house.strangers import edit

PACKAGE = pathlib.Path(cli.__file__).parents[1]

# a title, a clear screen, a colour, 8 bits, backspaces, a return, another direction
DRAWS = ['\x1b]0;pwned\x07', '\x1b[2J', '\x1b[8m', '\x9b2J', '\x08\x08', '\rz', '\u202e']


class Terminal(io.StringIO):
  isatty = lambda self: True


def _rich(console, text):
  table = rich.table.Table(text, title=text, caption=text)
  table.add_row(rich.text.Text(text, 'bold'))
  console.print(table, rich.text.Text(text, 'bold red'), text)


def _bar(text):
  bar = progress.Progress(2, 0, show=True, terminal=True)
  bar.say(text)
  bar.close()


def _meter(text):
  with progress.Meter(text, 10) as meter:
    meter.update(3)


def _raised(text):
  with pytest.raises(SystemExit):
    cli._guard(mock.Mock(side_effect=errors.UserError(text)), [])


SHOWN = {
  'print': print,
  'an error': _raised,
  'another stream': lambda text: print(text, file=sys.stderr),
  'a table': lambda text: print(tables.aligned([('a', 'b'), (text, text)])),
  'rich': lambda text: _rich(screen.Console(force_terminal=True), text),
  'a bar': _bar,
  'a bar of files': _meter,
  'tqdm': lambda text: list(tqdm.tqdm([1], desc=text)),
}


@pytest.mark.parametrize('way', SHOWN)
def test_what_strangers_wrote_is_shown_and_draws_nothing(monkeypatch, way):
  monkeypatch.setenv('TERM', 'xterm')
  for draws in DRAWS:
    out = Terminal()
    monkeypatch.setattr(sys, 'stdout', screen.Stream(out))
    monkeypatch.setattr(sys, 'stderr', screen.Stream(out))
    SHOWN[way](f'begin{draws}end')
    assert draws not in out.getvalue() and 'begin' in out.getvalue(), draws
    # rich leaves some out, and cuts a cell that became wider
    if way not in ('rich', 'a table', 'a bar', 'a bar of files'):
      assert f'{ord(draws[0]):04x}' in out.getvalue(), draws


@pytest.mark.parametrize('text', ['[bold]x[/bold]', '[link=file:///etc/passwd]x[/link]', ':smile:'])
def test_brackets_of_strangers_are_no_markup(monkeypatch, text):
  monkeypatch.setattr(sys, 'stderr', out := Terminal())
  monkeypatch.setattr(sys, 'stdout', out)
  _rich(screen.Console(width=100), text)
  _meter(text)
  assert out.getvalue().count(text) >= 6


@pytest.mark.parametrize('command', ['fill_mask', 'encode'])
def test_a_vocabulary_and_a_config_draw_nothing(place, command):
  if command == 'encode':
    edit('hf/config.json', vocab_size='x\x1b[2J')
    pathlib.Path('t').write_text('a')
    line = ('--model=hf:hf', '--text=t', '--out=o.npy')
    done = commands.run('-m', 'bertzoo_jax.encode', *line, cwd='.')
    assert done.returncode == 2 and 'vocab_size=x\\u001b[2J' in done.stderr
  else:
    text = pathlib.Path('hf/tokenizer.json').read_text()
    pieces = list(json.loads(text)['model']['vocab'])[10:]
    for piece in pieces:
      text = text.replace(f'{json.dumps(piece)}:', json.dumps(piece + '\x1b[2J\x9b1m') + ':')
    pathlib.Path('hf/tokenizer.json').write_text(text)
    line = ('--model=hf', '--text=[MASK]', '--top=9')
    done = commands.run('-m', 'bertzoo_jax.fill_mask', *line, cwd='.')
    assert done.returncode == 0 and '\\u001b[2J\\u009b1m' in done.stdout, done.stderr
  assert not re.search('[\x00-\x08\x0b-\x1f\x7f-\x9f]', done.stdout + done.stderr)


def test_all_consoles_are_the_one_that_shows_text():
  for path in sorted(PACKAGE.rglob('*.py')):
    made = 'rich.console.Console' in path.read_text() or 'console.Console(' in path.read_text()
    assert made == (path.name == 'screen.py'), path


MARKS = ['# head <script>x</script>', '![x](http://example.org/x.png)', 'a\n\n# head\n\n<b>b</b>']
MARKS += ['`code` <img src=x>', 'a | b\n|---|', '[x](javascript:x)', '```\n# b']
MARKS += ['*x* **x** _x_ __x__ ~~x~~ *a*b', 'www.example.com me@example.com']


def _card(text):
  """A card in which each text of a stranger is this one, keys included."""
  corpus = {'hash': text, text: text, 'license': text, 'sources': [text, (text,)], 'language': text}
  objective = dict(cards.parts.mlm(), labels=(text, text))
  masking = {'name': 'mine:masking', text: text, 'x': [text, {text: (text,)}]}
  read = cards.exported('mlm')[0]
  whole = cards.read(*read, corpus=corpus, init=text, masking=masking, objective=objective)
  config = {'objective': objective | {'name': 'classification'}, 'metrics': (text,)}
  task = task_heads.task_of(config['objective'], kinds_lib.BY_NAME['classification'])
  return whole + card._outputs(card._plain(config), task)


@pytest.mark.parametrize('text', MARKS)
def test_texts_of_strangers_are_text_in_the_card(text):
  assert kinds(_card(text)) == kinds(_card('word'))
  prose = re.sub('`.*?`', '', _card(text))
  assert not re.search(r'www\.|\w@\w+\.', prose)  # the hub makes links of them


HOMES = 'file:///home/me/x /home/me,co/x data/../../home/me/x me@secret:/home/me/x ~me/x'.split()
KEPT = 'data/sample/x.txt', 'tfds:wiki/1.0', 'hf:org/name@main:train'
ADDRESSES = {  # what the card says of them
  **dict.fromkeys([*HOMES, '/home/me and co/x'], 'x'),
  **dict.fromkeys(['hf:/home/me/dir', 'hf:./dir'], 'dir'),
  **dict.fromkeys(['gs://secret', 'https://example.org'], '...'),
  **{text: text for text in KEPT},
  '../secret/b.txt': 'b.txt',
  'a.txt|/home/me/b.txt': 'a.txt&#124;b.txt',
  'tfds:/home/me/set': 'set',
  'gs://secret/me/x.txt': 'x.txt',
  '2*/home/me/x.txt': '2&#42;x.txt',
  '0.5*gs://secret/x': '0.5&#42;x',
}


def test_the_card_names_files_without_folders_and_buckets():
  for text, shown in ADDRESSES.items():
    page = _card(text)
    assert f'| began with | {shown} |' in page, text
    assert f'x \\["{shown}"' in page.replace('["', '\\["'), text
    assert not re.search('home|me/|secret|example', page) or text == shown


def kinds(page):
  """The tokens of a page of Markdown that draw something."""
  return [
    (inner.type, inner.tag)
    for token in markdown_it.MarkdownIt('commonmark').enable(['table', 'strikethrough']).parse(page)
    for inner in (token, *(token.children or ()))
    if re.search('html|heading|image|link|fence|hr|tr_|td_|em_|strong|^s_', inner.type)
  ]


def _dev_page(text):
  task = types.SimpleNamespace(labels=('a', text))
  return judged.page('dev', task, [{'gold': text, 'predicted': 'a'}])


def _paper_table(text):
  cell = page.Cell('c', '1', [1.0], '', [], [], 0, [], [], text)
  row = page.Row('r', 'R', '', True, 1, 0, 9, None, [text], [text], [cell])
  heading = dict(tokens_divided_by=0, steps=0, scale='tiny', change='', paper='P', note='')
  heading |= dict(name='N', title='T', source='S')
  return page.markdown(page.Table(heading, ['C'], [], [row]))


PAGES = {
  'dev.md': _dev_page,
  'table.md': _paper_table,
  'a table': lambda text: tables.aligned([('a', text), (text, 'b')], markdown=True),
}


@pytest.mark.parametrize('where', PAGES)
@pytest.mark.parametrize('text', [*MARKS, *DRAWS, 'a\\', 'a\\|b', '![](//e.x)'])
def test_texts_of_strangers_are_text_in_every_page(text, where):
  drawn = PAGES[where](text)
  assert kinds(drawn) == kinds(PAGES[where]('word')) and not errors._CONTROLS.search(drawn)
