"""Computes batches ahead of the training loop: calls `batch(step)` in parallel, and keeps the next
batches ready.

tf.data makes the calls if TensorFlow is installed, else a pool of threads. Both call the same
function, so the batches are the same.
"""

import collections
import concurrent.futures
import importlib
import importlib.util
import os

import numpy as np

from bertzoo_jax.common import errors

# More threads than this wait for the interpreter: a masking holds it for a part of its time.
_MOST_THREADS = 4
_READY = 2  # batches beyond those in work


def driver() -> str:
  """'tf.data' or 'threads'. Raises UserError if TensorFlow is installed and cannot be imported."""
  if importlib.util.find_spec('tensorflow') is None:
    return 'threads'
  with errors.unreadable(
    'TensorFlow is installed and cannot be imported: install it again, or uninstall it (threads '
    'then make the batches)',
    ImportError,
    OSError,
    RuntimeError,
  ):
    importlib.import_module('tensorflow')
  return 'tf.data'


def iterate(batch, features, first_step, end_step, threads=None):
  """Yields batch(first_step) … batch(end_step − 1).

  batch: step → {name: array}; called in several threads. Its error is raised in place of the batch.
  features: {name: (shape, dtype)} of the arrays that `batch` returns. threads: number of threads;
  None: one per core, at most _MOST_THREADS.
  """
  threads = threads or min(_MOST_THREADS, os.cpu_count() or 1)
  drive = {'tf.data': _by_tf_data, 'threads': _by_threads}[driver()]
  return drive(batch, features, range(first_step, end_step), threads)


def _by_tf_data(batch, features, steps, threads):
  import tensorflow as tf

  for kind in ('GPU', 'TPU'):
    try:
      tf.config.set_visible_devices([], kind)  # the accelerator belongs to the device program
    except (RuntimeError, ValueError):
      pass  # TensorFlow is already running with its own settings
  failures = []

  def arrays(step):
    try:
      values = batch(int(step))
    except Exception as e:
      failures.append(e)
      raise
    return [values[name] for name in features]

  kinds = [np.dtype(dtype) for _, dtype in features.values()]
  call = lambda step: tuple(tf.numpy_function(arrays, [step], kinds, stateful=False))
  data = tf.data.Dataset.range(steps.start, steps.stop).map(call, threads, deterministic=True)
  try:
    for values in data.prefetch(_READY).as_numpy_iterator():
      yield dict(zip(features, values))
  except tf.errors.OpError:
    if failures:
      raise failures[0] from None
    raise


def _by_threads(batch, features, steps, threads):
  del features
  todo, waiting = iter(steps), collections.deque()
  with concurrent.futures.ThreadPoolExecutor(threads, 'batch') as pool:
    try:
      for _ in steps:
        while len(waiting) < threads + _READY and (step := next(todo, None)) is not None:
          waiting.append(pool.submit(batch, step))
        yield waiting.popleft().result()
    finally:  # the consumer may stop early
      pool.shutdown(cancel_futures=True)
