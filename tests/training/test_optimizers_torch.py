"""StableAdamW and Muon beside torch over twenty steps, layer by layer; iterations run in float32
on both sides.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from bertzoo_jax.common import errors
from bertzoo_jax.training import optimizers
from tests import found
from tests.found import call_part
from tests.trajectories import papers

STEPS, PEAK, WEIGHT_DECAY = 20, 0.02, 0.1
D, H, K, F, LAYERS = 8, 2, 4, 12, 3
SHAPES = {
  'embeddings/word/embedding': (11, D),
  'layers/attention/query/kernel': (LAYERS, D, H, K),
  'layers/attention/output/kernel': (LAYERS, H, K, D),
  'layers/feed_forward/in/kernel': (LAYERS, D, F),
  'layers/feed_forward/in/bias': (LAYERS, F),
  'layers/attention_norm/scale': (LAYERS, D),
}
# Of one layer, as Hugging Face has it: inputs × outputs.
MATRICES = {
  'layers/attention/query/kernel': (D, H * K),
  'layers/attention/output/kernel': (H * K, D),
  'layers/feed_forward/in/kernel': (D, F),
}
NO_DECAY = (r'norm/', r'bias$')


def draws():
  draw = np.random.default_rng(5)
  params = {k: draw.normal(size=s).astype(np.float32) for k, s in SHAPES.items()}
  # far apart, so that StableAdamW's bound is met in some steps and not in others
  size = lambda: 10.0 ** draw.uniform(-3, 1)
  grads = [
    {k: (size() * draw.normal(size=s)).astype(np.float32) for k, s in SHAPES.items()}
    for _ in range(STEPS)
  ]
  return params, grads


def rate(step):
  return PEAK * (step + 1) / STEPS


def ours(name, params, grads):
  fields = dict(weight_decay=WEIGHT_DECAY, no_decay=NO_DECAY, clip_norm=0.0)
  tx = call_part(optimizers, name, rate, SHAPES, **found.fields('optimizer', name, **fields))
  params = {k: jnp.asarray(x) for k, x in params.items()}
  state = tx.init(params)
  update = jax.jit(lambda g, state, params, step: tx.update(g, state, params, step=step))
  for step, g in enumerate(grads):
    updates, state = update(g, state, params, step)
    params = jax.tree.map(jnp.add, params, updates)
  return params


def by_layer(tree):
  """{(path, layer or None): array}, matrices as inputs × outputs."""
  out = {}
  for path, x in tree.items():
    for layer, one in enumerate(x) if path.startswith('layers/') else [(None, x)]:
      out[path, layer] = np.asarray(one).reshape(MATRICES.get(path, one.shape))
  return out


def decays(key):
  return 0.0 if optimizers.matching(key[0], NO_DECAY) else WEIGHT_DECAY


def stable_adamw(params, grads):
  for key, p in params.items():
    state, how = {}, dict(rate=rate, b2=0.98, decay=decays(key))
    for step, g in enumerate(grads):
      papers.stable_adamw(p, key[0], g[key], state, step, **how)
  return params


def newton_schulz(grad, coefficients, steps, eps):
  """The iteration of torch.optim.Muon, in float32."""
  a, b, c = coefficients
  x = grad.T if grad.size(0) > grad.size(1) else grad
  x = x / x.norm().clamp(min=eps)
  for _ in range(steps):
    gram = x @ x.T
    x = a * x + (b * gram + c * gram @ gram) @ x
  return x.T if grad.size(0) > grad.size(1) else x


def muon(params, grads, monkeypatch):
  """torch's Muon for matrices; for the rest AdamW with fairseq's place of eps."""
  monkeypatch.setattr(torch.optim._muon, '_zeropower_via_newtonschulz', newton_schulz)
  for key, p in params.items():
    if key[0] in MATRICES:
      p = torch.nn.Parameter(p)
      optimizer = torch.optim.Muon(
        [p], weight_decay=decays(key), momentum=0.95, adjust_lr_fn='match_rms_adamw'
      )
      for step, g in enumerate(grads):
        optimizer.param_groups[0]['lr'] = rate(step)
        p.grad = g[key]
        optimizer.step()
      params[key] = p.detach()
      continue
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for t, g in enumerate(grads, start=1):
      m, v = 0.9 * m + 0.1 * g[key], 0.98 * v + 0.02 * g[key] ** 2
      size = (1 - 0.98**t) ** 0.5 / (1 - 0.9**t)
      p -= rate(t - 1) * (size * m / (v.sqrt() + 1e-6) + decays(key) * p)
  return params


@pytest.mark.parametrize('name', ['stable_adamw', 'muon'])
def test_twenty_updates_equal_torch_layer_by_layer(name, monkeypatch):
  params, grads = draws()
  tensors = lambda tree: {k: torch.tensor(x) for k, x in by_layer(tree).items()}
  arguments = tensors(params), [tensors(g) for g in grads]
  expected = stable_adamw(*arguments) if name == 'stable_adamw' else muon(*arguments, monkeypatch)
  for key, x in by_layer(ours(name, params, grads)).items():
    np.testing.assert_allclose(x, expected[key], rtol=1e-5, atol=1e-5, err_msg=str(key))


def test_a_table_of_matrices_that_cannot_be_meant_is_refused():
  axes = 'and it has 1, not counting that of the layers: name other axes'
  for rule, words in (
    (('layers/', (-2,)), 'a rule is .path regex, axes of the inputs, axes of the outputs.'),
    (('layers/', (1,), (-1,)), 'counted from the last'),
    (('nrom/', (-2,), (-1,)), "matrices has 'nrom/', which matches no parameter"),
    (('layers/', -2, -1), 'a rule is'),
    (('layers/', (-2, -2), (-1,)), 'each axis once'),
    (('layers/', (-2,), (-2,)), 'each axis once'),
    (('bias$', (-2,), (-1,)), axes),
  ):
    with pytest.raises(errors.UserError, match=words):
      call_part(optimizers, 'muon', rate, SHAPES, matrices=(rule,))
