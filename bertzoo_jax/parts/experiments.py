"""The config of an experiment, the config of a fine-tuning, and the machinery of both."""

from typing import Annotated

from bertzoo_jax.common import reading
from bertzoo_jax.parts import features as row_features
from bertzoo_jax.parts import fields
from bertzoo_jax.parts import optimizers
from bertzoo_jax.parts import schedules
from bertzoo_jax.parts import task_objectives

_weights = fields.of(fields.AT_LEAST_0).holds
_power = fields.of(fields.number('a number from 0 to 10', lambda x: 0 <= x <= 10)).holds
MIXTURE = Annotated[
  tuple,
  fields.Range(
    "(), ('size', a power from 0 to 10) or a weight for each --corpus, not all of them 0,",
    lambda x: (
      x == ()
      or isinstance(x, tuple)
      and (_power(x[1]) if len(x) == 2 and x[0] == 'size' else all(map(_weights, x)) and any(x))
    ),
  ),
]

KEEP_WORDS = Annotated[
  str,
  fields.Range(
    "numbers by comma, as '500k,1M..1G',", lambda text: reading.numbers(text) is not None
  ),
]


@fields.section(named=False)
def run(
  *,
  mesh: fields.each(fields.whole(-1, 2**20)) = (-1, 1, 1),
  dtype: fields.one_of('auto', 'bfloat16', 'float32') = 'auto',
  accumulation: fields.COUNT = 1,
  unroll: fields.COUNT_OR_0_OR_AUTO = 'auto',
  remat: fields.one_of('auto', 'none', 'sublayers', 'feed_forward', 'full') = 'auto',
  kernels: fields.one_of('auto', 'xla', 'fused', 'fused_hashed', 'cudnn') = 'auto',
  log_every: fields.COUNT = 100,
  eval_every: fields.STEPS = 10_000,
  eval_batches: fields.COUNT = 50,
  save_minutes: fields.AT_LEAST_0 = 20.0,
  hang_minutes: fields.AT_LEAST_0 = 30.0,
  keep: fields.COUNT = 3,
  keep_every: fields.STEPS = 0,
  keep_words: KEEP_WORDS = '',
  on_nonfinite: fields.one_of('stop', 'skip') = 'stop',
  on_spike: fields.one_of('report', 'stop') = 'report',
  tensorboard: bool = True,
  wandb: str = '',
  compile_cache: str = '~/.cache/bertzoo_jax/xla',
  corpus_cache: fields.one_of('disk', 'ram') = 'disk',
):
  """Machinery: how a run is executed. It changes only rounding and, with other kernels, the draw of
  dropout. The workdir records the value that auto took. It is kept on devices of the same kind.

  mesh: devices along (data, fsdp, tensor); -1 takes those that are left. data and fsdp split the
    rows of a batch. fsdp also splits the parameters and the optimizer's state (a network too large
    for one device). tensor splits the heads, the feed-forward and the vocabulary.
  dtype: of matrix products: auto (float32 on processors without products of bfloat16, else
    bfloat16) | bfloat16 | float32.
  accumulation: microbatches per step.
  unroll: layers per turn of the scan, 0 for all of them (faster, but longer to compile); auto: 0
    for at most 24 layers from 250 steps on a processor, 2,000 on an NVIDIA GPU, 10,000 on v4, v5e,
    v6e; else 1.
  remat: which activations of a layer are saved: auto (the most that fits a TPU, elsewhere all) |
    none (all) | sublayers | feed_forward (its result) | full (nothing).
  kernels: of attention and norms: auto (fused on TPUs, cuDNN or XLA on GPUs, else XLA) | xla |
    fused | fused_hashed (a TPU's dropout as any machine draws it) | cudnn.
  log_every, eval_every: steps; eval_every 0 evaluates at the end only.
  eval_batches: of held-out rows, at most.
  save_minutes: between checkpoints.
  hang_minutes: after which a step, evaluation or save that has not finished ends the run with exit
    code 75; ten times that for the first of each, which compile; 0: never.
  keep: newest checkpoints kept.
  keep_every: steps between checkpoints that are kept for good; 0: none.
  keep_words: numbers of words seen at which checkpoints are kept for good, as '500k,1M..1G': 500k,
    and 1M, 2M … 10M, 20M … 100M, 200M … 1G; '' for none. A row has the average words of a row.
  on_nonfinite: stop | skip (leave the update out and count it).
  on_spike: of loss or gradient norm (training/spikes.py): report | stop.
  tensorboard: whether event files are written.
  wandb: project name, empty for none.
  compile_cache: folder of compiled programs; JAX_COMPILATION_CACHE_DIR overrides it.
  corpus_cache: disk (tokens are read as they are needed) | ram (all at the start).
  """


@fields.section(named=False)
def experiment(
  *,
  seed: fields.SEED = 0,
  length: fields.TOKENS,
  batch_size: fields.UNITS_OR_0 = 0,
  batch_tokens: fields.whole(0, fields.BATCH) = 0,
  phases: tuple,
  epochs: fields.AT_LEAST_0 = 0.0,
  moving: tuple = (),
  ema: fields.SHARE_BELOW_1 = 0.0,
  mixture: MIXTURE = (),
  tokenizer: dict,
  corpus: dict,
  format: dict,
  masking: dict,
  encoder: dict,
  objective: dict,
  optimizer: dict,
  schedule: dict,
  hf: str,
  run: dict,
):
  """The complete config of one experiment.

  seed: of weights, rows, masks and dropout.
  length: tokens per row.
  batch_size: rows of the global batch; 0 if batch_tokens is set.
  batch_tokens: tokens of the global batch, which has batch_tokens // length rows; 0 if batch_size
    is set.
  phases: ((steps, overrides), …); overrides are {'length': 512, 'batch_size': 384, 'masking.rate':
    0.2, 'objective': parts.mlm(), 'run.accumulation': 2}. batch_tokens of a phase overrides the
    experiment's batch_size, and the reverse.
  epochs: above 0, the last phase gets the most steps with which no corpus is read more often; the
    number in `phases` counts where there is no corpus.
  moving: numbers of masking and objective that move with the step: ((field, from, to, first step,
    last step, shape), …), as ('masking.rate', 0.3, 0.15, 0, 10_000, 'linear'); shape is linear |
    cosine (common/moving.py). Held-out figures use the field's own value.
  ema: decay per update of an exponential average of the weights, which W@ema names; 0 for none.
  mixture: the share of each --corpus: () as its rows | ('size', 0.7) as its rows to this power |
    (0.9, 0.1) weights, in their order.
  hf: the Hugging Face class that `export` writes.
  """


@fields.section(named=False)
def fine_tuning(
  *,
  name: str = '',
  seed: fields.SEED = 0,
  length: fields.TOKENS = 128,
  batch_size: fields.UNITS_OR_0 = 32,
  epochs: fields.AT_LEAST_0 = 3.0,
  steps: fields.STEPS = 0,
  warmup: fields.AT_LEAST_0 = 0.1,
  layer_decay: fields.SHARE_ABOVE_0 = 1.0,
  layer_decay_form: fields.one_of('released', 'corrected') = 'released',
  seeds: tuple = (),
  grid: tuple = (),
  init: str = '',
  init_layers: str = '',
  submission: dict = None,
  metrics: tuple,
  positive: str = '',
  choose: fields.one_of('last', 'best') = 'last',
  choose_every: fields.STEPS = 0,
  patience: fields.COUNT_OR_0 = 0,
  max_train: fields.COUNT_OR_0 = 0,
  max_dev: fields.COUNT_OR_0 = 0,
  source: dict,
  features: dict = None,
  encoder: dict = None,
  objective: dict = None,
  optimizer: dict = None,
  schedule: dict = None,
  run: dict = None,
):
  """The complete config of one task's fine-tuning.

  name: of the task, for tables and messages.
  seed: of a run without `seeds`.
  length: most tokens of a row.
  batch_size: rows of the global batch.
  epochs, steps: how long; steps 0 means by epochs.
  warmup: below 1 a share of all steps, from 1 on steps.
  layer_decay: the rate of a layer is that of the layer above it × layer_decay; 1 for none.
  layer_decay_form: released | corrected (ELECTRA's release skips a power between the head and the
    last layer).
  seeds: one run each; () for `seed` alone.
  grid: ((key, (values, …)), …); every combination is run with every seed. A key is none that says
    which rows there are (source, features, length) or which runs (seed, seeds, init).
  init: name of the task whose best run this one begins with (MNLI for RTE); '' for --init.
  init_layers: layers of --init that make a shallower network: first:N | every:K | numbers from 0 by
    comma; '' for all.
  submission: {test split: name of its file for the benchmark}.
  metrics: names; the first is the dev score, by which the best of a grid is chosen. Also
    `package.module:name` (tasks/metrics.py).
  positive: the label that f1, precision and recall are of; '' for the second of two. Of tags, the
    type that entity_f1 and the like are of; '' for all.
  choose: the checkpoint of a run that is scored and kept: last | best (by the dev score).
  choose_every: steps between dev scores; 0 for an epoch.
  patience: dev scores without a better one after which a run ends; 0 for none. With choose=best.
  max_train, max_dev: examples of train and of each dev split, at most, chosen by a hash of their
    text; 0 for all.
  encoder: {field: value} of the encoder that fine-tuning sets; all others come with the weights.
    None for both kinds of dropout at 0.1, {} for nothing.
  """
  return dict(
    submission=submission or {},
    features=features or row_features.texts(),
    encoder=dict(dropout=0.1, attention_dropout=0.1) if encoder is None else encoder,
    objective=objective or task_objectives.classification(),
    optimizer=optimizer or optimizers.adamw(),
    schedule=schedule or schedules.linear_from_start(learning_rate=3e-5, warmup=0),
    run=run or machinery(eval_every=0, keep=1),
  )


machinery = run  # fine_tuning has an argument of this name

__all__ = fields.sections(vars())
