"""One stack of layers, scanned: the program does not grow with depth, and a table says which
parameters layers share.

A stack of n layers falls into G groups of consecutive layers, and a layer is k blocks (k is 1 but
for Lan et al.'s `inner_group_num`). A parameter that is stacked has n·k copies, one for each block;
one that is broadcast has G·k: all layers of a group have it in common. Every leaf has its copies in
a leading axis, also when there is one.
"""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util

from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys

# What layers have in common: ordered (regex of a path in a layer, 'stacked' | 'broadcast'); Lan et
# al. 2019, Table 4.
SHARING = {
  'none': (('', 'stacked'),),
  'all': (('', 'broadcast'),),
  'attention': (('^attention', 'broadcast'), ('', 'stacked')),
  'feed_forward': (('^feed_forward', 'broadcast'), ('', 'stacked')),
}

# What the backward pass finds saved of a layer besides its input, by run.remat; all else it
# computes again. Less and less:
_saving = jax.checkpoint_policies.save_only_these_names
REMAT = {
  'none': None,  # whatever it wants
  'sublayers': _saving(
    'attended', 'attention_output', 'feed_forward_output'
  ),  # what attention mixed, and what joins the residual
  'feed_forward': _saving('feed_forward_output'),
  'full': jax.checkpoint_policies.nothing_saveable,
}


class Plan(NamedTuple):
  """How layers make a stack.

  Attributes:
    num_layers: n.
    sharing: a table as in SHARING; the first rule that matches a leaf's path decides.
    num_groups: G, which divides n.
    inner_group_num: k, blocks a layer.
  """

  num_layers: int
  sharing: tuple[tuple[str, str], ...] = SHARING['none']
  num_groups: int = 1
  inner_group_num: int = 1

  @property
  def blocks(self) -> int:
    """Blocks that run one after the other."""
    return self.num_layers * self.inner_group_num

  def copies(self, path: str) -> int:
    """How many of a parameter there are. Raises UserError if no rule matches its path."""
    for pattern, kind in self.sharing:
      if re.search(pattern, path):
        return {'stacked': self.num_layers, 'broadcast': self.num_groups}[
          kind
        ] * self.inner_group_num
    raise errors.UserError(
      f"The sharing table has no rule for {path!r}: end it with ('', 'stacked')."
    )


def init(init_block, key, plan: Plan):
  """Parameters of a stack.

  Args:
    init_block: key → parameters of one block.
    key: each copy of a parameter is drawn from its own split of it.
    plan: the stack.
  """
  keys = jax.random.split(key, plan.blocks)
  flat = {}
  for count in {
    plan.blocks,
    plan.num_groups * plan.inner_group_num,
  }:  # of the two, what is not needed is not computed under jit
    flat[count] = traverse_util.flatten_dict(jax.vmap(init_block)(keys[:count]), sep='/')
  return traverse_util.unflatten_dict(
    {path: flat[plan.copies(path)][path] for path in flat[plan.blocks]}, sep='/'
  )


def scan(apply, params, x, keys_B2, plan: Plan, *, unroll: int = 1, remat: str = 'none'):
  """x after all layers.

  Args:
    apply: (parameters of one block, x, keys_B2 or None) → x.
    params: as `init` returned.
    x: what the first block receives.
    keys_B2: of rows (row_keys.py), folded with the block's number; None without dropout.
    plan: the stack.
    unroll: layers a turn.
    remat: a key of REMAT.
  """
  groups, repeats, inner = plan.num_groups, plan.num_layers // plan.num_groups, plan.inner_group_num
  flat = traverse_util.flatten_dict(params, sep='/')
  # A parameter with as many copies as there are blocks is the same either way.
  stacked = {
    path: leaf.reshape(groups, repeats, inner, *leaf.shape[1:])
    for path, leaf in flat.items()
    if plan.copies(path) == plan.blocks
  }
  broadcast = {
    path: leaf.reshape(groups, inner, *leaf.shape[1:])
    for path, leaf in flat.items()
    if path not in stacked
  }
  number = jnp.arange(plan.blocks).reshape(groups, repeats, inner)

  def block(x, turn):
    own, shared, number = turn
    keys = None if keys_B2 is None else row_keys.fold_in(keys_B2, number)
    return apply(traverse_util.unflatten_dict({**shared, **own}, sep='/'), x, keys), None

  if remat != 'none':
    # In a loop the compiler cannot take what is computed again for what was; side by side it would,
    # and keep it.
    block = jax.checkpoint(block, policy=REMAT[remat], prevent_cse=unroll > 1)

  inside = (
    unroll if unroll >= plan.num_layers else 1
  )  # all layers unrolled leave no loop, fewer one over the layers

  def group(x, turn):
    own, shared, number = turn
    layer = lambda x, turn: _scan(block, x, (turn[0], shared, turn[1]), inside)
    return _scan(layer, x, (own, number), unroll)

  return _scan(group, x, (stacked, broadcast, number), unroll if repeats == 1 else inside)[0]


def _scan(body, x, turns, unroll=1):
  """`lax.scan`, and no loop around a single turn."""
  count = len(jax.tree.leaves(turns)[-1])
  if count == 1:
    return body(x, jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[1:]), turns))
  return jax.lax.scan(body, x, turns, unroll=min(unroll, count))
