import json
import pathlib
import shutil

import ml_collections
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import hf
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.common import config as configuration
from bertzoo_jax.hf import tokenizer as hf_tokenizer
from bertzoo_jax.pretrained import initial_weights
from bertzoo_jax.runs import metrics
from configs import bert
from tests.export import test_export
from tests.found import call_part

transformers = pytest.importorskip('transformers', reason='parity needs transformers')
torch = pytest.importorskip('torch', reason='parity needs torch')

ROOT = pathlib.Path(__file__).parents[2]
SAMPLE = (ROOT / 'data/sample/time_machine.txt').read_text()[:40_000].split('\n\n')
SIZES = dict(num_layers=2, hidden_size=32, num_heads=4, intermediate_size=48)
BERT = parts.transformer(max_positions=160, **SIZES)
FORM = dict(type_vocab_size=0, activation='gelu', norm_eps=1e-5)
ROBERTA = parts.transformer(max_positions=160, **FORM, **SIZES)
XLNET = parts.two_stream(**SIZES)
RATES = dict(dropout=0.3, input_dropout=0.2)
CLASSES = {'name': 'classification', 'labels': ('bad', 'good', 'weiß'), **RATES}
TRUE = {'name': 'multilabel', 'labels': ('a', 'b'), **RATES}
SCORE = {'name': 'regression', **RATES, 'head': 'tanh'}
ANGLED = parts.sentencepiece(vocab_size=700, specials='angled', lowercase=False)
RUNS = {  # family, tokenizer, encoder, objective
  'bert': ('Bert', parts.wordpiece(vocab_size=600), BERT, {**CLASSES, 'head': 'tanh'}),
  'roberta': ('Roberta', parts.byte_bpe(vocab_size=600), ROBERTA, SCORE),
  'xlnet': ('XLNet', ANGLED, XLNET, {**TRUE, 'head': 'tanh'}),
}


def classes(encoder, head, labels):
  return call_part(objectives, 'classification', encoder, head=head, labels=labels, **RATES)


def write(path, config, params):
  (path / 'config.json').write_text(configuration.to_json(ml_collections.ConfigDict(config)))
  (path / 'corpus.json').write_text(json.dumps({'hash': 'c0ffee'}))
  record = metrics.Record(path, 0, 1)
  record.write({'step': 5, 'class_loss': 0.5, 'dev_matthews': 0.25, 'tokens_per_second': 3.0})
  record.close()
  small.save(path, params, step=7)


def config(hf_class, tokenizer, encoder, objective, **fields):
  schedule = parts.linear_from_start(learning_rate=3e-5, warmup=0)
  return ml_collections.ConfigDict(
    dict(
      **dict(seed=0, batch_size=32, batch_tokens=0, phases=((10, {}),), hf=hf_class),
      **dict(tokenizer=tokenizer, encoder=encoder, objective=objective),
      **dict(optimizer=parts.adamw(), schedule=schedule, run=parts.run(), **fields),
    )
  )


def fine_tuned(path, name):
  """(objective, parameters, tokenizer) of a run, in a workdir."""
  family, section, encoder, objective = RUNS[name]
  tokenizer = tokenizers.train(section.to_dict(), lambda: iter(SAMPLE))
  tokenizer.save(path / 'tokenizer')
  source = parts.table(files={'train': '/home/me/train.tsv'}, text_a='a')
  made_config = config(
    *(f'{family}ForSequenceClassification', section, encoder, objective),
    **dict(length=128, metrics=('matthews',), source=source, features=parts.texts()),
  )
  made = objectives.build(made_config, tokenizer.vocab_size)
  params = small.parameters(made, scale=0.2)
  write(path, made_config, params)
  return made, params, tokenizer


FACTS = """# BertForSequenceClassification, fine-tuned with bertzoo_jax
pipeline_tag: text-classification
classify = pipeline('text-classification', model='THIS_DIRECTORY', truncation=True)
One label is right (softmax over the outputs). Labels: 0 `bad`, 1 `good`, 2 `weiß`.
Metrics: matthews; the first is the dev score.
| class_loss | 0.5 |
| dev_matthews | 0.25 |
train.tsv
The head scores a whole text""".splitlines()


def test_a_card_of_a_fine_tuned_model_tells_labels_metrics_and_use(tmp_path):
  fine_tuned(tmp_path, 'bert')
  export.export(str(tmp_path), tmp_path / 'out')
  card = (tmp_path / 'out' / 'README.md').read_text()
  assert not [fact for fact in FACTS if fact not in card]
  absent = '/home/me', 'tokens_per_second', '| masking |', 'fill-mask', 'held_out'
  assert not [words for words in absent if words in card]


def pretrained(path, encoder=BERT):
  """(objective, parameters) of a run with a pair head, in a workdir, with RUNS' first tokenizer."""
  config = bert.get_config('tiny').unlock()
  config.tokenizer, config.encoder, config.phases = RUNS['bert'][1], encoder, ((10, {}),)
  params = test_export.make_workdir(path, config, {})
  return objectives.build(config, hf.vocabulary_size(params)), params


def address_of(workdir, as_directory):
  """For --init: the run itself, or its export."""
  if not as_directory:
    return str(workdir)
  export.export(str(workdir), workdir / 'out')
  return f'hf:{workdir / "out"}'


@pytest.mark.parametrize('as_directory', [False, True])
def test_fine_tuning_begins_with_the_pooler_of_a_pair_head(tmp_path, as_directory):
  before, run = pretrained(tmp_path)
  after = classes(before.networks[0].encoder, 'tanh', ('a', 'b'))
  fresh, address = small.parameters(after), address_of(tmp_path, as_directory)
  params, lines = initial_weights.parameters(fresh, address, after, tmp_path / 'tokenizer')
  assert small.worst(params['row_head']['pooler'], run['pair_head']['pooler']) == 0
  assert small.worst(params['encoder'], run['encoder']) == 0
  # Two outputs there, too, but they tell pairs.
  assert small.worst(params['row_head']['classifier'], fresh['row_head']['classifier']) == 0
  assert 'row_head/pooler: the pooler of pair_head' in lines
  assert not [line for line in lines if line.startswith('ignored: pair_head/pooler')]
  fresh = [f'row_head/classifier/{x}' for x in ('bias', 'kernel')]
  assert [line.split()[1] for line in lines if line.startswith('fresh')] == fresh


CLASSES3, UNNAMED = ('bad', 'good', 'weiß'), ('x', 'y', 'z')
TAKEN = [  # head, labels, whether they are named, order of the outputs that are taken, words
  ('tanh', UNNAMED, False, [0, 1, 2], 'loaded: '),
  ('tanh', ('x', 'y'), False, None, 'since the checkpoint has 3 outputs and this network 2'),
  ('gelu', UNNAMED, False, None, 'head of the kind tanh and objective.head is gelu'),
  ('linear', UNNAMED, False, None, 'head of the kind tanh and objective.head is linear'),
  ('tanh', CLASSES3, True, [0, 1, 2], 'loaded: '),
  ('tanh', ('weiß', 'bad', 'good'), True, [2, 0, 1], 'bad, good, weiß of the checkpoint, put into'),
  ('tanh', ('good', 'bad', 'weiß'), True, [1, 0, 2], 'put into the order good, bad, weiß'),
  ('tanh', ('bad', 'good', 'neutral'), True, None, 'tells bad, good, weiß and this bad, good, neu'),
  ('tanh', ('no', 'perhaps', 'yes'), True, None, 'classifier: fresh, since the checkpoint tells'),
]


def test_a_fine_tuned_head_is_read_where_it_fits_by_the_names_of_its_labels(tmp_path):
  made, run, _ = fine_tuned(tmp_path, 'bert')
  directory = address_of(tmp_path, True)

  def begin(address, head, outputs, **more):
    after = classes(made.networks[0].encoder, head, outputs)
    fresh = small.parameters(after, seed=4)
    args = fresh, address, after, tmp_path / 'tokenizer'
    params, lines = initial_weights.parameters(*args, **more)
    assert small.worst(params['encoder'], run['encoder']) == 0
    return fresh['row_head'], params['row_head'], '\n'.join(lines)

  theirs = run['row_head']
  for address in (str(tmp_path), directory):
    for head, labels, named, order, words in TAKEN:
      more = {'labels': labels} if named else {}
      fresh, params, said = begin(address, head, labels, **more)
      wanted = {**theirs, 'classifier': fresh['classifier']} if head == 'tanh' else fresh
      if order is not None:
        rows = {name: x[..., order] for name, x in theirs['classifier'].items()}
        wanted = {**theirs, 'classifier': rows}
      assert small.worst(params, wanted) == 0 and words in said, (address, head, labels)
      assert ('fresh' in said) == (order is None) or head != 'tanh'
  # outputs that the checkpoint does not name
  file = tmp_path / 'out' / 'config.json'
  unnamed = {'id2label': {str(i): f'LABEL_{i}' for i in range(3)}}
  file.write_text(json.dumps(json.loads(file.read_text()) | unnamed))
  _, params, said = begin(directory, 'tanh', UNNAMED, labels=UNNAMED)
  assert small.worst(params, theirs) == 0
  assert 'row_head/classifier: its outputs are taken as x, y, z' in said


@pytest.mark.parametrize('name, published', [('bert', False), ('roberta', True), ('xlnet', False)])
def test_the_tokenizer_cuts_where_the_run_cut_and_the_card_says_so(tmp_path, name, published):
  fine_tuned(tmp_path, name)
  if published:  # a run that began with a directory of Hugging Face keeps its files
    export.export(str(tmp_path), tmp_path / 'first')
    shutil.rmtree(tmp_path / 'tokenizer')
    (tmp_path / 'tokenizer').mkdir()
    for file, content in hf_tokenizer.published(tmp_path / 'first').items():
      content = content.replace(b'"model_max_length": 128', b'"model_max_length": 512')
      (tmp_path / 'tokenizer' / file).write_bytes(content)
  export.export(str(tmp_path), tmp_path / 'out')
  tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / 'out'))
  assert len(tokenizer('time ' * 400, truncation=True)['input_ids']) == 128
  card = (tmp_path / 'out' / 'README.md').read_text()
  assert 'Its tokenizer cuts texts at the length of fine-tuning' in card
