import base64
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
import pathlib
import signal
import struct
import types

import numpy as np
import pyarrow as pa
import pytest
import small_corpora
from pyarrow import parquet

from bertzoo_jax import convert
from bertzoo_jax import pretrained
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.common import trust
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.corpus import shards
from bertzoo_jax.evaluate import pair_files
from bertzoo_jax.finetune import work
from bertzoo_jax.pretrained import predicting
from bertzoo_jax.reproduce import page
from bertzoo_jax.reproduce import plan
from bertzoo_jax.runs import metrics
from bertzoo_jax.tasks import kinds as task_kinds
from bertzoo_jax.tasks.examples import Text
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import tables as task_tables
from bertzoo_jax.tasks.reading import tagged
from bertzoo_jax.text import finding
from bertzoo_jax.text import mediawiki
from bertzoo_jax.text import records
from bertzoo_jax.words.similar import vector_files
from tests.house import strangers
from tests.refused import refused
from tests.tasks import made

DEEP = '[' * 100_000


@pytest.fixture(autouse=True)
def nothing_hangs():
  """Five minutes for each test: what waits for ever fails."""
  signal.signal(signal.SIGALRM, lambda *_: pytest.fail('it hangs'))
  signal.alarm(300)
  yield
  signal.alarm(0)


read_hf, read_run = lambda: pretrained.open('hf:hf'), lambda: pretrained.open('run')
read_tokenizer, read_corpus = lambda: tokenizers.open_folder('hf'), lambda: corpora.open('corpus')
STEP = pathlib.Path('run/checkpoints/7')


def packed(text):
  """A file of safetensors with this header, and four bytes."""
  return len(text).to_bytes(8, 'little') + text.encode() + b'\0' * 4


def header(**tensor):
  tensor = {'dtype': 'F32', 'shape': [1], 'data_offsets': [0, 4], **tensor}
  return packed(json.dumps({'bert.x': tensor}))


WEIGHTS = [header(shape=[1] * 100_000), header(shape=[1] * 65), header(dtype='words')]
WEIGHTS += [header(dtype='BF16', shape=[1] * 100, data_offsets=[0, 2]), header(shape='five')]
WEIGHTS += [header(shape=[-1]), packed('[' * 100_000), b'\xff' * 8 + b'{}']


def test_weights_of_any_form_are_one_sentence(place):
  for content in WEIGHTS:
    pathlib.Path('hf/model.safetensors').write_bytes(content)
    refused('', read_hf)


WRONG_FIELDS = [('phases', x) for x in ('text', [[1]], [[1, [5]]], 5)]
WRONG_FIELDS += [('objective', 5), ('objective__name', ['a']), ('encoder__num_layers', {})]
WRONG_FIELDS += [('encoder__hidden_size', 'text'), ('length', None), ('hf', [])]


def spoiled(file, changes, read, words=''):
  """Asserts that each of the changes of a file of JSON is refused by who reads it."""
  for fields in changes:
    with strangers.restored(file):
      strangers.edit(file, **fields)
      refused(words, read)


def test_a_config_of_other_types_is_one_sentence(place):
  config = json.loads(pathlib.Path('run/config.json').read_text())
  spoiled('run/config.json', ({field: value} for field, value in WRONG_FIELDS), read_run)
  pathlib.Path('run/config.json').write_text('{')  # then the checkpoint's counts
  for field, value in WRONG_FIELDS:
    strangers.rewrite(STEP, 'run.json', json.dumps({'config': config}).encode())
    strangers.edit(STEP / 'run.json', **{f'config__{field}': value})
    strangers.rewrite(STEP, 'run.json', (STEP / 'run.json').read_bytes())
    refused('', read_run)


def test_metadata_of_a_checkpoint_of_any_form_is_one_sentence(place):
  for name in ('params/_METADATA', 'run.json', 'sha256.json'):
    for text in (DEEP, '{"a":' * 100_000, '5', '{"tree_metadata": 5}'):
      with strangers.restored(STEP / name, STEP / 'sha256.json'):
        if name == 'sha256.json':
          (STEP / name).write_text(text)
        else:
          strangers.rewrite(STEP, name, text.encode())
        if name != 'run.json':
          refused('', read_run)
          continue
        with contextlib.suppress(errors.UserError):  # nothing of it is needed here
          read_run()


SHARD = ('splits', 'train', 'shards', 0)
WRONG_MANIFEST = [(('dtype',), x) for x in ('words', 'float64')]
WRONG_MANIFEST += [(('vocab_size',), '32'), (('vocab_size',), 10**30), (('tokenizer',), 'text')]
WRONG_MANIFEST += [(('tokenizer_sha256',), 5), (('splits', 'train', 'bytes'), [[]])]
WRONG_MANIFEST += [(SHARD[:3], 'text'), ((*SHARD, 'tokens'), '5'), ((*SHARD, 'sentences'), -1)]
WRONG_MANIFEST += [((*SHARD, 'name'), 5), ((*SHARD, 'name'), '\0')]


def test_a_manifest_of_other_types_is_one_sentence(tmp_path):
  for (*sections, last), value in WRONG_MANIFEST:
    node = manifest = small_corpora.write(tmp_path)
    for key in sections:
      node = node[key]
    node[last] = value
    del manifest['hash']
    small_corpora.seal(tmp_path, manifest)
    refused('', read_all, tmp_path)


def read_all(corpus):
  for split in corpora.open(corpus).splits.values():
    split.gather(np.arange(4))


def _split(pattern):
  return dict(type='Split', pattern={'Regex': pattern}, behavior='Isolated', invert=False)


def _charsmap(data):
  return dict(type='Precompiled', precompiled_charsmap=base64.b64encode(data).decode())


BERT = dict(type='BertProcessing', sep=['x', 2**32 - 1], cls=['y', 1])
PANICS = [
  dict(pre_tokenizer=_split('(a+)+$')),
  dict(pre_tokenizer=_split('(?:a|aa)+$')),
  dict(pre_tokenizer={'type': 'FixedLength', 'length': 0}),
  dict(normalizer=_charsmap(b'AAA')),
  dict(normalizer=_charsmap(b'\x04\0\0\0' + b'\xff' * 4)),
  dict(model__continuing_subword_prefix='éé', model__type='BPE', model__merges=['a a']),
  dict(post_processor=BERT),
]


def test_a_tokenizer_that_panics_is_one_sentence(place):
  read = lambda: tokenizers.open_folder('hf')(['a' * 40 + 'b'])
  spoiled('hf/tokenizer.json', PANICS, read)
  added = ({'5': {'content': 7}}, {'5': {'content': 'a', 'lstrip': 'x'}})
  spoiled('hf/tokenizer_config.json', (dict(added_tokens_decoder=x) for x in added), read)
  padding = dict(strategy={'Fixed': 10**12}, pad_id=0, pad_type_id=0, pad_token='x')
  strangers.edit('hf/tokenizer.json', padding=padding)
  read()  # padding is not read


def test_a_section_of_a_tokenizer_of_other_types_is_one_sentence(place):
  fields = [dict(section__max_word_chars=x) for x in ('text', -1, 10**30)]
  fields += [dict(section__normalization=[]), dict(section__strip_accents='maybe')]
  fields += [dict(section__extra=5)]
  read = lambda: tokenizers.open_folder('run/tokenizer')
  spoiled('run/tokenizer/bertzoo.json', fields, read, 'what prepare wrote|does not fit')
  unknown = [dict(model__unk_token='text')]
  spoiled('hf/tokenizer.json', unknown, read_tokenizer, 'tokenizer.json is not one')


def test_a_vocabulary_of_huge_ids_takes_no_memory(place):
  added = json.loads(pathlib.Path('hf/tokenizer.json').read_text())['added_tokens']
  huge = [dict(model__vocab__zzz=number) for number in (2**31, 2**32 - 1)]
  spoiled('hf/tokenizer.json', huge, read_tokenizer, 'ids are read|tokenizer.json is not one')
  with strangers.restored('hf/tokenizer.json'):
    added = [*added, dict(added[0], content='zzz', id=2**31)]
    strangers.edit('hf/tokenizer.json', added_tokens=added)
    assert read_tokenizer().vocab_size < 1000  # the library numbers added tokens itself
  token = {str(2**31): {'content': 'zzz', 'special': True}}
  strangers.edit('hf/tokenizer_config.json', added_tokens_decoder=token)
  with contextlib.suppress(errors.UserError):
    assert read_tokenizer().vocab_size < 1000


PAGE = b'<page><title>a</title><ns>0</ns><revision><text>b</text></revision></page>'

LONG = b'x' * 1_000_000
BLOCKS = {
  'nested': lambda i: b'<a>' * 100_000,
  'names': lambda i: b''.join(b'<a%d_%d/>' % (i, j) for j in range(10_000)),
  'words': lambda i: b'<a ' + b' '.join(b'a%d_%d="x"' % (i, j) for j in range(10_000)) + b'/>',
  'comment': lambda i: b'<!--' * (i == 0) + LONG,
  'value': lambda i: b'<a b="' * (i == 0) + LONG,
  'instruction': lambda i: b'<?p ' * (i == 0) + LONG,
}


@pytest.mark.parametrize('block', BLOCKS.values(), ids=BLOCKS)
def test_a_dump_is_refused_before_it_fills_the_memory(block):
  def blocks():
    yield b'<mediawiki>' + PAGE
    for i in range(100):
      yield block(i)
    pytest.fail('all was read')

  pages = mediawiki.pages(blocks(), set())
  assert next(pages).text == 'b'
  refused('tag', next, pages, kind=mediawiki.Damaged)


def _plotted(content):
  pathlib.Path('w').mkdir(exist_ok=True)
  pathlib.Path('w/metrics.jsonl').write_bytes(content.read_bytes())
  assert metrics.plot('w', 2.0)
  raise errors.UserError('it is drawn')


def _resulting(file):
  experiment = types.SimpleNamespace(metrics=('accuracy',))
  fields = dict(folder=file.parent, record=file.name, experiment=experiment, point=(), init='')
  run = types.SimpleNamespace(name='task', seed=0, **fields)
  work._read(run, types.SimpleNamespace(splits={'train': 0, 'dev': 0}))


def _packed_arrays(**arrays):
  out = io.BytesIO()
  np.savez_compressed(out, **arrays)
  return out.getvalue()


def _result(**fields):
  usual = dict(step=1, score=0.5, scores={'dev': {'accuracy': 0.5}}, diverged='')
  return json.dumps({**usual, **fields})


_vectors, _predicted = lambda x: list(vector_files.read(x)), lambda x: work.predictions(x.parent)
HELD = {  # reader of a file: contents
  pair_files.read: ['{"sentence_good":' + DEEP, '{"sentence_good": %s}' % ('9' * 5000)],
  _vectors: [f'10 {10**18}\nab ', f'10 {10**11}\nab ', f'4 {"9" * 4000}\nab 1 2'],
  _plotted: [
    '{"step": 1, "mlm_loss": "$\\\\frac$"}\n',
    '{"step": -%s, "mlm_loss": 1.0}\n' % ('9' * 400),
    '{"step": 1, "mlm_loss": 1e308}\n{"step": 2, "mlm_loss": -1e308}\n',
  ],
  _resulting: [DEEP, '[]', _result(score='text'), _result(scores=[]), _result(diverged=[1])],
  page._read: [DEEP, '{"columns": []}'],
  plan._kept: [DEEP, '{"table": {"tokens_divided_by": "x"}}'],
  _predicted: [_packed_arrays(dev=np.zeros(9)), b'PK'],
}
HELD[_resulting] += [_result(scores={'dev': {'![](x)': 1.0}}), _result(step='../../x')]
HELD[_resulting] += [_result(scores={'../x': {'accuracy': 1.0}})]


def test_files_that_hold_anything_are_one_sentence(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for read, contents in HELD.items():
    file = tmp_path / ('predictions.npz' if read is _predicted else 'file.jsonl')
    for content in contents:
      file.write_bytes(content if isinstance(content, bytes) else content.encode())
      refused('', read, file)


def _column(array, names=('text',), **kept):
  return pa.Table.from_arrays([array] * len(names), names=list(names)).replace_schema_metadata(kept)


BROKEN = [None, pa.py_buffer(struct.pack('<ii', 0, 1)), pa.py_buffer(b'\xff')]
MANY = pa.DictionaryArray.from_arrays(np.zeros(2000, np.int32), pa.array(['x' * 10_000]))
PARQUET = {
  'a time': _column(pa.array([2**62], pa.timestamp('ms'))),
  'a day': _column(pa.array([2**30], pa.date32())),
  'a zone': _column(pa.array([1], pa.timestamp('us', tz='No/Where'))),
  'no text': _column(pa.Array.from_buffers(pa.string(), 1, BROKEN)),
  'a column twice': _column(pa.array(['a']), ('text', 'text')),
  'many of one value': _column(MANY),
  'nothing, often': _column(pa.nulls(100_000, pa.string())),
}


def _texts(data):
  choose = lambda known: {'text_a': known[0]}
  return [row.text('text_a') for row in task_tables.rows(data, pathlib.Path('x.parquet'), choose)]


@pytest.mark.parametrize('what', PARQUET)
def test_a_parquet_file_of_any_values_is_one_sentence(monkeypatch, what):
  monkeypatch.setattr(files, 'MOST', 1 << 20)
  out = io.BytesIO()
  parquet.write_table(PARQUET[what], out)
  refused('', _texts, out.getvalue())
  read = records.parquet(io.BytesIO(out.getvalue()), 'x', records.Wanted('text', ()))
  with contextlib.suppress(errors.UserError, *records.damaged()):
    list(itertools.islice(read, 9))


def test_names_of_classes_and_notes_of_a_corpus_may_be_nested_deeply(tmp_path):
  out = io.BytesIO()
  parquet.write_table(_column(pa.array([1]), huggingface=DEEP), out)
  assert _texts(out.getvalue()) == ['1']
  small_corpora.write(tmp_path)
  (tmp_path / 'verified.json').write_text(DEEP)
  corpora.verify(tmp_path)


@pytest.mark.parametrize('text', ['[]', DEEP, '{"files": 5, "chunk": "x"}', '{"files": {}}'])
def test_a_record_of_a_shard_that_prepare_did_not_write_is_made_again(tmp_path, text):
  (tmp_path / 'parts').mkdir()
  (tmp_path / 'parts/00000.json').write_text(text)
  record = shards.finished(tmp_path, 0)
  assert record is None or not shards.intact(tmp_path, record, shards.Chunk(0, [b'a'], '', 1))


def test_a_pickle_of_any_tensors_is_one_sentence_or_read(tmp_path):
  torch = trust.torch()
  zeros, file = torch.zeros(4, 4), tmp_path / 'x.bin'
  torch.save({'a': torch.nn.Parameter(zeros)}, file)
  assert convert._read(file)['a'].shape == (4, 4)
  for value in (
    {'a': zeros.to_sparse()},
    {'a': torch.zeros(4, device='meta')},
    {5: zeros},  # a number for a name
    {'a': torch.zeros(1).expand(10**14)},  # repeated without end
  ):
    torch.save(value, file)
    refused('', convert._read, file)


@pytest.mark.parametrize('source, features', [('table', 'words'), ('conll', 'texts')])
def test_a_run_whose_sections_are_of_two_tasks_is_refused(source, features):
  kind = task_kinds.get('classification')
  names = dict(source=source, features=features, objective='classification')
  named = {section: types.SimpleNamespace(name=name) for section, name in names.items()}
  config = types.SimpleNamespace(**named)
  words, texts = made.examples(tagged.Sentence(['a'])), made.examples(Text('a'))
  given = {'the input': words if source == 'conll' else texts}
  refused('does not fit|learns from', predicting.check_parts, kind, config, given)


PIPES = {  # reader: files
  read_hf: 'hf/model.safetensors hf/config.json',
  read_tokenizer: 'hf/tokenizer.json hf/bertzoo.json',
  read_run: 'run/config.json run/attempts.jsonl run/checkpoints/7/sha256.json '
  'run/checkpoints/7/manifest.ocdbt run/checkpoints/7/params/_METADATA',
  read_corpus: 'corpus/manifest.json corpus/tokenizer/vocab.txt corpus/unigrams.npy '
  'corpus/train/00000.tokens.npy',
  lambda: corpora.verify('corpus'): 'corpus/train/00000.sentences.npy',
  lambda: finding.find('text.txt'): 'text.txt',
  lambda: files.bytes_of(storage.path('task.tsv'), hashlib.sha256()): 'task.tsv',
}
PIPES = {file: read for read, names in PIPES.items() for file in names.split()}


@pytest.mark.parametrize('file', PIPES)
def test_a_pipe_or_a_device_is_refused_and_never_waited_for(place, file):
  why = 'is a pipe or a device|damaged|no file matches|leads out of'
  strangers.link(file, '/dev/zero')
  refused(why, PIPES[file])
  os.mkfifo('pipe')
  strangers.link(file, 'pipe')
  refused(why, PIPES[file])
  os.replace('pipe', file)
  refused(why, PIPES[file])


def test_a_packed_task_file_has_a_bound(monkeypatch):
  monkeypatch.setattr(files, 'MOST', 1000)
  assert files.unpacked(gzip.compress(b'x' * 1000), 'f') == b'x' * 1000
  for parts in (1, 3):
    packed = gzip.compress(b'x' * 500) * parts + gzip.compress(b'x' * 501 * 3)
    refused('unpacks to more', files.unpacked, packed, 'f')
