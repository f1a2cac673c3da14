"""The command `bertzoo`: `bertzoo COMMAND …` is `python -m bertzoo_jax.COMMAND …`."""

import ast
import os
import pathlib
import re
import runpy
import sys

from bertzoo_jax.common import errors

COMMANDS = (
  'demo prepare show preflight pretrain evaluate export fill_mask encode finetune predict '
  'reproduce convert'
).split()


def main():
  """Runs the command that the line names, or lists the commands; returns the exit code."""
  name, *rest = sys.argv[1:] or ['--help']
  if name in COMMANDS:
    if not sys.flags.safe_path:  # as `python -m` does: the user's parts lie in the current folder
      sys.path[0] = os.getcwd()
    sys.argv[1:] = rest
    runpy.run_module(f'bertzoo_jax.{name}', run_name='__main__', alter_sys=True)
    return 0
  if name in ('--help', '-h', 'help'):
    print(_help())
    return 0
  hint = errors.did_you_mean(name, COMMANDS) or ' `bertzoo --help` lists them.'
  print(f'error: There is no command {errors.printable(name)!r}.{hint}', file=sys.stderr)
  return 2


def _help() -> str:
  lines = (f'  {name:<10} {_summary(name)}' for name in COMMANDS)
  return '\n'.join(
    ['bertzoo COMMAND --name=value …', '', *lines, '', 'bertzoo COMMAND --help: its flags.']
  )


def _summary(name) -> str:
  """The first sentence of a command's docstring, read without importing it."""
  place = pathlib.Path(__file__).parent / name
  file = place / '__main__.py' if place.is_dir() else place.with_suffix('.py')
  first, *_ = ast.get_docstring(ast.parse(file.read_text('utf-8'))).split('\n\n')
  return re.split(r'[.:] |\.$', ' '.join(first.split()))[0]


if __name__ == '__main__':
  sys.exit(main())
