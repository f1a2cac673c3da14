"""A BERT pretraining step beside transformers + torch, in one run:

    python bench/step.py [--model=base|small] [--turns=5] [--steps=3]
    python bench/step.py --device=gpu --length=512 --batch=32 --dtype=bfloat16 --attention_dropout=0 --compile

Both sides do the same work: forward with dropout, masked-token loss on the predicted positions alone plus pair loss,
backward, clip to norm 1, AdamW. Ours is the train step of `pretrain`, metrics and check for NaN included. Theirs is
BertForPreTraining with its heads called on the gathered rows, clip_grad_norm_ and the fused AdamW; eager, or compiled with
--compile; scaled_dot_product_attention (flash where torch has it). Rows are 7/8 to fully filled, the padding is masked.

Each side lives in a process of its own; turns of `steps` steps alternate, so that a busy machine slows both. Medians,
quartiles, processor seconds, and the load of other processes, since beside others a median says little.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

MODELS = {'base': dict(num_layers=12, hidden_size=768), 'small': dict(num_layers=4, hidden_size=512), 'tiny': dict(num_layers=2, hidden_size=128)}
VOCAB = 30522


def arguments():
  p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  p.add_argument('--model', choices=MODELS, default='base')
  p.add_argument('--device', choices=('cpu', 'gpu'), default='cpu')
  p.add_argument('--batch', type=int, default=8)
  p.add_argument('--length', type=int, default=128)
  p.add_argument('--predictions', type=int, default=0, help='a row; 0 for 15.6 % of the length')
  p.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
  p.add_argument('--dropout', type=float, default=0.1)
  p.add_argument('--attention_dropout', type=float, default=0.1)
  p.add_argument('--prng', default='rbg', help='of our dropout: rbg | threefry2x32 | unsafe_rbg')
  p.add_argument('--unroll', type=int, default=1, help='layers a turn of our scan')
  p.add_argument('--remat', default='none')
  p.add_argument('--compile', action='store_true', help='torch.compile for theirs')
  p.add_argument('--threads', type=int, default=os.cpu_count())
  p.add_argument('--steps', type=int, default=3, help='steps a turn')
  p.add_argument('--turns', type=int, default=5)
  p.add_argument('--sides', default='ours,theirs')
  p.add_argument('--worker', choices=('ours', 'theirs'), help=argparse.SUPPRESS)
  a = p.parse_args()
  a.predictions = a.predictions or round(a.length * 0.156)
  return a


def make_batch(a):
  """The batch both sides train on, as pretrain ships it."""
  rng = np.random.default_rng(0)
  lengths = rng.integers(a.length * 7 // 8, a.length + 1, a.batch)
  lengths[0] = a.length
  real = np.arange(a.length) < lengths[:, None]
  positions = np.stack([1 + np.sort(rng.choice(n - 2, a.predictions, replace=False)) for n in lengths])
  return dict(
      input_ids=np.where(real, rng.integers(1000, VOCAB, real.shape), 0).astype(np.int32),
      segment_ids=((np.arange(a.length) >= a.length // 2) & real).astype(np.int32), pack_ids=real.astype(np.int32),
      masked_positions=positions.astype(np.int32), masked_targets=rng.integers(1000, VOCAB, positions.shape).astype(np.int32),
      masked_weights=np.ones(positions.shape, np.float32), pair_labels=rng.integers(0, 2, a.batch).astype(np.int32))


def ours(a):
  """A function that takes one step and returns the loss when it is done."""
  sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
  import jax
  import jax.numpy as jnp

  from bertzoo_jax import objectives
  from bertzoo_jax.model import encoder as encoders
  from bertzoo_jax.training import optimizers
  from bertzoo_jax.training import schedules
  from bertzoo_jax.training import step as steps
  from configs import parts
  width = MODELS[a.model]['hidden_size']
  fields = parts.transformer(**MODELS[a.model], num_heads=width // 64, intermediate_size=4 * width, dropout=a.dropout,
                             attention_dropout=a.attention_dropout, activation='gelu').to_dict()
  encoder = encoders.BY_NAME[fields.pop('name')](vocab_size=VOCAB, dtype=jnp.dtype(a.dtype), unroll=a.unroll, remat=a.remat, **fields)
  objective = objectives.BY_NAME['mlm_pair'](encoder, pair_weight=1.0)
  schedule = schedules.BY_NAME['linear_after_warmup'](10_000, learning_rate=1e-4, warmup=0)
  adam = {**parts.adamw(clip_norm=1.0, no_decay=(r'norm/', r'bias$'))}
  adam.pop('name')
  paths = optimizers.paths_of(jax.eval_shape(objective.init, jax.random.key(0)))
  tx = optimizers.BY_NAME['adamw'](schedule, paths, **adam)
  state = steps.init(objective, tx, 0, a.batch)
  train = jax.jit(steps.make_train_step(objective, tx, schedule, seed=0, prng=a.prng), donate_argnums=0)
  batch = jax.tree.map(jnp.asarray, make_batch(a))

  def step():
    nonlocal state
    state, metrics = train(state, batch)
    return float(metrics['loss'])

  return step


def theirs(a):
  """The same with torch."""
  import torch
  import transformers
  torch.set_num_threads(a.threads)
  torch.manual_seed(0)
  device = 'cuda' if a.device == 'gpu' else 'cpu'
  torch.backends.cuda.matmul.allow_tf32 = True
  width = MODELS[a.model]['hidden_size']
  model = transformers.BertForPreTraining(transformers.BertConfig(
      vocab_size=VOCAB, hidden_size=width, num_hidden_layers=MODELS[a.model]['num_layers'], num_attention_heads=width // 64,
      intermediate_size=4 * width, hidden_act='gelu', hidden_dropout_prob=a.dropout, attention_probs_dropout_prob=a.attention_dropout,
      attn_implementation='sdpa')).to(device).train()
  b = {k: torch.as_tensor(v).to(device) for k, v in make_batch(a).items()}
  b = {k: v.long() if v.dtype is torch.int32 else v for k, v in b.items()}
  decays = lambda n: not ('LayerNorm' in n or n.endswith('bias'))
  groups = [dict(params=[p for n, p in model.named_parameters() if decays(n) == d], weight_decay=0.01 * d) for d in (True, False)]
  adam = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.98), eps=1e-6, fused=True)

  def loss_of(b):
    out = model.bert(input_ids=b['input_ids'], attention_mask=b['pack_ids'], token_type_ids=b['segment_ids'])
    hidden, pooled = out.last_hidden_state, out.pooler_output
    at = b['masked_positions'][..., None].expand(-1, -1, hidden.shape[-1])
    logits, pair = model.cls(hidden.gather(1, at), pooled)
    nll = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), b['masked_targets'].flatten(), reduction='none')
    mlm = (nll * b['masked_weights'].flatten()).sum() / b['masked_weights'].sum()
    return mlm + torch.nn.functional.cross_entropy(pair.float(), b['pair_labels'])

  run = torch.compile(loss_of, dynamic=False) if a.compile else loss_of

  def step():
    adam.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=a.dtype == 'bfloat16'):
      loss = run(b)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam.step()
    return float(loss.detach())

  return step


def work(a):
  """A side's process: a number of steps a line comes in, seconds and losses go out."""
  step = {'ours': ours, 'theirs': theirs}[a.worker](a)
  start = time.perf_counter()
  losses = [step() for _ in range(3)]
  print(json.dumps(dict(ready=time.perf_counter() - start, losses=losses)), flush=True)
  for line in sys.stdin:
    seconds, cpu = [], time.process_time()
    for _ in range(int(line)):
      start = time.perf_counter()
      losses.append(step())
      seconds.append(time.perf_counter() - start)
    print(json.dumps(dict(seconds=seconds, cpu=time.process_time() - cpu, loss=losses[-1])), flush=True)


def busy():
  """Processor seconds of the whole machine so far; None where /proc does not tell."""
  try:
    v = [int(x) for x in pathlib.Path('/proc/stat').read_text().splitlines()[0].split()[1:]]
    return (sum(v[:8]) - v[3] - v[4]) / os.sysconf('SC_CLK_TCK')
  except OSError:
    return None


def main():
  a = arguments()
  if a.worker:
    return work(a)
  environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2', 'XLA_PYTHON_CLIENT_PREALLOCATE': 'false', 'TOKENIZERS_PARALLELISM': 'false',
                 'OMP_NUM_THREADS': str(a.threads)}
  if a.device == 'cpu':
    environment['JAX_PLATFORMS'] = 'cpu'
  sides = {}
  for side in a.sides.split(','):
    sides[side] = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], f'--worker={side}'], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True, env=environment)
    ready = json.loads(sides[side].stdout.readline())
    print(f'{side}: first three steps {ready["ready"]:.1f} s (compiled within), losses {" ".join(f"{x:.3f}" for x in ready["losses"])}', flush=True)
  seconds, cpu, loss = ({side: [] for side in sides} for _ in range(3))
  began, before = time.perf_counter(), busy()
  for _ in range(a.turns):
    for side, process in sides.items():
      time.sleep(0.5)  # threads of the other side stop spinning
      process.stdin.write(f'{a.steps}\n')
      process.stdin.flush()
      answer = json.loads(process.stdout.readline())
      seconds[side] += answer['seconds']
      cpu[side].append(answer['cpu'] / a.steps)
      loss[side].append(answer['loss'])
  elapsed = time.perf_counter() - began
  others = None if before is None else (busy() - before - sum(sum(c) * a.steps for c in cpu.values())) / elapsed
  for process in sides.values():
    process.stdin.close()
    process.wait()
  tokens = a.batch * a.length
  print(f'BERT-{a.model}, {a.batch} × {a.length}, {a.predictions} predictions, {a.dtype}, dropout {a.dropout}, of attention {a.attention_dropout}, '
        f'{a.device}, {a.turns} turns of {a.steps} steps; other processes used {"?" if others is None else f"{others:.2f}"} cores')
  for side in sides:
    q = np.percentile(seconds[side], (25, 50, 75))
    print(f'{side:>7}: median {q[1]:.4f} s  quartiles {q[0]:.4f} {q[2]:.4f}  best {min(seconds[side]):.4f}  {tokens / q[1]:,.0f} tokens/s  '
          f'processor {statistics.median(cpu[side]):.3f} s  loss {loss[side][-1]:.3f}')
  if len(sides) == 2:
    ratio = lambda f: f(seconds['theirs']) / f(seconds['ours'])
    pairs = [statistics.median(t) / statistics.median(o) for o, t in zip(*(np.reshape(seconds[s], (a.turns, a.steps)) for s in ('ours', 'theirs')))]
    print(f'  ratio: median {ratio(statistics.median):.2f}  best {ratio(min):.2f}  turn by turn {" ".join(f"{r:.2f}" for r in pairs)}')


if __name__ == '__main__':
  main()
