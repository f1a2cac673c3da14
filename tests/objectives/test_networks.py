"""Heads as objectives use them."""

import jax
import numpy as np
import small_networks as small

from bertzoo_jax.objectives import networks


def test_v3_s_head_reads_the_first_token_of_its_own_pack():
  encoder, draw, lengths = small.encoder(activation='gelu'), np.random.default_rng(0), (7, 12, 5)
  start = jax.jit(lambda key: networks.init_replaced_head(encoder, key, 'token_and_row'))
  params = {'replaced_head': small.perturbed(start(jax.random.key(0)))}
  hidden_BLD = draw.normal(size=(1, 24, 48)).astype(np.float32)
  logits = lambda hidden_BLD, **batch: networks.replaced_logits(encoder, params, hidden_BLD, batch)
  ends = np.cumsum([0, *lengths])
  alone = [hidden_BLD[:, a:b] for a, b in zip(ends, ends[1:])]
  places = np.concatenate([np.arange(n) for n in lengths])[None]
  packed = logits(hidden_BLD, position_ids=places)
  assert small.worst(packed, np.concatenate([logits(x) for x in alone], axis=1)) < 1e-5
  # He et al. 2021, code of the release: norm of the sum, dense, activation, one number.
  head, x = params['replaced_head'], alone[1][0, 0] + alone[1][0]
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + encoder.norm_eps)
  x = x * head['norm']['scale'] + head['norm']['bias']
  x = jax.nn.gelu(x @ head['dense']['kernel'] + head['dense']['bias'], approximate=False)
  score = head['score']['classifier']
  assert small.worst(packed[0, 7:19], (x @ score['kernel'] + score['bias'])[:, 0]) < 1e-4
