import os
import pathlib
import re
import sys

from bench import notebook

PAGE = pathlib.Path(__file__).parents[2] / 'docs/colab.ipynb'


def test_the_notebook_runs_in_an_empty_folder_and_keeps_what_its_cells_print(tmp_path, monkeypatch):
  monkeypatch.setenv('PATH', f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}')
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  kept = [notebook.outputs(cell) for cell in notebook.cells(PAGE)]
  printed = notebook.run(PAGE, tmp_path)
  assert [text.count('\n') for text in printed] == [text.count('\n') for text in kept]
  losses, as_kept = (re.findall(r'loss ([\d.]+) nats', ''.join(texts)) for texts in (printed, kept))
  assert len(losses) > 2 and abs(float(losses[-1]) - float(as_kept[-1])) < 0.2
  assert re.findall('"label": "(.*?)"', printed[-1]) == ['sherlock', 'time_machine']
