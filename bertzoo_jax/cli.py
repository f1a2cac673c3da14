"""What every entry point shares: flags, and how a user's mistake ends (one sentence, exit code 2)."""

import os
import re
import sys
import warnings

from absl import app
from absl import flags
from absl import logging
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
  # The libraries beneath speak of devices that are not there and files that need not be; ask with --verbosity=0.
  logging.set_verbosity(logging.ERROR)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  for stream in (sys.stdout, sys.stderr):  # file names need not be valid text
    stream.reconfigure(errors='backslashreplace')
  warnings.formatwarning = lambda message, *_, **__: f'note: {message}\n'  # remarks are for the user, not about code
  app.run(lambda argv: _guard(main, argv), flags_parser=lambda argv: _guard(_parse, argv))


def _parse(argv):
  try:
    rest = flags.FLAGS(argv)
  except flags.Error as e:
    raise errors.UserError(_sentence(e)) from e
  except (AttributeError, KeyError) as e:  # a locked config was asked for a field that it does not have
    raise errors.UserError(_unknown_field(e)) from e
  except (TypeError, ValueError, OSError, SyntaxError) as e:
    raise errors.UserError(f'--config: {_sentence(e)}') from e
  if len(rest) > 1:
    raise errors.UserError(f'{rest[1]!r} is not a flag: every argument is --name=value (see --help).')
  try:
    flags.FLAGS.config.is_locked  # noqa: B018  a config file that is not there is reported at the first use
  except AttributeError:
    pass  # an entry point without --config, or without a value for it
  except OSError as e:
    raise errors.UserError(f'{_sentence(e)} (--config is FILE.py:SIZE; the shipped ones are in configs/).') from e
  return rest


def _unknown_field(e: Exception) -> str:
  words = re.findall(r"""["'](\w+)\\?["']""", str(e))
  field = words[0] if words else '?'
  if field == 'steps':
    return 'steps stand in config.phases: write --config FILE.py:SIZE,steps=N to scale them, or set --config.phases.'
  near = f' Did you mean {words[1]!r}?' if len(words) > 1 else ' The constructors in configs/parts.py list the fields.'
  return f'the config has no field {field!r}.{near}'


def _sentence(e: Exception) -> str:
  """What went wrong without the library's scaffolding around it."""
  text = str(e.args[0] if isinstance(e, KeyError) and e.args else e)
  if 'Traceback (most recent call last)' in text:  # raised inside a config file: the last line says it
    text = re.split(r'\n\w+(?:\.\w+)*: ', text)[-1]
  if 'Attempted [' in text:
    text = 'there is no config file ' + re.search(r'Attempted .*?\n\s*(\S+)', text).group(1)
  return ' '.join(text.replace('\\n', ' ').replace("\\'", "'").strip('"').split())


def _guard(f, argv):
  try:
    return f(argv)
  except errors.UserError as e:
    sentence = str(e)
  except OSError as e:  # a path that cannot be read or written; without a path it is no mistake of the user's
    if e.filename is None:
      raise
    sentence = f'{e.filename}: {e.strerror or e}. Check the path and your rights to it.'
  print(f'error: {sentence}', file=sys.stderr, flush=True)
  sys.exit(2)
