"""Fine-tuning beside transformers' Trainer, in one run: the same task, weights and batches.

    PYTHONPATH=. python bench/finetune.py [--layers=4] [--width=256] [--rows=1024] [--turns=2]

The task tells the books of the sample text apart by a sentence. A BERT of random weights is saved
as a Hugging Face directory, from which both sides begin: ours by `finetune`'s own runs, theirs by
Trainer with BertForSequenceClassification. Both train two epochs of the same batches, in the same
order and padded alike, in float32 with dropout 0.1, clipping at norm 1 and AdamW (theirs the fused
one). Neither evaluates, logs or saves in between.

Measured are the seconds per step in the second epoch, when everything is compiled, and the seconds
from the first batch to the last, compilation included. Each side has a process of its own;
turns alternate. Trainer needs the package accelerate.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
BOOKS = ('federalist', 'sherlock', 'time_machine')


def arguments():
  p = argparse.ArgumentParser()
  p.add_argument('--layers', type=int, default=4)
  p.add_argument('--width', type=int, default=256)
  p.add_argument('--rows', type=int, default=1024)
  p.add_argument('--batch', type=int, default=32)
  p.add_argument('--length', type=int, default=128)
  p.add_argument('--turns', type=int, default=2)
  p.add_argument('--side', choices=('ours', 'theirs'))
  p.add_argument('--folder')
  return p.parse_args()


def make(args, folder):
  """Writes the task (train.tsv) and a Hugging Face directory (model/)."""
  import random
  import re

  import tokenizers
  import transformers

  rows = []
  for book in BOOKS:
    text = (ROOT / 'data/sample' / f'{book}.txt').read_text()
    found = [s.strip() for s in re.split(r'(?<=[.!?])\s+', text) if len(s) > 40]
    rows += [(book, ' '.join(s.split())) for s in found]
  random.Random(0).shuffle(rows)
  rows = rows[: args.rows]
  for name, part in (('train', rows), ('dev', rows[:64])):
    lines = ['label\ttext', *(f'{label}\t{text}' for label, text in part)]
    (folder / f'{name}.tsv').write_text('\n'.join(lines) + '\n')
  engine = tokenizers.BertWordPieceTokenizer()
  engine.train_from_iterator([text for _, text in rows], vocab_size=4096, show_progress=False)
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=engine._tokenizer,
    unk_token='[UNK]',
    pad_token='[PAD]',
    cls_token='[CLS]',
    sep_token='[SEP]',
    mask_token='[MASK]',
  )
  config = transformers.BertConfig(
    vocab_size=len(tokenizer),
    num_hidden_layers=args.layers,
    hidden_size=args.width,
    num_attention_heads=args.width // 64,
    intermediate_size=4 * args.width,
    max_position_embeddings=args.length,
  )
  transformers.set_seed(0)
  transformers.BertForMaskedLM(config).save_pretrained(folder / 'model')
  tokenizer.save_pretrained(folder / 'model')


def opened(args, folder):
  """(Job, tasks.Task, Pretrained) of our side."""
  from bertzoo_jax import parts
  from bertzoo_jax import pretrained
  from bertzoo_jax import tokenizers
  from bertzoo_jax.finetune import plan
  from bertzoo_jax.finetune import work
  from configs.tasks import own

  config = own.get_config('classify')
  config.source.files = {'train': 'train.tsv', 'dev': 'dev.tsv'}
  config.source.text_a, config.source.label = 'text', 'label'
  config.length, config.batch_size, config.epochs = args.length, args.batch, 2.0
  config.optimizer = parts.adamw(clip_norm=1.0)
  config.run = parts.run(
    dtype='float32',
    log_every=10**6,
    eval_every=10**6,
    save_minutes=1e6,
    tensorboard=False,
    compile_cache='',
  )
  weights = pretrained.open(f'hf:{folder / "model"}')
  tokenizer = tokenizers.open_folder(weights.tokenizer_folder)
  task = work.opened(config, str(folder), tokenizer, weights)
  return plan.runs('books', config, task, [weights], str(folder / 'runs'))[0], task, weights


def ours(args, folder):
  """Times at which the batches of two epochs were asked for."""
  import jax

  from bertzoo_jax.finetune import work
  from bertzoo_jax.runs import preemption
  from bertzoo_jax.tasks import batches

  run, task, weights = opened(args, folder)
  times, make_batch = [], batches.train_batch

  def timed(split, step, **kw):
    times.append(time.monotonic())
    return make_batch(split, step, **kw)

  batches.train_batch = timed
  notice = preemption.Preemption()
  with tempfile.TemporaryDirectory() as where:
    run = run._replace(folder=pathlib.Path(where))
    work._trained(run, run.resolved, task, weights, notice, jax.devices(), False)
  return times


def theirs(args, folder):
  """As `ours`: times at which the steps began."""
  import numpy as np
  import torch
  import transformers

  from bertzoo_jax.tasks import batches

  run, task, weights = opened(args, folder)
  steps = run.experiment.phases[0][0]
  tensors = []
  for step in range(steps):
    batch = batches.train_batch(
      task.splits['train'],
      step,
      batch_size=args.batch,
      seed=run.experiment.seed,
      length_buckets=batches.buckets(args.length),
      padding=task.padding,
      pad=task.pad,
    )
    tensors.append(
      {
        'input_ids': torch.from_numpy(np.asarray(batch['input_ids'], np.int64)),
        'token_type_ids': torch.from_numpy(np.asarray(batch['token_type_ids'], np.int64)),
        'attention_mask': torch.from_numpy(np.asarray(batch['segment_ids'] > 0, np.int64)),
        'labels': torch.from_numpy(np.asarray(batch['labels'], np.int64)),
      }
    )
  times = []

  class Trainer(transformers.Trainer):
    def get_train_dataloader(self):
      return torch.utils.data.DataLoader(tensors, batch_size=None)

  class Clock(transformers.TrainerCallback):
    def on_step_begin(self, *_, **__):
      times.append(time.monotonic())

  model = transformers.BertForSequenceClassification.from_pretrained(
    folder / 'model', num_labels=len(task.labels)
  )
  with tempfile.TemporaryDirectory() as where:
    settings = transformers.TrainingArguments(
      where,
      max_steps=steps,
      learning_rate=3e-5,
      weight_decay=0.01,
      max_grad_norm=1.0,
      optim='adamw_torch_fused',
      save_strategy='no',
      logging_strategy='no',
      eval_strategy='no',
      report_to=[],
      disable_tqdm=True,
      use_cpu=True,
      remove_unused_columns=False,
    )
    Trainer(model, settings, train_dataset=tensors, callbacks=[Clock()]).train()
  return times


def processor() -> str:
  for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
    if line.startswith('model name'):
      return line.partition(':')[2].strip()
  return 'unknown'


def main():
  args = arguments()
  if args.side:
    times = {'ours': ours, 'theirs': theirs}[args.side](args, pathlib.Path(args.folder))
    print('TIMES ' + json.dumps(times))
    return
  with tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place)
    make(args, folder)
    found = {'ours': [], 'theirs': []}
    for turn in range(args.turns):
      for side in found if turn % 2 == 0 else reversed(found):
        command = [sys.executable, __file__, *sys.argv[1:], f'--side={side}', f'--folder={folder}']
        said = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        lines = [x for x in said.stdout.splitlines() if x.startswith('TIMES ')]
        if not lines:
          raise SystemExit(f'{side} failed:\n{said.stderr[-3000:]}')
        found[side].append(json.loads(lines[0][6:]))
  print(
    f'{args.layers} layers of {args.width}, {args.rows} rows of at most {args.length} tokens, '
    f'batches of {args.batch} · {processor()}, {os.cpu_count()} cores · '
    f'load {os.getloadavg()[0]:.1f}'
  )
  medians = {}
  for side, runs in found.items():
    second = [[b - a for a, b in zip(t[len(t) // 2 :], t[len(t) // 2 + 1 :])] for t in runs]
    each = [statistics.mean(s) for s in second]
    whole = [t[-1] - t[0] for t in runs]
    medians[side] = statistics.median(each), statistics.median(whole)
    print(
      f'{side:>7}: {1e3 * medians[side][0]:.1f} ms per step in the second epoch '
      f'({", ".join(f"{1e3 * x:.1f}" for x in each)}); whole training {medians[side][1]:.1f} s '
      f'({", ".join(f"{x:.1f}" for x in whole)})'
    )
  print(
    f'theirs / ours: {medians["theirs"][0] / medians["ours"][0]:.2f} per step, '
    f'{medians["theirs"][1] / medians["ours"][1]:.2f} for the whole'
  )


if __name__ == '__main__':
  main()
