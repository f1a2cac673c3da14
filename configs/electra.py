"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): a generator fills masks, a discriminator tells
which tokens are replaced.

    python -m bertzoo_jax.pretrain --config configs/electra.py:small \
      --corpus CORPUS --workdir WORKDIR

Sizes: tiny (for a laptop and the tests), small, base, large (Table 6; base and large trained on
XLNet's text for the released models, on BERT's for Table 1); tiny_two_stage, base_two_stage (Figure
3).

The paper's runs: BERT's uncased WordPiece; running text in one or two segments, never a false pair;
15 % of the tokens (large: 25 %) are chosen, of which 85 % become [MASK] and 15 % stay. Small:
1,000,000 steps of 128 rows of 128, 4 days on one V100; base: 766,000 of 256 rows of 512, 4 days on
16 TPU v3; large: 400,000 of 2,048, or 1,750,000 (--config.phases='((1750000, {}),)').

Its comparisons:

* --config configs/electra.py:base,objective=replaced_token_adversarial | replace_mlm |
  all_tokens_mlm; their width is 1/4 unless set: --config.objective.width=0.3333333333333333.
* ELECTRA 15 %: --config.objective.loss_over=masked.
* Sharing: --config.objective.shared=none | token | embeddings | all (all: with width=1.0).
* Generators that are no network: objective=corruption_detection with
  --config.masking.corruption='(0.0, 1.0, 0.0)' and random_tokens=all (uniform) or unigrams.

The released small model is another one: a generator of full width, 4,000,000 steps, more text.

Not as in the released code: rows and their segments are drawn anew in every epoch (there: written
once); positions are drawn without replacement, so that no prediction counts twice
(--config.masking.sampling=independent draws as there, and a position's first sample is put in, not
a mean of ids); the projection of the tables starts as all other weights (there: uniform, after
Glorot). Norm of the gradient and losses are the whole batch's, not each core's.
No results of a full run yet.
"""

from bertzoo_jax import parts
from bertzoo_jax.configs import arguments


def _electra(
  num_layers, hidden_size, *, width, embedding_size=0, rate=0.15, learning_rate=2e-4, **fields
):
  return parts.experiment(
    **{
      **dict(
        tokenizer=parts.wordpiece(vocab_size=30522),
        corpus=parts.corpus(),
        format=parts.adjacent_segments(),
        masking=parts.token(rate=rate, corruption=(0.85, 0.0, 0.15)),
        encoder=parts.transformer(
          num_layers=num_layers,
          hidden_size=hidden_size,
          num_heads=hidden_size // 64,
          intermediate_size=4 * hidden_size,
          embedding_size=embedding_size,
          activation='gelu',
        ),
        objective=parts.replaced_token(width=width),
        optimizer=parts.adamw_uncorrected(),
        schedule=parts.linear_product(learning_rate=learning_rate, warmup=10_000),
        length=512,
        batch_size=256,
        phases=((766_000, {}),),
        hf='ElectraForPreTraining',
        run=parts.run(),
      ),
      **fields,
    }
  )


def _tiny(**fields):
  """Two layers of 128 on the English sample, minutes on a laptop. Three settings let the network
  tell replaced tokens in 2,000 steps: rows of 32, a generator of one layer a quarter as wide, and
  sampling at temperature 2 (at 1 it still calls every token original).
  """
  return _electra(
    2,
    128,
    width=0.25,
    **{
      **dict(
        tokenizer=parts.wordpiece(vocab_size=4096),
        corpus=parts.corpus(held_out=0.06),
        encoder=parts.transformer(
          num_layers=2,
          hidden_size=128,
          num_heads=2,
          intermediate_size=512,
          activation='gelu',
          dropout=0.0,
          attention_dropout=0.0,
        ),
        objective=parts.replaced_token(width=0.25, depth=0.5, temperature=2.0),
        schedule=parts.linear_product(learning_rate=1e-3, warmup=200),
        length=32,
        batch_size=64,
        phases=((2000, {}),),
        run=parts.run(dtype='float32', log_every=50, eval_every=500, save_minutes=1.0),
      ),
      **fields,
    },
  )


def _two_stages(steps, temperature=1.0):
  """Half of the steps for the generator, half for the discriminator that begins with its weights;
  each stage with its own schedule.
  """
  return dict(
    objective=parts.generator_mlm(),
    phases=(
      (steps // 2, {}),
      (steps - steps // 2, {'objective': parts.replaced_token_frozen(temperature=temperature)}),
    ),
  )


def _restarting(config):
  config.schedule.across_phases = 'restart'
  return config


SIZES = {
  'tiny': _tiny,
  'small': lambda: _electra(
    12,
    256,
    width=1 / 4,
    embedding_size=128,
    learning_rate=5e-4,
    length=128,
    batch_size=128,
    phases=((1_000_000, {}),),
  ),
  'base': lambda: _electra(12, 768, width=1 / 3),
  'large': lambda: _electra(
    24,
    1024,
    width=1 / 4,
    rate=0.25,
    batch_size=2048,
    phases=((400_000, {}),),
    run=parts.run(accumulation=4),
  ),
  'tiny_two_stage': lambda: _restarting(_tiny(**_two_stages(2000, temperature=2.0))),
  'base_two_stage': lambda: _restarting(_electra(12, 768, width=1 / 3, **_two_stages(766_000))),
}

# Generator and discriminator together; shared parameters count once.
_BASE_BODY, _BASE_MLM_HEAD = 108_891_648, (768 * 768 + 768) + 2 * 768 + 30_522
_BASE_DETECTION_HEAD = 591_361
PARAMETERS = {
  'tiny': 1_028_929,
  'small': 14_196_219,
  'base': 119_386_427,
  'large': 354_655_291,
  'tiny_two_stage': 2_011_265,
  'base_two_stage': 2 * _BASE_BODY + _BASE_DETECTION_HEAD + _BASE_MLM_HEAD,  # nothing shared
}


def get_config(argument='base'):
  return arguments.config(argument, SIZES)
