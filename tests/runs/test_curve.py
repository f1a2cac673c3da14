"""The curve of a terminal."""

from bertzoo_jax.runs import metrics


def test_each_point_stands_at_its_step_and_height_over_the_dotted_line():
  drawn = metrics.curve_in_text(
    [(0, 8.0), (50, 5.0), (100, 4.0)], 6.0, 'entropy', width=11, height=5
  )
  assert drawn.splitlines() == [
    '  8.00 |*',
    '       |',
    '  6.00 |........... entropy',
    '       |     *',
    '  4.00 |          *',
    '       +-----------',
    '        0       100',
  ]


def test_a_single_point_and_a_flat_curve_are_drawn():
  assert '*' in metrics.curve_in_text([(0, 5.0)], 5.0, 'entropy')
  assert metrics.curve_in_text([(0, 5.0), (9, 5.0)], 5.0, 'entropy').count('*') == 2


def test_a_curve_is_plain_characters():
  assert metrics.curve_in_text([(0, 7.25), (2500, 3.8)], 6.1, 'entropy').isascii()
