"""The two sides of step.py: one pretraining step of ours, and the same work in torch, with
transformers or a checkout of pszemraj/deberta.
"""

import ctypes
import functools
import gc
import pathlib
import resource
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# {system: {model: sizes of the network}}; the first model is the default. Heads are 64 wide,
# feed-forward layers 4 times the width, ModernBERT's 1.5 times.
MODELS = {
  'bert': {
    'base': dict(num_layers=12, hidden_size=768),
    'small': dict(num_layers=4, hidden_size=512),
    'tiny': dict(num_layers=2, hidden_size=128),
  },
  'electra': {
    'small': dict(num_layers=12, hidden_size=256, embedding_size=128),
    'tiny': dict(num_layers=2, hidden_size=128, embedding_size=64),
  },
  'albert': {
    'base': dict(num_layers=12, hidden_size=768, embedding_size=128),
    'tiny': dict(num_layers=2, hidden_size=128, embedding_size=64),
  },
  'deberta': {
    'base': dict(num_layers=12, hidden_size=768),
    'small': dict(num_layers=4, hidden_size=512),
    'tiny': dict(num_layers=2, hidden_size=128),
  },
  'deberta_v3': {
    'base': dict(num_layers=12, hidden_size=768),
    'small': dict(num_layers=6, hidden_size=768),
    'xsmall': dict(num_layers=12, hidden_size=384),
    'tiny': dict(num_layers=2, hidden_size=128),
  },
  'xlnet': {
    'base': dict(num_layers=12, hidden_size=768),
    'small': dict(num_layers=4, hidden_size=512),
    'tiny': dict(num_layers=2, hidden_size=128),
  },
  'modernbert': {
    'base': dict(num_layers=22, hidden_size=768),
    'tiny': dict(num_layers=4, hidden_size=128),
  },
}
VOCAB = {
  'bert': 30522,
  'electra': 30522,
  'albert': 30000,
  'deberta': 50265,
  'deberta_v3': 128100,
  'xlnet': 32000,
  'modernbert': 50368,
}

# The generator's share of the discriminator's width (ELECTRA) or depth (DeBERTaV3), and the weight
# of the discriminator's loss.
GENERATOR_WIDTH, GENERATOR_DEPTH, DISCRIMINATOR_WEIGHT = 0.25, 0.5, 50.0

# DeBERTa's relative table: rows to each side, and V3's buckets. Positions that have a vector, of
# longer rows as many as their tokens.
DISTANCES, BUCKETS, POSITIONS = 512, 256, 512

# Systems whose classes have one implementation of attention.
_EAGER = ('deberta', 'deberta_v3', 'xlnet')

_CLASSES = {
  'bert': ('BertConfig', 'BertForPreTraining'),
  'electra': ('ElectraConfig', 'ElectraForPreTraining', 'ElectraForMaskedLM'),
  'albert': ('AlbertConfig', 'AlbertForPreTraining'),
  'deberta': ('DebertaConfig', 'DebertaForMaskedLM'),
  'deberta_v3': ('DebertaV2Config', 'DebertaV2Model', 'DebertaV2ForMaskedLM'),
  'xlnet': ('XLNetConfig', 'XLNetLMHeadModel'),
  'modernbert': ('ModernBertConfig', 'ModernBertForMaskedLM'),
}


class Side(NamedTuple):
  """The commands of a side's process.

  Attributes:
    take: (number of steps) → the last one's loss, when all are done. They queue up on a GPU.
    memory: () → most bytes of the device that it has held; of a processor, less `peak` before
      anything was built.
    device: its name.
  """

  take: Callable
  memory: Callable
  device: str


def forget_peak():
  """The peak is counted anew from here, where the system can (Linux): memory that the compiler
  freed is given back first.
  """
  try:
    gc.collect()
    ctypes.CDLL('libc.so.6').malloc_trim(0)
    pathlib.Path('/proc/self/clear_refs').write_text('5')
  except OSError:
    pass


def peak():
  """Most bytes that this process has had resident, since `forget_peak` where that works."""
  try:
    return 1024 * int(
      next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1]
    )
  except (OSError, StopIteration):
    pass
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
    1 if sys.platform == 'darwin' else 1024
  )


def make_batch(a):
  """The batch both sides train on, as pretrain ships it."""
  rng, vocab = np.random.default_rng(0), VOCAB[a.system]
  lengths = rng.integers(a.length * 7 // 8, a.length + 1, a.batch)
  lengths[0 if a.system != 'xlnet' else slice(None)] = a.length
  real = np.arange(a.length) < lengths[:, None]
  positions = np.stack(
    [1 + np.sort(rng.choice(n - 2, a.predictions, replace=False)) for n in lengths]
  )
  batch = dict(
    input_ids=np.where(real, rng.integers(1000, vocab, real.shape), 0).astype(np.int32),
    token_type_ids=((np.arange(a.length) >= a.length // 2) & real).astype(np.int32),
    segment_ids=real.astype(np.int32),
    masked_positions=positions.astype(np.int32),
    masked_targets=rng.integers(1000, vocab, positions.shape).astype(np.int32),
    masked_weights=np.ones(positions.shape, np.float32),
    pair_labels=rng.integers(0, 2, a.batch).astype(np.int32),
  )
  if a.system == 'xlnet':  # half of the rows are read from right to left, all go on
    order = np.zeros(real.shape, np.int32)
    ranks = 1 + np.argsort(rng.random(positions.shape), axis=1)
    np.put_along_axis(order, positions, ranks.astype(np.int32), axis=1)
    direction = (np.arange(a.batch) >= a.batch // 2).astype(np.int32)
    batch.update(order=order, direction=direction, resets=np.zeros(a.batch, np.int32))
  return batch


def ours(a):
  """Side of this repository."""
  sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
  import jax
  import jax.numpy as jnp

  from bertzoo_jax import kernels
  from bertzoo_jax import objectives
  from bertzoo_jax import parts
  from bertzoo_jax.common import trees
  from bertzoo_jax.experiment import build as experiments
  from bertzoo_jax.model import encoder as encoders
  from bertzoo_jax.training import optimizers
  from bertzoo_jax.training import phase_run
  from bertzoo_jax.training import schedules
  from bertzoo_jax.training import sharding
  from bertzoo_jax.training import step as steps

  before = peak()
  encoder, objective = sections(a, parts)
  encoder = build(
    encoders,
    encoder,
    vocab_size=VOCAB[a.system],
    dtype=jnp.dtype(a.dtype),
    unroll=a.unroll or encoder['num_layers'],
    remat=a.remat,
  )
  device = jax.devices()[0]
  attention = encoder.attention_dropout, encoder.relative_attention, encoder.dtype
  chosen = kernels.choose('auto', device, *attention)
  if device.platform == 'gpu' and chosen is kernels.XLA:  # `auto` waits for a card's figures
    chosen = kernels.choose('fused', device, *attention)
  ops = experiments.operations_on(sharding.mesh((1, 1, 1), [device]), chosen, encoder.axes)
  objective = build(objectives, objective, encoder, ops=ops)
  line = parts.linear_after_warmup(learning_rate=1e-4, warmup=0)
  schedule = build(schedules, line, 10_000)
  paths = trees.paths_of(jax.eval_shape(objective.init, jax.random.key(0)))
  tx = build(optimizers, parts.adamw(clip_norm=1.0, no_decay=(r'norm/', r'bias$')), schedule, paths)
  state = steps.init(objective, tx, 0, a.batch)
  step = steps.make_train_step(objective, tx, schedule, seed=0)
  options = phase_run.compiler_options(device.device_kind, False)
  train = jax.jit(step, donate_argnums=0, compiler_options=options)
  batch = jax.tree.map(jnp.asarray, make_batch(a))

  def take(steps):
    nonlocal state
    for _ in range(steps):
      state, metrics = train(state, batch)
    jax.block_until_ready(state)
    return float(metrics['loss'])

  held = lambda: device.memory_stats()['peak_bytes_in_use']
  return Side(take, held if a.device == 'gpu' else lambda: peak() - before, device.device_kind)


def sections(a, parts):
  """(encoder, objective) of a config."""
  sizes = MODELS[a.system][a.model]
  width = sizes['hidden_size']
  if a.system == 'modernbert':
    sizes = dict(**sizes, num_heads=width // 64, intermediate_size=3 * width // 2)
    return parts.modern(**sizes, attention_output_dropout=a.dropout), parts.mlm()
  sizes = dict(
    **sizes,
    num_heads=width // 64,
    intermediate_size=4 * width,
    activation='gelu',
    dropout=a.dropout,
    attention_dropout=a.attention_dropout,
  )
  if a.system != 'xlnet':
    sizes.update(max_positions=max(POSITIONS, a.length))
  detection = dict(discriminator_weight=DISCRIMINATOR_WEIGHT)
  if a.system == 'deberta':
    v1 = dict(buckets=0, norm_relative=False, shared_projections=False, key_bias=False)
    return parts.disentangled(**sizes, **v1, max_distance=DISTANCES), parts.mlm()
  if a.system == 'deberta_v3':
    generator = dict(width=1.0, depth=GENERATOR_DEPTH, shared='added', head='token_and_row')
    encoder = parts.disentangled(**sizes, max_distance=DISTANCES, buckets=BUCKETS)
    return encoder, parts.replaced_token(**generator, **detection)
  if a.system == 'xlnet':
    return parts.two_stream(**sizes, **_memory(a.length)), parts.permutation_lm()
  if a.system == 'electra':
    generator = dict(width=GENERATOR_WIDTH, depth=1.0, shared='embeddings')
    return parts.transformer(**sizes), parts.replaced_token(**generator, **detection)
  if a.system == 'albert':
    sizes.update(sharing='all', activation='gelu_tanh')
  return parts.transformer(**sizes), parts.mlm_pair(pair_weight=1.0)


def _memory(length):
  """Lengths of the memory and of the reused part of a row: 384 and 256 for rows of 512."""
  return dict(memory_length=length * 3 // 4, reuse_length=length // 2)


def theirs(a):
  """Side of transformers and torch."""
  import torch
  import transformers

  classes = [getattr(transformers, name) for name in _CLASSES[a.system]]  # each is imported now
  before = peak()
  torch.set_num_threads(a.threads)
  torch.manual_seed(0)
  device = 'cuda' if a.device == 'gpu' else 'cpu'
  torch.set_float32_matmul_precision('high')
  sizes = dict(MODELS[a.system][a.model])
  width = sizes.pop('hidden_size')
  fields = dict(
    vocab_size=VOCAB[a.system],
    num_hidden_layers=sizes.pop('num_layers'),
    **sizes,
    hidden_dropout_prob=a.dropout,
    attention_probs_dropout_prob=a.attention_dropout,
    max_position_embeddings=max(POSITIONS, a.length),
  )
  if a.system not in _EAGER:
    fields.update(attn_implementation=a.attention)
  make = functools.partial(_checkout, a.checkout) if a.checkout else _NETWORKS[a.system]
  model, loss_of = make(torch, fields, width, *classes)
  model.to(device).train()
  b = {k: torch.as_tensor(v).to(device) for k, v in make_batch(a).items()}
  b = {k: v.long() if v.dtype is torch.int32 else v for k, v in b.items()}
  decays = lambda n: not ('norm' in n.lower() or n.endswith('bias'))
  groups = [
    dict(params=[p for n, p in model.named_parameters() if decays(n) == d], weight_decay=0.01 * d)
    for d in (True, False)
  ]
  adam = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.98), eps=1e-6, fused=True)
  run = torch.compile(loss_of, dynamic=False) if a.compile else loss_of
  after = getattr(model, 'sync_discriminator_embeddings_from_generator', lambda: None)

  def take(steps):
    for _ in range(steps):
      adam.zero_grad(set_to_none=True)
      with torch.autocast(device, dtype=torch.bfloat16, enabled=a.dtype == 'bfloat16'):
        loss = run(b)
      loss.backward()
      torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      adam.step()
      after()
    if device == 'cuda':
      torch.cuda.synchronize()
    return float(loss.detach())

  if device == 'cpu':
    return Side(take, lambda: peak() - before, device)
  return Side(take, torch.cuda.max_memory_allocated, torch.cuda.get_device_name())


def build(module, part, *positional, **fields):
  """The object that a section of a config makes."""
  from bertzoo_jax.parts import named

  return named.build(part, module.BY_NAME, 'part', *positional, **fields)


# --- networks of transformers: (module, batch → loss) ---


def _sizes(width):
  return dict(
    hidden_size=width, num_attention_heads=max(1, width // 64), intermediate_size=4 * width
  )


def _bert(torch, fields, width, config, pretraining):
  model = pretraining(config(**fields, **_sizes(width), hidden_act='gelu'))

  def loss_of(b):
    out = model.bert(
      input_ids=b['input_ids'], attention_mask=b['segment_ids'], token_type_ids=b['token_type_ids']
    )
    logits, pair = model.cls(_gather(out.last_hidden_state, b), out.pooler_output)
    return _masked_loss(torch, logits, b) + torch.nn.functional.cross_entropy(
      pair.float(), b['pair_labels']
    )

  return model, loss_of


def _albert(torch, fields, width, config, pretraining):
  model = pretraining(
    config(**fields, **_sizes(width), hidden_act='gelu_new', classifier_dropout_prob=0.0)
  )
  for layer in (
    layer for group in model.albert.encoder.albert_layer_groups for layer in group.albert_layers
  ):
    # their class makes this dropout and does not call it
    layer.ffn_output = torch.nn.Sequential(layer.ffn_output, layer.dropout)

  def loss_of(b):
    out = model.albert(
      input_ids=b['input_ids'], attention_mask=b['segment_ids'], token_type_ids=b['token_type_ids']
    )
    logits, pair = (
      model.predictions(_gather(out.last_hidden_state, b)),
      model.sop_classifier(out.pooler_output),
    )
    return _masked_loss(torch, logits, b) + torch.nn.functional.cross_entropy(
      pair.float(), b['pair_labels']
    )

  return model, loss_of


def _electra(torch, fields, width, config, pretraining, masked_lm):
  """The generator shares the discriminator's tables and their norm; its head decodes by the word
  table.
  """
  discriminator = pretraining(config(**fields, **_sizes(width), hidden_act='gelu'))
  generator = masked_lm(
    config(**fields, **_sizes(round(width * GENERATOR_WIDTH)), hidden_act='gelu')
  )
  generator.electra.embeddings = discriminator.electra.embeddings
  generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight

  def loss_of(b):
    row = dict(attention_mask=b['segment_ids'], token_type_ids=b['token_type_ids'])
    hidden = _gather(generator.electra(input_ids=b['input_ids'], **row).last_hidden_state, b)
    logits = generator.generator_lm_head(generator.generator_predictions(hidden))
    filled, replaced = _filled(torch, logits, b)
    scores = discriminator.discriminator_predictions(
      discriminator.electra(input_ids=filled, **row).last_hidden_state
    )
    return _detection_loss(torch, logits, scores, replaced, b)

  return torch.nn.ModuleDict(dict(discriminator=discriminator, generator=generator)), loss_of


def _deberta(torch, fields, width, config, masked_lm):
  """Layers of DeBERTa v1. Their attention fails with `query_states`. So the decoder's attention is
  built here from the class's products and its `disentangled_att_bias`.
  """
  positions = torch.nn.Embedding(fields.pop('max_position_embeddings'), width)
  relative = dict(pos_att_type=['c2p', 'p2c'], max_position_embeddings=DISTANCES)
  model = masked_lm(config(**fields, **_sizes(width), **_DEBERTA, **relative))
  model.positions = positions

  def attend(its, x, z, mask, relative_pos, rel_embeddings):
    heads = lambda y: its.transpose_for_scores(y)
    kernels = its.in_proj.weight.view(its.num_attention_heads, 3, -1, width)
    kernels = kernels.transpose(0, 1).reshape(3, width, width)
    q, k, v = (torch.nn.functional.linear(y, w) for y, w in zip((z, x, x), kernels))
    q, k, v = heads(q + its.q_bias), heads(k), heads(v + its.v_bias)
    q = q / (3 * its.attention_head_size) ** 0.5
    terms = its.disentangled_att_bias(q, k, relative_pos, its.pos_dropout(rel_embeddings), 3)
    scores = (q @ k.mT + terms).masked_fill(~mask.bool(), torch.finfo(q.dtype).min)
    mixed = its.dropout(scores.softmax(-1)) @ v
    return mixed.permute(0, 2, 1, 3).flatten(-2)

  def decode(layer, x, mask, z, relative_pos, rel_embeddings):
    y = attend(layer.attention.self, x, z, mask, relative_pos, rel_embeddings)
    y = layer.attention.output(y, z)
    return layer.output(layer.intermediate(y), y)

  def loss_of(b):
    states = _decoded(model.deberta, model.positions, b, decode)
    return _masked_loss(torch, model.cls(_gather(states, b)), b)

  return model, loss_of


def _deberta_v3(torch, fields, width, config, encoder, masked_lm):
  """Layers of DeBERTa v2, word vectors E_D = E_G + Δ with no gradient to E_G, and V3's head."""
  positions = torch.nn.Embedding(fields.pop('max_position_embeddings'), width)
  configs = _v3_configs(fields, width, config, max_position_embeddings=DISTANCES)
  generator, discriminator = masked_lm(configs[0]), encoder(configs[1])
  generator.positions = positions
  theirs, own = (x.embeddings.word_embeddings for x in (generator.deberta, discriminator))
  torch.nn.init.zeros_(own.weight)
  norm = torch.nn.LayerNorm(width, eps=1e-7)
  score = torch.nn.Sequential(
    torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, 1)
  )

  def decode(layer, x, mask, z, relative_pos, rel_embeddings):
    of = dict(relative_pos=relative_pos, rel_embeddings=rel_embeddings)
    return layer(x, mask, query_states=z, **of)[0]

  def loss_of(b):
    states = _decoded(generator.deberta, generator.positions, b, decode)
    logits = generator.cls(_gather(states, b))
    filled, replaced = _filled(torch, logits, b)
    words = torch.nn.functional.embedding(filled, theirs.weight.detach()) + own(filled)
    hidden = discriminator(inputs_embeds=words, attention_mask=b['segment_ids']).last_hidden_state
    scores = score(norm(hidden + hidden[:, :1]))[..., 0]
    return _detection_loss(torch, logits, scores, replaced, b)

  parts = dict(generator=generator, discriminator=discriminator, norm=norm, score=score)
  return torch.nn.ModuleDict(parts), loss_of


def _v3_configs(fields, width, config, **more):
  """(generator's, discriminator's)."""
  relative = dict(
    pos_att_type=['c2p', 'p2c'],
    position_buckets=BUCKETS,
    norm_rel_ebd='layer_norm',
    share_att_key=True,
  )
  of_depth = lambda depth: config(
    **{**fields, 'num_hidden_layers': max(1, round(fields['num_hidden_layers'] * depth))},
    **_sizes(width),
    **_DEBERTA,
    **{**relative, **more},
  )
  return of_depth(GENERATOR_DEPTH), of_depth(1.0)


def of_checkout(folder, generator, discriminator, sharing='gdes'):
  """Both networks of pszemraj/deberta, one module. folder: of a checkout; the others: configs."""
  sys.path.insert(0, str(pathlib.Path(folder) / 'src'))
  from deberta.modeling import deberta_v2_native
  from deberta.modeling import rtd

  return rtd.DebertaV3RTDPretrainer(
    generator_backbone=deberta_v2_native.DebertaV2Model(generator),
    discriminator_backbone=deberta_v2_native.DebertaV2Model(discriminator),
    gen_config=generator,
    disc_config=discriminator,
    embedding_sharing=sharing,
  )


def rows_of_checkout(torch, b):
  """The arguments of its forward pass."""
  labels = torch.full_like(b['input_ids'], -100)
  labels.scatter_(1, b['masked_positions'], b['masked_targets'])
  return dict(input_ids=b['input_ids'], attention_mask=b['segment_ids'], labels=labels)


def _checkout(folder, torch, fields, width, config, *_):
  model = of_checkout(folder, *_v3_configs(fields, width, config, max_relative_positions=DISTANCES))

  def loss_of(b):
    return model(**rows_of_checkout(torch, b), disc_loss_weight=DISCRIMINATOR_WEIGHT).loss

  return model, loss_of


def _xlnet(torch, fields, width, config, language_model):
  """The class of transformers as it is, which computes the last layer's content stream too. The
  memory of a step is that of the one before; there is none before the first.
  """
  model = language_model(
    config(
      vocab_size=fields['vocab_size'],
      d_model=width,
      n_layer=fields['num_hidden_layers'],
      n_head=width // 64,
      d_inner=4 * width,
      dropout=fields['hidden_dropout_prob'],
      ff_activation='gelu',
      bi_data=True,
    )
  )
  layers, memory = fields['num_hidden_layers'], None

  def loss_of(b):
    nonlocal memory
    rows, length = b['input_ids'].shape
    sizes = _memory(length)
    model.transformer.mem_len, model.transformer.reuse_len = sizes.values()
    if memory is None:
      memory = [torch.zeros(sizes['memory_length'], rows, width)] * layers
    at, order = b['masked_positions'], b['order']
    hidden = order[:, None] >= order[:, :, None] + (order == 0)[:, :, None]
    out = model(
      b['input_ids'],
      mems=[x.to(order.device) for x in memory],
      perm_mask=hidden.float(),
      target_mapping=torch.nn.functional.one_hot(at, length).float(),
      token_type_ids=b['token_type_ids'],
      use_mems=True,
    )
    memory = [x.detach() for x in out.mems]
    return _masked_loss(torch, out.logits, b)

  return model, loss_of


def _modernbert(torch, fields, width, config, masked_lm):
  """The class of transformers has one rate for the probabilities and the output of attention; here
  the output's. It starts the head's dense layer with the deviation of output layers, the release
  and ours with that of the others: so its loss falls faster at first.
  """
  rate, _ = (fields.pop(name) for name in ('hidden_dropout_prob', 'attention_probs_dropout_prob'))
  sizes = {**_sizes(width), 'intermediate_size': 3 * width // 2}
  model = masked_lm(config(**fields, **sizes))
  for layer in model.model.layers:
    layer.attn.out_drop = torch.nn.Dropout(rate)

  def loss_of(b):
    out = model.model(input_ids=b['input_ids'], attention_mask=b['segment_ids'])
    return _masked_loss(torch, model.decoder(model.head(_gather(out.last_hidden_state, b))), b)

  return model, loss_of


_DEBERTA = dict(
  hidden_act='gelu',
  relative_attention=True,
  position_biased_input=False,
  type_vocab_size=0,
  layer_norm_eps=1e-7,
)

_NETWORKS = {
  'bert': _bert,
  'electra': _electra,
  'albert': _albert,
  'deberta': _deberta,
  'deberta_v3': _deberta_v3,
  'xlnet': _xlnet,
  'modernbert': _modernbert,
}


def _decoded(model, positions, b, decode):
  """Vectors of the mask decoder at all places, as Microsoft's code computes them: the last layer
  twice, over the output of the layer before it.
  """
  x, encoder = model.embeddings(input_ids=b['input_ids'], mask=b['segment_ids']), model.encoder
  mask = encoder.get_attention_mask(b['segment_ids'])
  of = dict(relative_pos=encoder.get_rel_pos(x), rel_embeddings=encoder.get_rel_embedding())
  for layer in encoder.layer[:-1]:
    x = layer(x, mask, **of)[0]
  z = x + positions.weight[: x.shape[1]]
  for _ in range(2):
    z = decode(encoder.layer[-1], x, mask, z, **of)
  return z


def _filled(torch, logits, b):
  """(ids with tokens sampled by Gumbel noise at the masked positions, which were replaced)."""
  with torch.no_grad():
    noise = -torch.log(-torch.log(torch.rand(logits.shape, device=logits.device)))
    put = lambda ids: b['input_ids'].scatter(1, b['masked_positions'], ids)
    filled = put((logits.float() + noise).argmax(-1))
    return filled, (filled != put(b['masked_targets'])).float()


def _detection_loss(torch, logits, scores, replaced, b):
  """The loss of both networks."""
  real = b['segment_ids'].float()
  loss = torch.nn.functional.binary_cross_entropy_with_logits(
    scores.float(), replaced, weight=real, reduction='sum'
  )
  return _masked_loss(torch, logits, b) + DISCRIMINATOR_WEIGHT * loss / real.sum()


def _gather(hidden, b):
  """The vectors at the masked positions."""
  return hidden.gather(1, b['masked_positions'][..., None].expand(-1, -1, hidden.shape[-1]))


def _masked_loss(torch, logits, b):
  nll = torch.nn.functional.cross_entropy(
    logits.float().flatten(0, 1), b['masked_targets'].flatten(), reduction='none'
  )
  return (nll * b['masked_weights'].flatten()).sum() / b['masked_weights'].sum()
