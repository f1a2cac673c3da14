"""docs/how_long.md: hours and dollars to read a text once, by network and machine.

    python bench/how_long.py > docs/how_long.md

bench/how_long.json has the rates. tokens_per_s are measured on the machine (bench/README.md says
how), or estimated by preflight's compiler for a slice (`compiled`). A network without either is
scaled from the one beside it by FLOPs per token (`mflop_per_token`, as `pretrain` prints them).
"""

import json
import pathlib

DATA = json.loads(pathlib.Path(__file__).with_suffix('.json').read_text())
TEXTS = {'10 MB': 1e7, '100 MB': 1e8, '1 GB': 1e9, '10 GB': 1e10, '100 GB': 1e11}
MARKS = {'measured': '', 'compiled': '~', 'scaled': '≈'}


def rate(network: str, machine: str) -> tuple[float, str]:
  """(tokens per second, how it is known) of a network on a machine."""
  for how in ('measured', 'compiled'):
    if network in (known := DATA[how].get(machine, {})):
      return known[network], how
  family = network.split(':')[0]
  known = DATA['measured'].get(machine) or DATA['compiled'][machine]
  near = next((n for n in known if n.split(':')[0] == family), next(iter(known)))
  flops = DATA['mflop_per_token']
  return known[near] * flops[near] / flops[network], 'scaled'


def cell(seconds: float, dollars: float, mark: str) -> str:
  """Hours (days from 48 on) and dollars, as one word."""
  hours, cost = seconds / 3600, seconds / 3600 * dollars
  time = (
    f'{hours / 24:,.0f}d' if hours >= 48 else f'{hours:.0f}h' if hours >= 3 else f'{hours:.1f}h'
  )
  price = f'/${cost:,.0f}' if cost >= 1 else '/<$1' if cost else ''
  return f'{mark}{"<0.1h" if hours < 0.1 else time}{price}'


def page() -> str:
  """The text of the page."""
  prices = [f'{m} {d:g}' for m, d in DATA['dollars_per_hour'].items() if d]
  lines = [
    _INTRODUCTION.format(**DATA, dollars=', '.join(prices)),
    '| network | machine | ' + ' | '.join(TEXTS) + ' |',
  ]
  lines.append('|---' * (2 + len(TEXTS)) + '|')
  for network in DATA['mflop_per_token']:
    name = network
    for machine, dollars in DATA['dollars_per_hour'].items():
      speed, how = rate(network, machine)
      cells = (
        cell(size / DATA['bytes_per_token'] / speed, dollars, MARKS[how]) for size in TEXTS.values()
      )
      cells = [*cells]
      if '<0.1h' not in cells[-1]:  # else minutes for any text
        lines.append(' | '.join((f'| {name} | {machine}', *cells)) + ' |')
        name = ''
  return '\n'.join(lines) + '\n'


_INTRODUCTION = """<!-- Written by `python bench/how_long.py > docs/how_long.md`. -->
# How long, and what it costs

To read a text **once**, {bytes_per_token} bytes per token; BERT read its text 40 times. No mark:
measured. `~`: the TPU compiler's estimate, no chip was used. `≈`: scaled by FLOPs from another
network; small ones take longer. Dollars per hour are assumed:
{dollars}. `preflight --price` takes yours.
"""


if __name__ == '__main__':
  print(page(), end='')
