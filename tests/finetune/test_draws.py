"""Runs that draw their examples, the checkpoint with the lowest loss, and means with intervals."""

import json
import math

import numpy as np
import pytest

from bertzoo_jax.finetune import table
from bertzoo_jax.runs import metrics
from configs.tasks import euroeval
from tests import tuned
from tests.refused import refused
from tests.tasks import made

FILES = {'classify': 'train.tsv', 'tag': 'train.txt', 'qa': 'train.json'}


def results(dev, test):
  """Results of runs with these scores."""
  both = [{'dev': {'f1': a, 'em': a / 2}, 'test': {'f1': b}} for a, b in zip(dev, test)]
  return [{'init': 'W', 'point': (), 'score': x['dev']['f1'], 'scores': x} for x in both]


def test_a_mean_has_the_interval_of_1_96_standard_errors():
  dev, test = np.random.default_rng(0).random((2, 10))
  [line] = table.lines('t', ('f1', 'em'), results(dev, test), drawn=True)
  for name, x in {'dev f1': dev, 'dev em': dev / 2, 'test f1': test}.items():
    mean, radius = np.mean(x), 1.96 * np.std(x, ddof=1) / np.sqrt(10)
    assert line.means[name] == pytest.approx((mean, radius))
    assert f'{name} {100 * mean:.2f} ± {100 * radius:.2f}' in table.markdown([line], {'t': 0.5})
  [bare] = table.lines('t', ('f1', 'em'), results(dev, test))
  assert bare.means == {} and bare._replace(means=line.means) == line
  assert '±' not in table.markdown([bare], {'t': 0.5})
  for scores in ([0.5], [0.5, None]):
    found = table.lines(
      't',
      ('f1',),
      [
        {**r, 'scores': {'dev': {'f1': s}}, 'score': s}
        for r, s in zip(results([1, 1], [1, 1]), scores)
      ],
      drawn=True,
    )
    assert math.isnan(found[0].means['dev f1'][1])


@pytest.mark.parametrize('kind', FILES)
def test_a_draw_has_as_many_examples_with_replacement_and_their_own_labels(tmp_path, kind):
  write = {'classify': tuned.table, 'tag': tuned.sentences, 'qa': tuned.articles}[kind]
  name = FILES[kind]
  (tmp_path / name).write_text(write(60, 1))
  config = euroeval.get_config(kind)
  config.source.files = {'train': name, 'dev': name}
  config.max_train, config.max_dev = 50, 50
  task = made.task(config, tmp_path, 400)
  drawn, again, other = task.drawn(4242), task.drawn(4242), task.drawn(4243)
  for n, count in dict(train=50, dev=50).items():
    whole, some = task.splits[n], drawn.splits[n]
    ids = some.examples
    assert len(ids) == len(whole.examples) == count
    assert 0.5 * count < len(set(ids)) < 0.8 * count and set(ids) <= set(whole.examples)
    assert ids == again.splits[n].examples != other.splits[n].examples
    by_id = dict(zip(whole.examples, whole.source.values))
    assert some.source.values == [by_id[i] for i in ids]
    rows = {i: whole.row(j).tolist() for j, i in enumerate(whole.examples)}
    assert [some.row(j).tolist() for j in range(count)] == [rows[i] for i in ids]
    if kind == 'classify':
      labels = dict(zip(whole.examples, whole.labels))
      assert some.labels.tolist() == [labels[i] for i in ids]
    assert kind != 'tag' or (some.labels >= 0).sum() == sum(
      len(v.words) for v in some.source.values
    )
  assert drawn.splits['train'].examples != drawn.splits['dev'].examples
  assert drawn.hash == task.hash


def test_euroeval_s_runs_have_the_values_of_its_code():
  for kind in euroeval.TASKS:
    config = euroeval.get_config(kind)
    optimizer = config.optimizer
    assert (optimizer.b1, optimizer.b2, optimizer.eps) == (0.9, 0.999, 1e-8)
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0, 1)
    assert (config.schedule.learning_rate, config.warmup * config.steps) == (2e-5, 100)
    assert (config.batch_size, config.choose_every, config.patience) == (32, 30, 2)
    assert config.seeds == tuple(range(4242, 4252)) and config.choose == 'lowest_loss'


def test_each_run_learns_and_scores_its_own_draw_at_the_step_with_the_lowest_loss(tmp_path):
  world = tuned.world(tmp_path, 'bert')
  config = tuned.config(
    draw='bootstrap',
    seeds=(0, 1),
    choose='lowest_loss',
    choose_every=3,
    patience=1,
    steps=60,
    schedule__learning_rate=3e-2,
    run__eval_every=0,
  )
  [line] = tuned.finetune(world, tmp_path / 'f', config)
  folder = tmp_path / 'f/classify'
  found = [json.loads((folder / f'seed={n}/result.json').read_text()) for n in (0, 1)]
  scores = [r['score'] for r in found]
  assert line.means['dev accuracy'][0] == pytest.approx(np.mean(scores))
  for n, result in enumerate(found):
    losses = {
      r['step']: r['held_out_loss']
      for r in metrics.read(folder / f'seed={n}')
      if 'held_out_loss' in r
    }
    assert result['step'] == min(losses, key=losses.get) and max(losses) == result['step'] + 3 < 60
  best = int(np.argmax(scores))
  rows = [row.split('\t') for row in (folder / 'dev.tsv').read_text().splitlines()[1:]]
  assert len({row[0] for row in rows}) < len(rows) == 40
  assert np.mean([row[-3] == row[-2] for row in rows]) == pytest.approx(scores[best])
  tables = (tmp_path / 'f/table.md').read_text()
  assert 'mean ± 95 %' in tables
  tuned.finetune(world, tmp_path / 'f', config)  # finished runs are read again
  assert (tmp_path / 'f/table.md').read_text() == tables
  refused(
    'config.grid varies .draw.*must be the same',
    tuned.finetune,
    world,
    tmp_path / 'g',
    tuned.config(grid=(('draw', ('all', 'bootstrap')),)),
  )
