"""The text of a compiled program: computations, instructions, shapes, groups, products."""

import math
import re
from typing import NamedTuple

_HEADER = re.compile(r'^(ENTRY )?%?([\w.\-<>]+) \(.*\{$')
_INSTRUCTION = re.compile(r'^\s+(?:ROOT )?%?([\w.\-<>]+) = (.*?) ([a-z][\w\-]*)\(')
ARRAY = re.compile(r'\b([a-z]+\d*\w*)\[([\d,]*)\](\{[^}]*\})?')
_CALLED = re.compile(
  r'\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-<>]+)'
)
_BITS = {f'{kind}{n}': n for kind in 'su' for n in (2, 4, 8, 16, 32, 64)}
_BITS |= dict(pred=8, f16=16, bf16=16, f32=32, f64=64, c64=64, c128=128)


class Instruction(NamedTuple):
  """A line of a computation: %name = shape opcode(operands), attributes."""

  name: str
  shape: str
  opcode: str
  operands: tuple[str, ...]  # names; of a constant its value, of a parameter its number
  attributes: str
  root: bool

  @property
  def source(self) -> str:
    """The operation of the traced program that it comes from, as a path of scopes."""
    match = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
    return match[1] if match else ''

  @property
  def called(self) -> dict[str, str]:
    """{attribute: computation}."""
    head = self.attributes.split(', metadata=')[0].split(', backend_config=')[0]
    return dict(_CALLED.findall(head))


class Module(NamedTuple):
  """A program: its entry's name, {computation: {name: Instruction}}, how many devices run it."""

  entry: str
  computations: dict[str, dict[str, Instruction]]
  devices: int


def parse(text: str) -> Module:
  """The computations of a program's text. Raises ValueError if there is no entry."""
  computations, entry, instructions = {}, None, None
  for line in text.splitlines():
    if line[:1] not in (' ', '}', '') and (match := _HEADER.match(line.rstrip())):
      instructions = computations[match[2]] = {}
      entry = match[2] if match[1] else entry
    elif line.startswith('}'):
      instructions = None
    elif instructions is not None and (match := _INSTRUCTION.match(line)):
      inside, rest = _parenthesis(line, match.end())
      name, shape, opcode = match.groups()
      is_value = opcode in ('constant', 'parameter')  # else its operands are names
      operands = (inside,) if is_value else tuple(re.findall(r'%([\w.\-<>]+)', inside))
      root = line.lstrip().startswith('ROOT ')
      instructions[name] = Instruction(name, shape, opcode, operands, rest, root)
  if entry is None:
    raise ValueError('no ENTRY computation: not the text of a compiled program')
  head = text.partition('\n')[0]  # has the number of devices, unless it is 1
  counts = (re.search(rf'\b{name}=(\d+)', head) for name in ('replica_count', 'num_partitions'))
  return Module(entry, computations, math.prod(int(count[1]) for count in counts if count))


def size(shape: str, hbm_only: bool = False) -> int:
  """Bytes of a shape, tuples added up, without the padding of tiles; `hbm_only`: without arrays in
  on-chip memory, which a layout marks with S(n).
  """
  total = 0
  for dtype, dims, layout in ARRAY.findall(shape):
    bits = _BITS.get(dtype, 8 if dtype.startswith('f8') else 0)
    if bits and not (hbm_only and 'S(' in layout):
      total += math.prod(int(d) for d in dims.split(',') if d) * bits // 8
  return total


def convolution_flops(shape: str, left: str, right: str, attributes: str) -> float:
  """FLOPs of a convolution, which every matrix product becomes; products with zeros of padding or
  dilation are not counted. shape, left, right: shapes of the result and the operands.
  """
  labels = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', attributes)
  out, in_, kernel = dims(shape), dims(left), dims(right)
  window = re.search(r'window=\{([^}]*)\}', attributes)
  fields = dict(part.split('=') for part in window[1].split()) if window else {}
  axes = sorted(c for c in labels[1] if c.isdigit())
  field = lambda name, i, default: fields[name].split('x')[i] if name in fields else default
  valid = 1
  for i, axis in enumerate(axes):
    sizes = zip((kernel, out, in_), labels.group(2, 3, 1))
    taps, places, length = (array[names.index(axis)] for array, names in sizes)
    names = 'stride', 'lhs_dilate', 'rhs_dilate'
    stride, spread, apart = (int(field(name, i, 1)) for name in names)
    before = int(str(field('pad', i, '0_0')).split('_')[0])
    hits = 0
    for tap in range(taps):
      for place in range(places):
        at = place * stride + tap * apart - before
        hits += at % spread == 0 and 0 <= at // spread < length
    valid *= hits
  count = lambda name: int(match[1]) if (match := re.search(rf'{name}=(\d+)', attributes)) else 1
  features = kernel[labels[2].index('i')] * kernel[labels[2].index('o')]
  rows = in_[labels[1].index('b')] // count('batch_group_count')
  return 2.0 * features * rows * valid


def dims(shape: str) -> list[int]:
  match = ARRAY.search(shape)
  return [int(d) for d in match[2].split(',') if d] if match else []


def group(attributes: str, devices: int) -> int:
  """Number of devices in a replica group, in any notation; 1 without a group. devices: of the
  program, the result for an empty list of groups and for an unknown notation.
  """
  # the order of devices may stand between the mesh and the group's axes, or parts of axes
  if match := re.search(r'replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}', attributes):
    axes = dict(re.findall(r"'([^']+)'=(\d+)", match[1]))
    parts = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", match[2])
    return math.prod(int(part or axes.get(name, devices)) for name, part in parts)
  if match := re.search(r'replica_groups=\[(\d+),(\d+)\]', attributes):
    return int(match[2])
  if match := re.search(r'replica_groups=\{\{([\d,]*)\}', attributes):
    return len(match[1].split(','))
  if 'replica_groups=' in attributes:
    return devices
  return 2 if 'source_target_pairs=' in attributes else 1


def _parenthesis(line: str, start: int) -> tuple[str, str]:
  """The text inside the parenthesis that opens before `start`, and the rest of the line."""
  depth = 1
  for match in re.compile(r'[()]').finditer(line, start):
    depth += 1 if match[0] == '(' else -1
    if not depth:
      return line[start : match.start()], line[match.end() :]
  return line[start:], ''
