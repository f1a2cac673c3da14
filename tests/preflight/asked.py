"""A small config, and the answers of preflight."""

import io
import pathlib
import sys

import ml_collections
import pytest
import rich.console

from bertzoo_jax.preflight import processes
from bertzoo_jax.preflight import report
from bertzoo_jax.preflight import verdict
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import program

ROOT = pathlib.Path(__file__).parents[2]

CONFIG = """
from bertzoo_jax import parts

def get_config(argument=None):
  return parts.experiment(
      tokenizer=parts.wordpiece(vocab_size=300), corpus=parts.corpus(held_out=0.2),
      format=parts.full_sentences(), masking=parts.token(),
      encoder=parts.transformer(num_layers=1, hidden_size=128, num_heads=2, intermediate_size=128,
                                max_positions=64),
      objective=parts.mlm(), optimizer=parts.adamw_uncorrected(),
      schedule=parts.linear_from_start(learning_rate=1e-2, warmup=3),
      length=64, batch_size=8, phases=((60, {}), (40, {})), hf='BertForMaskedLM',
      run=parts.run(compile_cache='', remat='none'))
"""


def config(**changes):
  namespace = {}
  exec(CONFIG, namespace)
  made = ml_collections.ConfigDict(namespace['get_config']())
  for key, value in changes.items():
    section, _, field = key.rpartition('__')
    (made[section] if section else made)[field] = value
  return ml_collections.ConfigDict(made).lock()


def printed(found):
  out = io.StringIO()
  report.show(found, rich.console.Console(file=out, width=150, highlight=False))
  return out.getvalue()


def codes(found):
  return [f.code for f in found.findings]


needs_libtpu = pytest.mark.skipif(
  sys.platform != 'linux' or not program.importlib.util.find_spec('libtpu'),
  reason='the TPU compiler (libtpu) is not installed',
)


def preflight(config, say=lambda line: None, **fields):
  return verdict.preflight(verdict.Request(config, **fields), say)


def linear(monkeypatch, per_row=1 << 24, fixed=1 << 30, usable=chips.CHIPS['v5e'].usable, **less):
  """Replaces the compiler by a line in the rows of a microbatch on a device, which bends down where
  it is refused, as the compiler's does. Returns the jobs that it was asked for. less: {policy of
  remat, or a data type: what it leaves of the line}.
  """
  asked = []

  def compiled(jobs, *, whole, kept=None, known=lambda number, found: None):
    out = []
    for number, (resolved, features, _, _, devices) in enumerate(jobs):
      last = max(features)
      run, rows = resolved.phases[last].config.run, features[last]['input_ids'][0][0]
      line = per_row * rows * 4 / devices / run.accumulation
      need = fixed + line * less.get(run.remat, 1) * less.get(run.dtype, 1) * (len(features) == 1)
      asked.append(jobs[number])
      if need > usable:
        out.append(program.Program(None, {}, None, int(usable + 0.2 * (need - usable)), 1.0))
      else:
        out.append(program.Program(None, {}, program.Memory(0, int(need)), None, 1.0))
      known(number, out[-1])
    return out

  monkeypatch.setattr(processes, 'compiled', compiled)
  return asked


def rows_of(jobs):
  return [job.features[min(job.features)]['input_ids'][0][0] for job in jobs]


def changes(found, fits=True):
  return [r.change for r in found.remedies if r.fits == fits]


MOST = (int(15.75 * 2**30) - (1 << 30)) >> 24  # rows that fit on the line
