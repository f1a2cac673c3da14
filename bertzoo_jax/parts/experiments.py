"""The configs of an experiment and of a fine-tuning, and their sections without alternatives."""

import dataclasses
from typing import Annotated

from bertzoo_jax.common import amounts
from bertzoo_jax.parts import features as row_features
from bertzoo_jax.parts import fields
from bertzoo_jax.parts import optimizers
from bertzoo_jax.parts import schedules
from bertzoo_jax.parts import task_objectives

_weights = fields.get_range(fields.AT_LEAST_0).holds
_power = fields.get_range(fields.number('a number from 0 to 10', lambda x: 0 <= x <= 10)).holds
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
AT_MOST = Annotated[
  fields.COUNT_OR_0,
  'most examples of train, and of each dev split, chosen by a hash of their text; 0 for all.',
]
PHRASES = Annotated[
  fields.one_of('none', 'lexicon', 'jieba'),
  'larger units: none | lexicon (--phrases, --entities FILE) | jieba (parts of speech).',
]


@fields.part()
class Corpus:
  """How `prepare` treats a text: sentences, held-out documents, duplicates, marks of units."""

  splitter: Annotated[
    str,
    'rules:LANG | rules:generic (any language: stops, no abbreviations) | sentencex:LANG (that '
    'package) | lines (one sentence per line) | regex:PATTERN (its match ends a sentence) | none.',
  ] = 'rules:en'
  held_out: Annotated[
    fields.SHARE_BELOW_1, 'share of the documents, by content hash, kept out of training.'
  ] = 0.01
  min_chars: Annotated[fields.COUNT_OR_0, 'shorter documents are dropped.'] = 0
  duplicates: Annotated[
    fields.one_of('documents+paragraphs', 'documents', 'keep'),
    'repeated texts that are dropped: documents+paragraphs | documents | keep (none).',
  ] = 'documents+paragraphs'
  words: fields.one_of(
    pieces="by the word starts of the tokenizer's pieces",
    jieba='Chinese',
    blanks='text segmented beforehand',
  ) = 'pieces'
  phrases: PHRASES = 'none'
  entities: PHRASES = 'none'
  similar: Annotated[
    fields.one_of('none', 'trained', 'vectors', 'thesaurus'),
    'a table of similar words: none | trained (word vectors of this text) | vectors | thesaurus '
    '(--similar FILE).',
  ] = 'none'


@fields.part()
class Run:
  """Machinery: how a run is executed. It changes only rounding and, with other kernels, the draw of
  dropout. The workdir records the values chosen for auto, which devices of the same kind keep.
  """

  mesh: Annotated[
    fields.each(fields.whole(-1, 2**20)),
    'devices along (data, fsdp, tensor); -1 takes the remaining ones. data and fsdp split the '
    "rows of a batch. fsdp also splits the parameters and the optimizer's state (a network too "
    'large for one device). tensor splits the heads, the feed-forward and the vocabulary.',
  ] = (-1, 1, 1)
  dtype: Annotated[
    fields.one_of('auto', 'bfloat16', 'float32'),
    'of matrix products: auto (float32 on processors without products of bfloat16, else bfloat16) '
    '| bfloat16 | float32.',
  ] = 'auto'
  accumulation: Annotated[
    fields.COUNT_OR_AUTO, 'microbatches per step; auto: the fewest that fit the devices.'
  ] = 1
  steps_per_call: Annotated[
    fields.COUNT,
    'most steps that the host starts at once, between those that are logged, evaluated or kept; '
    'some keep a fast card busy with a small network.',
  ] = 1
  unroll: Annotated[
    fields.COUNT_OR_0_OR_AUTO,
    'layers per iteration of the scan, 0 for all (faster, but longer to compile); auto: 0 for '
    'at most 24 layers from 250 steps on a processor, 2,000 on an NVIDIA GPU, 10,000 on v4, v5e, '
    'v6e; else 1.',
  ] = 'auto'
  remat: Annotated[
    fields.one_of('auto', 'none', 'sublayers', 'feed_forward', 'full'),
    'which activations of a layer are saved: auto (the most that fits a TPU, elsewhere all) | '
    'none (all) | sublayers | feed_forward (its result) | full (nothing).',
  ] = 'auto'
  kernels: Annotated[
    fields.one_of('auto', 'xla', 'fused', 'cudnn'),
    'of attention and norms: auto (fused on TPUs; on GPUs cuDNN where it can; else XLA) | xla '
    '| fused (Pallas) | cudnn (neither dropout nor relative terms).',
  ] = 'auto'
  log_every: Annotated[fields.COUNT, 'steps; eval_every 0 evaluates at the end only.'] = 100
  eval_every: Annotated[fields.STEPS, 'steps; eval_every 0 evaluates at the end only.'] = 10_000
  eval_batches: Annotated[fields.COUNT, 'most batches of held-out rows per evaluation.'] = 50
  save_minutes: Annotated[fields.AT_LEAST_0, 'minutes between checkpoints.'] = 20.0
  hang_minutes: Annotated[
    fields.AT_LEAST_0,
    'minutes after which an unfinished step, evaluation or save ends the run with exit code 75; '
    'ten times that for the first of each, which compile; 0: never.',
  ] = 30.0
  keep: Annotated[fields.COUNT, 'newest checkpoints kept.'] = 3
  keep_every: Annotated[
    fields.STEPS, 'steps between checkpoints that are kept for good; 0: none.'
  ] = 0
  keep_words: Annotated[
    str,
    fields.Range("numbers by comma, as '500k,1M..1G',", lambda x: amounts.numbers(x) is not None),
    "numbers of words seen at which checkpoints are kept for good, as '500k,1M..1G': 500k, and "
    "1M, 2M … 10M, 20M … 100M, 200M … 1G; '' for none. Every row counts as an average row.",
  ] = ''
  on_nonfinite: fields.one_of('stop', skip='leave the update out and count it') = 'stop'
  on_spike: Annotated[
    fields.one_of('report', 'stop'), 'of loss or gradient norm (training/spikes.py): report | stop.'
  ] = 'report'
  tensorboard: Annotated[bool, 'whether event files are written.'] = True
  wandb: Annotated[str, 'project name, empty for none.'] = ''
  compile_cache: Annotated[
    str, 'folder of compiled programs; JAX_COMPILATION_CACHE_DIR overrides it.'
  ] = '~/.cache/bertzoo_jax/xla'
  corpus_cache: fields.one_of(disk='tokens are read as they are needed', ram='all at the start') = (
    'disk'
  )


@fields.part()
class Experiment:
  """The complete config of one experiment."""

  seed: Annotated[fields.SEED, 'of weights, rows, masks and dropout.'] = 0
  length: Annotated[fields.TOKENS, 'tokens per row.']
  batch_size: Annotated[
    fields.UNITS_OR_0, 'rows of the global batch; 0 if batch_tokens is set.'
  ] = 0
  batch_tokens: Annotated[
    fields.whole(0, fields.BATCH),
    'tokens of the global batch, which has batch_tokens // length rows; 0 if batch_size is set.',
  ] = 0
  phases: Annotated[
    tuple,
    "((steps, overrides), …); overrides are {'length': 512, 'batch_size': 384, 'masking.rate': "
    "0.2, 'objective': parts.mlm(), 'run.accumulation': 2}. batch_tokens of a phase overrides the "
    "experiment's batch_size, and the reverse.",
  ]
  epochs: Annotated[
    fields.AT_LEAST_0,
    'above 0, the last phase gets the most steps with which no corpus is read more often than '
    'this; without a corpus, the number in `phases` counts.',
  ] = 0.0
  moving: Annotated[
    tuple,
    'numbers of masking and objective that move with the step: ((field, from, to, first step, '
    "last step, shape), …), as ('masking.rate', 0.3, 0.15, 0, 10_000, 'linear'); shape is linear "
    "| cosine (common/moving.py). Held-out figures use the field's own value.",
  ] = ()
  ema: Annotated[
    fields.SHARE_BELOW_1,
    'decay per update of an exponential average of the weights, which W@ema names; 0 for none.',
  ] = 0.0
  mixture: Annotated[
    MIXTURE,
    "the share of each --corpus: () proportional to its rows | ('size', 0.7) to its rows to this "
    'power | (0.9, 0.1) weights in the order of --corpus.',
  ] = ()
  frozen: Annotated[
    tuple,
    "path regexes of parameters that do not learn, as ('/layers/',); a phase that drops one of the "
    'phase before begins with fresh moments.',
  ] = ()
  tokenizer: dict
  corpus: dict
  format: dict
  masking: dict
  encoder: dict
  objective: dict
  optimizer: dict
  schedule: dict
  hf: Annotated[str, 'the Hugging Face class that `export` writes.']
  run: dict


@fields.part()
class FineTuning:
  """The complete config of one task's fine-tuning."""

  name: Annotated[str, 'of the task, for tables and messages.'] = ''
  seed: Annotated[fields.SEED, 'of a run without `seeds`.'] = 0
  length: Annotated[fields.TOKENS, 'most tokens of a row.'] = 128
  batch_size: Annotated[fields.UNITS_OR_0, 'rows of the global batch.'] = 32
  epochs: Annotated[fields.AT_LEAST_0, 'how long; steps 0 means by epochs.'] = 3.0
  steps: Annotated[fields.STEPS, 'how long; steps 0 means by epochs.'] = 0
  warmup: Annotated[fields.AT_LEAST_0, 'below 1 a share of all steps, from 1 on steps.'] = 0.1
  layer_decay: Annotated[
    fields.SHARE_ABOVE_0,
    'the rate of a layer is that of the layer above it × layer_decay; 1 for none.',
  ] = 1.0
  layer_decay_form: fields.one_of(
    'released', corrected='the release skips a power between the head and the last layer'
  ) = 'released'
  seeds: Annotated[tuple, 'one run each; () for `seed` alone.'] = ()
  grid: Annotated[
    tuple,
    '((key, (values, …)), …); every combination is run with every seed. A key must not change '
    'the rows (source, features, length) or the runs (seed, seeds, init).',
  ] = ()
  init: Annotated[
    str, "name of the task whose best run this one begins with (MNLI for RTE); '' for --init."
  ] = ''
  init_layers: Annotated[
    str,
    'layers of --init that make a shallower network: first:N | every:K | numbers from 0 by comma; '
    "'' for all.",
  ] = ''
  submission: Annotated[dict, '{test split: name of its file for the benchmark}.'] = (
    dataclasses.field(default_factory=dict)
  )
  metrics: Annotated[
    tuple,
    'names; the first is the dev score, by which the best of a grid is chosen. Also '
    '`package.module:name` (tasks/metrics.py).',
  ]
  positive: Annotated[
    str,
    "the label that f1, precision and recall are of; '' for the second of two. Of tags, the type "
    "that entity_f1 and the like are of; '' for all.",
  ] = ''
  choose: Annotated[
    fields.one_of('last', 'best', 'lowest_loss'),
    'the checkpoint of a run that is scored and kept: last | best (by the dev score) | lowest_loss '
    '(of dev).',
  ] = 'last'
  choose_every: Annotated[fields.STEPS, 'steps between evaluations; 0 for an epoch.'] = 0
  patience: Annotated[
    fields.COUNT_OR_0,
    'without choose=last: a run ends after this many evaluations without a better one; 0: never.',
  ] = 0
  draw: fields.one_of(
    all='as they are', bootstrap='as many, drawn with replacement by the seed of a run'
  ) = 'all'
  max_train: AT_MOST = 0
  max_dev: AT_MOST = 0
  source: dict
  features: dict = row_features.Texts()
  encoder: Annotated[
    dict,
    '{field: value} of the encoder that fine-tuning sets; all others come with the weights. None '
    'for both kinds of dropout at 0.1, {} for nothing.',
  ] = dataclasses.field(default_factory=lambda: dict(dropout=0.1, attention_dropout=0.1))
  objective: dict = task_objectives.Classification()
  optimizer: dict = optimizers.Adamw()
  schedule: dict = schedules.LinearFromStart(learning_rate=3e-5, warmup=0)
  run: dict = Run(eval_every=0, keep=1)
