"""Text on the screen: control characters, which files of unknown origin may hold, are escaped."""

import re
import sys

import rich.console

from bertzoo_jax.common import errors


class Stream:
  """A stream that shows the control characters of a text instead of sending them."""

  def __init__(self, stream):
    self.beneath = stream

  def write(self, text: str) -> int:
    begin = re.match(r'\r|(\x1b\[A)+\Z|', text)[0]  # tqdm's bar moves the cursor
    return self.beneath.write(begin + errors.printable(text[len(begin) :]))

  def __getattr__(self, name):
    return getattr(self.beneath, name)


class Console(rich.console.Console):
  """A console of rich that shows texts as they are: no markup, no control characters."""

  def __init__(self, stderr=False, **fields):
    stream = sys.stderr if stderr else sys.stdout
    fields = dict(file=getattr(stream, 'beneath', stream)) | fields  # colours must not be escaped
    super().__init__(markup=False, emoji=False, highlight=False, **fields)

  def render(self, renderable, options=None):
    for segment in super().render(renderable, options):
      yield segment if segment.control else segment._replace(text=errors.printable(segment.text))
