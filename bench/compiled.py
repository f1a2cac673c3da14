"""Our own train step on stand-in rows, compiled for TPU chips that are not here; a depth's figures
from two other depths; tables of figures as CSV files.
"""

import csv
import importlib
import io
import pathlib
from collections.abc import Sequence

import ml_collections
import numpy as np

from bertzoo_jax.common import storage
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import resolve
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import program
from bertzoo_jax.training import data
from bertzoo_jax.training import sharding

TOPOLOGIES = {'v5e': 'v5e:2x2', 'v4': 'v4:2x2x1', 'v6e': 'v6e:2x2'}  # a slice of each generation
VOCABULARY = {'bert': 30522, 'albert': 30000, 'electra': 30522}
PREDICTIONS = {128: 20, 512: 77}


def depth(name: str, size: str) -> int:
  """Layers of a config's size."""
  return importlib.import_module(f'configs.{name}').get_config(size).encoder.num_layers


def train_step(
  name: str,
  size: str,
  slice_: chips.Slice,
  mesh: tuple[int, int, int],
  *,
  layers: int,
  rows: int,
  length: int,
  settings: list[str] = (),
) -> program.Program:
  """The train step of masked language modelling alone (of ELECTRA, of both networks), with its
  layers unrolled and no accumulation.

  Args:
    name, size: of the config.
    slice_: whose chips it is for: the first ones that the mesh needs.
    mesh: (data, fsdp, tensor).
    layers: of the network, in place of the config's.
    rows: a step, on all chips.
    length: tokens per row.
    settings: 'run.remat=full' and the like.
  """
  argument = size if name == 'electra' else f'{size},objective=mlm'
  config = ml_collections.ConfigDict(
    importlib.import_module(f'configs.{name}').get_config(argument)
  )
  with config.unlocked():
    config.encoder.num_layers = layers
    config.update_from_flattened_dict(
      dict(
        batch_size=rows,
        length=length,
        phases=((1_000_000, {}),),
        run=dict(config.run, accumulation=1, unroll=layers),
      )
    )
    for setting in settings:
      key, _, value = setting.partition('=')
      section, _, field = key.partition('.')
      config[section][field] = type(config[section][field])(value)
  config = ml_collections.ConfigDict(config).lock()
  predictions = PREDICTIONS[length]
  features = {k: ((rows, length), np.int32) for k in ('input_ids', 'token_type_ids', 'segment_ids')}
  features |= {k: ((rows, predictions), np.int32) for k in ('masked_positions', 'masked_targets')}
  features['masked_weights'] = ((rows, predictions), np.float32)
  stand_in = data.Data({}, VOCABULARY[name], {0: data.PhaseData(features)})
  over = sharding.mesh(mesh, program.devices(slice_)[: int(np.prod(mesh))])
  run = resolve.run(config)
  return program.finished(program.lowered_step(build.phase_run(run, run.phases[0], stand_in, over)))


def at_depth(low: tuple[int, dict], high: tuple[int, dict], layers: int) -> dict:
  """Figures of so many layers, on the straight line through those of two depths: (layers, {name:
  figure}).
  """
  (m, a), (n, b) = low, high
  return {k: a[k] + (b[k] - a[k]) / (n - m) * (layers - m) for k in a}


def read_table(path: pathlib.Path) -> list[dict]:
  """Rows of a CSV file; [] if there is none."""
  if not path.exists():
    return []
  with path.open(encoding='utf-8', newline='') as f:
    return list(csv.DictReader(f))


def write_table(path: pathlib.Path, columns: Sequence[str], rows: Sequence[dict]) -> None:
  """Writes rows as a CSV file."""
  text = io.StringIO()
  table = csv.DictWriter(text, columns, lineterminator='\n')
  table.writeheader()
  table.writerows(rows)
  storage.write_text(path, text.getvalue())
