"""Operations of a training as Clark et al. 2020 count them (flops_computation.py of their release).

A multiplication and an addition are two, and a backward pass is as much as a forward pass. Dropout,
norms, activations, the softmax and biases are counted, and a lookup is a product with the whole
table. They have no network with relative positions or a memory: each function says how it counts
these. Pair and boundary heads are left out. `Network.flops` counts products alone, as hardware has
them.

Legend: D width, H heads, F width of the feed-forward, L tokens per row.
"""

import jax

from bertzoo_jax.model import disentangled
from bertzoo_jax.model import transformer
from bertzoo_jax.model import two_stream

# Per element.
DROPOUT, NORM, ACTIVATION, SOFTMAX = 4, 5, 8, 5
PREDICTED = 0.15625  # share of the tokens


def of_run(run, vocab_size, mesh=None, of_unit=1) -> float | None:
  """FLOPs of a whole training; None if a network has no such count.

  Args:
    run: see assembly.Run.
    vocab_size: of the tokenizer.
    mesh: of the run, if it has one yet.
    of_unit: rows of one of the batch_size units of a batch.
  """
  of_phases = by_phase(run, vocab_size, mesh, of_unit)
  return None if None in of_phases else sum(of_phases)


def by_phase(run, vocab_size, mesh=None, of_unit=1) -> list[float | None]:
  """The FLOPs of `of_run`, per phase."""

  def of(phase):
    network, rows = run.network(phase, vocab_size, mesh), phase.config.batch_size * of_unit
    sizes = dict(rows=rows, length=phase.config.length, steps=phase.steps)
    return of_objective(network.objective, network.shapes, **sizes)

  return [of(phase) for phase in run.phases]


def of_objective(objective, params, *, rows: int, length: int, steps: int) -> float | None:
  """FLOPs of a training with an objective; None if a network has no count.

  Args:
    objective: an Objective.
    params: its parameters, arrays or shapes.
    rows, length, steps: of the global batch; tokens per row; updates.
  """
  features = (*objective.reads, *objective.may_read)
  each = [_of_network(n, params, length, rows, features) for n in objective.networks]
  return float(rows * steps * length * sum(each)) if each and None not in each else None


def _of_network(network, params, length, rows, features):
  """Per token."""
  e, own = network.encoder, jax.eval_shape(network.of, params)
  count = next((count for kind, count in _ENCODERS.items() if isinstance(e, kind)), None)
  if count is None:
    return None
  known = network.heads_of(own)
  everywhere = any(head.tied and head.reads == 'tokens' for head in known.values())
  share = 1.0 if everywhere else PREDICTED
  predicted = share if any(head.reads == 'predictions' for head in known.values()) else 0.0
  of_heads, width, table, words = 0.0, e.hidden_size, e.table_width, e.vocab_size
  if 'replaced_head' in known:
    of_heads += 2 * width * width + (1 + ACTIVATION + 2) * width
  if known.keys() & {'mlm_head', 'next_head'}:
    transform = 2 * width * table + (1 + ACTIVATION + NORM) * table
    of_heads += share * (2 * table * words + transform + (SOFTMAX + 2) * words)
  return network.passes(backward=1.0) * (count(e, length, rows, features, predicted) + of_heads)


def _query(width: int, heads: int, keys: int) -> float:
  """One query of D: projection, scores, sum over keys, output, dropout, residual, norm (once)."""
  scores = 4 * width * keys + (SOFTMAX + DROPOUT + 1) * keys * heads
  return scores + 4 * width * width + (1 + 1 + DROPOUT + 1) * width + NORM


def _key_value(width: int) -> float:
  """The projections of one key and one value of D."""
  return 4 * width * width + 2 * width


def _feed_forward(width: int, hidden: int) -> float:
  """One vector of D through a feed-forward of F, dropout, the residual sum and the norm."""
  return 4 * width * hidden + (ACTIVATION + 1) * hidden + (1 + DROPOUT + 1 + NORM) * width


def _embeddings(e, others: int) -> float:
  """The vectors of one token from the word table and from two tables with `others` rows together,
  their sum, norm and dropout, and a projection to D where their width is another.
  """
  width, hidden = e.table_width, e.hidden_size
  total = 2 * width * e.vocab_size + 2 * width * others + (2 + NORM + DROPOUT) * width
  return total + (2 * hidden * width + hidden if width != hidden else 0)


def _transformer(e, length, rows, features, predicted) -> float:
  block = _query(e.hidden_size, e.num_heads, length) + _key_value(e.hidden_size)
  block += _feed_forward(e.hidden_size, e.intermediate_size)
  return e.plan.blocks * block + _embeddings(e, length + 2)


def _disentangled(e, length, rows, features, predicted) -> float:
  """Counted as well are

  * the products of queries (c2p) and of keys (p2c) with the 2L rows of the relative table that the
    row's distances have;
  * the projections of that table in each layer, once per batch, so divided by its tokens;
  * the convolution;
  * with predictions the decoder in place of the last block: keys and values of all tokens, then two
    passes of the predicted ones. The p2c products of all keys are in each pass.
  """
  d, h, n = e.hidden_size, e.num_heads, e.plan.blocks
  used = min(2 * length - 1, 2 * (e.buckets or e.max_distance))
  terms = e.content_to_position + e.position_to_content
  table = terms * 2 * d * d * used / (rows * length)
  by_query, by_key = e.content_to_position, e.position_to_content
  keys = _key_value(d) + by_key * 4 * d * length
  query = _query(d, h, length) + by_query * 4 * d * length
  query += terms * h * length  # the sums of scores
  query += _feed_forward(d, e.intermediate_size)
  total = _embeddings(e, e.type_vocab_size + length * (e.absolute_positions == 'input'))
  if e.convolution_size:
    total += 2 * e.convolution_size * d * d + (ACTIVATION + DROPOUT + 2 + NORM) * d
  if not predicted or e.absolute_positions != 'decoder':
    return total + n * (keys + query + table)
  decoder = _key_value(d) + predicted * (2 * d * length + d)
  decoder += disentangled.PASSES * (predicted * query + by_key * 4 * d * length + table)
  return total + (n - 1) * (keys + query + table) + decoder


def _two_stream(e, length, rows, features, predicted) -> float:
  """Counted as well are

  * keys and values of the memory, if `resets` is among the features;
  * the query stream of the predicted tokens, if `order` is: in the last layer it is alone;
  * of each query of both streams, the products with a row of the table of positions per distance
    and with the segment vector;
  * the projection of the sinusoids in each layer, once per batch, so divided by its tokens.
  """
  d, h = e.hidden_size, e.num_heads
  keys = length + e.memory_length * ('resets' in features)
  asked, last = (predicted, 0.0) if 'order' in features else (0.0, 1.0)
  query = _query(d, h, keys) + _feed_forward(d, e.intermediate_size)
  query += 2 * d * (length + keys) + 2 * d + 2 * h * keys
  shared = _key_value(d) * keys / length
  shared += 2 * d * d * (length + keys) / (rows * length)
  layers = (e.num_layers - 1) * (shared + (1.0 + asked) * query)
  layers += shared + (last + asked) * query
  return layers + 2 * d * e.vocab_size + DROPOUT * d


_ENCODERS = {
  transformer.Transformer: _transformer,
  disentangled.Disentangled: _disentangled,
  two_stream.TwoStream: _two_stream,
}
