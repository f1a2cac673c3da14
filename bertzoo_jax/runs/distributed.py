"""Joins the processes of a run. Prints the reason if one of them is lost.

    by hand        JAX_COORDINATOR_ADDRESS=HOST:PORT (of process 0), JAX_NUM_PROCESSES,
                   JAX_PROCESS_ID; the same command for each
    on a TPU VM    nothing to set: the hosts of a slice know each other
    otherwise      one process, which joins nothing

A lone process never joins jax's service, even if the environment or the TPU VM sets its address:
the service compares times of the wall clock and aborts its process when that is set back. SIGTERM
and Ctrl-C need no service (preemption.py).

JAX aborts when a peer is lost, without a `finally`. So this module prints the reason first, or from
a child process. The last checkpoint remains.
"""

import contextlib
import errno
import os
import re
import socket
import subprocess
import sys
import threading
import time

import jax
from jax._src import distributed as jax_distributed

from bertzoo_jax.common import errors

JOIN_SECONDS = 300
TRY_AGAIN = errors.TransientError.code
LOST_SECONDS = 100  # without a heartbeat, after which jax counts a process as dead
_LAST_SECONDS = 5.0
_TPU_PORT = 8482  # jax's choice for the coordinator of a slice

# Names of operations that hosts do together, in messages of errors.
_TOGETHER = re.compile(r'\b(gloo|nccl|barrier|coordination ?service)\b', re.I)

# Not sys.exit: jax would wait at exit for the process that is gone.
_exit = os._exit

_with_others = False  # whether this process has joined others


def join(seconds: int = JOIN_SECONDS) -> None:
  """Joins this process to the others of the run, if there are others; before anything touches a
  device. Does nothing the second time. After `seconds` the process ends with one sentence and
  exit code TRY_AGAIN. Raises UserError if the environment does not say who this is, TransientError
  if the port of process 0 is taken, or a TPU VM cannot say who the others are.
  """
  if jax.distributed.is_initialized():
    return
  try:
    if address := os.environ.get('JAX_COORDINATOR_ADDRESS'):
      _by_hand(address, seconds)
    elif 'tpu' in (jax.config.jax_platforms or ''):  # set by jax if it finds chips
      _on_tpu(seconds)
  except RuntimeError as e:
    if 'before' not in str(e):
      raise
    if _others():  # else: a notebook or a test, which has used jax and trains alone
      print(
        'note: jax was in use before the run began, so this process does not join the others: '
        'start it in a fresh process.'
      )


def exit_process(code: int) -> None:
  """Ends this process after an error, without waiting for threads or other hosts.

  Orbax's threads of a failed save would wait for each other for many minutes. jax would wait for
  the other hosts at exit; they may be waiting for this one, and notice within LOST_SECONDS that it
  is gone. Process 0 waits _LAST_SECONDS, so that hosts that fail at the same time can print their
  messages: jax ends them together with process 0.
  """
  sys.stdout.flush()
  sys.stderr.flush()
  if _with_others and jax.distributed.is_initialized() and jax.process_index() == 0:
    time.sleep(_LAST_SECONDS)
  _exit(code)


@contextlib.contextmanager
def last_words():
  """Inside a `with`, on several hosts: if this process is aborted (by jax, because a peer is lost)
  or killed, a child process prints the reason on stderr, as the last line. A Python error has a
  message of its own.
  """
  if jax.process_count() == 1:
    yield
    return
  line = (
    f'host {jax.process_index()} of {jax.process_count()} ended without saving: it was killed, or '
    'another host was lost, whose own log says '
    'why. Run the same command on all hosts again; they resume at the last checkpoint.'
  )
  # A shell outlives this process, and reads the end of its input when it dies. Out of the way of
  # Ctrl-C.
  teller = subprocess.Popen(
    ['sh', '-c', 'read -r line || echo "$0" >&2', line],
    stdin=subprocess.PIPE,
    start_new_session=True,
  )
  try:
    yield
  finally:
    teller.communicate(b'\n')


@contextlib.contextmanager
def watched():
  """Inside a `with`, a computation that fails because a host is gone ends the process with 75."""
  try:
    yield
  except Exception as e:  # from any library that waited for the result
    if not comes_from_another(e):
      raise
    print(f'error: the hosts cannot continue: {errors.words(e, 300)}', file=sys.stderr)
    _exit(TRY_AGAIN)


def comes_from_another(e: Exception) -> bool:
  """Whether an error says that the hosts cannot continue. A library that waits for a
  computation, as one that saves an array does, raises an error of its own with jax's words in it.
  """
  if jax.process_count() == 1 or isinstance(e, errors.UserError):
    return False
  return isinstance(e, jax.errors.JaxRuntimeError) or bool(_TOGETHER.search(str(e)))


def _by_hand(address, seconds):
  with errors.unreadable(
    f'JAX_COORDINATOR_ADDRESS is {address!r}: it must be HOST:PORT of process 0, and JAX_NUM_'
    'PROCESSES (of the run) and JAX_PROCESS_ID (of this one, from 0) are needed; or unset all'
  ):
    count, index = int(os.environ['JAX_NUM_PROCESSES']), int(os.environ['JAX_PROCESS_ID'])
    port = int(address.rpartition(':')[2])
  if not 0 <= index < count:
    raise errors.UserError(
      f'JAX_PROCESS_ID is {index}, JAX_NUM_PROCESSES {count}: the processes are 0 to {count - 1}.'
    )
  if count == 1:
    return
  if index == 0:
    _check_free(port, 'give another one in JAX_COORDINATOR_ADDRESS, on all hosts')
  print(f'host {index} of {count} · waiting for the others at {address} …')
  missing = (
    f'Not all {count} processes came to {address} within {seconds} s: start the same command on '
    'every host, with its own JAX_PROCESS_ID, where that address can be reached.'
  )
  where = dict(coordinator_address=address, num_processes=count, process_id=index)
  _initialize(seconds, missing, **where, cluster_detection_method='deactivate')


def _on_tpu(seconds):
  port = int(os.environ.get('JAX_COORDINATOR_PORT', _TPU_PORT))
  _check_free(port, 'another run seems to use this TPU: end it first')
  missing = (
    f'The hosts of this slice did not find each other within {seconds} s: start the same command '
    'on all of them (ssh --worker=all).'
  )
  try:
    _initialize(seconds, missing)
  # whatever the machine's own address book raises, before anything was joined
  except Exception as e:
    if 'before' in str(e) and isinstance(e, RuntimeError):
      raise
    if _others() or jax.distributed.is_initialized():
      raise errors.TransientError(
        f'The hosts of this slice could not be found ({errors.named(e, 200)}): run the same '
        'command again, or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.'
      ) from e
  # No public name says how many there are before a device is in use.
  if jax_distributed.global_state.num_processes == 1:
    jax.distributed.shutdown()
    global _with_others
    _with_others = False


def _initialize(seconds, missing, **where):
  """Calls jax.distributed.initialize; a failure is one sentence in place of a native stack."""

  def give_up():
    print(f'error: {missing}', file=sys.stderr)
    _exit(TRY_AGAIN)

  timer = threading.Timer(seconds, give_up)
  timer.daemon = True
  timer.start()
  try:
    jax.distributed.initialize(
      **{'heartbeat_timeout_seconds': LOST_SECONDS, **where, 'initialization_timeout': seconds + 60}
    )
  finally:
    timer.cancel()
  global _with_others
  _with_others = True


def _check_free(port, remedy):
  """Raises TransientError if the port is taken, UserError if it cannot be opened; jax would die."""
  both = socket.has_dualstack_ipv6()
  try:
    socket.create_server(
      ('', port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both
    ).close()
  except (OSError, OverflowError) as e:
    taken = getattr(e, 'errno', None) == errno.EADDRINUSE
    raise (errors.TransientError if taken else errors.UserError)(
      f'Port {port} of this machine cannot be opened ({getattr(e, "strerror", None) or e}): '
      f'{remedy}.'
    ) from e


def _others() -> bool:
  """Whether the environment declares several processes."""
  return 'JAX_COORDINATOR_ADDRESS' in os.environ or ',' in os.environ.get(
    'TPU_WORKER_HOSTNAMES', ''
  )
