"""Whether the tests see a mistake in the package: python bench/planted_faults.py [NAME …]

In a copy of the tree the script plants one fault after the other, each in another room, and runs
the test files that import the changed module until one fails: first those of `make test`, then
tests/rest.txt. bench/planted_faults.json gets its name and the seconds. Faults that are there are
skipped unless named: stop it at any time.
"""

import ast
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = pathlib.Path(__file__).with_suffix('.json')
TIERS = {'make test': 'not slow and not rest', 'make test-all': 'rest and not slow'}

# File in bertzoo_jax: name; then a text that it has once, and what is to stand there.
FAULTS = r"""
model/attention.py: a window looks the other way
- (-right <= distance_BLM) & (distance_BLM <= left)
+ (-left <= distance_BLM) & (distance_BLM <= right)
objectives/generator.py: a forgotten stop_gradient
- jax.lax.stop_gradient(generator[p]) + flat[p]
+ generator[p] + flat[p]
training/step.py: a phase begins without the moments of the one before
- old_leaf = known.get(path)
+ old_leaf = known.get(path) if root != 'opt_state' else None
batches/pipeline.py: the phase is not folded into the key
- hashing.fold(hashing.fold(hashing.new_key(seed), hashing.PHASE), phase)
+ hashing.fold(hashing.new_key(seed), hashing.PHASE)
tasks/answering/windows.py: one window too few
- np.maximum(0, -(-(sizes - room) // stride))
+ np.maximum(0, (sizes - room) // stride)
hf/architectures/bert_like.py: a bias is not exported
- Row(f'{name}/bias', f'{bias}.bias'),
+
kernels/flash.py: a given scale is ignored
- width**-0.5 if scale is None else float(scale)
+ width**-0.5
common/row_keys.py: a number is folded into half of a key
- _mixed(_mixed(one + number) + other)
+ _mixed(_mixed(one) + other)
runs/checkpoint.py: the best checkpoint is pruned
- step_folders.best(self._folder.parent), *self._keep_at
+ *self._keep_at
text/sentences.py: "No. 5" ends a sentence
- kind == _BEFORE_NUMBERS and not following.isdigit()
+ kind == _BEFORE_NUMBERS
words/word_marks.py: a sentence begins inside a word
- continues_T[tokens.first] = False
+ pass
corpus/shards.py: documents without tokens are counted
- per_document[chosen & (per_document > 0)]
+ per_document[chosen]
tokenizers/wordpiece.py: the last separator is in the first segment
- $B:1 [SEP]:1
+ $B:1 [SEP]:0
evaluate/likelihoods.py: the first token of a row is scored by itself
- (place_R >= subject.ahead)
+ (place_R >= 0)
finetune/work.py: of equal runs the last is best
- return scores.index(max(scores))
+ return len(scores) - 1 - scores[::-1].index(max(scores))
preflight/tpu/estimate.py: an all-reduce is one pass over the data
- 'all-reduce': 2.0
+ 'all-reduce': 1.0
pretrained/initial_weights.py: every second layer begins with the second
- range(0, depth, count)
+ range(count - 1, depth, count)
reproduce/page.py: a difference has the wrong sign
- difference = lambda a, b: [round(x - y, 4)
+ difference = lambda a, b: [round(y - x, 4)
experiment/check.py: a memory of fewer rows is not refused
- and lanes != lanes_before:
+ and lanes < lanes_before:
parts/fields.py: a rate of 1 is let through
- from 0 to below 1', lambda x: 0 <= x < 1
+ from 0 to below 1', lambda x: 0 <= x <= 1
"""


def main():
  rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
  with tempfile.TemporaryDirectory() as folder:
    tree = pathlib.Path(folder) / 'tree'
    subprocess.run(['git', 'checkout-index', '-a', f'--prefix={tree}/'], cwd=ROOT, check=True)
    for file, name, old, new in re.findall(r'(.+?): (.+)\n- (.+)\n\+ ?(.*)', FAULTS):
      if name in sys.argv[1:] or not sys.argv[1:] and name not in rows:
        text = (path := tree / 'bertzoo_jax' / file).read_text()
        assert text.count(old) == 1, f'{file} has {old!r} {text.count(old)} times: mend {name!r}'
        path.write_text(text.replace(old, new))
        rows[name] = {'file': file, **first_to_fail(tree, file)}
        path.write_text(text)
        if (test := rows[name]['test']) and pytest(tree, 'rest or not rest', test).returncode:
          raise SystemExit(f'{test} fails without the fault {name!r}, too')
        RESULTS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + '\n')
        print(f'{name}: {rows[name]}', flush=True)
  print({tier: sum(row['seen by'] == tier for row in rows.values()) for tier in (*TIERS, None)})


def first_to_fail(tree, file) -> dict:
  began = time.monotonic()
  for tier, marks in TIERS.items():
    for some in filter(None, importing(tree, file)):
      done = pytest(tree, marks, *some)
      if done.returncode not in (0, 5, 124):  # 5: no test of this tier, 124: no time left
        found = re.search(r'^(?:FAILED|ERROR) (.+?)(?: - .*)?$', done.stdout, re.M)
        if not found:
          raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        return {'seen by': tier, 'test': found[1], 'seconds': round(time.monotonic() - began)}
  return {'seen by': None, 'test': None, 'seconds': round(time.monotonic() - began)}


def pytest(tree, marks, *tests):
  line = ['timeout', '900', sys.executable, '-m', 'pytest', '-qx', '-n0', '-m', marks, *tests]
  return subprocess.run(line, cwd=tree, capture_output=True, text=True)


def importing(tree, file) -> tuple[list[str], list[str]]:
  """Test files that import a module of the package, and those that import one which imports it."""
  module = 'bertzoo_jax.' + file.removesuffix('.py').replace('/', '.')
  known = imports(tree, 'bertzoo_jax') | imports(tree, 'tests')
  near = {m for m, names in known.items() if module in names}
  far = {m for m, names in known.items() if names & near}
  far |= {m for m, names in known.items() if names & {x for x in far if x.startswith('tests')}}
  tests = lambda some: [f'{m.replace(".", "/")}.py' for m in sorted(some) if '.test_' in m]
  return tests(near), tests(far - near)


def imports(tree, top) -> dict[str, set[str]]:
  """{module below a folder: the modules and names that it imports}."""
  out = {}
  for path in (tree / top).rglob('*.py'):
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    names = {
      f'{n.module}.{a.name}' for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names
    }
    names |= {f'tests.{a.name}' for n in nodes if isinstance(n, ast.Import) for a in n.names}
    place = path.relative_to(tree).with_suffix('').as_posix().removesuffix('/__init__')
    out[place.replace('/', '.')] = names
  return out


if __name__ == '__main__':
  main()
