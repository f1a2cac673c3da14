"""One layer's disentangled attention on a GPU beside the package disentangled-flash (Triton):

    python bench/gpu_attention.py --length=512 [--tokens=16384] [--dropout=0.1] [--json=FILE]

Forward and backward pass in bfloat16 of 12 heads of 64 with both relative terms and 256 buckets to
each side: projections of queries, keys, values and the relative table, attention with dropout of
its probabilities, projection of the output; gradients of all parameters, the input and the table.
Rows are full. Ours is model/disentangled_attention.py with `run.kernels=fused`. Theirs is
TritonTrainingDisentangledSelfAttention with a torch.nn.Linear behind it; on a processor, where it
does not run, its torch version.

Each side lives in a process of its own; turns of `steps` passes alternate. With --turns=0 both
compile, and nothing is timed.
"""

import argparse
import fcntl
import json
import subprocess
import sys
import time

import numpy as np
import step

WIDTH, HEADS, BUCKETS, DISTANCES = 768, 12, 256, 512


def ours(a):
  """(number of passes → the sum of the output's absolute values, bytes held at most)."""
  import jax
  import jax.numpy as jnp

  from bertzoo_jax import kernels
  from bertzoo_jax.common import row_keys
  from bertzoo_jax.experiment import build
  from bertzoo_jax.model import attention
  from bertzoo_jax.model import disentangled_attention as disentangled
  from bertzoo_jax.model import layers
  from bertzoo_jax.training import phase_run
  from bertzoo_jax.training import sharding

  device, dtype = jax.devices()[0], jnp.bfloat16
  name = 'fused' if device.platform == 'gpu' else 'auto'
  chosen = kernels.choose(name, device, a.dropout, True, dtype)
  ops = build.operations_on(sharding.mesh((1, 1, 1), [device]), chosen, ())
  module = disentangled.DisentangledAttention(
    HEADS, a.dropout, layers.initializer('normal', 0.02), dtype, True, True, True, True
  )
  rows = a.tokens // a.length
  index = disentangled.table_rows(a.length, DISTANCES, BUCKETS)
  used, which = np.unique(index, return_inverse=True)
  draw = np.random.default_rng(0)
  x = jnp.asarray(draw.normal(size=(rows, a.length, WIDTH)), dtype)
  table = jnp.asarray(draw.normal(size=(len(used), WIDTH)), jnp.float32)
  visible = attention.batch_visibility({'segment_ids': jnp.ones((rows, a.length), jnp.int32)})
  keys = row_keys.join(jnp.zeros((rows, 2), jnp.uint32), jax.random.key(0))

  def apply(params, x, table, keys):
    relation = disentangled.Relation(table, which, None, 0.0)
    return module.apply(params, x, visible, keys, ops, relation)

  params = module.init(
    jax.random.key(0), x, visible, keys, ops, disentangled.Relation(table, which, None, 0.0)
  )

  def loss(params, x, table, keys):
    return jnp.sum(jnp.abs(apply(params, x, table, keys).astype(jnp.float32)))

  options = phase_run.compiler_options(device.device_kind, False)
  both = jax.jit(jax.value_and_grad(loss, (0, 1, 2)), compiler_options=options)

  def take(passes):
    for _ in range(passes):
      out = both(params, x, table, keys)
    jax.block_until_ready(out)
    return float(out[0])

  return take, lambda: (device.memory_stats() or {}).get('peak_bytes_in_use', 0)


def theirs(a):
  import disentangled_flash
  import torch
  from disentangled_flash import _torch
  from transformers import DebertaV2Config

  device = 'cuda' if a.device == 'gpu' else 'cpu'
  config = DebertaV2Config(
    hidden_size=WIDTH,
    num_attention_heads=HEADS,
    attention_probs_dropout_prob=a.dropout,
    hidden_dropout_prob=0.0,
    relative_attention=True,
    pos_att_type=['c2p', 'p2c'],
    position_buckets=BUCKETS,
    max_relative_positions=DISTANCES,
    max_position_embeddings=max(512, a.length),
    share_att_key=True,
  )
  module = (
    disentangled_flash.TritonTrainingDisentangledSelfAttention(config, assume_unpadded=True)
    if device == 'cuda'
    else _torch.TorchTrainingDisentangledSelfAttention(config)
  )
  torch.manual_seed(0)
  of = dict(device=device, dtype=torch.bfloat16)
  module, output = module.to(**of).train(), torch.nn.Linear(WIDTH, WIDTH).to(**of)
  rows = a.tokens // a.length
  x = torch.randn(rows, a.length, WIDTH, **of, requires_grad=True)
  table = torch.randn(2 * BUCKETS, WIDTH, **of, requires_grad=True)
  mask = torch.ones(rows, a.length, dtype=torch.bool, device=device)

  def take(passes):
    for _ in range(passes):
      for leaf in (x, table, *module.parameters(), *output.parameters()):
        leaf.grad = None
      loss = output(module(x, mask, rel_embeddings=table)[0]).float().abs().sum()
      loss.backward()
    if device == 'cuda':
      torch.cuda.synchronize()
    return float(loss.detach())

  return take, torch.cuda.max_memory_allocated if device == 'cuda' else lambda: 0


def work(a):
  """A side's process: a number of passes per line comes in; seconds and bytes go out."""
  take, memory = {'ours': ours, 'theirs': theirs}[a.worker](a)
  begin = time.perf_counter()
  take(3)
  print(json.dumps(dict(ready=time.perf_counter() - begin)), flush=True)
  for line in sys.stdin:
    begin = time.perf_counter()
    take(int(line))
    print(json.dumps(dict(s=(time.perf_counter() - begin) / int(line), bytes=memory())), flush=True)


def main():
  p = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  p.add_argument('--length', type=int, required=True)
  p.add_argument('--tokens', type=int, default=16_384)
  p.add_argument('--dropout', type=float, default=0.1)
  p.add_argument('--device', choices=('cpu', 'gpu'), default='gpu')
  p.add_argument('--steps', type=int, default=20)
  p.add_argument('--turns', type=int, default=5)
  p.add_argument('--sides', default='ours,theirs')
  p.add_argument('--lock', help='a file that one comparison at a time holds')
  p.add_argument('--json', help='a file to write the figures to')
  p.add_argument('--worker', choices=('ours', 'theirs'), help=argparse.SUPPRESS)
  a = p.parse_args()
  if a.worker:
    return work(a)
  line = [sys.executable, __file__, *sys.argv[1:]]
  pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
  sides = {s: subprocess.Popen([*line, f'--worker={s}'], **pipes) for s in a.sides.split(',')}
  seconds, held = {side: [] for side in sides}, {}
  able = {}
  for side, process in sides.items():
    first = process.stdout.readline()
    if first:
      able[side] = process
      print(f'{side}: first three passes {json.loads(first)["ready"]:.1f} s', flush=True)
    else:
      print(f'{side}: ended without an answer', flush=True)
  with open(a.lock or '/dev/null', 'w') as lock:
    if a.lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
    for _ in range(a.turns):
      for side, process in able.items():
        process.stdin.write(f'{a.steps}\n')
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        seconds[side].append(answer['s'])
        held[side] = answer['bytes'] / 1e6
  for process in sides.values():
    process.stdin.close()
    process.wait()
  figures = {s: step.milliseconds(seconds[s], a.tokens, held[s]) for s in able if seconds[s]}
  for side, x in figures.items():
    print(f'{side:>7}: {x}', flush=True)
  if a.json and figures:
    with open(a.json, 'w') as f:
      f.write(json.dumps(figures) + '\n')
  sys.exit(0 if able else 1)


if __name__ == '__main__':
  main()
