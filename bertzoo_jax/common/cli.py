"""What every entry point shares: flags, and how it ends: a user's mistake in one sentence with exit
code 2, what may pass with 75.
"""

import difflib
import errno
import os
import re
import signal
import sys
import textwrap
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
from bertzoo_jax.common import suites
from bertzoo_jax.common import trust

# Whose errors come from an object store that does not answer, or refuses.
_STORAGE_LIBRARIES = ('aiohttp', 'botocore', 'fsspec', 'gcsfs', 'google', 'requests', 'tensorflow')

_LISTED = 'configs/parts.py lists the fields of every section.'
_STEPS = (
  'The steps are those of config.phases: write --config FILE.py:SIZE,steps=N to scale them, or set '
  '--config.phases.'
)


# The fields that the config of this command must have; whether a fine-tuning will do, too.
_WANTED = [configuration.FIELDS, False]


def define_config(
  required: bool = True,
  fields: tuple[str, ...] = configuration.FIELDS,
  also_tasks: bool = False,
  help: str = 'Experiment: configs/FILE.py:SIZE[,section=part,…], then --config.section.key=value.',
):
  """Defines --config FILE:ARGUMENT and --config.section.key=value.

  fields: that the config must have. also_tasks: whether a fine-tuning will do, too. help: what
  --help says of it.
  """
  _WANTED[:] = fields, also_tasks
  flag = config_flags.DEFINE_config_file(
    'config',
    None,
    help,
  )
  if required:
    flags.mark_flag_as_required('config')
  return flag


def quiet_tensorflow():
  """Keeps TensorFlow from what it prints when it is imported: called before that."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')  # it says three lines, and nothing needs it


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
  flags.DEFINE_bool(trust.FLAG, False, trust.HELP)
  flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[trust.FLAG])
  if 'config' in flags.FLAGS:  # --help lists the flags of the main program only
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS['config'])
  app.run(
    lambda argv: _guard(main, argv, leave, also),
    flags_parser=lambda argv: _guard(_parse, argv, also=also),
  )


@trust.own_modules()
def _parse(argv):
  if set(argv[1:]) & {'--help', '-help', '-h'}:
    print(_help())
    sys.exit(0)
  if _WANTED[1] or not _WANTED[0]:  # a suite will do
    argv = suites.expanded(list(argv), _named() or {})
  argv = suites.last_of_each(list(argv))
  sys.argv[:] = argv  # where ml_collections looks for what is set
  try:
    rest = flags.FLAGS(argv)
  except SystemExit as e:
    sys.exit(0 if e.code == 1 else e.code)  # absl ends with 1 after --helpfull: no mistake
  except Exception as e:
    raise errors.UserError(_mistake(e)) from e
  if len(rest) > 1:
    raise errors.UserError(
      f'{rest[1]!r} is not a flag: every argument is --name=value (see --help).'
    )
  if flags.FLAGS[trust.FLAG].value:
    trust.everything()
  if 'config' in flags.FLAGS and flags.FLAGS['config'].present:
    _check_config()
    trust.names(flags.FLAGS.config)
  return rest


def _check_config():
  """Raises UserError if the config file is not there, or returns no experiment."""
  try:
    config = flags.FLAGS.config
    is_task = 'suite' in config or 'source' in config
    lacking = [field for field in _WANTED[0] if field not in config]
  # a config file that is not there, or reads such a file, is reported at the first use
  except OSError as e:
    raise errors.UserError(
      _in_config_file(e)
      or f'{_sentence(e)} (--config is FILE.py:SIZE; the shipped ones are in configs/).'
    ) from e
  if is_task and _WANTED[1]:
    return
  if lacking and is_task:
    raise errors.UserError(
      f'{_path(sys.argv)} is a fine-tuning, and this command needs a config of pretraining: run it '
      'with python -m bertzoo_jax.finetune.'
    )
  if lacking and 'table' in config:
    raise errors.UserError(
      f'{_path(sys.argv)} is a table of a paper, and this command needs a config of pretraining: '
      'run it with python -m bertzoo_jax.reproduce, with --preflight for its cost.'
    )
  if lacking:
    raise errors.UserError(_no_experiment(f'a {type(config).__name__} without {lacking[0]!r}'))


def _no_experiment(returned):
  return (
    f'{_path(sys.argv)}: get_config() returns {returned}: return parts.experiment(…) of '
    'configs/parts.py.'
  )


def config_file(argv: list[str]) -> str | None:
  """'FILE.py:ARGUMENT' that a command line gives as --config; None without one."""
  for argument, following in zip(argv[1:], [*argv[2:], None]):
    if match := re.fullmatch(r'--?config(=(.*))?', argument):
      return match[2] if match[1] else following
  return None


def _path(argv) -> str:
  return (config_file(argv) or '').partition(':')[0]


def _help() -> str:
  """The help of the main program: what it does, its own flags, the rest of its docstring."""
  doc = (sys.modules['__main__'].__doc__ or '').strip().split('\n\n')
  usage = 1 + next((i for i, block in enumerate(doc[1:]) if not block.startswith(' ')), len(doc))
  own = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
  lines = [
    textwrap.fill(
      f'--{flag.name:<14} {" ".join(flag.help.split())}',
      width=100,
      initial_indent='  ',
      subsequent_indent=19 * ' ',
    )
    for flag in sorted(own, key=lambda flag: flag.name)
  ]
  last = 'Flags of the libraries: --helpfull.'
  return '\n\n'.join([*doc[:usage], '\n'.join(['Flags:', *lines]), *doc[usage:], last])


# --- what was wrong with a command line ---


def _mistake(e: Exception) -> str:
  """The sentence about what the flags, or the config file, raised. Raises what has none."""
  if sentence := _in_config_file(e):
    return sentence
  if isinstance(e, flags.UnrecognizedFlagError):
    return _unknown_flag(e)
  if isinstance(e, flags.Error):
    missing = re.search(r'Flag --(\w+) must have a value other than None', str(e))
    if missing and missing[1] == 'config' and config_file(sys.argv):
      return _no_experiment('None')
    if 'get_config() takes' in str(e):
      return f'{_path(sys.argv)}: {_sentence(e)}: write def get_config(argument=None).'
    return f'--{missing[1]} is missing (see --help).' if missing else _sentence(e)
  if isinstance(e, AttributeError) and "has no attribute 'get_config'" in str(e):
    return f'{_path(sys.argv)} has no function get_config(argument): configs/bert.py shows one.'
  if isinstance(e, (AttributeError, KeyError)):  # the locked config has no such field
    return _unknown_field(e)
  if isinstance(e, (TypeError, ValueError, OSError)):
    return f'--config: {_sentence(e)}'
  raise e


def _in_config_file(e: BaseException | None) -> str | None:
  """'FILE:LINE: error' for what a config file raised; None for other errors.

  A ValueError or UserError that a function called by the file raises on purpose is a sentence
  already.
  """
  path = os.path.abspath(_path(sys.argv))
  while e is not None:
    if isinstance(e, SyntaxError) and e.filename:
      return f'{e.filename}:{e.lineno}: {type(e).__name__}: {e.msg}. Mend the config file.'
    frames = traceback.extract_tb(e.__traceback__)
    inside = [i for i, frame in enumerate(frames) if os.path.abspath(frame.filename) == path]
    if inside:
      on_purpose = type(e) is ValueError or isinstance(e, errors.UserError)
      if on_purpose and inside[-1] < len(frames) - 1:
        return f'--config: {_sentence(e)}'
      libraries = (sys.prefix, sys.base_prefix, '<')
      own = [
        frame
        for i, frame in enumerate(frames)
        if i in inside or (i > inside[0] and not frame.filename.startswith(libraries))
      ]
      missing = isinstance(e, ModuleNotFoundError)
      remedy = f'Modules are looked for {trust.places()}' if missing else 'Mend the config file'
      return f'{own[-1].filename}:{own[-1].lineno}: {type(e).__name__}: {_sentence(e)}. {remedy}.'
    e = e.__cause__ or e.__context__
  return None


def _unknown_flag(e: flags.UnrecognizedFlagError) -> str:
  """What a misspelt flag is near to: a flag of the program, else a field of the config."""
  if e.flagname == 'steps':
    return f'--steps is no flag. {_STEPS}'
  own = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])]
  if near := errors.near(e.flagname, own) or [
    f'config.{key}' for key in _keys_of(e.flagname, _fields())
  ]:
    return (
      f'--{e.flagname} is no flag (see --help). Did you mean '
      f'{" or ".join(f"--{flag}" for flag in near)}?'
    )
  return (
    f'--{e.flagname} is no flag: --help lists the flags, and what the config has is set by '
    '--config.section.field=value.'
  )


def _unknown_field(e: Exception) -> str:
  words = re.findall(r"""["'](\w+)\\?["']""", str(e))
  field = words[0] if words else '?'
  if field == 'steps':
    return _STEPS
  known = _fields()
  sections = {key.rpartition('.')[0] for key in known}
  given = [m[1] for m in (re.match(r'--?(?:no)?config\.([\w.]+)', a) for a in sys.argv) if m]
  wrong = next((key for key in given if known and key not in (*known, *sections)), None)
  section = wrong.rpartition('.')[0] if wrong else ''
  own = [key.rpartition('.')[2] for key in known if key.rpartition('.')[0] == section]
  if parts.is_outside(part := known.get(f'{section}.name')) and not errors.near(field, own):
    return (
      f'config.{section} gives {part!r} no field {field!r}, and a flag only changes fields that '
      f'are there: write the section in a config file, as parts.part({part!r}, {field}=…).'
    )
  return (
    f'the config has no field {field!r}. '
    f'{_meant(wrong, list(known), sections) if wrong else _LISTED}'
  )


def _with_word(word, known) -> list:
  """The names that have a word, or its singular, among theirs ('layers': num_layers)."""
  return [name for name in known if {word, word.removesuffix('s')} & set(name.split('_'))]


def _keys_of(word, known) -> list:
  """The keys ('section.field') whose field a word misspells, abbreviates or is a part of."""
  names = [key.rpartition('.')[2] for key in known]
  fields = errors.near(word, names) or _with_word(word, names)
  return suites.without_tasks([key for key, name in zip(known, names) if name in fields])


def _meant(key: str, known: list[str], sections: set[str]) -> str:
  """What a misspelt key is near to: a field of its section, else the same field of others; else
  what its section has.
  """
  if some := suites.of_some(key, known):
    return f'Not every task has it: set {" or ".join(f"--config.{k}" for k in some)}.'
  section, _, field = key.rpartition('.')
  section, misspelt = next(iter(errors.near(section, sections)), section), section
  names = [k.rpartition('.')[2] for k in known]
  own = [name for k, name in zip(known, names) if k.rpartition('.')[0] == section]
  prefix = f'--config.{section}.' if section else '--config.'
  if near := errors.near(field, own if section else [*own, *sections]):
    return f'Did you mean {prefix}{near[0]}?'
  if near := difflib.get_close_matches(field, names, n=1, cutoff=0.8):
    meant = suites.without_tasks([k for k, name in zip(known, names) if name == near[0]])
    return f'Did you mean {" or ".join(f"--config.{k}" for k in meant)}?'
  if not section and (meant := _keys_of(field, known)):
    return f'Did you mean {" or ".join(f"--config.{k}" for k in meant)}?'
  if section and own:
    there = 'There' if section == misspelt else f'Did you mean --config.{section}? There'
    return f'{there} is: {", ".join(own)}.'
  return _LISTED


def _fields() -> dict:
  """{'section.field': value} of the config that the command line names, without what it sets."""
  return suites.fields(_named() or {})


def _named():
  """The config that the command line names, without what it sets; None if it cannot be read."""
  alone, argv = flags.FlagValues(), sys.argv
  config_flags.DEFINE_config_file('config', flag_values=alone)
  # where ml_collections looks for what is set
  sys.argv = [a for a in argv if not a.lstrip('-').startswith(('config.', 'noconfig.'))]
  try:
    alone(sys.argv, known_only=True)
    list(alone.config)  # raises for a file that is not there
    return alone.config
  except (Exception, SystemExit):  # it was or will be reported
    return None
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
  if sentence := errors.no_memory(e):
    return errors.Stopped.code, sentence
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
