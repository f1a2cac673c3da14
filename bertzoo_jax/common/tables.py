"""Tables as text, for the screen and for Markdown."""

import io
import re

import rich.box
import rich.table
import rich.text

from bertzoo_jax.common import errors
from bertzoo_jax.common import screen

# Markup characters: HTML, code, links, emphasis, formulas and cells. A _ between letters and a *
# between blanks are text.
_DRAWING = re.compile(
  r'[<`~$|\\]|(?<=\S)\*|\*(?=\S)|^\*|(?<=\])\(|\b_+|_+\b|(?<=www)\.|@(?=[\w-]+\.)'
)


def plain_markdown(text: str) -> str:
  """A text of unknown origin as one line that Markdown shows literally: no HTML, headings, links,
  pictures, emphasis or borders of cells.
  """
  line = ' '.join(errors.printable(text).split())
  return _DRAWING.sub(lambda match: ''.join(f'&#{ord(c)};' for c in match[0]), line)


def aligned(rows, markdown: bool = False) -> str:
  """Rows of strings, the first being the head, as a table in plain text or Markdown."""
  shown = plain_markdown if markdown else str
  head, *body = ([rich.text.Text(shown(cell)) for cell in row] for row in rows)
  look = dict(box=rich.box.MARKDOWN) if markdown else dict(box=None, padding=(0, 2, 0, 0))
  table = rich.table.Table(*(rich.table.Column(cell) for cell in head), pad_edge=markdown, **look)
  for row in body:
    table.add_row(*row)
  out = io.StringIO()
  screen.Console(file=out, width=1 << 16, color_system=None).print(table)
  return '\n'.join(
    line.rstrip() for line in out.getvalue().strip('\n').splitlines() if line.strip()
  )


def plain(x):
  """Nested NamedTuples as dictionaries, lists and numbers."""
  x = x._asdict() if hasattr(x, '_asdict') else x
  if isinstance(x, dict):
    return {name: plain(value) for name, value in x.items()}
  return [plain(value) for value in x] if isinstance(x, (list, tuple)) else x
