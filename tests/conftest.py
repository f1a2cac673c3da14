"""Environment of every test: CPU, eight host devices, no network. Set before jax is imported."""

import collections
import fnmatch
import gc
import os
import pathlib
import sys
import tempfile

import pytest

from bertzoo_jax.common import trust

# Else every process that a test starts compiles the modules of jax and TensorFlow: half a minute.
sys.dont_write_bytecode = False
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')  # as cli.quiet_tensorflow
# torch's threads wait for each other by spinning: fifty times the processor's time on two cores
os.environ.setdefault('OMP_NUM_THREADS', '1')
# PyTorch's CUDA builds bring triton, whose LLVM does not go with TensorFlow's in one process.
sys.modules['triton'] = None
# The tests compile more than they compute.
QUICK = ('--xla_backend_optimization_level=0', '--xla_cpu_parallel_codegen_split_count=1')
for _flag in ('--xla_force_host_platform_device_count=8', *QUICK):
  if _flag.split('=')[0] not in os.environ.get('XLA_FLAGS', ''):
    os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {_flag}'.strip()


# The files that take longest begin first: `make test` gives whole files to its workers, and none is
# to be left alone with one.
LONGEST = """
pretrain finetune tables reproduce encoders objectives attention any_with_any distributed
babysit pretraining_steps fine_tuning_steps problems verdict remedies pretrain_networks
outside pipeline bucket replaced_token input_ready disentangled systems watchdog loading
killed resumed readme architectures evaluate
""".split()


def pytest_configure(config):
  # Workers and the commands that tests start share what is compiled, in this run alone.
  if not hasattr(config, 'workerinput'):
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', folder.name)
    os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.2')
    os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')
  if hasattr(config.option, 'loadscopereorder'):
    config.option.loadscopereorder = False  # xdist's own order, by the number of tests


# Marked by name, with the reason.
FOLDER = pathlib.Path(__file__).parent
NAMES = {
  mark: [x for x in (FOLDER / f'{mark}.txt').read_text().splitlines() if x and x[0] != '#']
  for mark in ('rest', 'slow')
}


def pytest_ignore_collect(collection_path, config):
  """`make test-all` imports no file of which it runs nothing."""
  if config.option.markexpr == 'rest and not slow' and collection_path.name.startswith('test_'):
    name = str(collection_path.relative_to(FOLDER))
    return not any(fnmatch.fnmatchcase(name, x.split('::')[0]) for x in NAMES['rest']) or None


def pytest_make_parametrize_id(config, val, argname):
  """Bytes have no name: packed ones hold the time, and each worker would collect other tests."""
  return argname if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked
def pytest_collection_modifyitems(config, items):
  found = set()
  for item in items:
    name = f'{item.path.relative_to(FOLDER)}::{item.name}'
    for mark, patterns in NAMES.items():
      for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.replace('[', '[[]')):
          item.add_marker(mark)
          found.add((mark, pattern))
  if len({item.path for item in items}) > 150:
    rotten = [
      f'{m}.txt: {x}' for m, patterns in NAMES.items() for x in patterns if (m, x) not in found
    ]
    if rotten:
      raise pytest.UsageError(f'no test has the name in tests/{"; tests/".join(rotten)}')
  tests = collections.Counter(item.path for item in items)
  rank = {f'test_{name}': i for i, name in enumerate(LONGEST)}
  # then as xdist would: the most tests first
  items.sort(key=lambda item: (rank.get(item.path.stem, len(rank)), -tests[item.path]))


def pytest_collection_finish():
  """Python's garbage collector skips what the imported libraries have made: going through it again
  and again took a tenth of the time of the tests.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True)
def _parts_of_tests_may_run():
  """The tests are users who name their parts. test_strangers.py takes this back."""
  trust.set_allowed((frozenset(), True))


@pytest.fixture(autouse=True, scope='module')
def _programs_of_a_file_end_with_it():
  """Every compiled program is dozens of memory maps; a process may have 65,530 on Linux and dies in
  the compiler beyond. One file leaves at most 15,000.
  """
  yield
  maps = pathlib.Path('/proc/self/maps')
  if 'jax' in sys.modules and (not maps.exists() or maps.read_bytes().count(b'\n') > 30_000):
    sys.modules['jax'].clear_caches()
    gc.collect()
