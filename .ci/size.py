"""Lines and statements of the package, the configs and the tests."""

import ast
import pathlib

for folder in ('bertzoo_jax', 'configs', 'tests'):
  texts = [path.read_text() for path in pathlib.Path(folder).rglob('*.py')]
  statements = sum(
    isinstance(node, ast.stmt) for text in texts for node in ast.walk(ast.parse(text))
  )
  print(
    f'{folder}: {sum(text.count(chr(10)) for text in texts):,} lines, {statements:,} statements'
  )
