"""SiFT: also trains the network to give the same outputs for perturbed embeddings (He et al. 2020,
scale-invariant fine-tuning; code of the release).

Legend: B batch, L length, E width of the tables.

x is the sum of the embeddings, and x̂ its layer norm without scale and shift. A step does this:

1. Clean pass: the encoder begins with x̂. Its logits give the loss of the task.
2. δ is drawn for each element: normal, of standard deviation `init`, clipped at ±2·init.
3. Ascent: the encoder begins with sg(x̂) + δ, where sg is stop_gradient. g is the gradient, by δ, of
   the divergence between these logits and sg(clean logits). Each token's δ grows by
   rate·g / (1e-6 + max |g|). A row whose g is not finite keeps its δ. (The release then leaves out
   the step of all rows.)
4. The loss is the task's loss + weight × the mean divergence of the logits of sg(x̂) + sg(δ) from
   the clean logits. The mean is over the units of the task's loss. The functions of DIVERGENCES
   detach one of the outputs.

Each of the three passes draws another dropout mask. No gradient reaches a parameter by δ.

Evaluation and export use the network without the norm of step 1: the encoder's norm follows, so
both differ only by the epsilons of the two norms.

Differences from the release: `loss` is the divergence of both steps 3 and 4, where the release
always takes symmetric_kl in step 4 (0 for a single number). If a projection follows the sum of
embeddings (encoder `disentangled` with embedding_size), δ is added before it.
"""

import jax
import jax.numpy as jnp

from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import head_modules as modules
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective
from bertzoo_jax.objectives import scored

EPS = 1e-7  # of the norm without scale and shift
TOTAL = 'sift'

_PERTURBATION = 1 << 17  # distinguishes the keys of δ from other draws of the row
_SMALLEST = 1e-6  # added to the largest element of a gradient


def around(encoder, scorer: scored.Scorer, ops=operations.PLAIN, sift=None):
  """The Objective of a scorer (`scored.objective_of`), with SiFT if its weight is not 0.

  Metric under the total 'sift': sift_divergence, as minimised; symmetric_kl and kl are cross
  entropies, so it is above 0 for equal logits.

  encoder: linen module. scorer: Scorer of the task. ops: operations that depend on the devices.
  sift: parts.task_objectives.Sift, or None.

  Raises UserError for an encoder without a norm after its embeddings, or a `loss` that the outputs
  do not allow.
  """
  plain = scored.objective_of(encoder, scorer, ops)
  if sift is None or sift.weight == 0:
    return plain
  _check(encoder, scorer, sift)
  divergence = _divergence(scorer, sift.loss)

  def loss(params, batch, normalizers, carry, key, train):
    if not train:
      return plain.loss(params, batch, normalizers, carry, key, train)

    rows = heads.rows_of_options(batch)

    def logits(params, embedded_BLE, number):
      pass_key = key if key is None or number == 0 else jax.random.fold_in(key, number)
      hidden_BLD = networks.encode(encoder, params['encoder'], rows, pass_key, ops, embedded_BLE)
      return scorer.scores(encoder, params, hidden_BLD, batch, pass_key)

    embedded_BLE = normed(networks.embed(encoder, params['encoder'], rows))
    clean = logits(params, embedded_BLE, 0)
    fixed, fixed_BLE, target = jax.lax.stop_gradient((params, embedded_BLE, clean))
    start_BLE = drawn(rows['row_keys'], embedded_BLE.shape[1:], sift.init)
    gradient_BLE = jax.grad(
      lambda delta_BLE: divergence(logits(fixed, fixed_BLE + delta_BLE, 1), target, batch)
    )(start_BLE)
    delta_BLE = jax.lax.stop_gradient(ascended(start_BLE, gradient_BLE, sift.rate))
    total = divergence(logits(params, fixed_BLE + delta_BLE, 2), clean, batch)
    sums = scorer.sums(clean, batch)
    mean = total / objective.at_least_one(normalizers[TOTAL])
    value = scorer.loss(sums, normalizers) + sift.weight * mean
    return value, (carry, {**sums, TOTAL: {'sift_divergence': total}})

  def normalizers(batch):
    return {**scorer.normalizers(batch), TOTAL: jnp.sum(batch['label_weights'])}

  return plain._replace(normalizers=normalizers, loss=loss)


def normed(x_BLE):
  """The layer norm without scale and shift, float32."""
  return layers.normalize(x_BLE, 1.0, None, EPS)


def drawn(row_keys_B2, size: tuple[int, int], init: float):
  """The first perturbation, float32 [B, *size]; depends only on the rows' keys."""
  keys_B2 = row_keys.fold_in(row_keys_B2, _PERTURBATION)
  return jnp.clip(init * row_keys.normal(keys_B2, size), -2 * init, 2 * init)


def ascended(delta_BLE, gradient_BLE, rate: float):
  """The perturbation after its step; unchanged in rows whose gradient is not finite."""
  largest_BL1 = jnp.max(jnp.abs(gradient_BLE), axis=-1, keepdims=True)
  finite_B11 = jnp.isfinite(gradient_BLE).all(axis=(1, 2), keepdims=True)
  step_BLE = rate * gradient_BLE / (_SMALLEST + largest_BL1)
  return delta_BLE + jnp.where(finite_B11, step_BLE, 0.0)


def symmetric_kl(one, other):
  """The sum of the cross entropies of two distributions both ways. Logits [..., C]; the weighting
  probabilities are detached, so each summand has a gradient by one of the two.
  """
  return _cross_entropy(one, other) + _cross_entropy(other, one)


def kl(one, other):
  """The cross entropy of `one` with the detached probabilities of `other`. Logits [..., C]."""
  return _cross_entropy(one, other)


def mse(one, other):
  """The mean squared difference of logits [..., C] over the allowed classes."""
  allowed = other > modules.FORBIDDEN / 2
  squares = jnp.where(allowed, jnp.square(one - other), 0.0)
  return jnp.sum(squares, axis=-1) / jnp.sum(allowed, axis=-1)


DIVERGENCES = {'symmetric_kl': symmetric_kl, 'kl': kl, 'mse': mse}


def _cross_entropy(one, other):
  probabilities = jax.lax.stop_gradient(jax.nn.softmax(other, axis=-1))
  return -jnp.sum(probabilities * jax.nn.log_softmax(one, axis=-1), axis=-1)


def _divergence(scorer, name):
  """(outputs, clean outputs, batch) → divergence: mean over the outputs, sum over the units."""
  measure = DIVERGENCES[name]

  def one(form, weights, x, clean):
    x, clean = (y.reshape(*weights.shape, -1) for y in (x, clean))
    if form != 'labels' or name == 'mse':
      return measure(x, clean)
    # a label is one of two classes, whose logits are 0 and its own
    two_classes = lambda y: jnp.stack([jnp.zeros_like(y), y], axis=-1)
    return jnp.mean(measure(two_classes(x), two_classes(clean)), axis=-1)

  def summed(outputs, clean, batch):
    weights = batch['label_weights']
    each = [one(form, weights, outputs[n], clean[n]) for n, form in scorer.forms.items()]
    return jnp.sum(weights * sum(each) / len(each))

  return summed


def _check(encoder, scorer, sift):
  """Raises UserError for an encoder or outputs that SiFT cannot be used with."""
  weight = f'objective.sift.weight={sift["weight"]:g}'
  if not encoder.embedding_norm:
    raise errors.UserError(
      f'{weight} perturbs normalised embeddings, and this encoder ({type(encoder).__name__}) has '
      'no norm after its embeddings: set --config.objective.sift.weight=0, or begin with the '
      'weights of an encoder that has one.'
    )
  if 'number' in scorer.forms.values() and sift.loss != 'mse':
    raise errors.UserError(
      f'objective.sift.loss={sift["loss"]} compares distributions, and this objective predicts a '
      'number: set --config.objective.sift.loss=mse.'
    )
