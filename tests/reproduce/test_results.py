import json
import pathlib

import pytest

from bench import blimp
from bench import continued
from bench import how_long
from bench import results
from bertzoo_jax.reproduce import page

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = sorted(p.parent for p in (ROOT / 'docs/results').glob('*/config.table.json'))


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda p: p.name)
def test_a_table_is_made_of_the_scores_beside_it(folder):
  config = results.config_of(folder)
  found = page.collected(config, folder)
  assert (folder / 'table.md').read_text() == page.markdown(found)
  drawn = (folder / 'curves.svg').read_text()
  run = [row.title for row in found.rows if row.seeds]
  assert run and all(f'>{title}<' in drawn for title in run)


def test_every_table_is_shown_on_a_page_and_the_losses_of_forgetting_are_the_scores():
  pages = '\n'.join(p.read_text() for p in (ROOT / 'docs/results').glob('*.md'))
  assert FOLDERS
  assert all(f'({p.name}/{name})' in pages for p in FOLDERS for name in ('table.md', 'curves.svg'))
  folder = ROOT / 'docs/results/forgetting'
  scores = json.loads((folder / 'scores.json').read_text())
  cell = lambda s: f'{s["mlm_loss"][0]:.2f} ({100 * s["mlm_accuracy"][0]:.1f} %)'
  rows = [f'| {name} | {cell(s["wiki"])} | {cell(s["laws"])} |' for name, s in scores.items()]
  assert '\n'.join(rows) in folder.with_suffix('.md').read_text()


def test_the_page_of_minimal_pairs_has_the_scores_beside_it():
  folder = ROOT / 'docs/results/blimp'
  found = json.loads((folder / blimp.SCORES).read_text())
  page = folder.with_suffix('.md').read_text()
  table = blimp.table(found)
  assert (folder / blimp.TABLE).read_text() == table
  assert table in page
  drawn = (folder / blimp.CURVE).read_text()
  for name, run in found['runs'].items():
    whole = run['whole']
    percent = (f'{100 * whole[key]:.2f}' for key in ('accuracy', 'standard_error'))
    assert ' ± '.join(percent).replace(' 0.', ' .') in page
    assert whole['pairs'] == 67_000
    assert f'>{name}<' in drawn


def test_pages_that_scripts_write_are_those_of_their_data():
  scores = json.loads(continued.TABLE.read_text())
  assert continued.PAGE.read_text() == continued.page(scores)
  assert (ROOT / 'docs/how_long.md').read_text() == how_long.page()
  made = {'start own 0': (2.0, 0), 'start own 1': (3.0, 0), 'run own 0 500': (1.5, 500)}
  made |= {'run own 1 500': (1.7, 500)} | {
    f'run added {n} 500': (1.4 + n / 10, 500) for n in (0, 1)
  }
  made = {name: {'bits': {str(step): [x, 1.0]}} for name, (x, step) in made.items()}
  text = continued.page(made)
  assert '| own | 2.500/1.000 | – | 1.600/1.000 | – | – |' in text
  assert '* added − own: -0.150 ± 0.635 (2 seeds)' in text  # t of one degree: 12.71
  # a rate that was measured is not marked, and FLOPs scale the others of a machine
  data = how_long.DATA
  assert how_long.rate('bert:base', 'H200') == (data['measured']['H200']['bert:base'], 'measured')
  speed, how = how_long.rate('deberta_v3:small', 'H200')
  flops = data['mflop_per_token']
  base = data['measured']['H200']['deberta_v3:base']
  assert how == 'scaled' and speed * flops['deberta_v3:small'] == base * flops['deberta_v3:base']
  assert how_long.cell(7200, 4, '') == '2.0h/$8' and how_long.cell(60, 0, '~') == '~<0.1h'
