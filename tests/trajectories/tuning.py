"""Fine-tunings for comparison: batches, objectives and losses in torch, by kind of task."""

import functools
import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import small_networks as small
import transformers
from torch.nn import functional as F

from bertzoo_jax import export
from bertzoo_jax import objectives
from bertzoo_jax.hf import task_heads as hf_heads
from bertzoo_jax.hf import weights
from bertzoo_jax.tasks import kinds
from tests.found import call_part
from tests.hf import test_heads as heads
from tests.trajectories import driver
from tests.trajectories import papers

ROWS, LENGTH = 8, 16
LABELS, TAGS, OPTIONS = ('a', 'b', 'c'), ('O', 'B-X', 'I-X'), 3
FORBIDDEN = -1e30
PEAK, WARMUP = 4e-3, 3
SCHEDULE = dict(name='linear_from_start', learning_rate=PEAK, warmup=WARMUP)
MOMENTS = dict(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, clip_norm=1.0, mu_dtype='float32')
NO_DECAY = (r'norm/', r'bias$')
ADAMW = dict(MOMENTS, name='adamw', no_decay=NO_DECAY, rates=(), clip_groups=())
# The same in torch.
update = functools.partial(
  papers.fairseq_adam,
  rate=functools.partial(papers.google_rate, peak=PEAK, warmup=WARMUP),
  b2=0.999,
  decayed=papers.decays,
)
CLASSES = {
  **dict.fromkeys(('bert', 'ernie', 'roberta', 'albert', 'xlnet'), 'tanh'),
  **dict.fromkeys(('electra', 'deberta', 'deberta v2'), 'gelu'),
  'modern': 'transform',
}
NO_DROPOUT = dict(input_dropout=0.0, dropout=0.0)
TAGGED, TAG_TASK = dict(labels=TAGS, dropout=0.0), hf_heads.Task(None, TAGS)


# Losses in torch, of logits and the tensors of a batch.


def mean_of(losses, t):
  weight = t['label_weights'].reshape(-1)
  return (losses * weight).sum() / weight.sum()


def classes_loss(logits, t):
  return mean_of(F.cross_entropy(logits, t['labels'].long(), reduction='none'), t)


def number_loss(logits, t):
  return mean_of((logits[:, 0] - t['labels']) ** 2, t)


def labels_loss(logits, t):
  each = F.binary_cross_entropy_with_logits(logits, t['labels'], reduction='none')
  return mean_of(each.mean(dim=1), t)


def tags_loss(logits, t):
  """The mean over scored tokens."""
  flat = logits.reshape(-1, len(TAGS)), t['labels'].long().reshape(-1)
  return mean_of(F.cross_entropy(*flat, reduction='none'), t)


def span_loss(start_BL, end_BL, t):
  labels = t['labels'].long().T
  each = [F.cross_entropy(*x, reduction='none') for x in zip((start_BL, end_BL), labels)]
  return mean_of(sum(each) / 2, t)


def answerable_loss(logits, t):
  return mean_of(F.binary_cross_entropy_with_logits(logits, t['impossible'], reduction='none'), t)


def read_logits(out, t):
  return (out.logits,)


def read_options(out, t):
  return (out.logits.masked_fill(t['option_weights'] == 0, FORBIDDEN),)


def read_span(out, t):
  padding = t['segment_ids'] == 0
  return tuple(x.masked_fill(padding, FORBIDDEN) for x in (out.start_logits, out.end_logits))


class Kind(NamedTuple):
  """A kind of task.

  Attributes:
    objective: its name.
    head: its name among the parameters.
    read: (what the class returns, batch) → logits.
    loss: (*logits, batch) → loss.
    fields: of the objective.
    task: for the config of transformers.
  """

  objective: str
  head: str
  read: Callable
  loss: Callable
  fields: dict = {}
  task: hf_heads.Task = hf_heads.Task(None, ())


def _of_rows(name, loss, labels=LABELS):
  fields = NO_DROPOUT | (dict(labels=labels) if labels else {})
  task = hf_heads.Task(kinds.BY_NAME[name].problem, labels)
  return Kind(name, hf_heads.ROW, read_logits, loss, fields, task)


KINDS = {
  'classification': _of_rows('classification', classes_loss),
  'regression': _of_rows('regression', number_loss, ()),
  'multilabel': _of_rows('multilabel', labels_loss),
  'tagging': Kind('tagging', hf_heads.TAG, read_logits, tags_loss, TAGGED, TAG_TASK),
  'choice': Kind('choice', hf_heads.CHOICE, read_options, classes_loss, NO_DROPOUT),
  'span': Kind('span', hf_heads.SPAN, read_span, span_loss),
}


def start(kind, case, scale=0.05, **more):
  """(objective, perturbed weights): dropout off. more: fields of the objective."""
  encoder, of = small.encoder(section=heads.CASES[case][1]), KINDS[kind]
  own = dict(head=CLASSES[case]) if 'input_dropout' in of.fields or case == 'modern' else {}
  objective = call_part(objectives, of.objective, encoder, **own, **of.fields, **more)
  return objective, small.parameters(objective, seed=1, scale=scale)


def architecture(kind, case):
  return heads.of(heads.CASES[case][0], KINDS[kind].head)


def exported(kind, case, objective, params):
  """(tensors, config) of the class of transformers. params: or gradients by them."""
  encoder, special = objective.networks[0].encoder, heads.CASES[case][3]
  flat = weights.flatten(params)
  return export.convert(architecture(kind, case), flat, encoder, special, KINDS[kind].task)


def network(folder, kind, case, objective, params):
  """The class of transformers with our weights."""
  tensors, config = exported(kind, case, objective, params)
  weights.save(folder / 'model.safetensors', tensors)
  (folder / 'config.json').write_text(json.dumps(config))
  return getattr(transformers, architecture(kind, case).name).from_pretrained(folder).eval()


def inputs(t):
  """Arguments of a class of transformers."""
  out = dict(input_ids=t['input_ids'].long(), attention_mask=t['segment_ids'].long())
  return {**out, 'token_type_ids': t['token_type_ids'].long()} if t['token_type_ids'].any() else out


def trained(network, *more):
  """{name: parameter} but for what the classes have beside ours: XLNet's query vector, the segment
  that RoBERTa adds. more: parts of names to leave out too.
  """
  beside = ('mask_emb', 'roberta.embeddings.token_type_embeddings', *more)
  return {n: p for n, p in network.named_parameters() if not any(b in n for b in beside)}


def batches(kind, case):
  """Few batches, to learn something in twenty steps; of all lengths, one row without weight."""
  return [_BATCHES.get(kind, _rows)(kind, case, number) for number in range(driver.STEPS)]


def _rows(kind, case, number):
  _, section, _, special = heads.CASES[case]
  draw = np.random.default_rng(number % 3)
  lengths = draw.integers(4, LENGTH + 1, ROWS)
  real = np.arange(LENGTH) < lengths[:, None]
  segments = (np.arange(LENGTH) >= lengths[:, None] // 2) & real
  ids = np.where(real, draw.integers(5, small.VOCAB, real.shape), special['pad'])
  if case == 'xlnet':
    ids, segments, real = ids[:, ::-1], segments[:, ::-1], real[:, ::-1]
  elif not section.get('type_vocab_size'):
    segments = np.zeros_like(segments)
  labels = (ids.sum(axis=1) % 3).astype(np.int32)
  of_kind = {
    'regression': (labels - 0.5).astype(np.float32),
    'multilabel': np.stack([labels > 0, labels == 1, labels < 2], axis=1).astype(np.float32),
  }
  return {
    'input_ids': ids.astype(np.int32),
    'token_type_ids': segments.astype(np.int32),
    'segment_ids': real.astype(np.int32),
    'labels': of_kind.get(kind, labels),
    'label_weights': np.asarray([1.0] * (ROWS - 1) + [0.0], np.float32),
  }


def _tagged(kind, case, number):
  batch = _rows(kind, case, number)
  real = batch['segment_ids'] > 0
  first = real & (np.random.default_rng(number).random(real.shape) < 0.6)
  labels = np.where(first, batch['input_ids'] % 3, 0).astype(np.int32)
  return {**batch, 'labels': labels, 'label_weights': first.astype(np.float32)}


def _options(kind, case, number):
  """Three options a unit; the last unit has two."""
  batch = _rows(kind, case, number)
  rolled = lambda x: np.stack([np.roll(x, c, axis=0) for c in range(OPTIONS)], axis=1)
  units = {name: rolled(x) for name, x in batch.items() if x.ndim == 2}
  there = np.ones((ROWS, OPTIONS), np.float32)
  there[-1, -1] = 0
  labels = units['input_ids'].sum(axis=2)[:, :2].argmax(axis=1).astype(np.int32)
  weights_B = np.where(np.arange(ROWS) == 1, 0, 1).astype(np.float32)
  return {**units, 'labels': labels, 'label_weights': weights_B, 'option_weights': there}


def _questions(kind, case, number):
  """Batches with the places of answers; a third of the rows has none."""
  batch, rows = _rows(kind, case, number), np.arange(ROWS)
  real = batch['segment_ids'] > 0
  draw = np.random.default_rng(number % 3)
  first, size = real.argmax(axis=1), real.sum(axis=1)
  cls = first + size - 1 if case == 'xlnet' else first
  at = first + 1 + (batch['labels'] % (size - 2))
  places = np.stack([at, np.minimum(at + draw.integers(0, 2, ROWS), first + size - 2)], axis=1)
  none = rows % 3 == 2
  places = np.where(none[:, None], cls[:, None], places).astype(np.int32)
  mask = real & (draw.random(real.shape) < 0.8)
  for at in (*places.T, cls):
    mask[rows, at] = True
  of_answers = dict(impossible=none.astype(np.float32), answer_mask=mask.astype(np.int32))
  return {**batch, 'labels': places, **of_answers}


_BATCHES = {'tagging': _tagged, 'choice': _options, 'span': _questions}
