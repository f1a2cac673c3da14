"""A step of in-batch negatives beside sentence-transformers' MultipleNegativesRankingLoss.

    PYTHONPATH=. python bench/contrastive.py --model=DIR --texts=FILE.jsonl [--batch=32] [--turns=5]

DIR is a directory of sentence-transformers with a mean pooling. FILE has the fields premise,
hypothesis and label; the pairs are those with the label entailment, each text once. Both sides are
in this process and begin with the same weights. They get the same batches with the same padding,
in float32, and each text of a pair is a row. Before training, the losses of the first batch without
dropout may differ by at most 1e-5. A step is forward, backward, clipping at norm 1 and AdamW, with
the dropout of DIR. Turns alternate: each side takes the same steps. With --pieces=N ours takes N
microbatches, and theirs is CachedMultipleNegativesRankingLoss with microbatches as large.
"""

import argparse
import json
import os
import statistics
import time

import numpy as np


def arguments():
  p = argparse.ArgumentParser()
  p.add_argument('--model', required=True)
  p.add_argument('--texts', required=True)
  p.add_argument('--batch', type=int, default=32)
  p.add_argument('--length', type=int, default=64)
  p.add_argument('--turns', type=int, default=5)
  p.add_argument('--steps', type=int, default=4, help='per turn')
  p.add_argument('--threads', type=int, default=2)
  p.add_argument('--pieces', type=int, default=1)
  return p.parse_args()


def pairs(path, count):
  """[(premise, hypothesis)] of entailments, of which no text comes twice."""
  seen, found = set(), []
  for line in open(path, encoding='utf-8'):
    row = json.loads(line)
    both = row['premise'], row['hypothesis']
    if row['label'] == 'entailment' and not seen & {*both} and both[0] != both[1]:
      seen |= {*both}
      found.append(both)
    if len(found) == count:
      return found
  raise SystemExit(f'{path} has {len(found)} pairs, {count} are needed')


def batches(model, texts, a):
  """Batches of units [B, 2, L]; rows are cut at --length and padded to the longest of a batch."""
  for first in range(0, len(texts), a.batch):
    rows = model.rows([x for both in texts[first : first + a.batch] for x in both], a.length)
    length = max(len(row.ids) for row in rows)
    made = {name: np.zeros((len(rows), length), np.int32) for name in ('input_ids', 'segment_ids')}
    for i, row in enumerate(rows):
      made['input_ids'][i, : len(row.ids)], made['segment_ids'][i, : len(row.ids)] = row.ids, 1
    made['token_type_ids'] = np.zeros_like(made['input_ids'])
    made = {name: x.reshape(a.batch, 2, length) for name, x in made.items()}
    yield made | {name: np.ones(a.batch, np.float32) for name in ('labels', 'label_weights')}


def ours(a):
  """(batches, loss of a batch without dropout, step of a batch → loss)."""
  import jax

  import bertzoo_jax
  from bertzoo_jax import parts
  from bertzoo_jax import pretrained
  from bertzoo_jax.common import trees
  from bertzoo_jax.objectives import BY_NAME
  from bertzoo_jax.parts import named
  from bertzoo_jax.training import optimizers
  from bertzoo_jax.training import schedules
  from bertzoo_jax.training import step as steps

  model = bertzoo_jax.load(f'hf:{a.model}')
  encoder = pretrained.encoder(model.pretrained)
  section = parts.in_batch_negatives(backward=0.0, pooling='mean')
  objective = named.build(section, BY_NAME, 'objective', encoder=encoder)
  params = {'encoder': model.params['encoder']}
  objective = objective._replace(init=lambda key: params)
  schedule = named.build(
    parts.constant(learning_rate=2e-5, warmup=0), schedules.BY_NAME, 'schedule', 10**6
  )
  paths = trees.paths_of(params)
  fields = parts.adamw(clip_norm=1.0)
  tx = named.build(fields, optimizers.BY_NAME, 'optimizer', schedule, paths)
  update = jax.jit(
    steps.make_train_step(objective, tx, schedule, seed=0, accumulation=a.pieces), donate_argnums=0
  )
  state = [jax.jit(lambda: steps.init(objective, tx, 0, a.batch))()]
  evaluate = jax.jit(steps.make_eval_step(objective))

  def plain(batch):
    (loss, _), _ = evaluate(params, batch, objective.normalizers(batch), (), 0)
    return float(loss)

  def step(batch):
    state[0], metrics = update(state[0], batch)
    return float(metrics['loss'])

  return list(batches(model, pairs(a.texts, a.batch * a.steps), a)), plain, step


def theirs(a):
  """(loss of a batch without dropout, step of a batch → loss)."""
  import sentence_transformers
  import torch
  from sentence_transformers.sentence_transformer import losses

  torch.set_num_threads(a.threads)
  model = sentence_transformers.SentenceTransformer(a.model, device='cpu')
  make, more = losses.MultipleNegativesRankingLoss, {}
  if a.pieces > 1:
    make, more = losses.CachedMultipleNegativesRankingLoss, {'mini_batch_size': a.batch // a.pieces}
  loss = make(model, **more)
  tx = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)

  def of(batch):
    tensor = lambda x: torch.from_numpy(np.asarray(x, np.int64))
    names = {'input_ids': 'input_ids', 'segment_ids': 'attention_mask'}
    names['token_type_ids'] = 'token_type_ids'
    columns = [
      {theirs: tensor(batch[name][:, c]) for name, theirs in names.items()} for c in (0, 1)
    ]
    return loss(columns, torch.zeros(a.batch))

  def plain(batch):
    model.eval()
    with torch.no_grad():
      return of(batch).item()

  def step(batch):
    model.train()
    tx.zero_grad()
    value = of(batch)
    value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    tx.step()
    return value.item()

  return plain, step


def main():
  a = arguments()
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  os.environ['TOKENIZERS_PARALLELISM'] = 'false'
  made, our_loss, our_step = ours(a)
  their_loss, their_step = theirs(a)
  losses = our_loss(made[0]), their_loss(made[0])
  print(f'loss of the first batch: ours {losses[0]:.7f}, theirs {losses[1]:.7f}', flush=True)
  if abs(losses[0] - losses[1]) > 1e-5:
    raise SystemExit('the losses differ')
  sides = {'ours': our_step, 'theirs': their_step}
  for step in sides.values():
    [step(batch) for batch in made]  # compiled for each length
  seconds, cpu = {side: [] for side in sides}, {side: [] for side in sides}
  for _ in range(a.turns):
    for side, step in sides.items():
      time.sleep(0.5)  # threads of the other side stop spinning
      start, busy = time.perf_counter(), time.process_time()
      [step(batch) for batch in made]
      seconds[side].append((time.perf_counter() - start) / len(made))
      cpu[side].append((time.process_time() - busy) / len(made))
  shapes = sorted({x['input_ids'].shape for x in made})
  print(f'units, texts, tokens: {shapes}; {a.turns} turns of {len(made)} steps')
  for side in sides:
    low, middle, high = np.percentile(seconds[side], (25, 50, 75))
    print(
      f'{side}: {middle:.3f} s per step ({low:.3f} – {high:.3f}), '
      f'{statistics.median(cpu[side]):.3f} processor seconds'
    )
  ratio = statistics.median(seconds['theirs']) / statistics.median(seconds['ours'])
  print(f'theirs / ours: {ratio:.2f}')


if __name__ == '__main__':
  main()
