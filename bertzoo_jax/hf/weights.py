"""Reads and writes model.safetensors; puts loaded weights in place of fresh ones. numpy only."""

import itertools
import json
import pathlib
import re
from typing import NamedTuple

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import storage
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf.architecture import POSITION_TABLE
from bertzoo_jax.hf.architecture import TYPE_TABLE
from bertzoo_jax.hf.architecture import WORD_TABLE

HEADS_FILE = architectures.HEADS_FILE
WEIGHTS, INDEX = 'model.safetensors', 'model.safetensors.index.json'


class Report(NamedTuple):
  source: str  # the directory
  architecture: str  # the class that wrote it, where config.json says so
  encoder: dict  # the encoder's fields as config.json has them
  ignored: tuple[str, ...]  # tensors that no parameter takes, with the reason if one is known
  model_type: str = ''  # `model_type` of config.json
  labels: tuple[str, ...] = ()  # names of the outputs of its head for rows or tags; () if unknown


def save(path, tensors: dict[str, np.ndarray]) -> None:
  """Writes a safetensors file with the metadata of transformers 4 and the mode of any new file."""
  path = pathlib.Path(path)
  path.touch()
  mode = path.stat().st_mode & 0o777
  safetensors.numpy.save_file(tensors, str(path), metadata={'format': 'pt'})
  path.chmod(mode)  # safetensors lets only the owner read


def load(directory, wished: str | None = None) -> tuple[dict, Report]:
  """Parameters of a local Hugging Face directory as a nested dict of float32 arrays, and a report.

  Heads that the checkpoint lacks are absent. Those in HEADS_FILE are read too.

  directory: with config.json and model.safetensors. wished: the run's config.hf; as
  `package.module:NAME` it reads directories of its model type. Raises UserError: no such directory,
  weights that exist only as pickles, a model type that no architecture reads, and incomplete or
  corrupt files.
  """
  directory = storage.path(directory)
  content = read_json(directory / 'config.json')
  paths = files(directory)
  a = architectures.reader(content, wished)
  encoder, sizes = architecture.encoder(a, content)
  tensors = {a.rename_legacy(key): x for key, x in _read_tensors(paths).items()}
  notes = []
  for copy, original in a.tied.items():
    if copy in tensors:
      x = tensors.pop(copy)
      same = np.array_equal(tensors.setdefault(original, x), x)
      notes += [] if same else [f'{copy} (it differs from {original}: here the two are tied)']
  params, unread = architecture.to_ours(a, tensors, sizes)
  params, encoder = a.post_read(params, encoder)
  if (directory / HEADS_FILE).exists():
    params = {**_read_tensors([directory / HEADS_FILE]), **params}
  if WORD_TABLE not in params:
    # transformers 4.57 ties the table to the first layer of such a head, and saves only the latter.
    left_out = 'transformers 4 leaves them out with legacy=False; save it with transformers 5.'
    remedy = left_out if content.get('legacy') is False else 'is it a whole model?'
    raise errors.UserError(
      f'{directory} holds no word embeddings of a {a.model_type} model: {remedy}'
    )
  if content.get('vocab_size', len(params[WORD_TABLE])) != len(params[WORD_TABLE]):
    raise errors.UserError(
      f'{directory / "config.json"} says vocab_size={str(content["vocab_size"])[:40]}, and the '
      f'word table has {len(params[WORD_TABLE]):,} rows: download or export the directory again.'
    )
  unread = [key for key in unread if not key.endswith(a.buffers)]
  return unflatten(params), Report(
    str(directory),
    (content.get('architectures') or [a.name])[0],
    encoder,
    tuple(unread + notes),
    a.model_type,
    task_heads.labels_of(content) if task_heads.in_paths(params) in task_heads.LABELLED else (),
  )


def merge(
  fresh: dict,
  loaded: dict,
  report: Report,
  encoder: dict | None = None,
  labels: tuple[str, ...] = (),
  positions: str = 'copied',
) -> tuple[dict, list[str]]:
  """(fresh parameters replaced by the loaded ones, lines that tell the user where each came from).

  If the new encoder lacks the segment table, its row 0 is added to the positions, so outputs for
  single texts do not change. If only the new encoder has a segment table, it starts as zeros, so no
  output changes. If position tables differ in length, the common rows are loaded; a longer table
  repeats them. Heads for rows, options and pairs can take each other's pooler. A head of the form
  `transform` takes that layer of the vocabulary head, as in transformers. Outputs of a head for
  rows or tags are matched by label; if the labels or their number differ, the last layer stays
  fresh. A head of another form stays fresh as a whole.

  Args:
    fresh: nested dict of arrays. A leaf without a loaded array is returned as it is; of the others
      only the shape is read.
    loaded, report: of `load`.
    encoder: fields of the encoder; fields that differ from the checkpoint are reported.
    labels: names of the outputs of the head for rows or tags, in order; () if they are not known.
    positions: how a longer position table is filled: copied, or interpolated from end to end.

  Raises UserError: any other shape differs; both are named.
  """
  fresh, loaded = flatten(fresh), flatten(loaded)
  ignored, lines = list(report.ignored), []
  added = report.encoder.get('absolute_positions', 'input') == 'input'  # to the words
  if added and {TYPE_TABLE, POSITION_TABLE} <= loaded.keys() and TYPE_TABLE not in fresh:
    loaded[POSITION_TABLE] = loaded[POSITION_TABLE] + loaded.pop(TYPE_TABLE)[:1]
    lines.append(
      'segment table: its row 0 was added to the positions, the rest is ignored (this encoder has '
      'no segments)'
    )
  tells_apart = report.encoder.get('type_vocab_size') != 0
  if TYPE_TABLE in fresh and TYPE_TABLE not in loaded and not tells_apart:
    loaded[TYPE_TABLE] = np.zeros(fresh[TYPE_TABLE].shape, np.float32)
    lines.append('segment table: zeros, since the checkpoint has no segments')
  if POSITION_TABLE in loaded and POSITION_TABLE in fresh:
    loaded[POSITION_TABLE], note = _positions(
      fresh[POSITION_TABLE], loaded[POSITION_TABLE], positions
    )
    lines += note
  loaded, head_lines = _with_fitting_heads(fresh, loaded, labels, report.labels)
  lines += head_lines
  for path, x in loaded.items():
    if path in fresh and tuple(fresh[path].shape) != x.shape:
      sizes = ', '.join(f'{field}={value}' for field, value in report.encoder.items())
      raise errors.UserError(
        f'{path} is {tuple(fresh[path].shape)} here and {x.shape} in {report.source}: give '
        f'config.encoder and the vocabulary the sizes of the checkpoint ({sizes}).'
      )
  ignored += sorted(set(loaded) - set(fresh))
  missing = sorted(set(fresh) - set(loaded))
  params = {path: loaded[path] if path in loaded else x for path, x in fresh.items()}
  lines += [
    f'loaded: {len(fresh) - len(missing)} of {len(fresh)} parameters from {report.source} '
    f'({report.architecture})'
  ]
  lines += [f'fresh: {path} {tuple(fresh[path].shape)}' for path in missing]
  lines += [f'ignored: {what}' for what in ignored]
  for field, theirs in report.encoder.items():
    if encoder is not None and field in encoder and encoder[field] != theirs:
      lines.append(
        f'differs: encoder.{field} is {encoder[field]} in the config and {theirs} in the checkpoint'
      )
  return unflatten(params), lines


def _with_fitting_heads(fresh, loaded, labels, their_labels) -> tuple[dict, list[str]]:
  """(loaded parameters with the heads of `fresh`, lines about moved and dropped heads). Both flat.
  labels: of our outputs; their_labels: of the checkpoint's; () where unknown.
  """
  loaded, lines = dict(loaded), []
  for ours, theirs in itertools.permutations((task_heads.ROW, 'pair_head', task_heads.CHOICE), 2):
    old, new = f'{theirs}/pooler', f'{ours}/pooler'
    if _has(fresh, new) and _has(loaded, old) and not (_has(fresh, theirs) or _has(loaded, ours)):
      loaded |= {path.replace(old, new): x for path, x in _taken(loaded, old).items()}
      lines.append(f'{new}: the pooler of {theirs}')
  for head in task_heads.KINDS:
    wanted = _has(fresh, f'{head}/transform') and not (
      _has(fresh, 'mlm_head') or _has(loaded, head)
    )
    if wanted and _has(loaded, 'mlm_head/transform'):
      taken, parts = _taken(loaded, 'mlm_head'), ('mlm_head/transform/', 'mlm_head/norm/')
      taken = {path: x for path, x in taken.items() if path.startswith(parts)}
      loaded |= {path.replace('mlm_head', head): x for path, x in taken.items()}
      lines.append(f'{head}/transform: from mlm_head, with its norm')
    theirs, ours = (task_heads.form_of(params, head) for params in (loaded, fresh))
    if theirs and ours and theirs != ours:
      _taken(loaded, head)
      lines.append(
        f'{head}: fresh, since the checkpoint has a head of the kind {theirs} and objective.head '
        f'is {ours}'
      )
  for head in task_heads.LABELLED:
    name, last = f'{head}/classifier', f'{head}/classifier/bias'
    if last in fresh and last in loaded:
      outputs = fresh[last].shape[0], len(loaded[last])
      order, note = _order(outputs, labels, their_labels)
      lines += [f'{name}: {note}'] if note else []
      taken = _taken(loaded, name)
      loaded |= {} if order is None else {path: x[..., list(order)] for path, x in taken.items()}
  return loaded, lines


def _order(outputs, labels, their_labels):
  """(numbers of the outputs to take, or None for fresh ones; a note or ''). outputs: (our number,
  the checkpoint's).
  """
  new, old = outputs
  theirs, ours = ', '.join(their_labels), ', '.join(labels)
  if new != old:
    return None, f'fresh, since the checkpoint has {old} outputs and this network {new}'
  if labels and not their_labels:
    return range(new), f'its outputs are taken as {ours}; the checkpoint names none'
  if not labels or labels == their_labels:
    return range(new), ''
  if sorted(labels) != sorted(their_labels):
    return None, f'fresh, since the checkpoint tells {theirs} and this {ours}'
  order = [their_labels.index(label) for label in labels]
  return order, f'{theirs} of the checkpoint, put into the order {ours}'


def _has(params, start) -> bool:
  return any(path.startswith(f'{start}/') for path in params)


def _taken(params, start) -> dict:
  """Removes the parameters below a path from `params`, and returns them."""
  return {path: params.pop(path) for path in list(params) if path.startswith(f'{start}/')}


def without_spare_words(params: dict, pieces: int) -> tuple[dict, list[str]]:
  """(nested parameters without the rows of the word table that belong to no piece, lines to print).

  pieces: number of rows to keep: the first ones.
  """
  flat = flatten(params)
  rows = len(flat.get(WORD_TABLE, ()))
  if rows <= pieces:
    return params, []
  # Only a vocabulary head has a bias per word.
  word_paths = [p for p, x in flat.items() if p == WORD_TABLE or p.endswith('_head/bias')]
  flat |= {path: flat[path][:pieces] for path in word_paths if len(flat[path]) == rows}
  return unflatten(flat), [
    f"words: the first {pieces:,} of the checkpoint's {rows:,} rows were loaded; the tokenizer has "
    'no piece for the rest'
  ]


def _positions(fresh, loaded: np.ndarray, how) -> tuple[np.ndarray, list[str]]:
  """(the initial position table, as long as `fresh`, lines if the lengths differ).

  A longer table is filled with copies of the loaded rows (Longformer; Beltagy et al. 2020, §5), or
  stretches them.
  """
  ours, theirs = fresh.shape[0], len(loaded)
  if ours == theirs or tuple(fresh.shape[1:]) != loaded.shape[1:]:
    return loaded, []
  if ours < theirs:
    return loaded[:ours], [
      f"positions: the first {ours:,} of the checkpoint's {theirs:,} rows were loaded, the rest is "
      'ignored'
    ]
  if how == 'interpolated':
    at = np.linspace(0, theirs - 1, ours)
    low, share = at.astype(int), (at % 1)[:, None].astype(loaded.dtype)
    high = np.minimum(low + 1, theirs - 1)
    return loaded[low] * (1 - share) + loaded[high] * share, [
      f'positions: {ours:,} rows are interpolated from {theirs:,}'
    ]
  return np.resize(loaded, (ours, *loaded.shape[1:])), [
    f'positions: rows 0 to {theirs - 1:,} were loaded, rows {theirs:,} to {ours - 1:,} copy them'
  ]


def vocabulary_size(params: dict) -> int:
  """Rows of the word table among nested parameters, of several networks' the first."""
  return next(len(x) for path, x in flatten(params).items() if path.endswith(WORD_TABLE))


def flatten(tree: dict, prefix: str = '') -> dict:
  """{'a/b': leaf} of nested dicts."""
  out = {}
  for key, value in tree.items():
    out.update(
      flatten(value, f'{prefix}{key}/') if isinstance(value, dict) else {f'{prefix}{key}': value}
    )
  return out


def unflatten(flat: dict) -> dict:
  """The inverse of `flatten`."""
  tree = {}
  for path, value in flat.items():
    *parents, last = path.split('/')
    node = tree
    for parent in parents:
      node = node.setdefault(parent, {})
    node[last] = value
  return tree


def read_json(path: pathlib.Path) -> dict:
  """The object in a JSON file. Raises UserError if there is no such file, or no object in it."""
  if not path.exists():
    if (pair := [path.parent / name for name in ('discriminator', 'generator')])[1].is_dir():
      raise errors.UserError(
        f'{path.parent} holds two networks: give hf:{pair[0]},hf:{pair[1]}, or one of them.'
      )
    if path.name == 'config.json' and any(path.parent.glob('*.index')):
      raise _unread(path.parent)
    raise errors.UserError(
      f'{path} does not exist: a Hugging Face directory has config.json and model.safetensors.'
    )
  broken = f'{path} is no readable JSON object: download or export the directory again'
  with errors.unreadable(broken, OSError):
    return {**json.loads(path.read_text(encoding='utf-8'))}


def _parts(index: pathlib.Path) -> list[pathlib.Path]:
  """The files that an index of weights names, all beside it."""
  names, kind = read_json(index).get('weight_map'), index.name.split('.')[1]
  if not isinstance(names, dict) or not all(
    isinstance(name, str) and re.fullmatch(rf'[\w.-]+\.{kind}', name) for name in names.values()
  ):
    raise errors.UserError(
      f'{index} does not name the files of the weights: download the directory again.'
    )
  return [folders.inside(index.parent, name) for name in sorted(set(names.values()))]


def files(directory: pathlib.Path) -> list[pathlib.Path]:
  """The files with the weights. Raises UserError if none can be read."""
  if paths := parts(directory, WEIGHTS):
    return paths
  raise _unread(directory)


def parts(directory: pathlib.Path, name: str) -> list[pathlib.Path]:
  """The file of that name, or the parts listed in its index; [] if neither exists."""
  single, index = directory / name, directory / f'{name}.index.json'
  if single.exists():
    return [single]
  return _parts(index) if index.exists() else []


# Weights that only other programs read, and the way to read them with transformers 4.
_FOREIGN = (('*.h5', 'from_tf', 'TensorFlow and tf-keras'), ('*.msgpack', 'from_flax', 'flax'))


def _unread(directory) -> errors.UserError:
  """The error for a directory whose weights are in formats that are not read."""
  convert = f'run python -m bertzoo_jax.convert --model {directory} --out OUT, and give OUT'
  if any(directory.glob('*.bin')):
    return errors.UserError(
      f'{directory} has its weights as pickles (*.bin), which can run code and are not read: '
      f'{convert}.'
    )
  if any(directory.glob('*.index')):
    return errors.UserError(f'{directory} has a TensorFlow checkpoint alone: {convert}.')
  for pattern, flag, needs in _FOREIGN:
    if any(directory.glob(pattern)):
      return errors.UserError(
        f'{directory} has its weights as {pattern} alone, which nothing here reads: with '
        f'transformers 4.57, {needs} run python -c "import transformers as t; '
        f"t.AutoModelForPreTraining.from_pretrained('{directory}', {flag}=True)"
        ".save_pretrained('OUT')\", copy the tokenizer's files there, and give OUT."
      )
  if (directory / 'checkpoints').is_dir():
    return errors.UserError(
      f'{directory} is a workdir: give a folder that python -m bertzoo_jax.export --workdir '
      f'{directory} --out DIR has made.'
    )
  return errors.UserError(
    f'{directory} has no model.safetensors: it holds no weights. For pickles or a TensorFlow '
    'checkpoint of the hub run python -m bertzoo_jax.convert --model OWNER/NAME --out OUT, and '
    'give OUT.'
  )


def _read_tensors(files: list[pathlib.Path]) -> dict[str, np.ndarray]:
  tensors = {}
  for path in files:
    storage.check_file(path)
    broken = f'{path} cannot be read: download or export it again'
    with errors.unreadable(broken, safetensors.SafetensorError, OSError):
      with safetensors.safe_open(str(path), framework='numpy') as f:
        for key in f.keys():  # noqa: SIM118 (no mapping)
          x = f.get_tensor(key)
          is_float = x.dtype.kind == 'f' or x.dtype == ml_dtypes.bfloat16
          tensors[key] = x.astype(np.float32) if is_float else x
  return tensors
