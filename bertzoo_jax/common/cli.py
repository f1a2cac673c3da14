"""What every entry point shares: flags, and how it ends: a user's mistake in one sentence with exit
code 2, what may pass with 75.
"""

import difflib
import errno
import os
import re
import signal
import sys
import traceback
import warnings

from absl import app
from absl import flags
from absl import logging
from ml_collections import config_flags

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import parts
from bertzoo_jax.common import storage

# Whose errors come from an object store that does not answer, or refuses.
_STORAGE_LIBRARIES = ('aiohttp', 'botocore', 'fsspec', 'gcsfs', 'google', 'requests', 'tensorflow')

_LISTED = 'configs/parts.py lists the fields of every section.'


def define_config(required: bool = True):
  """Defines --config FILE:ARGUMENT and --config.section.key=value."""
  flag = config_flags.DEFINE_config_file(
    'config',
    None,
    'Experiment: configs/FILE.py:SIZE[,section=part,…], then --config.section.key=value.',
  )
  if required:
    flags.mark_flag_as_required('config')
  return flag


def run(main, leave=None, also=None):
  """Runs `main(argv)` under absl; a UserError, a wrong flag or storage that fails ends with one
  sentence on stderr and an exit code.

  leave: code → ends the process, also after an error that has no sentence; sys.exit if None.
  also: takes the sentence too.
  """
  # The libraries beneath speak of devices that are not there and files that need not be; ask with
  # --verbosity=0.
  logging.set_verbosity(logging.ERROR)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  for stream in (sys.stdout, sys.stderr):  # file names need not be valid text
    stream.reconfigure(errors='backslashreplace')
  # remarks are for the user, not about code
  warnings.formatwarning = lambda message, *_, **__: f'note: {message}\n'
  if 'config' in flags.FLAGS:  # --help lists the flags of the main program only
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS['config'])
  app.run(
    lambda argv: _guard(main, argv, leave, also),
    flags_parser=lambda argv: _guard(_parse, argv, also=also),
  )


def _parse(argv):
  try:
    rest = flags.FLAGS(argv)
  except SystemExit as e:
    sys.exit(0 if e.code == 1 else e.code)  # absl ends with 1 after --help, which is no mistake
  except flags.UnrecognizedFlagError as e:
    near = re.search(r'Did you mean: (\w+)', str(e))
    raise errors.UserError(
      f'--{e.flagname} is no flag (see --help).' + (f' Did you mean --{near[1]}?' if near else '')
    ) from e
  except flags.Error as e:
    missing = re.search(r'Flag --(\w+) must have a value other than None', str(e))
    raise errors.UserError(
      f'--{missing[1]} is missing (see --help).' if missing else _sentence(e)
    ) from e
  # a locked config was asked for a field that it does not have
  except (AttributeError, KeyError) as e:
    raise errors.UserError(_unknown_field(e)) from e
  except (TypeError, ValueError, OSError, SyntaxError) as e:
    raise errors.UserError(f'--config: {_sentence(e)}') from e
  if len(rest) > 1:
    raise errors.UserError(
      f'{rest[1]!r} is not a flag: every argument is --name=value (see --help).'
    )
  try:
    flags.FLAGS.config.is_locked  # noqa: B018  a config file that is not there is reported at the first use
  except AttributeError:
    pass  # an entry point without --config, or without a value for it
  except OSError as e:
    raise errors.UserError(
      f'{_sentence(e)} (--config is FILE.py:SIZE; the shipped ones are in configs/).'
    ) from e
  return rest


def _unknown_field(e: Exception) -> str:
  words = re.findall(r"""["'](\w+)\\?["']""", str(e))
  field = words[0] if words else '?'
  if field == 'steps':
    return (
      'steps stand in config.phases: write --config FILE.py:SIZE,steps=N to scale them, or set '
      '--config.phases.'
    )
  known = _fields()
  sections = {key.rpartition('.')[0] for key in known}
  given = [m[1] for m in (re.match(r'--?(?:no)?config\.([\w.]+)', a) for a in sys.argv) if m]
  wrong = next((key for key in given if known and key not in (*known, *sections)), None)
  section = wrong.rpartition('.')[0] if wrong else ''
  own = [key.rpartition('.')[2] for key in known if key.rpartition('.')[0] == section]
  if parts.is_outside(part := known.get(f'{section}.name')) and not _near(field, own):
    return (
      f'config.{section} gives {part!r} no field {field!r}, and a flag only changes fields that '
      f'are there: write the section in a config file, as parts.part({part!r}, {field}=…).'
    )
  return (
    f'the config has no field {field!r}. '
    f'{_meant(wrong, list(known), sections) if wrong else _LISTED}'
  )


def _near(word, known):
  return difflib.get_close_matches(word, known, n=1)


def _meant(key: str, known: list[str], sections: set[str]) -> str:
  """What a misspelt key is near to: a field of its section, else the same field of others; else
  what its section has.
  """
  section, _, field = key.rpartition('.')
  section, misspelt = next(iter(_near(section, sections)), section), section
  names = [k.rpartition('.')[2] for k in known]
  own = [name for k, name in zip(known, names) if k.rpartition('.')[0] == section]
  prefix = f'--config.{section}.' if section else '--config.'
  if near := _near(field, own if section else [*own, *sections]):
    return f'Did you mean {prefix}{near[0]}?'
  if near := difflib.get_close_matches(field, names, n=1, cutoff=0.8):
    meant = [f'--config.{k}' for k, name in zip(known, names) if name == near[0]]
    return f'Did you mean {" or ".join(meant)}?'
  if section and own:
    there = 'There' if section == misspelt else f'Did you mean --config.{section}? There'
    return f'{there} is: {", ".join(own)}.'
  return _LISTED


def _fields() -> dict:
  """{'section.field': value} of the config that the command line names, without what it sets."""
  alone, argv = flags.FlagValues(), sys.argv
  config_flags.DEFINE_config_file('config', flag_values=alone)
  # where ml_collections looks for what is set
  sys.argv = [a for a in argv if not a.lstrip('-').startswith('config.')]
  try:
    alone(sys.argv, known_only=True)
    return configuration.flatten(alone.config)
  except (flags.Error, AttributeError, OSError, ValueError):
    return {}
  finally:
    sys.argv = argv


def _sentence(e: Exception) -> str:
  """What went wrong without the library's scaffolding around it."""
  text = str(e.args[0] if isinstance(e, KeyError) and e.args else e)
  # raised inside a config file: the last line says it
  if 'Traceback (most recent call last)' in text:
    text = re.split(r'\n\w+(?:\.\w+)*: ', text)[-1]
  if 'Attempted [' in text:
    text = 'there is no config file ' + re.search(r'Attempted .*?\n\s*(\S+)', text).group(1)
  return ' '.join(text.replace('\\n', ' ').replace("\\'", "'").strip('"').split())


def _guard(f, argv, leave=None, also=None):
  try:
    return f(argv)
  except (Exception, KeyboardInterrupt) as e:
    code, sentence = _ending(e)
    if sentence is None and leave is None:
      raise
    print(
      f'error: {sentence}' if sentence else traceback.format_exc().rstrip(),
      file=sys.stderr,
      flush=True,
    )
    if sentence and also:
      also(sentence)
    # a shell ends its loop only where the signal did end this
    if isinstance(e, KeyboardInterrupt) and leave is None:
      sys.stdout.flush()
      signal.signal(signal.SIGINT, signal.SIG_DFL)
      os.kill(os.getpid(), signal.SIGINT)
  (leave or sys.exit)(code)


def _ending(e: BaseException):
  """(exit code, sentence) of an error; the sentence is None for an error of the program itself."""
  code = errors.TryAgain.code if storage.may_pass(e) else errors.UserError.code
  if isinstance(e, errors.UserError):
    return e.code, str(e)
  if isinstance(e, KeyboardInterrupt):
    return 128 + signal.SIGINT, str(e) or 'Interrupted.'
  if type(e).__module__.split('.')[0] in _STORAGE_LIBRARIES:
    return code, (
      f'A gs:// address failed ({" ".join(str(e).split())[:200]} …). Check its name, your login '
      '(gcloud auth application-default login) and the network.'
    )
  # without a path it is no mistake of the user's
  if isinstance(e, OSError) and (e.filename is not None or e.errno == errno.ENOSPC):
    return (
      code,
      f'{e.filename or "a file"}: {e.strerror or e}. Check the path, your rights to it and the '
      'space left.',
    )
  if isinstance(e, BrokenPipeError):
    return 1, 'Nobody reads the output any more (broken pipe).'
  if isinstance(e, (ConnectionError, TimeoutError)):
    return (
      code,
      f'The network failed ({type(e).__name__}: {" ".join(str(e).split())[:200]}). Run the same '
      'line again.',
    )
  return 1, None
