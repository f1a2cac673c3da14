"""A class of Hugging Face as this program sees it: its tensors, its config.json, its card. numpy.

A family of classes is one file with one `Architecture` per class. The files of this package are in
`hf/architectures/`, and the table at the foot of its `__init__.py` lists them. A file outside the
package needs no entry: `config.hf` and `--architecture` take `package.module:NAME`. A complete
example is `tests/outside/roformer_hf.py`.

Such a file says five things.

1. `rows`: which parameter is which tensor. A row pairs the path of a parameter of ours with the
   name of a tensor of theirs. Paths begin with `encoder/` or the name of a head, as `mlm_head/`
   (`heads.rows` makes the rows of a head's dense layers). The word table of every encoder is
   WORD_TABLE:

       Row(WORD_TABLE, 'model.embeddings.tok_embeddings.weight')

   `{i}` in the tensor's name is the number of a layer. (`{g}` and `{j}` are a group and a block
   within it.) Our parameter then has a leading axis of layers. `transform` says how the copy of one
   layer becomes the tensor. torch stores a dense kernel as [out, in] and flat over heads. Here it
   is [in, out], and heads have an axis of their own: KERNEL, HEADS_KERNEL and their like. For any
   other layout, write a Transform.

   Several parameters that are one tensor are a tuple of paths. `joined` stacks them:

       Row(
         tuple(f'encoder/layers/attention/{x}/kernel' for x in ('query', 'key', 'value')),
         'model.layers.{i}.attn.Wqkv.weight',
         joined(HEADS_KERNEL, HEADS_KERNEL, HEADS_KERNEL),
       )

   One parameter that is several tensors has a tuple of names, and `parted`.

   `where` says which layers have the tensor. If our parameter has a copy for the other layers too,
   `without` makes these copies when a directory is read:

       Row(
         'encoder/layers/attention_norm/scale',
         'model.layers.{i}.attn_norm.weight',
         where=lambda i, sizes: i > 0,
         without=lambda sizes: np.ones(sizes.hidden_size, np.float32),
       )

   `absent` gives the tensor to write if the encoder lacks the parameter.
   A tensor that transformers expects in the file, and that is no parameter here, is `constant`:

       constant('encoder.embed_positions.weight', sinusoids)

2. `keys`: config.json as rows, which are read in both directions (`hf/keys.py`).
3. `sizes(encoder, special)`: the argument of the rows' functions. Return a `Sizes`, or an object
   of your own with num_heads, num_layers, blocks, num_groups, inner_group_num and whatever else
   your rows read. `encoder` is the linen module, or has the fields that `keys` read; `special` has
   the ids of special pieces by name.
4. `heads` and `pipeline`: text of the model card.
5. `tokens`: how the tokenizer frames texts, if not as [CLS] A [SEP] B [SEP].

Export writes the directory, loads it with the transformers class called `name`, and compares logits
and token ids. If transformers has no such class, give `logits(directory, batch)`: a reference that
reads the directory itself (see `hf/verify.py`). Export fails if anything differs, if a tensor was
not loaded, or if a head was not compared. Of a class without heads, vectors are compared. Heads
that no row names are written into a file of their own (HEADS_FILE in
`hf/architectures/__init__.py`).
"""

import types
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import tokenizer

# Paths of the tables that encoders here name alike.
WORD_TABLE = 'encoder/embeddings/word/embedding'
POSITION_TABLE = 'encoder/embeddings/position/embedding'
TYPE_TABLE = 'encoder/embeddings/type/embedding'

# Fields of encoders that no config.json has, with the values that the class implies.
UNSAID = {
  'transformer': dict(initializer='truncated_normal'),
  'disentangled': dict(initializer='normal', vocab_multiple=1),
  'two_stream': dict(initializer='normal', memory_length=0, reuse_length=1),
}


class Sizes(NamedTuple):
  """The arguments of a transform besides the array.

  Attributes:
    num_heads: attention heads.
    num_layers: layers of the stack.
    blocks: blocks that have tensors; a layer is inner_group_num blocks.
    hidden_size: width of the layers.
    embedding_width: width of the embeddings.
    position_offset: rows in front of the position of the first token.
    num_groups, inner_group_num: groups of layers that share parameters; blocks per group.
  """

  num_heads: int
  num_layers: int
  blocks: int
  hidden_size: int
  embedding_width: int
  position_offset: int = 0
  num_groups: int = 1
  inner_group_num: int = 1


class Transform(NamedTuple):
  """A change of layout and its inverse: (array, sizes) → array, for one layer.

  Where a row has several parameters or several tensors, that side is a tuple of arrays.
  """

  to_theirs: Callable
  to_ours: Callable


SAME = Transform(lambda x, s: x, lambda y, s: y)
KERNEL = Transform(lambda x, s: x.T, lambda y, s: y.T)
HEADS_KERNEL = Transform(  # [D, H, K] and [H·K, D]
  lambda x, s: x.reshape(x.shape[0], -1).T, lambda y, s: y.T.reshape(y.shape[1], s.num_heads, -1)
)
HEADS_BIAS = Transform(  # [H, K] and [H·K]
  lambda x, s: x.reshape(-1), lambda y, s: y.reshape(s.num_heads, -1)
)
FROM_HEADS_KERNEL = Transform(  # [H, K, D] and [D, H·K]
  lambda x, s: x.reshape(-1, x.shape[-1]).T, lambda y, s: y.T.reshape(s.num_heads, -1, y.shape[0])
)
POSITIONS = Transform(  # the rows in front belong to padding: zeros
  lambda x, s: np.concatenate([np.zeros((s.position_offset, x.shape[1]), x.dtype), x]),
  lambda y, s: y[s.position_offset :],
)


def plain_sizes(encoder, special=None) -> Sizes:
  """The Sizes of a stack without groups, with tables as wide as its layers."""
  layers, width = encoder.num_layers, encoder.hidden_size
  return Sizes(encoder.num_heads, layers, layers, width, width)


def grouped_sizes(encoder, special=None) -> Sizes:
  """The Sizes of a stack whose layers may share parameters in groups, with tables of any width."""
  layers, inner, width = encoder.num_layers, encoder.inner_group_num, encoder.hidden_size
  table = encoder.embedding_size or width
  groups = dict(num_groups=encoder.num_groups, inner_group_num=inner)
  return Sizes(encoder.num_heads, layers, layers * inner, width, table, **groups)


def joined(*transforms: Transform) -> Transform:
  """Several parameters in one tensor: each transformed, equal parts along its first axis."""
  return Transform(
    lambda xs, s: np.concatenate([t.to_theirs(x, s) for t, x in zip(transforms, xs, strict=True)]),
    lambda y, s: tuple(t.to_ours(p, s) for t, p in zip(transforms, np.split(y, len(transforms)))),
  )


def parted(*transforms: Transform) -> Transform:
  """One parameter in several tensors: tensor n is the n-th of its first axis, transformed."""
  return Transform(
    lambda x, s: tuple(t.to_theirs(p, s) for t, p in zip(transforms, x, strict=True)),
    lambda ys, s: np.stack([t.to_ours(y, s) for t, y in zip(transforms, ys, strict=True)]),
  )


class Row(NamedTuple):
  """Parameters of ours, tensors of theirs, and the transform between them.

  Attributes:
    ours: path of the parameter, or a tuple of paths; '' for none (`constant`).
    theirs: name of the tensor, or a tuple of names.
    transform: of one layer's copy.
    absent: sizes → the tensor that is written where the encoder lacks the parameter, or None for no
      tensor. Leave it out for a parameter that must be there.
    where: (block, sizes) → whether that block has the tensor.
    without: sizes → our copy for a block that lacks the tensor (a tuple of copies if `ours` is
      one). Leave it out where our parameter has copies only for the blocks that have the tensor.
  """

  ours: str | tuple[str, ...]
  theirs: str | tuple[str, ...]
  transform: Transform = SAME
  absent: Callable | None = None
  where: Callable = lambda block, sizes: True
  without: Callable | None = None

  @property
  def paths(self) -> tuple[str, ...]:
    """The paths of its parameters."""
    return _several(self.ours) if self.ours else ()


def constant(theirs: str, make: Callable) -> Row:
  """The Row of a tensor that transformers expects in the file, and that is no parameter here. make:
  sizes → the tensor.
  """
  return Row('', theirs, absent=make)


def norm(ours: str, theirs: str) -> tuple[Row, ...]:
  """Rows of a layer norm."""
  return Row(f'{ours}/scale', f'{theirs}.weight'), Row(f'{ours}/bias', f'{theirs}.bias')


def dense(ours: str, theirs: str, kernel=KERNEL, bias=SAME) -> tuple[Row, ...]:
  """Rows of a dense layer."""
  kernels = Row(f'{ours}/kernel', f'{theirs}.weight', kernel)
  return kernels, Row(f'{ours}/bias', f'{theirs}.bias', bias)


class Computed(NamedTuple):
  """The part of an encoder that a class of transformers computes.

  Attributes:
    encoder: linen module that computes the same.
    unread: names of tensors that are written for --init, and that the class does not load.
    note: text for the card about the difference.
    pipeline: transformers' task for the card; None: the architecture's.
  """

  encoder: Any
  unread: tuple[str, ...] = ()
  note: str = ''
  pipeline: str | None = None


# Key of config.json for objective.Network.learned, where it is not masks alone.
LEARNED = 'bertzoo_learned'


class Architecture(NamedTuple):
  """A class of Hugging Face.

  Attributes:
    name: of the class.
    model_type: of its config.json.
    rows: the name table.
    sizes: (encoder, special) → the argument of the rows' transforms. special: ids by name.
    keys: of config.json, see hf/keys.py.
    heads: text of the card about the heads that the class has and lacks.
    pipeline: transformers' task for the card; '' if its pipelines cannot load the class.
    tied: tensors that repeat another one, not written, and ignored when read: {name: the other}.
    buffers: ends of names of tensors that are no parameters.
    rename_legacy: a tensor's name in a file → its name in today's class.
    post_read: (params, the encoder's fields) → both, applied after the rows have been read: for
      fields that depend on which tensors the file has, and parameters that an encoder has in
      another form.
    part: config.encoder.name of the encoder that has these fields.
    unsaid: fields of the encoder that no config.json has, where they differ from UNSAID.
    computes: encoder → Computed, the part of the trained network that the class computes.
    segments: segments that texts have where the encoder has no segment table.
    head_activation: the activation that its head always applies; None if it is the encoder's.
    activations: our activations that it has.
    head_dropouts: keys of config.json for the dropout of its row head: before the classifier, and
      before the dense layer.
    tokens: how its tokenizer frames texts; None if it has no tokenizer in transformers. No
      tokenizer is then written or compared.
    reads: whether it reads checkpoints of its model type. A class whose tensors are a part of
      another class's does not.
    logits: (directory, batch) → arrays that verification compares with our logits, as
      `verify.logits` has it; None: the logits of the transformers class called `name`.
    load_args: arguments of its from_pretrained for verification.
    holds: parameters by path → whether its heads may have these shapes.
  """

  name: str
  model_type: str
  rows: tuple[Row, ...]
  sizes: Callable
  keys: tuple[keys.Key, ...]
  heads: str
  pipeline: str = 'fill-mask'
  tied: Mapping[str, str] = {}
  buffers: tuple[str, ...] = ()
  rename_legacy: Callable = lambda name: name
  post_read: Callable = lambda params, fields: (params, fields)
  part: str = 'transformer'
  unsaid: Mapping[str, Any] = {}
  computes: Callable = Computed
  segments: int = 1
  head_activation: str | None = None
  activations: Mapping[str, str] = keys.ACTIVATIONS
  head_dropouts: tuple[str, ...] = ()
  tokens: tokenizer.Shape | None = tokenizer.Shape()
  reads: bool = True
  logits: Callable | None = None
  load_args: Mapping[str, Any] = {}
  holds: Callable = lambda params: True

  @property
  def places(self) -> set[str]:
    """Paths of the parameters that its rows name."""
    return {path for row in self.rows for path in row.paths}

  @property
  def defaults(self) -> dict[str, Any]:
    """Values that transformers assumes for keys that config.json leaves out."""
    return keys.usual(self.keys)

  @property
  def head_names(self) -> set[str]:
    """Names of the heads that its rows name."""
    return {path.split('/')[0] for path in self.places} - {'encoder'}


def applies(a: Architecture, activation: str) -> bool:
  """Whether its head has an encoder's activation."""
  return a.head_activation in (None, activation)


def misfits(a: Architecture, paths) -> tuple[list[str], list[str]]:
  """(paths without a place in the architecture, its places without a parameter), each sorted."""
  paths = set(paths)
  homeless = paths - a.places
  empty = set()
  for row in a.rows:
    missing = set(row.paths) - paths
    if row.absent is None or len(missing) < len(row.paths):
      empty |= missing
  return sorted(homeless), sorted(empty)


def aside(a: Architecture, params: Mapping[str, Any]) -> set[str]:
  """Names of the network's heads that the class has no place for. params: by path."""
  strange = {path.split('/')[0] for side in misfits(a, params) for path in side}
  if not a.holds(params):
    strange |= a.head_names
  return strange & {path.split('/')[0] for path in params} - {'encoder'}


def placed(a: Architecture, params: Mapping[str, Any]) -> dict[str, Any]:
  """A network's parameters by path, without the heads of `aside`."""
  left = aside(a, params)
  return {path: x for path, x in params.items() if path.split('/')[0] not in left}


def check(a: Architecture, paths, known: Mapping[str, Architecture] | None = None) -> None:
  """Raises UserError unless every parameter has a place in the architecture, and every required
  place a parameter.

  known: other architectures, to name one that fits.
  """
  paths = list(paths)
  homeless, empty = misfits(a, paths)
  if homeless or empty:
    what = f'has no place for {homeless[0]!r}' if homeless else ''
    what = what or f'needs {empty[0]!r}, which was not trained'
    fits = [name for name, other in (known or {}).items() if not any(misfits(other, paths))]
    remedy = 'No architecture that export knows fits: write one, and name it by '
    remedy += '--architecture or config.hf (bertzoo_jax/hf/architecture.py).'
    remedy = f'--architecture={fits[0]} fits.' if fits else remedy
    raise errors.UserError(f'{a.name} {what}. {remedy}')


def config(
  a: Architecture, encoder, special: Mapping[str, int], vocab_size: int, known=None
) -> dict[str, Any]:
  """The content of config.json. Raises UserError if the class computes something else.

  special: ids by name: pad, unk, cls, sep, mask. vocab_size: rows of the word table. known: other
  architectures by name, to name those that fit.
  """
  errors.choose(encoder.activation, a.activations, 'activation that Hugging Face has')
  if not applies(a, encoder.activation):
    others = sorted(name for name, other in (known or {}).items() if other.head_activation is None)
    remedy = f': export as --architecture={" or ".join(others)}.' if others else '.'
    raise errors.UserError(
      f'The head of {a.name} always applies {a.head_activation}, this model was trained '
      f'with {encoder.activation}{remedy}'
    )
  return keys.content(a, encoder, special, vocab_size)


def encoder(a: Architecture, content: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
  """(the encoder's fields, sizes) of a config.json. Raises UserError for a setting that the encoder
  cannot express.
  """
  fields, pad = keys.fields(a.keys, content), content.get('pad_token_id')
  sizes = a.sizes(types.SimpleNamespace(**fields), {'pad': 1 if pad is None else pad})
  if 'activation' in fields and not applies(a, fields['activation']):
    raise errors.UserError(
      f'config.json says the activation {fields["activation"]}, but the head of {a.name} always '
      f'applies {a.head_activation}: an encoder here has one activation and cannot express that.'
    )
  return fields, sizes


def section(a: Architecture, fields: Mapping[str, Any]) -> dict[str, Any]:
  """The config section of the encoder: `fields`, as `encoder` gives them, and the fields that no
  config.json has. An encoder outside the package has defaults for the other fields.
  """
  return {'name': a.part, **UNSAID.get(a.part, {}), **a.unsaid, **fields}


def to_hf(a: Architecture, params: Mapping[str, Any], sizes) -> dict[str, np.ndarray]:
  """Tensors by Hugging Face name. params: by path, layers stacked. Raises UserError as `check`."""
  check(a, params)
  tensors = {}
  for row in a.rows:
    ours, places = row.paths, _places(row, sizes)
    if not ours or ours[0] not in params:
      if (absent := row.absent(sizes)) is not None:
        for names in places:
          tensors.update(zip(names, _several(absent), strict=True))
      continue
    written = [_written(row, np.asarray(params[path], np.float32), sizes) for path in ours]
    for names, *copies in zip(places, *written, strict=True):
      parts = row.transform.to_theirs(_alike(row.ours, copies), sizes)
      for name, part in zip(names, _several(parts), strict=True):
        tensors[name] = np.ascontiguousarray(part)
  return tensors


def to_ours(
  a: Architecture, tensors: Mapping[str, np.ndarray], sizes
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Parameters by path, float32, and the names of the tensors that no row reads.

  Raises UserError if only some layers have a tensor, if a shape does not fit the sizes, and for
  more layers than tensors.
  """
  if sizes.blocks > len(tensors):
    raise errors.UserError(
      f'config.json says {sizes.blocks:,} layers, and the weights are {len(tensors):,} tensors: '
      'download or export the directory again.'
    )
  params, used = {}, set()
  for row in a.rows:
    places = _places(row, sizes)
    wanted = [name for names in places for name in names]
    present = [name for name in wanted if name in tensors]
    if not row.paths or wanted and not present or not wanted and row.without is None:
      used.update(() if row.paths else wanted)
      continue
    if len(present) < len(wanted):
      missing = next(name for name in wanted if name not in tensors)
      raise errors.UserError(
        f'The checkpoint lacks {missing!r} but has {present[0]!r}: it is incomplete; download or '
        'export it again.'
      )
    copies = [_read(row, names, tensors, sizes) for names in places]
    if _layered(row):
      copies = _with_fillers(row, copies, sizes)
    for path, parts in zip(row.paths, zip(*copies, strict=True), strict=True):
      params[path] = np.stack(parts) if _layered(row) else parts[0]
    used.update(wanted)
  return params, sorted(set(tensors) - used)


def for_each_block(x, sizes):
  """The copies of a parameter, one per written block; shared copies repeat."""
  if len(x) == sizes.blocks:
    return x
  layer, block = np.divmod(np.arange(sizes.blocks), sizes.inner_group_num)
  return x[layer * sizes.num_groups // sizes.num_layers * sizes.inner_group_num + block]


def _read(row: Row, names: tuple[str, ...], tensors, sizes) -> tuple[np.ndarray, ...]:
  """One block's copies of the parameters of a row."""
  theirs = _alike(row.theirs, [np.asarray(tensors[name], np.float32) for name in names])
  with errors.unreadable(
    f'{names[0]} has the shape {tensors[names[0]].shape}, which does not fit config.json: '
    'download or export the directory again'
  ):
    ours = row.transform.to_ours(theirs, sizes)
  return tuple(np.ascontiguousarray(x) for x in _several(ours))


def _with_fillers(row: Row, copies: list[tuple], sizes) -> list[tuple]:
  """The copies of all blocks; blocks without the tensor get the filler of `row.without`."""
  if row.without is None:
    return copies
  filler = tuple(np.asarray(x, np.float32) for x in _several(row.without(sizes)))
  read = iter(copies)
  return [next(read) if row.where(i, sizes) else filler for i in range(sizes.blocks)]


def _written(row: Row, x: np.ndarray, sizes) -> list[np.ndarray]:
  """The copies of a parameter that become tensors, in the order of `_places`."""
  if not _layered(row):
    return [x]
  having = _having(row, sizes)
  if len(having) < sizes.blocks and row.without is None:
    return list(x)
  x = for_each_block(x, sizes)
  return [x[i] for i in having]


def _places(row: Row, sizes) -> list[tuple[str, ...]]:
  """The names of a row's tensors, a tuple for each block that has them."""
  theirs = _several(row.theirs)
  if not _layered(row):
    return [theirs]
  inner = sizes.inner_group_num
  return [
    tuple(name.format(i=i, g=i // inner, j=i % inner) for name in theirs)
    for i in _having(row, sizes)
  ]


def _having(row: Row, sizes) -> list[int]:
  return [i for i in range(sizes.blocks) if row.where(i, sizes)]


def _layered(row: Row) -> bool:
  return '{' in _several(row.theirs)[0]


def _several(x) -> tuple:
  return x if isinstance(x, tuple) else (x,)


def _alike(form, parts):
  """A transform's argument: a tuple where the row has one, else the array alone."""
  return tuple(parts) if isinstance(form, tuple) else parts[0]
