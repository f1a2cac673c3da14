"""A scanned stack of layers: program size does not grow with depth, and a table says which
parameters layers share.

A stack of n layers has G groups of consecutive layers, and a layer has k blocks (1, except with Lan
et al.'s `inner_group_num`). A stacked parameter has n·k copies, one per block. A broadcast
parameter has G·k copies, which all layers of a group share. Every leaf has its copies in a leading
axis, even a single one.
"""

import re
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util

from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys

# Which parameters layers share: ordered (regex of a path in a layer, 'stacked' | 'broadcast');
# Lan et al. 2019, Table 4.
SHARING = {
  'none': (('', 'stacked'),),
  'all': (('', 'broadcast'),),
  'attention': (('^attention', 'broadcast'), ('', 'stacked')),
  'feed_forward': (('^feed_forward', 'broadcast'), ('', 'stacked')),
}

# run.remat: which activations of a layer are saved for the backward pass besides its input, from
# most to least. The others are recomputed.
_saving = jax.checkpoint_policies.save_only_these_names
REMAT = {
  'none': None,  # saves everything that the backward pass reads
  'sublayers': _saving('attended', 'attention_output', 'feed_forward_output'),
  'feed_forward': _saving('feed_forward_output'),
  'full': jax.checkpoint_policies.nothing_saveable,
}


class Plan(NamedTuple):
  """How layers make a stack."""

  num_layers: int  # n
  # a table as in SHARING; the first rule that matches a leaf's path decides
  sharing: tuple[tuple[str, str], ...] = SHARING['none']
  num_groups: int = 1  # G, which divides n
  inner_group_num: int = 1  # k, blocks per layer

  @property
  def blocks(self) -> int:
    """Blocks that run one after the other."""
    return self.num_layers * self.inner_group_num

  def copies(self, path: str) -> int:
    """Number of copies of a parameter. Raises UserError if no rule matches its path."""
    for pattern, kind in self.sharing:
      if re.search(pattern, path):
        layers = {'stacked': self.num_layers, 'broadcast': self.num_groups}[kind]
        return layers * self.inner_group_num
    raise errors.UserError(
      f"The sharing table has no rule for {path!r}: end it with ('', 'stacked')."
    )


class BlockInputs(NamedTuple):
  """Arguments of a block besides its parameters and its input."""

  number: jax.Array  # number of the block, from 0; int32 scalar, traced inside the scan
  place: int  # number modulo `period`; static, so that different blocks may alternate
  keys_B2: jax.Array | None  # keys of the rows, folded with the number; None without dropout
  inputs: Any  # the block's slice of the per-block inputs


def init(init_block, key, plan: Plan):
  """Parameters of a stack.

  init_block: key → parameters of one block. key: split into one key per block. plan: the stack.
  """
  keys = jax.random.split(key, plan.blocks)
  flat = {}
  for count in {plan.blocks, plan.num_groups * plan.inner_group_num}:
    # Under jit, copies that are not used are not computed.
    flat[count] = traverse_util.flatten_dict(jax.vmap(init_block)(keys[:count]), sep='/')
  return traverse_util.unflatten_dict(
    {path: flat[plan.copies(path)][path] for path in flat[plan.blocks]}, sep='/'
  )


def block_params(params, plan: Plan, number: int):
  """Parameters of the block `number`, as `init_block` returns them. params: as `init` returned."""
  layer, inner = divmod(number, plan.inner_group_num)
  shared = layer * plan.num_groups // plan.num_layers * plan.inner_group_num + inner
  flat = traverse_util.flatten_dict(params, sep='/')
  block = {p: x[number if plan.copies(p) == plan.blocks else shared] for p, x in flat.items()}
  return traverse_util.unflatten_dict(block, sep='/')


def scan(
  apply,
  params,
  x,
  keys_B2,
  plan: Plan,
  *,
  inputs=None,
  first: int = 0,
  end: int | None = None,
  period: int = 1,
  unroll: int = 1,
  remat: str = 'none',
):
  """Runs the blocks first … end − 1 of a stack.

  Args:
    apply: (parameters of one block, x, BlockInputs) → (x, output of the block or None).
    params: as `init` returned.
    x: input of the first block.
    keys_B2: keys of the rows (row_keys.py), folded with each block's number; None without dropout.
    plan: the stack.
    inputs: pytree of arrays [blocks, …], one slice per block of the whole stack; None for none.
    first, end: blocks to run; all by default. So the first and the last blocks of a stack can run
      separately, with `block_params`. With groups, both must be borders of groups.
    period: blocks n and n + period have the same structure; `BlockInputs.place` is n modulo period.
      The program holds at most 3·period − 2 blocks. Needs layers of one block.
    unroll: blocks per iteration of the scan.
    remat: a key of REMAT.

  Returns (x, outputs [end − first, …] or None).

  Raises UserError: blocks that do not exist, a part of a group, or a period that groups break: the
  config has fewer layers, or other groups, than the encoder can run.
  """
  end = plan.blocks if end is None else end
  inner = plan.inner_group_num
  whole = plan.num_layers // plan.num_groups * inner
  _check_run(plan, first, end, period)
  groups = max(1, (end - first) // whole)
  repeats = (end - first) // (groups * inner)

  flat = traverse_util.flatten_dict(params, sep='/')
  # A broadcast parameter with one copy per block is treated as stacked.
  stacked = {p: leaf for p, leaf in flat.items() if plan.copies(p) == plan.blocks}
  shared = {p: leaf for p, leaf in flat.items() if p not in stacked}
  per_block = (stacked, jnp.arange(plan.blocks), inputs)
  if (first, end) != (0, plan.blocks):
    per_block = jax.tree.map(lambda leaf: leaf[first:end], per_block)
    if plan.num_groups > 1:
      run = slice(first // whole * inner, end // whole * inner)
      shared = {p: leaf[run] for p, leaf in shared.items()}
  shaped = lambda tree, *axes: jax.tree.map(lambda leaf: leaf.reshape(*axes, *leaf.shape[1:]), tree)

  def block(place, looped=True):
    """The body of the scan for the blocks at one place of the period."""

    def run(x, turn):
      (stacked, number, inputs), shared = turn
      keys = None if keys_B2 is None else row_keys.fold_in(keys_B2, number)
      block_params = traverse_util.unflatten_dict({**shared, **stacked}, sep='/')
      return apply(block_params, x, BlockInputs(number, place, keys, inputs))

    if remat == 'none':
      return run
    # In a loop the compiler cannot merge a recomputation with the first computation. Without a loop
    # it would, and keep the first one's results.
    return jax.checkpoint(run, policy=REMAT[remat], prevent_cse=unroll > 1 or not looped)

  # Without a loop if all layers are unrolled, else with one loop, over the layers.
  inside = unroll if unroll >= plan.num_layers else 1

  def group(x, turn):
    per_block, shared = turn
    if period > 1:
      return _alternate(block, x, per_block, shared, first % period, period, unroll)
    run_block = block(0, looped=end - first > 1)
    layer = lambda x, turn: _scan(run_block, x, (turn, shared), inside)
    return _scan(layer, x, per_block, unroll)

  turns = shaped(per_block, groups, repeats, inner), shaped(shared, groups, inner)
  x, outputs = _scan(group, x, turns, unroll if repeats == 1 else inside)
  return x, jax.tree.map(lambda leaf: leaf.reshape(end - first, *leaf.shape[3:]), outputs)


def _check_run(plan, first, end, period):
  """Raises UserError for blocks that cannot run separately, see `scan`."""
  repeats, inner = plan.num_layers // plan.num_groups, plan.inner_group_num
  whole = repeats * inner
  if not 0 <= first < end <= plan.blocks:
    raise errors.UserError(
      f'This encoder runs the blocks {first} to {end} of its layers apart, and it has '
      f'{plan.blocks}: raise encoder.num_layers (of a generator, objective.depth).'
    )
  if first % inner or end % inner:
    raise errors.UserError(
      f'This encoder runs the blocks {first} to {end} apart, which break a layer of {inner}: set '
      'encoder.inner_group_num=1.'
    )
  if plan.num_groups > 1 and (first % whole or end % whole):
    raise errors.UserError(
      f'This encoder runs the blocks {first} to {end} apart, which break a group of {whole}: set '
      'encoder.num_groups=1.'
    )
  if period > 1 and (inner > 1 or (plan.num_groups > 1 and repeats % period)):
    raise errors.UserError(
      f'This encoder has a period of {period} blocks, which groups of {repeats} layers of {inner} '
      'break: set encoder.num_groups=1 and encoder.inner_group_num=1.'
    )


def _alternate(block, x, per_block, shared, offset, period, unroll):
  """`_scan` over layers of one block, [layers, 1, …], with `period` different blocks in turn."""
  only = lambda tree: jax.tree.map(lambda leaf: leaf[:, 0], tree)
  per_block, shared = only(per_block), jax.tree.map(lambda leaf: leaf[0], shared)
  count, outputs = len(per_block[1]), []
  part = lambda a, b: jax.tree.map(lambda leaf: leaf[a:b], per_block)

  def unrolled(x, a, b):
    for i in range(a, b):
      turn = jax.tree.map(lambda leaf, i=i: leaf[i], per_block)
      x, out = block((offset + i) % period, looped=False)(x, (turn, shared))
      outputs.append(jax.tree.map(lambda leaf: leaf[None], out))
    return x

  def body(x, turn):
    outs = []
    for i in range(period):
      stacked = jax.tree.map(lambda leaf, i=i: leaf[i], turn)
      x, out = block(i, looped=end - begin > period)(x, (stacked, shared))
      outs.append(out)
    return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outs)

  begin = min(-offset % period, count)
  end = begin + (count - begin) // period * period
  x = unrolled(x, 0, begin)
  if end > begin:
    turns = jax.tree.map(lambda leaf: leaf.reshape(-1, period, *leaf.shape[1:]), part(begin, end))
    x, out = _scan(body, x, turns, max(1, unroll // period))
    outputs.append(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), out))
  x = unrolled(x, end, count)
  return x, jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:, None], *outputs)


def _scan(body, x, turns, unroll=1):
  """`lax.scan`, but without a loop around a single iteration."""
  count = len(jax.tree.leaves(turns)[-1])
  if count == 1:
    x, out = body(x, jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[1:]), turns))
    return x, jax.tree.map(lambda leaf: leaf[None], out)
  return jax.lax.scan(body, x, turns, unroll=min(unroll, count))
