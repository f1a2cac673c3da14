"""Rows of questions and windows of their passages, beside transformers' fast tokenizer, in one run.

    PYTHONPATH=. python bench/question_features.py --file=SQUAD.json --vocab=vocab.txt [--turns=3]

--file is JSON of SQuAD's shape, --vocab a published BERT vocabulary, lower-cased. Ours is
`question_windows`, from the questions in memory to arrays. Theirs is the usual feature function
for training: one call of the fast tokenizer with stride and offsets for 1,000 questions at a time,
then a search for the answer's tokens in each window. The stride is the overlap of two windows.
`theirs` has one stride for all questions, so its windows differ from ours. In `theirs, alike` each
length of a question has the stride that makes our windows; rows and places are compared. Tokens are
those of all rows, without padding. Turns alternate.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time

import numpy as np

LENGTH, STEP, QUESTION = 384, 128, 64


def arguments():
  p = argparse.ArgumentParser()
  p.add_argument('--file', required=True)
  p.add_argument('--vocab', required=True)
  p.add_argument('--turns', type=int, default=3)
  p.add_argument('--times', type=int, default=1, help='how often the questions are repeated')
  return p.parse_args()


def ours(examples, tokenizer):
  """(tokens, places of the answers) of all rows."""
  from bertzoo_jax import parts
  from bertzoo_jax.parts import named
  from bertzoo_jax.tasks import features
  from bertzoo_jax.tasks import frames

  frame = frames.Frame(
    'cls:0 A:0 sep:0', 'cls:0 A:0 sep:0 B:1 sep:1', dict(tokenizer.special), 2, LENGTH
  )
  section = parts.question_windows(doc_stride=STEP, max_question=QUESTION)
  rows = named.build(section, features.BY_NAME, 'features', examples, None, tokenizer, frame)
  return len(rows.ids), rows.labels


def theirs(examples, tokenizer, groups):
  """The same. groups: {tokens of a question: numbers of the questions that go together}."""
  tokens, places = 0, [None] * len(examples)
  for length, numbers in groups.items():
    overlap = LENGTH - 3 - length - STEP
    for start in range(0, len(numbers), 1000):
      chosen = numbers[start : start + 1000]
      found = tokenizer(
        [examples.values[i].question for i in chosen],
        [examples.values[i].context for i in chosen],
        truncation='only_second',
        max_length=LENGTH,
        stride=overlap,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
      )
      for w, offsets in enumerate(found['offset_mapping']):
        ids, i = found['input_ids'][w], chosen[found['overflow_to_sample_mapping'][w]]
        tokens += len(ids)
        sides = found.sequence_ids(w)
        first, last = 0, len(ids) - 1
        while sides[first] != 1:
          first += 1
        while sides[last] != 1:
          last -= 1
        begin, behind = examples.values[i].span
        place = (0, 0)
        if offsets[first][0] <= begin and offsets[last][1] >= behind:
          while first < len(offsets) and offsets[first][0] <= begin:
            first += 1
          while offsets[last][1] >= behind:
            last -= 1
          place = (first - 1, last + 1)
        places[i] = (places[i] or []) + [place]
  return tokens, np.array([place for each in places for place in each])


def main():
  args = arguments()
  os.environ['TOKENIZERS_PARALLELISM'] = 'true'
  import transformers

  from bertzoo_jax import parts
  from bertzoo_jax import tokenizers
  from bertzoo_jax.parts import named
  from bertzoo_jax.tasks.reading import sources

  section = parts.squad(files={'train': args.file})
  source = named.build(section, sources.BY_NAME, 'source', '')
  examples = source.splits['train']
  examples = examples.take(list(range(len(examples))) * args.times)
  with tempfile.TemporaryDirectory() as folder:
    (pathlib.Path(folder) / 'vocab.txt').write_bytes(pathlib.Path(args.vocab).read_bytes())
    fast = transformers.BertTokenizerFast.from_pretrained(folder)
    own = tokenizers.load(folder, parts.wordpiece(vocab_size='auto').to_dict())
  groups = {}
  for i, ids in enumerate(fast(examples.column('question'), add_special_tokens=False)['input_ids']):
    groups.setdefault(len(ids), []).append(i)
  sides = {
    'ours': lambda: ours(examples, own),
    'theirs': lambda: theirs(examples, fast, {QUESTION: list(range(len(examples)))}),
    'theirs, alike': lambda: theirs(examples, fast, groups),
  }
  seconds, found = {name: [] for name in sides}, {}
  for _ in range(args.turns):
    for name, function in sides.items():
      began = time.perf_counter()
      found[name] = function()
      seconds[name].append(time.perf_counter() - began)
  same = found['ours'][0] == found['theirs, alike'][0]
  alike = np.mean(np.all(found['ours'][1] == found['theirs, alike'][1], axis=1)) if same else 0.0
  print(f'{len(examples):,} questions, {len(found["ours"][1]):,} rows, {os.cpu_count()} cores')
  for name, each in seconds.items():
    median = statistics.median(each)
    print(f'{name:>13}: {median:6.2f} s, {found[name][0] / median:12,.0f} tokens/s')
  ratio = statistics.median(seconds['theirs']) / statistics.median(seconds['ours'])
  print(f'ours is {ratio:.1f} times as fast; the same tokens: {same}; the same places: {alike:.2%}')


if __name__ == '__main__':
  main()
