"""Small programs of the command line, run by forks of a process that has imported the package."""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]

# A command by its name, and which of these libraries it has imported at its end.
COMMAND = """
import runpy, sys
slow = 'flax jax optax orbax tensorflow torch transformers huggingface_hub.repocard'.split()
try:
  runpy.run_module(f'bertzoo_jax.{sys.argv.pop(1)}', run_name='__main__', alter_sys=True)
finally:
  print('imported:', *(library for library in slow if library in sys.modules))
"""

# A fork leaves the loop, becomes the program and ends as a process of its own would.
_SERVER = """
import json, os, sys
from bertzoo_jax import cli, hf, tasks  # what commands import
from bertzoo_jax.configs import bert
from bertzoo_jax.corpus import report
for line in sys.stdin:
  flags, folder, *streams = json.loads(line)
  if not os.fork():
    break
  print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
else:
  sys.exit()
for number, path in enumerate((os.devnull, *streams)):
  os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
os.chdir(folder)
program, sys.argv = sys.argv[1], ['-c', *flags]
code = 0
try:
  exec(program, vars(sys.modules['__main__']))
except SystemExit as e:
  code = e.code
sys.stdout.flush(), sys.stderr.flush()
os._exit(code or 0)  # without the seconds that modules take to end
"""


@functools.cache
def _server(program):
  how = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
  env = {**os.environ, 'PYTHONPATH': str(ROOT)}
  return subprocess.Popen([sys.executable, '-c', _SERVER, program], env=env, **how)


def run(program, *flags, cwd=ROOT):
  """python -c PROGRAM FLAGS in a folder: its exit code, and its output on both streams."""
  server = _server(program)
  with tempfile.TemporaryDirectory() as folder:
    streams = [pathlib.Path(folder, name) for name in ('out', 'err')]
    server.stdin.write(json.dumps([flags, str(cwd), *map(str, streams)]) + '\n')
    server.stdin.flush()
    code = int(server.stdout.readline())
    return subprocess.CompletedProcess(flags, code, *(file.read_text() for file in streams))
