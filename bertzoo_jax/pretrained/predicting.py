"""Predictions of a trained network by the head of its task."""

import contextlib

import jax
import ml_collections
import numpy as np

from bertzoo_jax import parts
from bertzoo_jax import tasks
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf import weights
from bertzoo_jax.objectives import contrastive
from bertzoo_jax.objectives import networks
from bertzoo_jax.tasks import batches
from bertzoo_jax.tasks import kinds
from bertzoo_jax.tasks.kinds.kind import check_parts
from bertzoo_jax.tasks.reading import asked
from bertzoo_jax.tasks.reading import sources as readers
from bertzoo_jax.tokenizers import published

# Compiled once for equal encoders: networks and splits whose rows have one length share it.
_read = jax.jit(networks.predict, static_argnums=0)
_vectors = jax.jit(contrastive.unit_vectors, static_argnums=(0, 3))
_LONGEST = 512  # tokens per row, if neither the encoder nor the tokenizer has a limit
_MOST = 2**20  # transformers writes 10^30 for no limit


@contextlib.contextmanager
def _fields_stay():
  """Replaces remedies that predictions lack, flags of the config, in errors raised inside it."""
  try:
    yield
  except errors.UserError as e:
    if '--config.' in str(e):
      kept = 'The fields of a trained network stay as they are: change the input'
      named = str(e).replace('--config.', 'config.')
      e.args = (f'{named} {kept} (of a file, see --columns and --noheader).',)
    raise


class Predictor:
  """A trained network with the head of a task.

  Attributes:
    task: tasks.Task without splits.
    source: the section of a config by which files are read.
  """

  def __init__(self, loaded):
    """loaded: loading.Loaded. Raises UserError for a network without such a head."""
    network, self._loaded = loaded.pretrained, loaded
    head = task_heads.in_paths(network.params)
    is_run = network.config is not None and 'source' in network.config
    if not head and not is_run:
      raise errors.UserError(
        f'{network.address} was not trained for a task, so it has nothing to predict: fine-tune it '
        f'(python -m bertzoo_jax.finetune --init {network.address} …); encode gives vectors of '
        'texts.'
      )
    config = network.config
    if is_run:
      labels, length = task_heads.labels_in(config.objective), config.length
    else:
      config, labels, length = _from_directory(network, head)
    if head in task_heads.LABELLED and labels:
      if (count := len(network.params[head]['classifier']['bias'])) != len(labels):
        raise errors.UserError(
          f'{network.address} has {count} outputs and {len(labels)} labels: copy it again.'
        )
    self.source, self._config, longest = config.source, config, loaded.max_length
    self.task = tasks.trained(
      config,
      labels,
      network.facts,
      loaded.tokenizer,
      network.shape,
      segments=network.section.get('type_vocab_size', 0),
      max_length=min(length or longest or _LONGEST, longest or _MOST),
    )

  @_fields_stay()
  def ask(self, inputs, batch_size: int = 32) -> list[dict]:
    """Predictions for inputs in Python, see `asked.examples`."""
    examples = asked.examples(self.task.kind, inputs)
    if examples is None:
      return []
    lines = self.answers(self._rows(examples), batch_size)
    return [{key: value for key, value in line.items() if key != 'example'} for line in lines]

  @_fields_stay()
  def read(self, path, columns: tuple[str, ...] = (), header: bool = True) -> tasks.Split:
    """Rows of a file, read as the run read its files.

    columns: names of the columns of texts, if they differ from the run's; header: whether the file
    has a line of names. Raises UserError for a file of another form.
    """
    source = dict(self.source)
    if columns:
      fields = self.task.kind.inputs.columns
      fields = fields if set(fields) <= source.keys() else ()
      used = [field for field in fields if source[field]]
      if not len(used) <= len(set(columns)) == len(columns) <= len(fields):
        raise errors.UserError(
          f'--columns={",".join(columns)}: a row of this task has {len(used)} columns of texts '
          f'({", ".join(used) or "known by their numbers"}): give as many names, each once.'
        )
      source |= dict(zip(used if len(columns) == len(used) else fields, columns))
    if not header and 'header' in source:
      source |= dict(header=False, columns=())
    if self._loaded.pretrained.config is None and source['name'] == 'question_table':
      if str(path).endswith('.json'):
        source = dict(parts.squad(files={}))
    return self._rows(readers.reading(source)(storage.path(path)))

  def _rows(self, examples) -> tasks.Split:
    """The examples as rows. Raises UserError for pairs in place of single texts, or the reverse."""
    network = self._loaded.pretrained
    check_parts(self.task.kind, self._config, {'the input': examples})
    if network.config is not None and 'text_b' in self.source:
      if (pairs := bool(self.source.text_b)) != (examples.values[0].b is not None):
        raise errors.UserError(
          f'{network.address} was trained on {"pairs of" if pairs else "single"} texts: give '
          f'{"a pair (a, b)" if pairs else "one text"} for each.'
        )
    return self.task.rows(examples)

  def answers(self, split, batch_size: int = 32) -> list[dict]:
    """One line of predictions per example; see kinds.kind."""
    if batch_size < 1:
      raise errors.UserError(f'batch_size is {batch_size}: at least 1 is needed.')
    size = min(batch_size, 1 << (len(split) - 1).bit_length())
    params, section = self._loaded.params, self._config.objective
    arrays = outputs(self._loaded.encoder, params, split, self.task, section, size)
    return self.task.kind.answers(self.task, split, arrays)


def _from_directory(network, head):
  """(sections of a config, labels, tokens per row or None) of a Hugging Face directory."""
  head_params, folder, labels = network.params[head], network.tokenizer_folder, ()
  content = weights.read_json(storage.path(folder) / 'config.json')
  kind = kinds.for_head(head, head_params, content.get('problem_type'))
  source, rows = kind.inputs.usual()
  if head in task_heads.LABELLED:
    count = len(head_params['classifier']['bias'])
    labels = task_heads.labels_of(content) or tuple(f'LABEL_{i}' for i in range(count))
  settings = published.optional_json(storage.path(folder) / 'tokenizer_config.json')
  length = settings.get('model_max_length')
  usable = isinstance(length, int) and 0 < length < _MOST
  share = content.get('threshold')
  has_threshold = kind.name == 'multilabel' and isinstance(share, float) and 0 < share < 1
  task = {'name': kind.name, **({'threshold': share} if has_threshold else {})}
  sections = dict(objective=task, source=source, features=rows)
  return ml_collections.ConfigDict(sections), labels, length if usable else None


def outputs(encoder, params, split, task, section, batch_size: int = 64) -> dict[str, np.ndarray]:
  """The network's outputs for a split, float32, in the order of its examples. tasks.kinds.kind
  names them.

  params: nested arrays. split, task: of `tasks`. section: config.objective. batch_size: units per
  batch.
  """
  lengths = batches.buckets(int(max(split.lengths, default=1)))
  padded = dict(length_buckets=lengths, padding=task.padding, pad=task.pad)
  params, out = jax.device_put(params), {}
  with jax.default_matmul_precision('highest'):
    for numbers, batch in batches.ordered_batches(split, batch_size, **padded):
      if 'vectors' in task.kind.outputs:
        arrays = {'vectors': _vectors(encoder, params, batch, section['pooling'])}
      else:
        arrays = _read(encoder, params, batch)
      for name, axis in task.kind.outputs.items():
        # the last batch is filled with copies; their outputs are dropped
        x = np.asarray(arrays[name])[: len(numbers)]
        if axis == 'tokens':
          x = x[batch['segment_ids'][: len(numbers)] > 0]
        if name not in out:
          size = len(split.ids) if axis == 'tokens' else len(split)
          out[name] = np.zeros((size, *x.shape[1:]), np.float32)
        places = numbers
        if axis == 'tokens':
          rows, at = split.rows(numbers), split.offsets
          places = np.concatenate([np.arange(at[row], at[row + 1]) for row in rows])
        out[name][places] = x
  return out
