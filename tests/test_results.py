"""docs/results: each table is what `reproduce` makes of the scores that lie beside it."""

import pathlib

import pytest

from bench import results
from bertzoo_jax.reproduce import page

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = sorted(p.parent for p in (ROOT / 'docs/results').glob('*/config.table.json'))


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda p: p.name)
def test_a_table_is_made_of_the_scores_beside_it(folder):
  config = results.config_of(folder)
  assert (folder / 'table.md').read_text() == page.markdown(config, folder)
  drawn = (folder / 'curves.svg').read_text()
  run = [row['title'] for row in page.collected(config, folder)['rows'] if row['seeds']]
  assert run and all(f'>{title}<' in drawn for title in run)


def test_every_table_has_its_page():
  pages = {p.stem for p in (ROOT / 'docs/results').glob('*.md')}
  assert FOLDERS and {p.name for p in FOLDERS} <= pages
