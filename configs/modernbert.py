"""ModernBERT (Warner et al. 2024, arXiv:2412.13663), and Ettin's sizes of it (Weller et al. 2025,
arXiv:2507.11412).

    python -m bertzoo_jax.pretrain --config configs/modernbert.py:base \
      --corpus CORPUS --workdir WORKDIR
    python -m bertzoo_jax.pretrain --config configs/modernbert.py:base_long \
      --corpus CORPUS --workdir LONG --init WORKDIR

Sizes: tiny (for a laptop and the tests); base, large, at 1,024 tokens per row; base_long,
large_long, which go on at 8,192; 17m, 32m, 68m, 150m, 400m (Ettin's encoders, at 1,024).

The network: rotary positions, norms before the sublayers, gated feed-forward, no biases; every
third layer sees the whole row, the others 64 tokens to each side. 30 % of the tokens are masked
(held-out figures: 15 %). The rate stays at its peak after the warmup. Settings from the release's
yaml and Table 3: base 1,719 G tokens, peak 8e-4, warmup 3 G tokens, batch 768 to 4,608 rows over
50 G tokens; large 5e-4, 2 G, 448 to 4,928 over 10 G. The decay of both is 1e-5 per step at the
peak, which here is a share of the rate: 1e-5 / peak. Ettin: its own yamls. Four H100s took about 20
days for 150m.

The batch grows in seven phases of equal tokens (the release: by a row at a time), and the eighth
phase keeps it.

base_long and large_long: 250 G tokens at a constant rate (3e-4, 5e-5), 50 G more in which it falls
by 1 − √x, 576 and 616 rows of 8,192. The base of the global layers' rotary positions rises from
10,000 to 160,000. It is no parameter: `--init` takes the weights, and the config says the base.
`evaluate --corpus` tells the loss by the place in the row.

Not as there:

* large was 900 G tokens at 5e-4 and, from an earlier checkpoint, 800 G at 5e-5; here it is one
  stretch: --config.schedule.learning_rate=5e-5 with `--init WORKDIR@STEP` for the second. It began
  with base's weights, tiled; here at random.
* The second stretch of the long rows has better text, and large 624 rows: give another corpus.
* StableAdamW's smaller step in a spike also makes the decay smaller (Wortsman et al. 2023).
* Ettin keeps 1e-5 as decay at the peaks 8e-4 and 5e-4, and 3e-4 at 3e-3.

No results of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments

G = 10**9
LENGTH, LONG = 1024, 8192


def ramp(first, last, tokens, total, rows, stairs=7):
  """Phases in which the batch grows from `first` to `last` rows of LENGTH tokens over `tokens`, and
  one that has the rest of the `total` tokens. rows: of a microbatch, which divide each batch.
  """
  phases = []
  for stair in range(stairs + 1):
    grown = first + (last - first) * stair / stairs
    batch = rows * round(grown / rows)
    share = tokens / stairs if stair < stairs else total - tokens
    steps = round(share / (batch * LENGTH))
    phases.append((steps, {'batch_size': batch, 'run.accumulation': batch // rows}))
  return tuple(phases)


def warmup(phases, tokens):
  """Steps in which the phases read so many tokens."""
  steps = 0
  for length, changes in phases:
    of_a_step = changes['batch_size'] * LENGTH
    if length * of_a_step >= tokens:
      break
    steps, tokens = steps + length, tokens - length * of_a_step
  return steps + round(tokens / of_a_step)


def _modern(num_layers, hidden_size, intermediate_size, *, encoder=(), peak=8e-4, **fields):
  decay = fields.pop('decay', 1e-5)
  return parts.experiment(
    **{
      **dict(
        tokenizer=parts.byte_bpe(vocab_size=50_368),
        corpus=parts.corpus(),
        format=parts.doc_sentences(),
        masking=parts.token(rate=0.15),
        moving=(('masking.rate', 0.3, 0.3, 0, 1, 'linear'),),
        encoder=parts.modern(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=hidden_size // 64,
          intermediate_size=intermediate_size,
          **{'global_base': 10_000.0, **dict(encoder)},
        ),
        objective=parts.mlm(),
        optimizer=parts.stable_adamw(weight_decay=decay / peak),
        schedule=parts.warmup_stable_decay(learning_rate=peak, warmup=0, decay=0),
        length=LENGTH,
        hf='ModernBertForMaskedLM',
        run=parts.run(),
      ),
      **fields,
    }
  )


def _grown(sizes, batches, tokens, warm, rows, peak, total=1700 * G, **fields):
  """A run at 1,024 tokens. batches: first and last; tokens, warm: over which the batch grows and
  the rate does.
  """
  phases = ramp(*batches, tokens, total, rows)
  made = _modern(*sizes, peak=peak, batch_size=batches[1], phases=phases, **fields)
  made.schedule.warmup = warmup(phases, warm)
  return made


def _long(sizes, peak, batch_size, accumulation):
  """250 G tokens at the peak and 50 G of decay, at 8,192 tokens per row. accumulation: such that 8
  chips divide the rows of a microbatch.
  """
  steps, decay = (round(tokens * G / (batch_size * LONG)) for tokens in (300, 50))
  return _modern(
    *sizes,
    encoder=dict(global_base=160_000.0),
    peak=peak,
    schedule=parts.warmup_stable_decay(learning_rate=peak, warmup=0, decay=decay),
    length=LONG,
    batch_size=batch_size,
    phases=((steps, {}),),
    run=parts.run(accumulation=accumulation),
  )


def _tiny():
  """Four layers of 128 on the shipped sample, minutes on a laptop: short rows with windows of 16,
  no dropout, a high rate, and 15 % masked: with 30 % it learns slower than by word counts at first.
  """
  return _modern(
    4,
    128,
    192,
    encoder=dict(window=16, attention_output_dropout=0.0, initializer_range=0.05),
    tokenizer=parts.byte_bpe(vocab_size=2048),
    corpus=parts.corpus(held_out=0.06),
    moving=(),
    schedule=parts.warmup_stable_decay(learning_rate=3e-3, warmup=100, decay=500),
    length=64,
    batch_size=32,
    phases=((1500, {}),),
    run=parts.run(dtype='float32', log_every=50, eval_every=125, save_minutes=1.0),
  )


_BASE, _LARGE = (22, 768, 1152), (28, 1024, 2624)
_SMALL = dict(peak=3e-3, decay=3e-4)
SIZES = {
  'tiny': _tiny,
  'base': lambda: _grown(_BASE, (768, 4608), 50 * G, 3 * G, 256, 8e-4, 1719 * G),
  'large': lambda: _grown(_LARGE, (448, 4928), 10 * G, 2 * G, 224, 5e-4),
  'base_long': lambda: _long(_BASE, 3e-4, 576, 8),
  'large_long': lambda: _long(_LARGE, 5e-5, 616, 7),
  '17m': lambda: _grown((7, 256, 384), (576, 4608), 125 * G, 4 * G, 192, **_SMALL),
  '32m': lambda: _grown((10, 384, 576), (512, 4608), 100 * G, 4 * G, 256, **_SMALL),
  '68m': lambda: _grown((19, 512, 768), (384, 4608), 75 * G, 3 * G, 192, **_SMALL),
  '150m': lambda: _grown(_BASE, (288, 4608), 50 * G, 3 * G, 288, 8e-4),
  '400m': lambda: _grown(_LARGE, (192, 4608), 10 * G, 2 * G, 192, 5e-4),
}

# One more norm than transformers: the first layer's before its attention, which is not used.
_OF_BASE, _OF_LARGE = 149_656_000, 395_882_688
PARAMETERS = {
  'tiny': 839_040,
  'base': _OF_BASE,
  'large': _OF_LARGE,
  'base_long': _OF_BASE,
  'large_long': _OF_LARGE,
  '17m': 16_913_856,
  '32m': 32_081_728,
  '68m': 68_458_176,
  '150m': _OF_BASE,
  '400m': _OF_LARGE,
}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
