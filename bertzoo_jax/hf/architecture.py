"""Architecture: the tensors, the config.json and the model card of a Hugging Face class.

A family of classes is one file with one `Architecture` per class. The files of this package are in
`hf/architectures/`, and the table at the foot of its `__init__.py` lists them. A file outside the
package needs no entry: `config.hf` and `--architecture` take `package.module:NAME`. A complete
example is `tests/outside/roformer_hf.py`.

Such a file defines five things ("ours" is this package, "theirs" is transformers).

1. `rows`: which parameter becomes which tensor. A Row pairs the path of our parameter with the name
   of their tensor. Paths begin with `encoder/` or with the name of a head, such as `mlm_head/`
   (`task_heads.rows` makes the rows of a head's dense layers). The word table of every encoder is
   WORD_TABLE:

       Row(WORD_TABLE, 'model.embeddings.tok_embeddings.weight')

   `{i}` in the tensor's name is the number of a layer. If the name has it, our parameter has a
   leading axis of layers, and `transform` converts one layer of it into the tensor. `{g}` and
   `{j}` are for layers in groups: the number of a group, and of a block within the group.

   torch stores a dense kernel as [out, in], with one axis for all heads. Ours is [in, out], and
   heads have a separate axis. KERNEL, HEADS_KERNEL and the other constants below convert between
   the two. For any other layout, write a Transform.

   If several parameters form one tensor, give a tuple of paths. `joined` concatenates them:

       Row(
         tuple(f'encoder/layers/attention/{x}/kernel' for x in ('query', 'key', 'value')),
         'model.layers.{i}.attn.Wqkv.weight',
         joined(HEADS_KERNEL, HEADS_KERNEL, HEADS_KERNEL),
       )

   If one parameter is stored as several tensors, give a tuple of names and use `parted`.

   A Row's further fields are for tensors that only some layers have (`where`, `without`) and for
   parameters that the encoder may lack (`absent`). `constant` is for a tensor that transformers
   expects in the file and that is no parameter here:

       constant('encoder.embed_positions.weight', sinusoids)

2. `keys`: the fields of config.json, each written at export and read at --init (`hf/keys.py`).
3. `sizes`: makes the second argument of transforms, a `Sizes` or any object with its first fields
   and whatever else your rows read. `encoder` is the linen module at export; at --init it is a
   namespace with the fields that `keys` read.
4. `heads` and `pipeline`: text of the model card.
5. `tokens`: how the tokenizer frames texts, if not as [CLS] A [SEP] B [SEP].

Export writes the directory, loads it with the transformers class called `name`, and compares logits
and token ids. If transformers has no such class, give `logits(directory, batch)`: a reference that
reads the directory itself (see `hf/verify.py`). Export fails if anything differs, if a tensor was
not loaded, or if a head was not compared. If a class has no head, its hidden states are compared.
Heads that are in no row are written to a separate file (HEADS_FILE in
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

# Paths of embedding tables, the same in all encoders of this package.
WORD_TABLE = 'encoder/embeddings/word/embedding'
POSITION_TABLE = 'encoder/embeddings/position/embedding'
TYPE_TABLE = 'encoder/embeddings/type/embedding'

# {name of an encoder: {field that no config.json has: its value when a config.json is read}}.
UNSAID = {
  'transformer': dict(initializer='truncated_normal'),
  'disentangled': dict(initializer='normal', vocab_multiple=1),
  'two_stream': dict(initializer='normal', memory_length=0, reuse_length=1),
}


class Sizes(NamedTuple):
  """The sizes that a transform may need besides the array."""

  num_heads: int  # attention heads
  num_layers: int  # layers of the stack, of inner_group_num blocks each
  # blocks that have tensors in the file. Layers of a group that share all parameters count as one
  # layer (ALBERT)
  blocks: int
  hidden_size: int  # width of the layers
  embedding_width: int  # width of the embeddings
  position_offset: int = 0  # rows of their position table before that of the first token
  num_groups: int = 1  # groups of layers that share parameters
  inner_group_num: int = 1  # blocks per group


class Transform(NamedTuple):
  """A change of layout and its inverse: (array, sizes) → array, for one layer.

  If a row has several parameters, their arrays are given and returned as a tuple. The same holds
  for several tensors.
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
POSITIONS = Transform(  # their first position_offset rows are for padding: zeros
  lambda x, s: np.concatenate([np.zeros((s.position_offset, x.shape[1]), x.dtype), x]),
  lambda y, s: y[s.position_offset :],
)


def plain_sizes(encoder, special=None) -> Sizes:
  """The Sizes of a stack without groups whose embeddings are as wide as its layers."""
  layers, width = encoder.num_layers, encoder.hidden_size
  return Sizes(encoder.num_heads, layers, layers, width, width)


def grouped_sizes(encoder, special=None) -> Sizes:
  """The Sizes of a stack that may share parameters in groups, with embeddings of any width."""
  layers, inner, width = encoder.num_layers, encoder.inner_group_num, encoder.hidden_size
  table = encoder.embedding_size or width
  groups = dict(num_groups=encoder.num_groups, inner_group_num=inner)
  return Sizes(encoder.num_heads, layers, layers * inner, width, table, **groups)


def joined(*transforms: Transform) -> Transform:
  """A Transform of several parameters to one tensor: concatenated along axis 0, in equal parts."""
  return Transform(
    lambda xs, s: np.concatenate([t.to_theirs(x, s) for t, x in zip(transforms, xs, strict=True)]),
    lambda y, s: tuple(t.to_ours(p, s) for t, p in zip(transforms, np.split(y, len(transforms)))),
  )


def parted(*transforms: Transform) -> Transform:
  """A Transform of one parameter to several tensors: one for each index of its first axis."""
  return Transform(
    lambda x, s: tuple(t.to_theirs(p, s) for t, p in zip(transforms, x, strict=True)),
    lambda ys, s: np.stack([t.to_ours(y, s) for t, y in zip(transforms, ys, strict=True)]),
  )


class Row(NamedTuple):
  """Parameters of ours, tensors of theirs, and the transform between them."""

  # path of the parameter, or a tuple of paths; '' for none (`constant`)
  ours: str | tuple[str, ...]
  theirs: str | tuple[str, ...]  # name of the tensor, or a tuple of names
  transform: Transform = SAME  # converts one layer of the parameter
  # sizes → the tensor to write if the encoder lacks the parameter, or None to write none. Without
  # this function the encoder must have the parameter.
  absent: Callable | None = None
  where: Callable = lambda block, sizes: True  # (block, sizes) → whether that block has the tensor
  # sizes → our array for a block that lacks the tensor (a tuple if `ours` is one); None if our
  # parameter is stacked only over the blocks that have the tensor.
  without: Callable | None = None

  @property
  def paths(self) -> tuple[str, ...]:
    """The paths of its parameters."""
    return _several(self.ours) if self.ours else ()


def constant(theirs: str, make: Callable) -> Row:
  """The Row of a tensor of theirs that is no parameter here. make: sizes → the tensor."""
  return Row('', theirs, absent=make)


def norm(ours: str, theirs: str) -> tuple[Row, ...]:
  """Rows of a layer norm."""
  return Row(f'{ours}/scale', f'{theirs}.weight'), Row(f'{ours}/bias', f'{theirs}.bias')


def dense(ours: str, theirs: str, kernel=KERNEL, bias=SAME) -> tuple[Row, ...]:
  """Rows of a dense layer."""
  kernels = Row(f'{ours}/kernel', f'{theirs}.weight', kernel)
  return kernels, Row(f'{ours}/bias', f'{theirs}.bias', bias)


class Computed(NamedTuple):
  """The part of an encoder that a class of transformers computes."""

  encoder: Any  # linen module that computes what the class computes
  # names of tensors that are written for --init, and that the class does not load
  unread: tuple[str, ...] = ()
  note: str = ''  # text for the card about the difference
  pipeline: str | None = None  # transformers' pipeline for the card; None: the architecture's


# Key of config.json for objective.Network.learned; left out if the network only learned from masks.
LEARNED = 'bertzoo_learned'


class Architecture(NamedTuple):
  """A class of Hugging Face."""

  name: str  # name of the class
  model_type: str  # `model_type` of its config.json
  rows: tuple[Row, ...]  # its tensors
  # (encoder, special) → the second argument of the rows' transforms. special: ids by name.
  sizes: Callable
  keys: tuple[keys.Key, ...]  # fields of its config.json, see hf/keys.py
  heads: str  # text of the card about the heads that the class has and lacks
  # transformers' pipeline for the card; '' if no pipeline can load the class
  pipeline: str = 'fill-mask'
  # {tensor: the tensor that it repeats}; such tensors are neither written nor read
  tied: Mapping[str, str] = {}
  buffers: tuple[str, ...] = ()  # suffixes of names of tensors that are not parameters
  # name of a tensor in an old file → its name in today's class
  rename_legacy: Callable = lambda name: name
  # (params, the encoder's fields) → both, corrected. Called after all rows are read. It is for
  # fields that depend on which tensors the file has, and for parameters that our encoder stores in
  # another way
  post_read: Callable = lambda params, fields: (params, fields)
  part: str = 'transformer'  # config.encoder.name of our encoder for this class
  # fields of the encoder that no config.json has, where they differ from UNSAID
  unsaid: Mapping[str, Any] = {}
  # encoder → Computed, the part of the trained network that the class computes
  computes: Callable = Computed
  segments: int = 1  # type_vocab_size of the class for an encoder without a segment table
  # the activation that its head always applies; None if it is the encoder's
  head_activation: str | None = None
  # {our name of an activation: theirs}, for the activations that the class has
  activations: Mapping[str, str] = keys.ACTIVATIONS
  # keys of config.json for the dropout of its sequence classification head: before the classifier,
  # and before the dense layer
  head_dropouts: tuple[str, ...] = ()
  # how its tokenizer frames texts; None if transformers has no tokenizer for it: then none is
  # written or compared
  tokens: tokenizer.Shape | None = tokenizer.Shape()
  # whether it may read checkpoints of its model type; False if its tensors are a subset of those
  # of another class
  reads: bool = True
  # (directory, batch) → the arrays to compare with our logits, in the form of `verify.logits`;
  # None: those of the transformers class called `name`
  logits: Callable | None = None
  load_args: Mapping[str, Any] = {}  # arguments of its from_pretrained for verification
  # {path: parameter} → whether the class can have heads of these shapes
  holds: Callable = lambda params: True

  @property
  def places(self) -> set[str]:
    """Paths of the parameters in its rows."""
    return {path for row in self.rows for path in row.paths}

  @property
  def defaults(self) -> dict[str, Any]:
    """Values that transformers assumes for keys that config.json leaves out."""
    return keys.usual(self.keys)

  @property
  def head_names(self) -> set[str]:
    """Names of the heads in its rows."""
    return {path.split('/')[0] for path in self.places} - {'encoder'}


def prefixed(prefix: str, *begins: str) -> Callable:
  """An `Architecture.rename_legacy` that adds a prefix to names that begin with one of `begins`.

  Files of a network that was saved without a head lack this prefix.
  """
  return lambda name: f'{prefix}.{name}' if name.startswith(begins) else name


def applies(a: Architecture, activation: str) -> bool:
  """Whether the head of the class applies this activation. activation: that of the encoder."""
  return a.head_activation in (None, activation)


def misfits(a: Architecture, paths) -> tuple[list[str], list[str]]:
  """(paths that are in no row, paths that a row needs and `paths` lacks), each sorted."""
  paths = set(paths)
  empty = set()
  for row in a.rows:
    missing = set(row.paths) - paths
    if row.absent is None or len(missing) < len(row.paths):
      empty |= missing
  return sorted(paths - a.places), sorted(empty)


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
  """Raises UserError if a parameter has no row, or if a row lacks a parameter that it needs.

  paths: of the parameters. known: other architectures by name, from which the message names one
  that fits.
  """
  paths = list(paths)
  homeless, empty = misfits(a, paths)
  if homeless or empty:
    problem = f'has no place for {homeless[0]!r}' if homeless else ''
    problem = problem or f'needs {empty[0]!r}, which was not trained'
    fits = [name for name, other in (known or {}).items() if not any(misfits(other, paths))]
    remedy = 'No known architecture fits: write one and give it as --architecture or config.hf '
    remedy += '(bertzoo_jax/hf/architecture.py).'
    remedy = f'--architecture={fits[0]} fits.' if fits else remedy
    raise errors.UserError(f'{a.name} {problem}. {remedy}')


def config(
  a: Architecture, encoder, special: Mapping[str, int], vocab_size: int, known=None
) -> dict[str, Any]:
  """The content of config.json. Raises UserError if the class and the encoder compute differently.

  special: ids by name: pad, unk, cls, sep, mask. vocab_size: rows of the word table. known: other
  architectures by name, from which the message names those that fit.
  """
  errors.choose(encoder.activation, a.activations, 'activation that Hugging Face has')
  if not applies(a, encoder.activation):
    others = sorted(name for name, other in (known or {}).items() if other.head_activation is None)
    remedy = f': export as --architecture={" or ".join(others)}.' if others else '.'
    raise errors.UserError(
      f'The head of {a.name} always applies {a.head_activation}, but this model was trained '
      f'with {encoder.activation}{remedy}'
    )
  return keys.content(a, encoder, special, vocab_size)


def encoder(a: Architecture, content: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
  """(the encoder's fields, sizes) of a config.json. UserError for a setting that no encoder has."""
  fields, pad = keys.fields(a.keys, content), content.get('pad_token_id')
  sizes = a.sizes(types.SimpleNamespace(**fields), {'pad': 1 if pad is None else pad})
  if 'activation' in fields and not applies(a, fields['activation']):
    raise errors.UserError(
      f'config.json says the activation {fields["activation"]}, but the head of {a.name} always '
      f'applies {a.head_activation}. A network here has the same activation in its encoder and its '
      'head, so this one cannot be read.'
    )
  return fields, sizes


def section(a: Architecture, fields: Mapping[str, Any]) -> dict[str, Any]:
  """The config section of the encoder: `fields`, as `encoder` returns them, and the fields that no
  config.json has. An encoder outside the package must have defaults for all other fields.
  """
  return {'name': a.part, **UNSAID.get(a.part, {}), **a.unsaid, **fields}


def to_hf(a: Architecture, params: Mapping[str, Any], sizes) -> dict[str, np.ndarray]:
  """{their name: tensor, float32}. params: {our path: array}. Raises UserError as `check` does."""
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
  """({our path: parameter, float32}, names of the tensors that no row reads).

  Raises UserError if some layers lack a tensor that others have, if a shape does not fit the sizes,
  and if there are more layers than tensors.
  """
  if sizes.blocks > len(tensors):
    raise errors.UserError(
      f'config.json says {sizes.blocks:,} layers, but the weights have {len(tensors):,} tensors: '
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
  """A parameter [stacked, …] as [blocks, …]: blocks that share parameters get the same array."""
  if len(x) == sizes.blocks:
    return x
  layer, block = np.divmod(np.arange(sizes.blocks), sizes.inner_group_num)
  return x[layer * sizes.num_groups // sizes.num_layers * sizes.inner_group_num + block]


def _read(row: Row, names: tuple[str, ...], tensors, sizes) -> tuple[np.ndarray, ...]:
  """The parameters of a row for one block. names: of its tensors."""
  theirs = _alike(row.theirs, [np.asarray(tensors[name], np.float32) for name in names])
  with errors.unreadable(
    f'{names[0]} has the shape {tensors[names[0]].shape}, which does not fit config.json: '
    'download or export the directory again'
  ):
    ours = row.transform.to_ours(theirs, sizes)
  return tuple(np.ascontiguousarray(x) for x in _several(ours))


def _with_fillers(row: Row, copies: list[tuple], sizes) -> list[tuple]:
  """The parameters of a row for all blocks: those that lack the tensor get `row.without`."""
  if row.without is None:
    return copies
  filler = tuple(np.asarray(x, np.float32) for x in _several(row.without(sizes)))
  read = iter(copies)
  return [next(read) if row.where(i, sizes) else filler for i in range(sizes.blocks)]


def _written(row: Row, x: np.ndarray, sizes) -> list[np.ndarray]:
  """The arrays of a parameter that become tensors, one per block, in the order of `_places`."""
  if not _layered(row):
    return [x]
  having = _having(row, sizes)
  if len(having) < sizes.blocks and row.without is None:
    return list(x)
  x = for_each_block(x, sizes)
  return [x[i] for i in having]


def _places(row: Row, sizes) -> list[tuple[str, ...]]:
  """The names of a row's tensors: a tuple for each block that has them."""
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
  """The argument of a transform: all parts as a tuple if `form` is a tuple, else the one part."""
  return tuple(parts) if isinstance(form, tuple) else parts[0]
