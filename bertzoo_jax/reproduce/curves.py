"""The curves of a table: held-out loss of each row over steps and over train FLOPs, as one SVG."""

import io
import math

import numpy as np

from bertzoo_jax.common import storage
from bertzoo_jax.common import trust
from bertzoo_jax.reproduce import budget
from bertzoo_jax.reproduce import plan
from bertzoo_jax.runs import metrics

_LOSSES = ('held_out_mlm_loss', 'held_out_rtd_loss', 'held_out_loss')
_STYLE = {'svg.hashsalt': 'bertzoo_jax', 'svg.fonttype': 'none', 'font.size': 9}


def held_out_losses(config, workdir, flops) -> dict[str, list[list[tuple]]]:
  """{title of a row: for each seed [(step, loss in nats, train FLOPs)]}, of rows that have begun.

  flops: {row: train FLOPs of its whole pretraining}, of rows with a finished seed.
  """
  by_title = {}
  for job in plan.jobs(config, workdir):
    if not storage.path(job.pretraining).exists():
      continue
    total = flops[job.name] if flops.get(job.name) else math.nan
    # the held-out loss of a row, of predicted tokens if it has that
    loss = lambda row: next((row[name] for name in _LOSSES if row.get(name) is not None), None)
    points = [(row['step'], loss(row)) for row in metrics.read(job.pretraining)]
    spent = _spent(job.experiment)
    if line := [(step, loss, total * spent(step)) for step, loss in points if loss is not None]:
      by_title.setdefault(config.rows[job.name].title, []).append(line)
  return by_title


def _spent(experiment):
  """step → share of the train FLOPs of a whole run."""
  steps = [n for n, _ in experiment.phases]
  flops = budget.work(experiment) if len(steps) > 1 else [1.0]
  ends, totals = np.cumsum([0, *steps]), np.cumsum([0.0, *flops])
  return lambda step: float(np.interp(step, ends, totals / totals[-1]))


def svg(rows) -> str:
  """Two plots side by side. rows: of `held_out_losses`; the same rows give the same bytes."""
  matplotlib, figures = map(trust.from_root, ('matplotlib', 'matplotlib.figure'))

  with matplotlib.rc_context(_STYLE):
    figure = figures.Figure(figsize=(10, 3.6), layout='constrained')
    over_steps, over_flops = figure.subplots(1, 2)
    for i, (title, seeds) in enumerate(rows.items()):
      for k, line in enumerate(seeds):
        steps, losses, flops = zip(*line)
        look = dict(color=f'C{i % 10}', marker='.', alpha=0.4 if k else 1.0)
        over_steps.plot(steps, losses, label=None if k else title, **look)
        over_flops.plot(flops, losses, **look)
    over_steps.set_xlabel('steps')
    over_flops.set_xlabel('train FLOPs')
    for axes in (over_steps, over_flops):
      axes.set_ylabel('nats per predicted token')
      axes.grid(alpha=0.3)
    figure.legend(loc='outside upper center', ncols=4, frameon=False)
    out = io.StringIO()
    figure.savefig(out, format='svg', metadata=dict.fromkeys(('Date', 'Creator', 'Format', 'Type')))
  text = out.getvalue()
  return text[text.index('<svg') :]
