"""What a command shows on the screen: text. Files of strangers cannot draw there."""

import re

import rich.console

from bertzoo_jax.common import errors


class Stream:
  """A stream that shows control characters. rich writes to the stream beneath, by this name."""

  def __init__(self, stream):
    self.rich_proxied_file = stream

  def write(self, text: str) -> int:
    begin = re.match(r'\r|(\x1b\[A)+\Z|', text)[0]  # a bar of tqdm moves the cursor
    return self.rich_proxied_file.write(begin + errors.printable(text[len(begin) :]))

  def __getattr__(self, name):
    return getattr(self.rich_proxied_file, name)


class Console(rich.console.Console):
  """A console of rich that shows texts as they are: no markup, no control characters."""

  def __init__(self, **fields):
    super().__init__(markup=False, emoji=False, highlight=False, **fields)

  def render(self, renderable, options=None):
    for segment in super().render(renderable, options):
      yield segment if segment.control else segment._replace(text=errors.printable(segment.text))
