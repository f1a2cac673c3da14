"""Every masking beside transformers' collators, in one run: python bench/masking.py [--seconds=6]
[--rows=256] [--length=512] [--only='token;span'] [--beside]

Ours: batches as training takes them, from `Pipeline.iterate`: row numbers shuffled, tokens gathered
from a corpus, keys derived, masked; a corpus in which every fourth token continues a word. Theirs,
on Python lists as a dataset holds them: DataCollatorForLanguageModeling(mlm_probability=0.15,
return_tensors='pt') with special_tokens_mask, and the same with whole_word_mask=True and
offset_mapping (DataCollatorForWholeWordMask in transformers 4); it chooses by coins, gathers
nothing and reads no corpus. All use the cores they want and are measured right after one another,
in blocks of half a second; medians and quartiles of the blocks, and tokens a CPU second, which a
busy machine distorts less.

--beside: ours alone, with one thread and with two, while the train step of BERT-tiny runs on a
batch of 32 rows of 128 tokens that does not change: rows a second of the masking, and steps a
second.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
import warnings

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import numpy as np  # noqa: E402

from bertzoo_jax import parts  # noqa: E402
from bertzoo_jax.batches import ahead  # noqa: E402
from bertzoo_jax.batches import pipeline  # noqa: E402
from bertzoo_jax.corpus import corpus as corpora  # noqa: E402
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import resolve
from bertzoo_jax.words import similar  # noqa: E402
from bertzoo_jax.words import word_marks  # noqa: E402

V, SPECIAL = 30522, dict(pad=0, unk=100, cls=101, sep=102, mask=103)
CONTINUING = 0.25  # share of the tokens
CASES = {  # name: (format, masking)
  'token': (parts.full_sentences(), parts.token()),
  'token, segment pairs': (parts.segment_pairs(), parts.token()),
  'token, doc sentences': (parts.doc_sentences(), parts.token()),
  'token, with replacement': (
    parts.adjacent_segments(),
    parts.token(sampling='independent', corruption=(0.85, 0.0, 0.15)),
  ),
  'whole word': (parts.segment_pairs(), parts.whole_word()),
  'whole word, independent': (parts.segment_pairs(), parts.whole_word(selection='independent')),
  'phrase': (parts.segment_pairs(), parts.whole_word(level='phrase')),
  'ngram': (parts.segment_pairs(), parts.ngram()),
  'ngram, left to right': (
    parts.segment_pairs(),
    parts.ngram(order='left_to_right', weights=(4, 3, 2, 1)),
  ),
  'ngram, similar words': (
    parts.segment_pairs(pairs='sop'),
    parts.ngram(
      order='left_to_right', weights=(4, 3, 2, 1), corrupted='units', substitute='similar'
    ),
  ),
  'span': (parts.doc_sentences(), parts.span()),
  'span, cut': (parts.doc_sentences(), parts.span(overflow='cut')),
  'ngram windows': (parts.full_sentences(), parts.ngram_windows()),
  'ngram windows of tokens': (parts.full_sentences(), parts.ngram_windows(max_gram=1)),
  'ngram windows, spread': (parts.full_sentences(), parts.ngram_windows(scan='spread')),
  'permutation': (parts.memory_segments(), parts.permutation()),
  'permutation of pieces': (parts.memory_segments(), parts.permutation(span_units='pieces')),
}


def corpus(sentences=400_000):
  """A synthetic corpus of 8 M tokens: sentences of 3 to 37, documents of 20 sentences on average,
  marks of words and phrases.
  """
  draw = np.random.default_rng(0)
  starts = np.append(0, np.cumsum(draw.integers(3, 38, sentences)))
  documents = np.unique(np.append([0, sentences], draw.integers(0, sentences, sentences // 20)))
  size = starts[-1]
  word, phrase = draw.random(size) < CONTINUING, draw.random(size) < 0.3
  marks = (
    word * word_marks.CONTINUES_WORD
    + phrase * word_marks.IN_PHRASE
    + (phrase & np.roll(phrase, 1)) * word_marks.CONTINUES_PHRASE
  )
  tokens = draw.integers(104, V, size)
  return corpora.in_memory(
    tokens, starts, documents, V, SPECIAL, units=marks.astype(np.uint8), similar=_table(draw)
  )


def _table(draw, words=50_000):
  """50,000 words of one to four pieces, ten similar ones each."""
  from bertzoo_jax.words.similar import words as words_lib

  sizes = draw.integers(1, 5, words)
  pieces = np.where(
    np.arange(similar.PIECES) < sizes[:, None], draw.integers(104, V, (words, similar.PIECES)), -1
  ).astype(np.int32)
  hashes = words_lib.hashes(pieces)
  order = np.argsort(hashes)
  pieces, sizes = pieces[order], sizes[order]
  near = np.stack(
    [draw.choice(np.flatnonzero(sizes == m), (words, similar.NEAREST)) for m in range(1, 5)]
  )[sizes - 1, np.arange(words)]
  frequent = [np.flatnonzero(sizes == m) for m in range(1, similar.PIECES + 1)]
  offsets = np.concatenate([[0, 0], np.cumsum([len(f) for f in frequent])])
  return similar.Table(
    pieces,
    hashes[order],
    near.astype(np.int32),
    np.concatenate(frequent).astype(np.int32),
    offsets.astype(np.int32),
  )


def ours(text, form, masking, rows, length, threads=None):
  """A function that takes the next batch, endlessly."""
  made = pipeline.build(text, format=form, masking=masking, length=length, batch_size=rows, seed=0)
  batches = ahead.iterate(made.batch, made.features, 0, 10**6, threads)
  return lambda: next(batches)


def theirs(rows, length, whole_words):
  """A function that collates the same examples again."""
  import transformers

  pieces = ['[PAD]', *(f'[unused{i}]' for i in range(99)), '[UNK]', '[CLS]', '[SEP]', '[MASK]']
  pieces += [f'w{i}' for i in range(round((V - len(pieces)) * (1 - CONTINUING)))]
  first_continuing = len(pieces)
  pieces += [f'##w{i}' for i in range(V - len(pieces))]
  with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, 'vocab.txt').write_text('\n'.join(pieces))
    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
  assert tokenizer.mask_token_id == SPECIAL['mask'] and len(tokenizer) == V
  ids = np.random.default_rng(0).integers(104, V, (rows, length))
  ids[:, 0], ids[:, -1] = SPECIAL['cls'], SPECIAL['sep']
  frame = [1] + [0] * (length - 2) + [1]
  examples = [
    dict(
      input_ids=r,
      token_type_ids=[0] * length,
      attention_mask=[1] * length,
      special_tokens_mask=frame,
    )
    for r in ids.tolist()
  ]
  fields = dict(mlm_probability=0.15, return_tensors='pt')
  if not whole_words:
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, **fields)
  elif hasattr(transformers, 'DataCollatorForWholeWordMask'):
    collator = transformers.DataCollatorForWholeWordMask(tokenizer, **fields)
  else:
    collator = transformers.DataCollatorForLanguageModeling(
      tokenizer, whole_word_mask=True, **fields
    )
    for example, row in zip(examples, ids):
      # tokens of four characters, a blank between words
      begins = np.cumsum(5 - (row >= first_continuing))
      example['offset_mapping'] = np.stack([begins, begins + 4], 1).tolist()
  return lambda: collator(examples)


def measure(turns, tokens, seconds):
  """{name: ([tokens per second], [tokens per CPU second])} of blocks of half a second, the names in
  turn, for `seconds` a name.
  """
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


def train_step(text):
  """A function that takes one training step of BERT-tiny and waits for it."""
  import jax
  import ml_collections

  from bertzoo_jax.training import step as steps
  from configs import bert

  config = ml_collections.ConfigDict(bert.get_config('tiny')).unlock()
  config.length, config.batch_size, config.encoder.max_positions = 128, 32, 128
  run = resolve.run(config.lock())
  made = build.network(run, run.phases[0], V)
  batch = pipeline.for_phase(text, run.phases[0]).batch(0)
  state = jax.jit(lambda: steps.init(made.objective, made.tx, 0, 32))()
  update = jax.jit(steps.make_train_step(made.objective, made.tx, made.schedule, seed=0))

  def call():
    nonlocal state
    state, metrics = update(state, batch)
    jax.block_until_ready(metrics)

  call()
  return call


def beside(step, batches, seconds):
  """(rows a second, steps a second) of batches in a thread beside steps in this one."""
  taken, ended = [], threading.Event()

  def take():
    while not ended.is_set():
      taken.append(len(batches()['input_ids']))

  thread = threading.Thread(target=take)
  if batches:
    batches()
    thread.start()
  done, began = 0, time.perf_counter()
  while time.perf_counter() - began < seconds:
    step()
    done += 1
  passed = time.perf_counter() - began
  found = sum(taken) / passed, done / passed
  ended.set()
  if batches:
    thread.join()
  return found


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--seconds', type=float, default=6)
  parser.add_argument('--rows', type=int, default=256)
  parser.add_argument('--length', type=int, default=512)
  parser.add_argument('--beside', action='store_true', help='beside a train step')
  parser.add_argument('--only', default='', help='cases, parted by semicolons; without it all')
  args = parser.parse_args()
  warnings.simplefilter('ignore')
  text, tokens = corpus(), args.rows * args.length
  chosen = {
    name: case for name, case in CASES.items() if not args.only or name in args.only.split(';')
  }
  print(
    f'{args.rows} rows of {args.length} tokens per call; {os.cpu_count()} cores, load '
    f'{os.getloadavg()[0]:.1f}; blocks of half a second'
  )
  if args.beside:
    step = train_step(text)
    print(f'{"":32s}{"rows/s, steps/s: 1 thread":>28s}{"2 threads":>20s}')
    print(f'{"no masking":32s}{beside(step, None, args.seconds)[1]:28.2f}', flush=True)
    for name, (form, masking) in chosen.items():
      cells = []
      for threads in (1, 2):
        batches = ours(text, form, masking, args.rows, args.length, threads)
        cells.append('{:,.0f}, {:.2f}'.format(*beside(step, batches, args.seconds)))
      print(f'{name:32s}{cells[0]:>28s}{cells[1]:>20s}', flush=True)
    return
  print(f'{"":42s}{"M tokens/s: median":>19s}{"quartiles":>16s}{"M tokens/CPU s":>16s}')
  collators = {
    f'transformers, {kind}': theirs(args.rows, args.length, kind == 'whole words')
    for kind in ('tokens', 'whole words')
  }
  for (
    name,
    (form, masking),
    # one of ours at a time: its threads compute ahead, also while others are measured
  ) in chosen.items():
    report(measure({name: ours(text, form, masking, args.rows, args.length)}, tokens, args.seconds))
    if name in ('token', 'whole word'):
      report(
        measure(
          {k: c for k, c in collators.items() if ('whole' in k) == ('whole' in name)},
          tokens,
          args.seconds,
        )
      )


def report(found):
  for key, (wall, cpu) in found.items():
    low, middle, high = (q / 1e6 for q in np.percentile(wall, (25, 50, 75)))
    quartiles, processor = f'{low:.2f} - {high:.2f}', statistics.median(cpu) / 1e6
    print(f'{key:42s}{middle:19.2f}{quartiles:>16s}{processor:16.2f}', flush=True)


if __name__ == '__main__':
  main()
