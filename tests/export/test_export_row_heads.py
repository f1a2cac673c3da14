"""export of a fine-tuned run from the outside: its card, its length, runs that begin with it."""

import json
import pathlib
import shutil

import ml_collections
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.common import config as configuration
from bertzoo_jax.hf import tokenizer as hf_tokenizer
from bertzoo_jax.pretrained import initial_weights
from bertzoo_jax.runs import metrics
from tests.found import call_part

transformers = pytest.importorskip('transformers', reason='parity needs transformers')
torch = pytest.importorskip('torch', reason='parity needs torch')

ROOT = pathlib.Path(__file__).parents[2]
SAMPLE = (ROOT / 'data/sample/time_machine.txt').read_text()[:40_000].split('\n\n')
SIZES = dict(num_layers=2, hidden_size=32, num_heads=4, intermediate_size=48)
BERT = parts.transformer(max_positions=160, **SIZES)
ROBERTA = parts.transformer(
  max_positions=160, type_vocab_size=0, activation='gelu', norm_eps=1e-5, **SIZES
)
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
  """The objective of rows with these classes."""
  return call_part(objectives, 'classification', encoder, head=head, labels=labels, **RATES)


def write(path, config, params):
  """A workdir as a finished run leaves it, with these weights at step 7."""
  (path / 'config.json').write_text(configuration.to_json(ml_collections.ConfigDict(config)))
  (path / 'corpus.json').write_text(json.dumps({'hash': 'c0ffee'}))
  record = metrics.Record(path, 0, 1)
  record.write({'step': 5, 'class_loss': 0.5, 'dev_matthews': 0.25, 'tokens_per_second': 3.0})
  record.close()
  small.save(path, params, step=7)


def config(hf_class, tokenizer, encoder, objective, **fields):
  """The config of a fine-tuned run."""
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


def test_a_card_of_a_fine_tuned_model_tells_labels_metrics_and_use(tmp_path):
  fine_tuned(tmp_path, 'bert')
  export.export(str(tmp_path), tmp_path / 'out')
  card = (tmp_path / 'out' / 'README.md').read_text()
  for fact in (
    '# BertForSequenceClassification, fine-tuned with bertzoo_jax',
    'pipeline_tag: text-classification',
    "classify = pipeline('text-classification', model='THIS_DIRECTORY', truncation=True)",
    'One label is right (softmax over the outputs). Labels: 0 `bad`, 1 `good`, 2 `weiß`.',
    'Metrics: matthews; the first is the dev score.',
    '| class_loss | 0.5 |',
    '| dev_matthews | 0.25 |',
    'train.tsv',
    'The head scores a whole text',
  ):
    assert fact in card, fact
  for absent in ('/home/me', 'tokens_per_second', '| masking |', 'fill-mask', 'held_out'):
    assert absent not in card, absent


def pretrained(path, encoder=BERT):
  """(objective, parameters) of a run with a pair head, in a workdir, with RUNS' first tokenizer."""
  section = RUNS['bert'][1]
  tokenizer = tokenizers.train(section.to_dict(), lambda: iter(SAMPLE))
  tokenizer.save(path / 'tokenizer')
  config = parts.experiment(
    **dict(tokenizer=section, corpus=parts.corpus(), format=parts.segment_pairs()),
    **dict(masking=parts.token(), encoder=encoder, objective=parts.mlm_pair(), run=parts.run()),
    **dict(optimizer=parts.adamw(), schedule=parts.linear_from_start(), phases=((10, {}),)),
    **dict(length=32, batch_size=4, hf='BertForPreTraining'),
  )
  made = objectives.build(config, tokenizer.vocab_size)
  params = small.parameters(made, seed=3)
  write(path, config, params)
  return made, params


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
  assert [line.split()[1] for line in lines if line.startswith('fresh')] == [
    'row_head/classifier/bias',
    'row_head/classifier/kernel',
  ]


@pytest.mark.parametrize('as_directory', [False, True])
def test_a_fine_tuned_head_is_read_where_it_fits_and_else_left_fresh(tmp_path, as_directory):
  made, run, _ = fine_tuned(tmp_path, 'bert')
  encoder, address = made.networks[0].encoder, address_of(tmp_path, as_directory)

  def begin(head, labels):
    after = classes(encoder, head, labels)
    fresh = small.parameters(after, seed=4)
    params, lines = initial_weights.parameters(fresh, address, after, tmp_path / 'tokenizer')
    return fresh, params, '\n'.join(lines)

  _, params, said = begin('tanh', ('x', 'y', 'z'))
  assert small.worst(params, run) == 0 and 'fresh' not in said
  fresh, params, said = begin('tanh', ('x', 'y'))
  assert small.worst(params['row_head']['pooler'], run['row_head']['pooler']) == 0
  assert small.worst(params['row_head']['classifier'], fresh['row_head']['classifier']) == 0
  assert 'row_head/classifier: fresh, since the checkpoint has 3 outputs and this network 2' in said
  for other in ('gelu', 'linear'):
    fresh, params, said = begin(other, ('x', 'y', 'z'))
    assert small.worst(params['row_head'], fresh['row_head']) == 0
    assert small.worst(params['encoder'], run['encoder']) == 0
    assert f'head of the kind tanh and objective.head is {other}' in said


@pytest.mark.parametrize(
  'labels, order, words',
  [
    (('bad', 'good', 'weiß'), [0, 1, 2], 'loaded: '),
    (('weiß', 'bad', 'good'), [2, 0, 1], 'bad, good, weiß of the checkpoint, put into the order'),
    (('good', 'bad', 'weiß'), [1, 0, 2], 'put into the order good, bad, weiß'),
    (('bad', 'good', 'neutral'), None, 'tells bad, good, weiß and this bad, good, neutral'),
    (('no', 'perhaps', 'yes'), None, 'classifier: fresh, since the checkpoint tells'),
  ],
)
@pytest.mark.parametrize('as_directory', [False, True])
def test_outputs_are_taken_by_the_names_of_their_labels(
  tmp_path, labels, order, words, as_directory
):
  made, run, _ = fine_tuned(tmp_path, 'bert')
  address = address_of(tmp_path, as_directory)
  after = classes(made.networks[0].encoder, 'tanh', labels)
  fresh = small.parameters(after, seed=4)
  params, lines = initial_weights.parameters(
    fresh, address, after, tmp_path / 'tokenizer', labels=labels
  )
  assert small.worst(params['row_head']['pooler'], run['row_head']['pooler']) == 0
  wanted = fresh['row_head']['classifier']
  if order is not None:
    wanted = {name: x[..., order] for name, x in run['row_head']['classifier'].items()}
  assert small.worst(params['row_head']['classifier'], wanted) == 0
  assert words in '\n'.join(lines)


def test_outputs_that_the_checkpoint_does_not_name_are_taken_in_their_order_and_it_says_so(
  tmp_path,
):
  made, run, _ = fine_tuned(tmp_path, 'bert')
  address, labels = address_of(tmp_path, True), ('x', 'y', 'z')
  file = tmp_path / 'out' / 'config.json'
  unnamed = {'id2label': {str(i): f'LABEL_{i}' for i in range(3)}}
  file.write_text(json.dumps(json.loads(file.read_text()) | unnamed))
  after = classes(made.networks[0].encoder, 'tanh', labels)
  params, lines = initial_weights.parameters(
    small.parameters(after, seed=4), address, after, tmp_path / 'tokenizer', labels=labels
  )
  assert small.worst(params, run) == 0
  assert 'row_head/classifier: its outputs are taken as x, y, z' in '\n'.join(lines)


@pytest.mark.parametrize('name', RUNS)
@pytest.mark.parametrize('as_published', [False, True])
def test_the_tokenizer_cuts_where_the_run_cut_and_the_card_says_so(tmp_path, name, as_published):
  fine_tuned(tmp_path, name)
  if as_published:  # a run that began with a directory of Hugging Face keeps its files
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
