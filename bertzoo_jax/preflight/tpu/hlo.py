"""The cost of one execution of an optimized TPU program, read from its text, by the compiler's own
estimates.

The text is a list of computations. The entry computation calls the others: a loop repeats its body,
a conditional runs one of its branches. Every instruction is counted as often as it runs.
`estimated_cycles` is the compiler's model of an operation. Gathers, collectives, Pallas kernels and
small operations have none, and are listed instead. `Reading.visited` is compared with the
compiler's own count of operations, which shows a computation that the reader missed.
"""

import math
import re
from typing import NamedTuple

from bertzoo_jax.preflight.tpu import hlo_text

_BRANCHES = re.compile(r'\bbranch_computations=\{([^}]*)\}')
_CYCLES = re.compile(r'"estimated_cycles":"?(-?\d+)')

# Operations that take no time of their own, or end an operation that another instruction began.
_FREE = frozenset(
  """
  parameter constant get-tuple-element tuple bitcast after-all partition-id replica-id opt-barrier
  add-dependency domain rng-get-and-update-state copy-done slice-done dynamic-slice-done
  dynamic-update-slice-done async-update async-done all-reduce-done all-gather-done
  reduce-scatter-done collective-permute-done all-to-all-done send-done recv-done custom-call-done
  """.split()
)
_BOOKKEEPING = tuple(
  'X64 Assume Sharding AllocateBuffer AnnotateDevicePlacement MoveTo ExtendedUint Pin Unpin'.split()
)
_COLLECTIVES = frozenset(
  'all-reduce all-gather reduce-scatter all-to-all collective-permute ragged-all-to-all '
  'collective-broadcast'.split()
)
_MOVES = ('copy-start', 'slice-start', 'dynamic-slice-start', 'dynamic-update-slice-start')


class Cost(NamedTuple):
  """An instruction that runs."""

  name: str
  opcode: str
  source: str
  times: int  # how often it runs in one execution of the program
  cycles: int | None  # estimated for one run; None without an estimate
  hbm: int  # bytes that one run reads from and writes to HBM
  flops: float  # FLOPs of its matrix products, per run
  kernel: str  # name of a Pallas kernel, '' for the compiler's own operations


class Collective(NamedTuple):
  """Devices that exchange numbers."""

  opcode: str  # 'all-reduce', …
  # per device: of an all-reduce or a reduce-scatter its operand, of an all-gather its result
  bytes: int
  group: int  # number of devices that take part together
  times: int  # how often it runs in one execution of the program
  source: str  # see Instruction


class Reading(NamedTuple):
  """The cost of one execution, by instruction."""

  costs: list[Cost]  # all instructions that take time, without collectives
  collectives: list[Collective]  # in the order met
  unknown_trips: list[str]  # loops without a trip count in the text; counted once
  unvisited: list[str]  # computations that nothing reached
  # matrix FLOPs of everything visited, loop bodies once, as the compiler counts them
  visited: float

  @property
  def cycles(self) -> int:
    return sum(c.times * (c.cycles or 0) for c in self.costs)

  @property
  def hbm(self) -> int:
    """Bytes from and to HBM."""
    return sum(c.times * c.hbm for c in self.costs)

  @property
  def flops(self) -> float:
    """Matrix FLOPs, recomputation included."""
    return sum(c.times * c.flops for c in self.costs)

  @property
  def kernels(self) -> dict[str, int]:
    """{Pallas kernel: how often it runs}."""
    out = {}
    for c in self.costs:
      if c.kernel:
        out[c.kernel] = out.get(c.kernel, 0) + c.times
    return out

  def without_estimate(self) -> list[tuple[str, int, int]]:
    """(opcode or kernel, times, bytes from and to HBM) without an estimate, most bytes first."""
    out = {}
    for c in self.costs:
      if c.cycles is None:
        times, moved = out.get(c.kernel or c.opcode, (0, 0))
        out[c.kernel or c.opcode] = times + c.times, moved + c.times * c.hbm
    return sorted(((name, *counts) for name, counts in out.items()), key=lambda row: -row[2])


def read(text: str, kernels: dict[str, int] | None = None) -> Reading:
  """The cost of one execution of a program.

  Args:
    text: text of the optimized program (`compiled.as_text()`).
    kernels: of Pallas kernels, {'kernel [512,768]': cycles of one run for each row of the batch,
      for a first result [B,512,768]}, or {'kernel': cycles of one run}.
  """
  module = hlo_text.parse(text)
  walk = _Walk(module, kernels or {})
  costs, collectives = walk.computation(module.entry, 1)
  unvisited = [name for name in module.computations if name not in walk.reached]
  once, seen = 0.0, set()
  for cost in costs:
    if cost.name not in seen:
      seen.add(cost.name)
      once += cost.flops
  return Reading(costs, collectives, walk.unknown_trips, unvisited, once)


class _Walk:
  """Walks through the program from its entry."""

  def __init__(self, module, kernels):
    self.module, self.kernels = module, kernels
    self.reached, self.unknown_trips = set(), []

  def computation(self, name, times):
    """(costs, collectives) of a computation that runs `times` times."""
    self.reached.add(name)
    costs, collectives = [], []
    for instruction in self.module.computations.get(name, {}).values():
      more, exchanged = self._instruction(name, instruction, times)
      costs += more
      collectives += exchanged
    return costs, collectives

  def _instruction(self, computation, instruction, times):
    opcode, called = instruction.opcode, instruction.called
    if opcode == 'while':
      turns = self._trips(instruction)
      self._touch(called['condition'])
      return self.computation(called['body'], times * turns)
    if opcode == 'conditional':
      names = _branches(instruction) or (called['true_computation'], called['false_computation'])
      branches = [self.computation(n, times) for n in names]
      return max(
        branches,
        key=lambda branch: (
          sum(c.times * (c.cycles or 0) for c in branch[0]),
          sum(c.times * c.hbm for c in branch[0]),
        ),
      )
    if opcode in ('call', 'async-start') and (
      target := called.get('to_apply') or called.get('calls')
    ):
      if _CYCLES.search(instruction.attributes):  # estimated as a whole
        self._touch(target)
      else:
        return self.computation(target, times)
    for target in called.values():
      self._touch(target)
    exchanged = self._exchanges(computation, instruction, times)
    if opcode in _FREE or (exchanged and opcode != 'fusion'):
      return [], exchanged
    target = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    if target and target[1].startswith(_BOOKKEEPING):
      return [], []
    return [self._cost(computation, instruction, target[1] if target else '', times)], exchanged

  def _cost(self, computation, instruction, target, times):
    estimate = _CYCLES.search(instruction.attributes)
    cycles, kernel = (int(estimate[1]) if estimate else None), ''
    if target == 'tpu_custom_call':
      kernel = _kernel_name(instruction)
      batch, _, row_shape = hlo_text.ARRAY.findall(instruction.shape)[0][1].partition(',')
      row_cycles = self.kernels.get(f'{kernel} [{row_shape}]')
      cycles = self.kernels.get(kernel, cycles) if row_cycles is None else int(batch) * row_cycles
    return Cost(
      instruction.name,
      target or instruction.opcode,
      instruction.source,
      times,
      cycles,
      self._moved(computation, instruction),
      self._flops(computation, instruction),
      kernel,
    )

  def _exchanges(self, computation, instruction, times):
    """The collectives of an instruction: itself, or those inside a fusion, where an all-reduce of
    which each device keeps a slice is a reduce-scatter.
    """
    if (kind := instruction.opcode.removesuffix('-start')) in _COLLECTIVES:
      return [self._collective(computation, instruction, kind, times)]
    if instruction.opcode != 'fusion':
      return []
    target = instruction.called.get('calls', '')
    inner = self.module.computations.get(target, {})
    parts = [c for i in inner.values() for c in self._exchanges(target, i, times)]
    if any(i.opcode == 'dynamic-slice' for i in inner.values()):
      return [c._replace(opcode='reduce-scatter') if c.opcode == 'all-reduce' else c for c in parts]
    return parts

  def _collective(self, computation, instruction, kind, times):
    shapes = [self._shape(computation, name) for name in instruction.operands]
    operands = sum(hlo_text.size(s) for s in shapes)
    both = instruction.opcode.endswith('-start') and instruction.shape.startswith('((')
    result = hlo_text.size(instruction.shape) - operands * both
    group = hlo_text.group(instruction.attributes, self.module.devices)
    return Collective(
      kind, result if kind == 'all-gather' else operands, group, times, instruction.source
    )

  # --- loops ---

  def _trips(self, instruction):
    if known := re.search(r'known_trip_count":?\s*\{"n":"?(\d+)', instruction.attributes):
      return int(known[1])
    condition = self.module.computations.get(instruction.called['condition'], {})
    constants = [i.operands[0] for i in condition.values() if i.opcode == 'constant']
    bounds = [int(n) for n in constants if n.isdecimal()]
    if len(bounds) == 1:
      return math.ceil(bounds[0] / self._stride(instruction))
    self.unknown_trips.append(instruction.name)
    return 1

  def _stride(self, loop):
    """The step of a loop's counter; 1 if it is not found."""
    condition, body = (
      self.module.computations.get(loop.called[name], {}) for name in ('condition', 'body')
    )
    places = [
      re.search(r'index=(\d+)', i.attributes)[1]
      for i in condition.values()
      if i.opcode == 'get-tuple-element'
    ]
    root = next((i for i in body.values() if i.root and i.opcode == 'tuple'), None)
    if len(places) != 1 or root is None:
      return 1
    grown = body.get(root.operands[int(places[0])])
    terms = grown.operands if grown and grown.opcode == 'add' else ()
    added = [body[n].operands[0] for n in terms if n in body and body[n].opcode == 'constant']
    return int(added[0]) if len(added) == 1 and added[0].isdecimal() and int(added[0]) else 1

  def _touch(self, name):
    """Marks all computations that an instruction with an estimate calls, directly or indirectly."""
    if name in self.reached:
      return
    self.reached.add(name)
    for instruction in self.module.computations.get(name, {}).values():
      for target in (*instruction.called.values(), *_branches(instruction)):
        self._touch(target)

  # --- bytes ---

  def _shape(self, computation, name):
    instruction = self.module.computations[computation].get(name)
    return instruction.shape if instruction else ''

  def _fused(self, instruction):
    """The computation of a fusion; None for another instruction."""
    if instruction.opcode == 'fusion':
      return self.module.computations.get(instruction.called.get('calls', ''))
    return None

  def _moved(self, computation, instruction):
    """Bytes from and to HBM: operands and results outside on-chip memory; for an array that is only
    sliced or written in part, that part.
    """
    if instruction.opcode in _MOVES:
      arrays = ['%s[%s]%s' % a for a in hlo_text.ARRAY.findall(instruction.shape)]
      smaller = min((hlo_text.size(a) for a in arrays[:2]), default=0)
      return smaller * sum('S(' not in a for a in arrays[:2])
    inner = self._fused(instruction)
    read = 0
    for index, name in enumerate(instruction.operands):
      whole = hlo_text.size(self._shape(computation, name), hbm_only=True)
      if whole and inner is not None:
        whole = min(whole, self._used(inner, index))
      elif whole and instruction.opcode in ('dynamic-slice', 'slice', 'gather') and index == 0:
        whole = min(whole, hlo_text.size(instruction.shape))
      elif whole and instruction.opcode in ('dynamic-update-slice', 'scatter') and index == 0:
        whole = 0
      read += whole
    return read + self._written(computation, instruction, inner)

  def _used(self, computation, index):
    """Bytes that a fused computation reads of one parameter."""
    total = 0
    aliases = [
      i.name
      for i in computation.values()
      if i.opcode == 'parameter' and i.operands == (str(index),)
    ][:1]
    while aliases:
      alias = aliases.pop()
      if computation[alias].root:
        return hlo_text.size(computation[alias].shape)
      for user in computation.values():
        for place, operand in enumerate(user.operands):
          if operand != alias or user.opcode == 'parameter':
            continue
          if user.opcode == 'bitcast':
            aliases.append(user.name)
          elif user.opcode in ('dynamic-slice', 'slice', 'gather') and place == 0:
            total += hlo_text.size(user.shape)
          elif user.opcode in ('dynamic-update-slice', 'scatter') and place == 0:
            continue
          elif (inner := self._fused(user)) is not None:
            total += self._used(inner, place)
          else:
            return hlo_text.size(computation[alias].shape)
    return total

  def _written(self, computation, instruction, inner):
    shape = instruction.shape
    if inner is not None:
      root = next((i for i in inner.values() if i.root), None)
      roots = [root]
      if root is not None and root.opcode == 'tuple':
        roots = [inner[n] for n in root.operands if n in inner]
      arrays = ['%s[%s]%s' % a for a in hlo_text.ARRAY.findall(shape)]
      if len(arrays) == len(roots):
        return sum(
          min(hlo_text.size(a, hbm_only=True), self._part(inner, r)) for a, r in zip(arrays, roots)
        )
    if instruction.opcode in ('dynamic-update-slice', 'scatter'):
      update = instruction.operands[-1 if instruction.opcode == 'scatter' else 1]
      return min(
        hlo_text.size(shape, hbm_only=True), hlo_text.size(self._shape(computation, update))
      )
    return hlo_text.size(shape, hbm_only=True)

  def _part(self, computation, root):
    """Bytes that the root of a fused computation writes; for an update in place, the update."""
    while root is not None and root.opcode == 'bitcast' and root.operands[0] in computation:
      root = computation[root.operands[0]]
    if root is None:
      return 0
    if inner := self._fused(root):
      return self._part(inner, next((i for i in inner.values() if i.root), None))
    if root.opcode in ('dynamic-update-slice', 'scatter'):
      update = computation.get(root.operands[-1 if root.opcode == 'scatter' else 1])
      return hlo_text.size(update.shape) if update else hlo_text.size(root.shape)
    return hlo_text.size(root.shape)

  # --- matrix products ---

  def _flops(self, computation, instruction):
    if instruction.opcode == 'fusion':
      target = instruction.called.get('calls', '')
      return sum(self._flops(target, i) for i in self.module.computations.get(target, {}).values())
    if instruction.opcode == 'convolution':
      return hlo_text.convolution_flops(
        instruction.shape,
        *(self._shape(computation, n) for n in instruction.operands[:2]),
        instruction.attributes,
      )
    if instruction.opcode == 'dot':
      left = hlo_text.dims(self._shape(computation, instruction.operands[0]))
      contracted = re.search(r'lhs_contracting_dims=\{([\d,]*)\}', instruction.attributes)
      depth = math.prod(left[int(d)] for d in contracted[1].split(',') if d) if contracted else 1
      return 2.0 * math.prod(hlo_text.dims(instruction.shape)) * depth
    # of a Pallas kernel, by its author
    match = re.search(r'"cost_estimate":\{"flops":"(\d+)"', instruction.attributes)
    return float(match[1]) if match else 0.0


def _branches(instruction) -> list[str]:
  """The branches of a conditional: one of them runs."""
  match = _BRANCHES.search(instruction.attributes) if instruction.opcode == 'conditional' else None
  return [n.strip().lstrip('%') for n in match[1].split(',')] if match else []


def _kernel_name(instruction) -> str:
  """The name given to the kernel: the innermost scope around its call."""
  scopes = instruction.source.split('/')
  scope = scopes[-2] if len(scopes) > 1 and scopes[-1] == 'pallas_call' else scopes[-1]
  return scope.rpartition('(')[2].rstrip(')') or instruction.name
