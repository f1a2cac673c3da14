"""Token masking beside Hugging Face's collator, in one run: python bench/masking.py [--seconds=6] [--rows=256] [--length=512]

Ours: batches as training takes them, from `Pipeline.iterate`: row numbers shuffled, tokens gathered from a corpus, keys
derived, masked. Theirs: transformers' DataCollatorForLanguageModeling(mlm_probability=0.15, return_tensors='pt') on Python
lists, with special_tokens_mask and without; it chooses each token by a coin of its own, gathers nothing and reads no
corpus. Both use all cores they want and are measured right after one another, in blocks of half a second; medians and
quartiles of the blocks, and tokens a CPU second, which a busy machine distorts less.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import numpy as np  # noqa: E402

from bertzoo_jax.input import corpus as corpora  # noqa: E402
from bertzoo_jax.input import pipeline  # noqa: E402
from configs import parts  # noqa: E402

V, SPECIAL = 30522, dict(pad=0, unk=100, cls=101, sep=102, mask=103)
FORMATS = {'full_sentences': parts.full_sentences(), 'segment_pairs': parts.segment_pairs(), 'doc_sentences': parts.doc_sentences()}


def corpus(sentences=400_000):
  """A synthetic corpus of 8 M tokens: sentences of 3 to 37, documents of 20 sentences on average."""
  draw = np.random.default_rng(0)
  starts = np.append(0, np.cumsum(draw.integers(3, 38, sentences)))
  documents = np.unique(np.append([0, sentences], draw.integers(0, sentences, sentences // 20)))
  return corpora.in_memory(draw.integers(104, V, starts[-1]), starts, documents, V, SPECIAL)


def ours(text, form, rows, length):
  """A function that takes the next batch, endlessly."""
  pipe = pipeline.build(text, format=form, masking=parts.token(), length=length, batch_size=rows, seed=0)
  batches = pipe.iterate(0, 10**6)
  return lambda: next(batches)


def theirs(rows, length, with_mask):
  """A function that collates the same examples again."""
  import transformers
  pieces = ['[PAD]', *(f'[unused{i}]' for i in range(99)), '[UNK]', '[CLS]', '[SEP]', '[MASK]']
  pieces += [f'w{i}' for i in range(V - len(pieces))]
  with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, 'vocab.txt').write_text('\n'.join(pieces))
    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
  assert tokenizer.mask_token_id == SPECIAL['mask'] and len(tokenizer) == V
  ids = np.random.default_rng(0).integers(104, V, (rows, length))
  ids[:, 0], ids[:, -1] = SPECIAL['cls'], SPECIAL['sep']
  frame = [1] + [0] * (length - 2) + [1]
  examples = [dict(input_ids=r, token_type_ids=[0] * length, attention_mask=[1] * length) | (dict(special_tokens_mask=frame) if with_mask else {})
              for r in ids.tolist()]
  collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, return_tensors='pt')
  return lambda: collator(examples)


def measure(turns, tokens, seconds):
  """{name: ([tokens a second], [tokens a CPU second])} of blocks of half a second, the names in turn, for `seconds` a name."""
  for call in turns.values():
    for _ in range(5):
      call()
  found = {name: ([], []) for name in turns}
  for _ in range(max(2, round(seconds * 2))):
    for name, call in turns.items():
      calls, wall, cpu = 0, time.perf_counter(), time.process_time()
      while time.perf_counter() - wall < 0.5:
        call()
        calls += 1
      found[name][0].append(calls * tokens / (time.perf_counter() - wall))
      found[name][1].append(calls * tokens / (time.process_time() - cpu))
  return found


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--seconds', type=float, default=6)
  parser.add_argument('--rows', type=int, default=256)
  parser.add_argument('--length', type=int, default=512)
  args = parser.parse_args()
  text = corpus()
  theirs_of = {f'transformers, lists{", special_tokens_mask" if m else ""}': theirs(args.rows, args.length, m) for m in (True, False)}
  print(f'{args.rows} rows of {args.length} tokens a call; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; blocks of half a second')
  print(f'{"":42s}{"M tokens/s: median":>19s}{"quartiles":>16s}{"M tokens/CPU s":>16s}{"ratio":>8s}')
  for name, form in FORMATS.items():  # one of ours at a time: its threads compute ahead, also while others are measured
    found = measure({f'bertzoo_jax, {name}': ours(text, form, args.rows, args.length)}, args.rows * args.length, args.seconds)
    found |= measure(theirs_of, args.rows * args.length, args.seconds)
    best = max(statistics.median(wall) for key, (wall, _) in found.items() if key.startswith('transformers'))
    for key, (wall, cpu) in found.items():
      low, middle, high = (q / 1e6 for q in np.percentile(wall, (25, 50, 75)))
      ratio = f'{middle * 1e6 / best:.1f}x' if key.startswith('bertzoo') else ''
      print(f'{key:42s}{middle:19.2f}{f"{low:.2f} - {high:.2f}":>16s}{statistics.median(cpu) / 1e6:16.2f}{ratio:>8s}', flush=True)


if __name__ == '__main__':
  main()
