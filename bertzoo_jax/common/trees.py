"""Paths of the arrays in a tree of parameters or of a train state."""

import jax


def path_of(key_path) -> str:
  """'encoder/layers/attention/query/kernel' for a jax key path."""
  return jax.tree_util.keystr(key_path, simple=True, separator='/')


def paths_of(tree) -> dict[str, tuple[int, ...]]:
  """{'/'-joined path: shape} of every leaf, in jax's order."""
  return {path_of(p): x.shape for p, x in jax.tree_util.tree_leaves_with_path(tree)}
