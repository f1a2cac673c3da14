"""Environment of every test: CPU, eight host devices, no network. Set before jax is imported."""

import os
import sys

import pytest

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
for _flag in ('--xla_force_host_platform_device_count=8', '--xla_backend_optimization_level=0'):  # the tests compile more than they compute
  if _flag.split('=')[0] not in os.environ.get('XLA_FLAGS', ''):
    os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {_flag}'.strip()


@pytest.fixture(autouse=True, scope='module')
def _programs_of_a_file_end_with_it():
  """Every compiled program is dozens of memory maps; a process may have 65,530 on Linux and dies in the compiler beyond."""
  yield
  if 'jax' in sys.modules:
    sys.modules['jax'].clear_caches()
