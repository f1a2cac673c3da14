"""Shared by all commands: flags, and the sentence and exit code with which a command ends."""

import errno
import importlib
import os
import signal
import sys
import textwrap
import traceback
import types
import warnings

from absl import app
from absl import flags
from absl import logging

from bertzoo_jax.cli import config_file
from bertzoo_jax.cli import settings
from bertzoo_jax.common import errors
from bertzoo_jax.common import screen
from bertzoo_jax.common import storage
from bertzoo_jax.common import trust
from bertzoo_jax.parts import ranges

CACHE_DIR_HELP = 'Local folder to which a corpus in an object store is mirrored once.'
CORPUS_HELP = (
  'Corpus that `prepare` wrote, local or gs://. Give several, each with --corpus, for a mixture '
  '(config.mixture).'
)
# Libraries whose errors mean that an object store does not answer, or refuses.
_STORAGE_LIBRARIES = (
  'aiohttp botocore fsspec gcsfs google httpx httpx2 huggingface_hub requests tensorflow'.split()
)


# value: the config of this command, once parsed; fields: those that it must have; also_tasks:
# whether it may be a fine-tuning.
_CONFIG = types.SimpleNamespace(value=None, fields=(), also_tasks=True)


# A flag that these functions define belongs to the module that calls them: see `_help`.
flags.disclaim_key_flags()


def texts(**helps: str) -> None:
  """Defines a flag of text, None if it is not given, for each {name: help}."""
  for name, text in helps.items():
    flags.DEFINE_string(name, None, text)


def required(**helps: str) -> None:
  """As `texts`, for flags that must be given."""
  for name, text in helps.items():
    flags.DEFINE_string(name, None, text, required=True)


def define_config(
  fields: tuple[str, ...] = ranges.EXPERIMENT_FIELDS,
  also_tasks: bool = False,
  help: str = 'Experiment: configs/FILE.py:SIZE[,section=part,…], then --config.section.key=value.',
) -> None:
  """Defines --config FILE:ARGUMENT and --config.section.key=value. `main` gets the locked config.

  fields: those that the config must have. also_tasks: whether it may be a fine-tuning. help: text
    for --help.
  """
  required(config=help)
  _CONFIG.fields, _CONFIG.also_tasks = fields, also_tasks


def quiet_tensorflow():
  """Makes TensorFlow print less and not import Keras. Call it before TensorFlow is imported."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')  # oneDNN prints three lines; not needed
  # else Keras is imported with SciPy, scikit-learn and matplotlib, which takes two seconds
  os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')


def run(main, on_exit=None, on_error=None):
  """Runs `main(asked)` under absl, with the flags of the command by name, and the locked config. A
  UserError, a wrong flag or storage that fails ends with one sentence on stderr and an exit code.

  on_exit: code → ends the process, also after an error without a sentence; sys.exit if None.
  on_error: is called with the sentence.
  """
  # Silences warnings of libraries about missing devices and optional files; --verbosity=0 shows
  # them.
  logging.set_verbosity(logging.ERROR)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  for stream in (sys.stdout, sys.stderr):  # file names need not be valid text
    stream.reconfigure(errors='backslashreplace', line_buffering=True)
  sys.stdout, sys.stderr = map(screen.Stream, (sys.stdout, sys.stderr))
  logging.get_absl_handler().python_handler.setStream(sys.stderr)
  # warnings are for the user, and need no place in the code
  warnings.formatwarning = lambda message, *_, **__: f'note: {message}\n'
  flags.DEFINE_bool(trust.FLAG, False, trust.HELP)
  app.run(
    lambda _: _guard(main, _asked(), on_exit, on_error),
    flags_parser=lambda argv: _guard(_parse, argv, on_error=on_error),
  )


def _asked() -> types.SimpleNamespace:
  """The flags of the main program, with the config in place of its address."""
  own_flags = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
  values = {flag.name: flag.value for flag in own_flags if flag.name != trust.FLAG}
  return types.SimpleNamespace(**values | ({'config': _CONFIG.value} if 'config' in values else {}))


def exit_process(code: int) -> None:
  """`runs.distributed.exit_process`, imported when it is called: `--help` needs no jax."""
  importlib.import_module('bertzoo_jax.runs.distributed').exit_process(code)


def _parse(argv):
  if set(argv[1:]) & {'--help', '-help', '-h'}:
    argv = [argv[0], *flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False)]
    address = address_in(argv) if 'config' in flags.FLAGS else None
    print(_fields_of(address) if address else _help())
    sys.exit(0)
  try:
    argv = [argv[0], *flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False)]
    address = address_in(argv) if 'config' in flags.FLAGS else None
    if address is not None:
      _CONFIG.value = config = _experiment(address)
      argv, overrides = settings.split(argv, config)
    _once(argv)
    rest = flags.FLAGS(argv)
  except SystemExit as e:
    sys.exit(0 if e.code == 1 else e.code)  # absl ends with 1 after --helpfull: no mistake
  except flags.UnrecognizedFlagError as e:
    raise errors.UserError(_unknown_flag(e.flagname)) from e
  except flags.Error as e:
    raise errors.UserError(_missing_flag() or f'{errors.words(e)} (see --help).') from e
  if len(rest) > 1:
    raise errors.UserError(
      f'{rest[1]!r} is not a flag: every argument is --name=value (see --help).'
    )
  if flags.FLAGS[trust.FLAG].value:
    trust.allow_all()
  if address is not None:
    settings.apply(config, overrides)
    trust.allow_config(config)
  return rest


def _once(argv):
  """Raises UserError for a flag of one value that is given twice: absl takes the last one."""
  names = [argument.partition('=')[0].lstrip('-') for argument in argv if argument[:1] == '-']
  for name in names:
    one = name in flags.FLAGS and not isinstance(flags.FLAGS[name], flags.MultiFlag)
    if one and names.count(name) > 1:
      raise errors.UserError(f'--{name} is given twice, and takes one value: give it once.')


def address_in(argv: list[str]) -> str | None:
  """FILE.py:ARGUMENT or NAME:ARGUMENT that a command line gives as --config; None without one."""
  address = None
  for argument, following in zip(argv[1:], [*argv[2:], None]):
    name, is_set, value = argument.partition('=')
    if name in ('--config', '-config'):
      address = value if is_set else following
  return address


def _experiment(address):
  """The config at an address, of the kind that this command needs."""
  config, path = config_file.load(address), address.partition(':')[0]
  is_task = 'suite' in config or 'source' in config
  lacking = [field for field in _CONFIG.fields if field not in config]
  if is_task and _CONFIG.also_tasks or not lacking:
    return config
  if is_task:
    raise errors.UserError(
      f'{path} is a fine-tuning config, but this command needs a pretraining config: run it '
      'with python -m bertzoo_jax.finetune.'
    )
  if 'table' in config:
    raise errors.UserError(
      f'{path} is a table of a paper, but this command needs a pretraining config: '
      'run it with python -m bertzoo_jax.reproduce, with --preflight for its cost.'
    )
  raise errors.UserError(config_file.no_experiment(path, f'a config without {lacking[0]!r}'))


def _help() -> str:
  """The help of the main program: the usage in its docstring, its flags, the rest."""
  doc = (sys.modules['__main__'].__doc__ or '').strip().split('\n\n')
  usage = 1 + next((i for i, block in enumerate(doc[1:]) if not block.startswith(' ')), len(doc))
  own_flags = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
  lines = [
    textwrap.fill(
      f'--{flag.name:<14} {" ".join(flag.help.replace(".;", ";").split())}',
      width=100,
      initial_indent='  ',
      subsequent_indent=19 * ' ',
    )
    for flag in sorted(own_flags, key=lambda flag: flag.name)
  ]
  last = 'Flags of the libraries: --helpfull.'
  return '\n\n'.join([*doc[:usage], '\n'.join(['Flags:', *lines]), *doc[usage:], last])


def _fields_of(address) -> str:
  """The help of a config: each field with value, meaning, range; of a suite, of its first task."""
  config, lines = config_file.load(address), []
  if 'suite' in config:
    config = next(iter(config.suite.values()))
  for row in ranges.table(config):
    lines.append(f'--config.{row.key}={row.value}')
    choices = ' | ' in row.meaning  # then it lists the range
    text = '; '.join(filter(None, (row.meaning.rstrip('.'), '' if choices else row.range)))
    lines.append(textwrap.indent(textwrap.fill(text, width=94), 6 * ' '))
  return '\n'.join(filter(None, lines))


def _missing_flag() -> str | None:
  """The sentence for a required flag without a value, once all flags have their values."""
  own_flags = flags.FLAGS.get_key_flags_for_module(sys.argv[0]) if flags.FLAGS.is_parsed() else ()
  for flag in own_flags:
    try:
      for validator in flag.validators if flag.value is None else ():
        validator.verify(flags.FLAGS)
    except flags.ValidationError:
      return f'--{flag.name} is missing (see --help).'
  return None


def _unknown_flag(name: str) -> str:
  """The message for an unknown flag: names the nearest flag, else field of a config."""
  has_config = 'config' in flags.FLAGS
  if name == 'steps' and has_config:
    return f'--steps is no flag. {settings.STEPS}'
  names = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])]
  near = [f'--{flag}' for flag in errors.near(name, names)]
  if meant := near or settings.as_flags(settings.meant_by(name, _CONFIG.value or {})):
    return f'--{name} is no flag (see --help). Did you mean {"".join(meant)}?'
  fields = ' Fields of the config are set by --config.section.field=value.' if has_config else ''
  return f'--{name} is no flag: --help lists the flags.{fields}'


def _guard(f, argument, on_exit=None, on_error=None):
  try:
    return f(argument)
  except (Exception, KeyboardInterrupt) as e:
    code, sentence = _ending(e)
    if sentence is None and on_exit is None:
      raise
    print(f'error: {sentence}' if sentence else traceback.format_exc().rstrip(), file=sys.stderr)
    if sentence and on_error:
      on_error(sentence)
    # a shell ends its loop only if the signal ends this process
    if isinstance(e, KeyboardInterrupt) and on_exit is None:
      sys.stdout.flush()
      signal.signal(signal.SIGINT, signal.SIG_DFL)
      os.kill(os.getpid(), signal.SIGINT)
  (on_exit or sys.exit)(code)


def _ending(e: BaseException):
  """(exit code, sentence) of an error; the sentence is None for an error of the program itself."""
  code = errors.TransientError.code if storage.may_pass(e) else errors.UserError.code
  if isinstance(e, errors.UserError):
    return e.code, str(e)
  if isinstance(e, KeyboardInterrupt):
    return 128 + signal.SIGINT, str(e) or 'Interrupted.'
  if sentence := errors.no_memory(e):
    return errors.Stopped.code, sentence
  if type(e).__module__.split('.')[0] in _STORAGE_LIBRARIES:
    return code, (
      f'An address of a bucket or a hub failed ({errors.words(e, 200)} …). Check its name, your '
      'login (gcloud auth application-default login; hf auth login) and the network.'
    )
  # without a path it is not the user's mistake
  if isinstance(e, OSError) and (e.filename is not None or e.errno == errno.ENOSPC):
    return (
      code,
      f'{e.filename or "a file"}: {e.strerror or e}. Check the path, your permissions and the '
      'free space.',
    )
  if isinstance(e, BrokenPipeError):
    return 1, 'Nobody reads the output any more (broken pipe).'
  if isinstance(e, (ConnectionError, TimeoutError)):
    return (code, f'The network failed ({errors.named(e, 200)}). Run the same command again.')
  return 1, None
