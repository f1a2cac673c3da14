"""Runs a notebook from top to bottom, without Jupyter, and writes what its cells print into it.

python bench/notebook.py docs/colab.ipynb    # in the current folder; give it an empty one
"""

import contextlib
import io
import json
import pathlib
import re
import subprocess
import sys


def run(path: pathlib.Path, folder: pathlib.Path) -> list[str]:
  """What each code cell prints, in order. folder: the current one of lines that begin with `!`,
  where {name} is a variable of the notebook. Raises what a cell raises, or CalledProcessError.
  """
  names, printed = {}, []

  def shell(line):
    line = re.sub(r'\{(\w+)\}', lambda m: str(names[m[1]]), line)
    how = dict(cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    print(subprocess.run(['bash', '-o', 'pipefail', '-c', line], **how).stdout, end='')

  names['shell'] = shell
  with contextlib.chdir(folder):
    for cell in cells(path):
      code = re.sub(r'(?m)^( *)!(.*)$', lambda m: f'{m[1]}shell({m[2]!r})', source(cell))
      with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
      printed.append(out.getvalue())
  return printed


def cells(path) -> list[dict]:
  """The code cells of a notebook."""
  return [cell for cell in json.loads(path.read_text())['cells'] if cell['cell_type'] == 'code']


def source(cell) -> str:
  return ''.join(cell['source'])


def outputs(cell) -> str:
  """The text that the notebook keeps of a cell."""
  return ''.join(line for output in cell['outputs'] for line in output['text'])


def main(path):
  notebook, printed = json.loads(path.read_text()), iter(run(path, pathlib.Path.cwd()))
  for number, cell in enumerate(c for c in notebook['cells'] if c['cell_type'] == 'code'):
    text = next(printed)
    stream = dict(name='stdout', output_type='stream', text=text.splitlines(keepends=True))
    cell.update(execution_count=number + 1, outputs=[stream] if text else [])
  path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + '\n')


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]).resolve())
