"""table: medians over seeds, and runs that diverged."""

import math

from bertzoo_jax.finetune import table


def results(*scores, point=()):
  return [
    {'init': 'W', 'point': point, 'score': x, 'scores': {'dev': {'accuracy': x, 'f1': x}}}
    for x in scores
  ]


def test_a_run_that_diverged_is_below_all_others_and_no_number_of_the_table():
  [line] = table.lines('t', ('accuracy', 'f1'), results(0.5, None, 0.75))
  assert (line.median, line.best, line.others) == (0.5, 0.75, {'dev f1': 0.5})
  assert math.isnan(line.worst) and line.seeds == 3
  [line] = table.lines('t', ('accuracy', 'f1'), results(None, None, 0.75))
  assert math.isnan(line.median) and line.best == 0.75
  assert '| 0.7500 | –' in table.markdown([line], {'t': 0.5})


def test_two_keys_of_a_grid_that_end_alike_are_told_apart():
  keys = ['encoder.dropout', 'objective.dropout', 'schedule.learning_rate']
  assert table.short(keys) == [*keys[:2], 'learning_rate']
  point = tuple(zip(keys, (0.1, 0.2, 1e-5)))
  [line] = table.lines('t', ('accuracy', 'f1'), results(0.5, point=point))
  assert line.point == 'encoder.dropout=0.1, objective.dropout=0.2, learning_rate=1e-05'


def test_a_point_that_diverged_is_not_chosen():
  found = results(None, None, point=(('rate', 1.0),)) + results(0.25, 0.5, point=(('rate', 0.1),))
  lines = table.lines('t', ('accuracy', 'f1'), found)
  assert [line.chosen for line in lines] == [False, True]


def test_a_table_has_no_column_that_says_nothing():
  line = table.Line('t', '', 'W', 'accuracy', 'dev', 1, 0.5, 0.5, 0.5, {}, True)
  head = lambda found: table.markdown(found, {'t': 0.4}).splitlines()[0].split()[1::2]
  assert head([line]) == ['task', 'score', 'seeds', 'median', 'majority', 'others']
  points = [line._replace(point='a=1', seeds=2), line._replace(point='a=2', seeds=2)]
  assert head(points)[:6] == ['task', 'point', 'score', 'seeds', 'median', 'best']
