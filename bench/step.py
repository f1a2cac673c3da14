"""A pretraining step beside transformers + torch, in one run:

    python bench/step.py [--model=base|small|tiny] [--turns=5] [--steps=3]
    python bench/step.py --system=electra [--model=small|tiny]
    python bench/step.py --system=albert [--model=base|tiny]
    python bench/step.py --system=deberta [--model=base|small|tiny]
    python bench/step.py --system=deberta_v3 [--model=base|small|xsmall|tiny] [--checkout=FOLDER]
    python bench/step.py --system=xlnet [--model=base|small|tiny]
    python bench/step.py --system=modernbert [--model=base|tiny] --length=512
    python bench/step.py --device=gpu --length=512 --batch=32 --dtype=bfloat16 --attention_dropout=0
    --compile

Both sides do the same work: forward with dropout, loss, backward, clip to norm 1, AdamW (of all
systems: torch has no LAMB). Ours is the train step of `pretrain`, metrics and check for NaN
included. Theirs has its vocabulary head called on the gathered rows, clip_grad_norm_ and the fused
AdamW; eager, or compiled with --compile; --attention as transformers names it (the class of
DeBERTa has one of its own). The networks that bench/gpu.py compares are compared on a GPU.
Rows are 7/8 to fully filled, the padding is masked.

bert: masked-token loss on the predicted positions alone plus pair loss; BertForPreTraining. albert:
the same with tables of width 128 and one set of parameters for all layers; AlbertForPreTraining,
with the dropout after the feed-forward layer that
its class leaves out. electra: a generator of a quarter of the width and a discriminator that share
tables; masked-token loss, sampling by Gumbel noise, 50 times the loss of replaced tokens;
ElectraForMaskedLM and ElectraForPreTraining.

deberta: v1's network with the enhanced mask decoder and masked-token loss. The torch side has the
layers of DebertaForMaskedLM. This class has no decoder, so the decoder's attention is built from
parts of the class. As in Microsoft's code, the torch side decodes all tokens; ours decodes only the
predictions.

deberta_v3: a generator of half the depth with the mask decoder, sampling, a discriminator with word
vectors E_D = E_G + Δ and V3's head, 50 times the loss of replaced tokens. The torch side has
DebertaV2ForMaskedLM and DebertaV2Model. Both sides have dropout of the relative table. With
--checkout it has the module of both networks of pszemraj/deberta, from a checkout of that
repository, and its copy of the word table after each step.

xlnet: permutation language modelling with both streams; a sixth of the tokens is predicted. The
memory has three quarters of a row's length, and a step renews half a row's length of it. Rows are
full, and half of them are read from right to left. The torch side has XLNetLMHeadModel, which also
computes the content stream of the last layer. Ours leaves it out, since nothing reads it.

modernbert: masked-token loss on 30 % of the tokens; windows of 128, ModernBertForMaskedLM. Both
sides have dropout of the output of attention alone.

Each side lives in a process of its own; turns of `steps` steps alternate, so that a busy machine
slows both. Medians, quartiles, processor seconds, and the load of other processes, since beside
others a median says little. Memory is the process's peak of resident memory after the first three
steps, and before (compilation included), each less its peak after its imports.

On a GPU, both sides compile at the same time, the steps of a turn queue up as they do in training
and are timed together, and memory is the most that a side has held of the GPU's since it started,
compilation included.
"""

import argparse
import fcntl
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import numpy as np
import sides as both


def arguments():
  p = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  p.add_argument('--system', choices=both.MODELS, default='bert')
  p.add_argument(
    '--model',
    help='; '.join(f'of {system}: {", ".join(models)}' for system, models in both.MODELS.items()),
  )
  p.add_argument('--checkout', help='of deberta_v3: a folder with pszemraj/deberta')
  p.add_argument('--device', choices=('cpu', 'gpu'), default='cpu')
  p.add_argument('--batch', type=int, default=0, help='rows; 0 for 8, of electra 16')
  p.add_argument('--length', type=int, default=128)
  p.add_argument(
    '--predictions',
    type=int,
    default=0,
    help='a row; 0 for 15.6 %% of the length, of electra 15, of xlnet a sixth, of modernbert 30',
  )
  p.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
  p.add_argument('--dropout', type=float, default=0.1)
  p.add_argument('--attention_dropout', type=float, default=0.1)
  p.add_argument('--unroll', type=int, default=0, help='layers per turn of our scan; 0 for all')
  p.add_argument('--remat', default='none')
  p.add_argument('--attention', default='sdpa', help='of theirs: sdpa or flash_attention_2')
  p.add_argument('--compile', action='store_true', help='torch.compile for theirs')
  p.add_argument('--threads', type=int, default=os.cpu_count())
  p.add_argument('--steps', type=int, default=3, help='steps per turn')
  p.add_argument('--turns', type=int, default=5, help='0 to compile alone')
  p.add_argument('--lock', help='a file that one comparison at a time holds, to take its turns')
  p.add_argument('--limit', type=int, default=0, help='seconds until it is given up; 0 for none')
  p.add_argument('--json', help='a file to write the figures to')
  p.add_argument('--sides', default='ours,theirs')
  p.add_argument('--worker', choices=('ours', 'theirs'), help=argparse.SUPPRESS)
  a = p.parse_args()
  models = both.MODELS[a.system]
  a.model = a.model or next(iter(models))
  if a.model not in models:
    p.error(f'--model={a.model}: of {a.system} there is {", ".join(models)}')
  a.batch = a.batch or (16 if a.system == 'electra' else 8)
  share = {'electra': 0.15, 'xlnet': 1 / 6, 'modernbert': 0.3}.get(a.system, 0.156)
  a.predictions = a.predictions or round(a.length * share)
  return a


def work(a):
  """A side's process: a number of steps a line comes in; seconds, losses and bytes go out."""
  take, memory, device = {'ours': both.ours, 'theirs': both.theirs}[a.worker](a)
  tell = lambda **x: print(json.dumps(dict(memory=memory(), **x)), flush=True)
  start = time.perf_counter()
  losses = [take(1) for _ in range(3)]
  tell(ready=time.perf_counter() - start, losses=losses, device=device)
  both.forget_peak()
  if not a.turns:
    return  # its memory is free while the other compiles
  for line in sys.stdin:
    seconds, cpu, steps = [], time.process_time(), int(line)
    queued = 1 if a.device == 'cpu' else steps
    for _ in range(steps // queued):
      start = time.perf_counter()
      loss = take(queued)
      seconds.append((time.perf_counter() - start) / queued)
    tell(seconds=seconds, cpu=time.process_time() - cpu, loss=loss)


def milliseconds(seconds, tokens, megabytes) -> dict:
  """The figures of a side: median and quartiles in ms, tokens per second, peak of memory in MB."""
  q = 1e3 * np.percentile(seconds, (50, 25, 75))
  rounded = [round(float(x), 2) for x in q]
  return dict(
    zip(('median', 'q1', 'q3'), rounded), rate=round(1e3 * tokens / q[0]), MB=round(megabytes)
  )


def answer(side, process):
  """The next answer of a side's process. Other lines of its output are dropped."""
  line = next((line for line in process.stdout if line.startswith('{')), None)
  return json.loads(line) if line else sys.exit(f'{side} ended without an answer')


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
  signal.signal(signal.SIGALRM, lambda *_: sys.exit(f'given up after {a.limit} s'))
  signal.alarm(a.limit)
  environment = {
    **os.environ,
    'TF_CPP_MIN_LOG_LEVEL': '2',
    'XLA_PYTHON_CLIENT_PREALLOCATE': 'false',
    'TOKENIZERS_PARALLELISM': 'false',
    'OMP_NUM_THREADS': str(a.threads),
    'JAX_PLATFORMS': {'cpu': 'cpu', 'gpu': 'cuda'}[a.device],
  }
  sides = {}

  def start(side):
    sides[side] = subprocess.Popen(
      [sys.executable, __file__, *sys.argv[1:], f'--worker={side}'],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=environment,
    )
    return side

  try:
    compare(a, sides, map(start, a.sides.split(',')))
  finally:
    for process in sides.values():
      process.kill()


def compare(a, sides, started):
  """Compiles both sides, times turns and prints. sides: {side: process} of those `started` gave."""
  if a.device == 'gpu':
    started = list(started)  # on a processor one compiles after the other
  devices = set()
  for side in started:
    ready = answer(side, sides[side])
    devices.add(ready['device'])
    print(
      f'{side}: first three steps {ready["ready"]:.1f} s (compiled within), peak '
      f'{ready["memory"] / 1e6:,.0f} MB, '
      f'losses {" ".join(f"{x:.3f}" for x in ready["losses"])}',
      flush=True,
    )
  if not a.turns:
    return
  if a.lock:
    held = open(a.lock, 'w')
    signal.alarm(0)  # to wait is no fault
    fcntl.flock(held, fcntl.LOCK_EX)
    signal.alarm(a.limit)
  seconds, cpu, loss = ({side: [] for side in sides} for _ in range(3))
  memory = {}
  began, before = time.perf_counter(), busy()
  for _ in range(a.turns):
    for side, process in sides.items():
      time.sleep(0.5)  # threads of the other side stop spinning
      process.stdin.write(f'{a.steps}\n')
      process.stdin.flush()
      told = answer(side, process)
      seconds[side] += told['seconds']
      cpu[side].append(told['cpu'] / a.steps)
      loss[side].append(told['loss'])
      memory[side] = told['memory'] / 1e6
  elapsed = time.perf_counter() - began
  others = (
    None
    if before is None
    else (busy() - before - sum(sum(c) * a.steps for c in cpu.values())) / elapsed
  )
  tokens = a.batch * a.length
  print(
    f'{a.system.upper()}-{a.model}, {a.batch} × {a.length}, {a.predictions} predictions, '
    f'{a.dtype}, dropout {a.dropout}, '
    f'of attention {a.attention_dropout}, {" and ".join(sorted(devices))}, '
    f'{a.turns} turns of {a.steps} steps; '
    f'other processes used {"?" if others is None else f"{others:.2f}"} cores'
  )
  for side in sides:
    q = np.percentile(seconds[side], (25, 50, 75))
    print(
      f'{side:>7}: median {q[1]:.4f} s  quartiles {q[0]:.4f} {q[2]:.4f}  best '
      f'{min(seconds[side]):.4f}  {tokens / q[1]:,.0f} tokens/s  '
      f'processor {statistics.median(cpu[side]):.3f} s  loss {loss[side][-1]:.3f}  memory '
      f'{memory[side]:,.0f} MB'
    )
  if a.json:
    figures = {side: milliseconds(seconds[side], tokens, memory[side]) for side in sides}
    pathlib.Path(a.json).write_text(json.dumps(figures) + '\n')
  if len(sides) == 2:
    ratio = lambda f: f(seconds['theirs']) / f(seconds['ours'])
    pairs = [
      statistics.median(t) / statistics.median(o)
      for o, t in zip(*(np.reshape(seconds[s], (a.turns, -1)) for s in ('ours', 'theirs')))
    ]
    print(
      f'  ratio: median {ratio(statistics.median):.2f}  best {ratio(min):.2f}  turn by turn '
      f'{" ".join(f"{r:.2f}" for r in pairs)}  '
      f'memory {memory["theirs"] / memory["ours"]:.2f}'
    )


if __name__ == '__main__':
  main()
