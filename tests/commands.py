"""Python in processes of its own, as users run it."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def environment(**changes) -> dict:
  """The environment of this process, with the checkout to import, and with the changes."""
  return {**os.environ, 'PYTHONPATH': str(ROOT), **changes}


def on_one_device(**changes) -> dict:
  """The environment, for programs of one device, which are compiled as quickly as here."""
  flags = ' '.join(f for f in os.environ['XLA_FLAGS'].split() if 'device_count' not in f)
  return environment(XLA_FLAGS=flags, **changes)


def run(*words, cwd=ROOT, env=None, **how):
  """`python WORDS` when it has ended, with its output as text."""
  how = dict(capture_output=True, text=True, timeout=600) | how
  return subprocess.run([sys.executable, *words], cwd=cwd, env=env or environment(), **how)


def begin(*words, env=None, **how):
  """`python WORDS` as it begins; its `stdout` is text."""
  how = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) | how
  return subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env or environment(), **how)
