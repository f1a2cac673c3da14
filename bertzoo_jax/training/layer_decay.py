"""Layer-wise decay of the learning rate, as an ordered table of path regexes."""

import re

_LAYERS, _FINAL = 'encoder/layers/', '^encoder/final_norm/'

# Powers between the embeddings and the heads, beyond one per layer.
_FORMS = {'released': 2, 'corrected': 1}


def rates(
  paths, num_layers: int, decay: float, form: str, blocks_per_layer: int = 1
) -> tuple[tuple[str, float], ...]:
  """The field `rates` of an optimizer for layer-wise decay (Clark et al. 2020; code of the
  release).

  The multiplier of a parameter is decay^(top − depth). Layer i of n, counted from 0, has the depth
  i + 1, and a norm behind the layers (final_norm) the depth n. All else in the encoder has the
  depth 0: embeddings and their projection, tables of relative positions, a convolution beside the
  first layer, the initial vector of a query stream. Parameters outside of the encoder are heads:
  their multiplier is 1.

  A copy that several layers share has the multiplier of the last of them, as in
  `optimizers.policy`. A copy that all layers share has the multiplier of the top layer.

  With form 'corrected' top is n + 1, so the top layer has decay. With 'released' it is n + 2, so
  the top layer has decay²: the release leaves a place for a pooler, which it does not have.

  paths: {path: shape}, as `trees.paths_of` returns. decay: above 0 and at most 1; 1 gives an
  empty table. blocks_per_layer: above 1 if a layer is several blocks (`inner_group_num`).
  Returns ((path regex, multiplier), …); every regex matches a parameter.
  """
  top = num_layers + _FORMS[form]
  if decay == 1.0:
    return ()
  table = [(_FINAL, decay ** (top - num_layers))] if any(re.match(_FINAL, p) for p in paths) else []
  table.append((r'^encoder/(?!layers/)', decay**top))
  copies = max((shape[0] for path, shape in paths.items() if path.startswith(_LAYERS)), default=0)
  for copy in range(copies):
    layers_per_copy = num_layers * blocks_per_layer // copies
    last = (copy // blocks_per_layer + 1) * layers_per_copy - 1
    table.append((rf'^{_LAYERS}{copy}/', decay ** (top - 1 - last)))
  return tuple(table)
