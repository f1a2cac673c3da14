"""What every entry point shares: flags, and how a user's mistake ends (one sentence, exit code 2)."""

import sys

from absl import app
from absl import flags
from ml_collections import config_flags

from bertzoo_jax import errors


def define_config(required: bool = True):
  """Defines --config FILE:ARGUMENT and --config.section.key=value."""
  flag = config_flags.DEFINE_config_file('config', None, 'Experiment: configs/FILE.py:SIZE[,section=part,…], then --config.section.key=value.')
  if required:
    flags.mark_flag_as_required('config')
  return flag


def run(main):
  """Runs `main(argv)` under absl; a UserError or a wrong flag ends with one sentence on stderr and exit code 2."""
  app.run(lambda argv: _guard(main, argv), flags_parser=lambda argv: _guard(_parse, argv))


def _parse(argv):
  try:
    rest = flags.FLAGS(argv)
  except flags.Error as e:
    raise errors.UserError(_sentence(e)) from e
  except (AttributeError, KeyError, TypeError, ValueError, OSError, SyntaxError) as e:
    raise errors.UserError(f'--config: {_sentence(e)}') from e
  if len(rest) > 1:
    raise errors.UserError(f'{rest[1]!r} is not a flag: every argument is --name=value (see --help).')
  return rest


def _sentence(e: Exception) -> str:
  text = e.args[0] if isinstance(e, KeyError) and e.args else e
  return ' '.join(str(text).split())


def _guard(f, argv):
  try:
    return f(argv)
  except errors.UserError as e:
    print(f'error: {e}', file=sys.stderr, flush=True)
    sys.exit(2)
