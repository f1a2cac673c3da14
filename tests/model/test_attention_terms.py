"""Terms of attention scores that fused kernels do not have, against their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import small_networks as small

from bertzoo_jax.model import attention

B, L, M, H, K = 3, 5, 4, 2, 6


def explicit(q, k, v, visible, relative):
  """The definition, by a gather of each row of the table and a loop over rows of the batch."""
  outs, distance = [], M + np.arange(L)[:, None] - np.arange(L + M) + L - 1
  for b in range(B):
    table = jnp.where(relative.mirrored_B[b], relative.mirrored_RHK, relative.c2p_RHK)
    scores = jnp.einsum('LHK,MHK->HLM', q[b], k[b])
    scores += jnp.einsum('LHK,LMHK->HLM', q[b] + relative.c2p_query_HK, table[distance])
    numbers, mine, theirs = (x[b] for x in relative.same_segment)
    scores += jnp.where(mine[:, None] == theirs, numbers.T[:, :, None], 0.0)
    seen = visible.key_order_BM[b] <= visible.query_order_BL[b][:, None]
    probs = jax.nn.softmax(jnp.where(seen, scores * K**-0.5, -1e30), axis=-1)
    outs.append(jnp.einsum('HLM,MHK->LHK', probs, v[b]))
  return jnp.stack(outs)


def test_mirrored_rows_common_queries_and_segments_are_as_defined_with_their_gradients():
  draw = np.random.default_rng(0)
  normal = lambda *shape: jnp.asarray(draw.normal(size=shape), jnp.float32)
  q, k, v = normal(B, L, H, K), normal(B, L + M, H, K), normal(B, L + M, H, K)
  segments = lambda n: jnp.asarray(draw.integers(0, 3, (B, n)))
  learned = normal(2 * L + M - 1, H, K), normal(2 * L + M - 1, H, K), normal(H, K), normal(B, L, H)
  own, others, mirrored = segments(L), segments(L + M), jnp.array([False, True, True])
  ranks = jnp.asarray(np.stack([draw.permutation(L) for _ in range(B)]))
  packs = jnp.ones((B, L + M), jnp.int32)
  order = jnp.pad(ranks, ((0, 0), (M, 0)), constant_values=-1)
  visible = attention.Visibility(packs[:, M:], packs, None, ranks, order, M)
  weights = normal(B, L, H, K)

  def run(attend, q, k, v, table, other, query, numbers):
    relative = attention.Relative(
      table, None, None, query, other, mirrored, attention.SameSegment(numbers, own, others)
    )
    assert not relative.simple and attention.Relative(table).simple
    return jnp.sum(weights * attend(q, k, v, visible, relative=relative))

  both = [
    jax.jit(jax.value_and_grad(lambda *args, f=f: run(f, *args), argnums=tuple(range(7))))(
      q, k, v, *learned
    )
    for f in (attention.attend, explicit)
  ]
  assert small.worst(*both) < 2e-5
  assert all(np.abs(x).max() > 1e-3 for x in jax.tree.leaves(both[0]))
