"""A curve in plain characters, for a terminal."""


def draw(
  points: list[tuple[float, float]], level: float, name: str, width: int = 60, height: int = 10
) -> str:
  """Points (x, y) as stars over a dotted line at `level`, in width × height characters."""
  low, high = (pick(level, *(y for _, y in points)) for pick in (min, max))
  last = max(x for x, _ in points)
  share = lambda value, span: value / span if span else 0.0
  row_of = lambda y: round(share(high - y, high - low) * (height - 1))
  field = [[' '] * width for _ in range(height)]
  field[row_of(level)] = ['.'] * width
  for x, y in points:
    field[row_of(y)][round(share(x, last) * (width - 1))] = '*'
  labels = {row_of(y): f'{y:.2f}' for y in (level, high, low)}
  notes = {row_of(level): f' {name}'}
  lines = [
    f'{labels.get(row, ""):>6} |{"".join(cells)}{notes.get(row, "")}'.rstrip()
    for row, cells in enumerate(field)
  ]
  end = f'{last:,.0f}'
  return '\n'.join([*lines, f'{"":>6} +{"-" * width}', f'{"":>8}0{end:>{width - 1}}'])
