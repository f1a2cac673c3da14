"""Checks a TPU run without a TPU: whether it fits, how long it takes, its cost, and its errors.

    python -m bertzoo_jax.preflight --config configs/bert.py:base
                                    (--tpu v4-32 | --topology v4:2x2x4)
                                    [--corpus CORPUS] [--workdir W]
                                    [--price 3.22] [--preemptions 3]
                                    [--nolargest] [--json]
    python -m bertzoo_jax.preflight --config configs/tasks/glue.py:rte --init W [--task_dir DIR]
                                    --tpu v4-8 [--price 3.22]

Compiles the real train step of each phase for the slice, with the compiler that a TPU VM has
(libtpu: Linux on x86-64, no chip needed), and reads memory and time off the program. With --corpus
and --workdir it also finds every error that `pretrain` would report. A fine-tuning reads its files;
its run with the largest batch is compiled. Every problem is listed, with a code
(bertzoo_jax/preflight/readiness.py) and a remedy. Nothing is written, but the compiler's answers
are kept beside a run's compiled programs (run.compile_cache), so the same question is answered at
once.

Memory is the compiler's own verdict. Times are its estimates, with bounds (tpu/estimate.py beside
this file): none was measured on a chip. Results are printed to stderr as they come: problems that
need no compiler, then whether each phase fits. The times take a minute. --json prints one JSON
object to stdout and nothing else. Exit codes:

    0    everything fits and nothing is wrong
    2    a problem, or a mistake in the command
    130  Ctrl-C before a step was compiled (the process ends by SIGINT)
    143  SIGTERM
"""

import contextlib
import io
import json
import os
import re
import signal
import sys
import threading
from multiprocessing import forkserver

from absl import flags

from bertzoo_jax import cli
from bertzoo_jax.cli import config_file


def recipe(argv: list[str]):
  """The experiment of the config file for the size on a command line, without its overrides."""
  address = cli.address_in(argv)
  return config_file.load(address.split(',')[0]) if address else None


def failed(sentence: str) -> None:
  """With --json on the command line, prints an object with the one problem that ended the run."""
  json_flags = [a for a in sys.argv[1:] if re.fullmatch(r'--?(no)?json(=.*)?', a)]
  if json_flags and re.fullmatch(r'--?json(=(true|t|1))?', json_flags[-1], re.I):
    report = dict(ready=False, problems=[dict(code='P00', sentence=sentence)])
    print(json.dumps(report), file=sys.__stdout__, flush=True)


def _end_at_sigterm():
  """Ends the process at SIGTERM from a thread: Python runs no handler during a compilation."""
  read, write = os.pipe()
  os.set_blocking(write, False)

  def wait():
    while os.read(read, 1)[0] != signal.SIGTERM:
      pass
    sentence = 'Ended by SIGTERM before all was compiled. Nothing was written.'
    print(f'error: {sentence}', file=sys.stderr, flush=True)
    failed(sentence)
    os._exit(128 + signal.SIGTERM)

  signal.signal(signal.SIGTERM, lambda *_: None)
  signal.set_wakeup_fd(write)
  threading.Thread(target=wait, daemon=True).start()


def main(asked):
  import jax  # --help does not wait for it

  _end_at_sigterm()
  # processes.py forks this server, which imports jax and the networks meanwhile
  forkserver.set_forkserver_preload(['bertzoo_jax.preflight.processes'])
  forkserver.ensure_running()
  jax.config.update('jax_platforms', 'cpu')  # a chip that is here belongs to the run
  from bertzoo_jax.finetune import plan
  from bertzoo_jax.preflight import report
  from bertzoo_jax.preflight import verdict

  out, asked = sys.stdout, dict(vars(asked))
  as_json = asked.pop('json')
  with contextlib.redirect_stdout(io.StringIO() if as_json else out):
    the_recipe = None if plan.is_fine_tuning(asked['config']) else recipe(sys.argv)
    request = verdict.Request(recipe=the_recipe, **asked)
    result = verdict.preflight(request, lambda line: print(line, file=sys.stderr, flush=True))
  if as_json:
    print(json.dumps(report.as_dict(result), ensure_ascii=False), file=out)
  else:
    report.show(result)
  sys.exit(0 if result.ready else 2)


if __name__ == '__main__':
  cli.define_config(also_tasks=True)
  cli.texts(
    tpu='Accelerator type as Cloud names it: v4-32, v5litepod-8 (v5e-8), v6e-8.',
    topology='In place of --tpu: generation and chips along each axis, v4:2x2x4.',
    workdir='Folder of the run, local or gs://, to be checked too.',
    init='Of a fine-tuning, its weights: WORKDIR[@STEP|@best|@all], hf:DIR or hf:ID.',
  )
  flags.DEFINE_multi_string(
    'corpus', None, 'Corpus of the run, local or gs://, to be checked too. Several: a mixture.'
  )
  flags.DEFINE_string('task_dir', '.', 'Of a fine-tuning, the folder of its files.')
  flags.DEFINE_float('price', None, 'Dollars per chip and hour.', lower_bound=0.0)
  flags.DEFINE_integer('preemptions', 0, 'Number of preemptions in the whole run.', lower_bound=0)
  flags.DEFINE_bool(
    'largest', True, 'If it does not fit, look for smaller batches and other changes that fit.'
  )
  flags.DEFINE_bool('json', False, 'One JSON object in place of the report.')
  cli.run(main, on_error=failed)
