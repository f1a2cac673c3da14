"""Classes that score rows, against transformers: both directions, every leaf perturbed, one text
and two, padding on each family's side.
"""

import functools
import json

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import hf
from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture as hf_architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import row_heads
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from bertzoo_jax.objectives import networks

transformers = pytest.importorskip('transformers', reason='parity needs transformers')
torch = pytest.importorskip('torch', reason='parity needs torch')

TOLERANCE = 1e-5
WIDTH = 32
SIZES = dict(num_layers=2, hidden_size=WIDTH, num_heads=4, intermediate_size=48)
LABELS = ('schlecht', 'gut', 'weiß nicht')
TASK = row_heads.Task('single_label_classification', LABELS, (0.3, 0.2))

BERT = {**small.SECTION, **SIZES}
ROBERTA = {**BERT, 'activation': 'gelu', 'norm_eps': 1e-5, 'type_vocab_size': 0}
V2 = {**BERT, **small.DISENTANGLED, 'activation': 'gelu', 'norm_eps': 1e-7}
V1 = dict(V2, buckets=0, norm_relative=False, shared_projections=False, key_bias=False)
XLNET = {**small.TWO_STREAM, **SIZES}
CASES = {  # class, section of the encoder, whether with what only predictions use, special ids
  'bert': ('Bert', BERT, False, small.BERT_IDS),
  'bert of shared layers': ('Bert', {**BERT, 'sharing': 'all'}, False, small.BERT_IDS),
  'bert without segments': ('Bert', {**BERT, 'type_vocab_size': 0}, False, small.BERT_IDS),
  'ernie': ('Ernie', {**BERT, 'activation': 'relu', 'norm_eps': 1e-5}, False, small.BERT_IDS),
  'roberta': ('Roberta', ROBERTA, False, small.ROBERTA_IDS),
  'roberta with relu': ('Roberta', {**ROBERTA, 'activation': 'relu'}, False, small.ROBERTA_IDS),
  'albert': ('Albert', {**BERT, 'embedding_size': 16, 'sharing': 'all'}, False, small.BERT_IDS),
  'electra': (
    'Electra',
    {**BERT, 'embedding_size': 16, 'activation': 'gelu'},
    False,
    small.BERT_IDS,
  ),
  'electra of one width': ('Electra', BERT, False, small.BERT_IDS),
  'deberta': ('Deberta', V1, False, small.BERT_IDS),
  'deberta v2': ('DebertaV2', {**V2, 'convolution_size': 3}, False, small.BERT_IDS),
  'deberta v2 with the table of its decoder': ('DebertaV2', V2, True, small.BERT_IDS),
  'xlnet': ('XLNet', XLNET, False, small.BERT_IDS),
  'xlnet with its query': ('XLNet', XLNET, True, small.BERT_IDS),
}


def of(family):
  """The class of a family that scores rows."""
  return architectures.choose(f'{family}ForSequenceClassification')


def network(section, kind, predicts=False, outputs=3, seed=0):
  """(encoder, parameters), every leaf perturbed."""
  encoder = small.encoder(section=section)

  def init(key):
    return {
      'encoder': networks.init_encoder(encoder, key, predicts=predicts),
      'row_head': networks.init_row_head(encoder, key, kind, outputs),
    }

  shapes = jax.eval_shape(init, jax.random.key(0))
  start = jax.tree_util.tree_map_with_path(
    lambda path, x: np.full(x.shape, path[-1].key == 'scale', np.float32), shapes
  )
  return encoder, small.perturbed(start, seed, 0.2)


@functools.lru_cache
def of_case(case):
  family, section, predicts, _ = CASES[case]
  return network(section, row_heads.kind(of(family)), predicts)


def save(folder, a, params, encoder, special, task=TASK):
  tensors, config = export.convert(a, weights.flatten(params), encoder, special, task)
  weights.save(folder / 'model.safetensors', tensors)
  (folder / 'config.json').write_text(json.dumps(config))


def batches(encoder, pad):
  """Rows of two texts and of one, with padding where the family has it: full and short ones."""
  for length in (40, 7):
    made = verify.random_batch(
      small.VOCAB, length, encoder.type_vocab_size, pad, padding=encoder.padding_side
    )
    at = 0 if encoder.padding_side == 'left' else -1
    assert made['pack_ids'][:, at].min() == 0 and made['pack_ids'][:, ~at].min() == 1
    yield verify.with_single_texts(made)


def compared(folder, a, encoder, params, batch):
  """The comparisons of an exported directory."""
  computed = a.computes(encoder)
  return verify.compare_logits(
    verify.our_logits(computed.encoder, params, batch),
    verify.logits(folder, a, batch),
    batch['pack_ids'],
    computed.unread,
  )


# What other cases have too; all are written and read back in every run.
SLOW = (
  'bert of shared layers',
  'bert without segments',
  'roberta with relu',
  'electra of one width',
  'deberta v2',
  'xlnet',
)


@pytest.mark.parametrize(
  'case', [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES]
)
def test_transformers_scores_rows_the_same_from_what_we_write(tmp_path, case):
  family, _, _, special = CASES[case]
  a, (encoder, params) = of(family), of_case(case)
  save(tmp_path, a, params, encoder, special)
  for batch in batches(encoder, special['pad']):
    rows = compared(tmp_path, a, encoder, params, batch)
    assert [r.what.split()[0] for r in rows] == ['tensors', 'row']
    assert all(r.holds for r in rows), verify.table(rows)
    assert float(rows[1].difference) < TOLERANCE


@pytest.mark.parametrize('case', CASES)
def test_what_we_write_we_read_back_with_its_labels(tmp_path, case):
  family, _, _, special = CASES[case]
  a, (encoder, params) = of(family), of_case(case)
  save(tmp_path, a, params, encoder, special)
  loaded, report = hf.load(tmp_path)
  assert report.architecture == a.name and report.model_type == a.model_type
  assert report.labels == LABELS and report.ignored == ()
  there, here = weights.flatten(loaded), weights.flatten(params)
  assert {k for k in here if k.startswith('row_head')} <= there.keys()
  for path, x in here.items():
    if path in there and there[path].shape == x.shape:  # layers that share are written apart
      np.testing.assert_array_equal(there[path], x, err_msg=path)
  config = transformers.AutoConfig.from_pretrained(tmp_path)
  assert tuple(config.id2label[i] for i in range(3)) == LABELS and config.num_labels == 3
  assert config.label2id == {label: i for i, label in enumerate(LABELS)}
  assert config.problem_type == 'single_label_classification'
  assert getattr(config, a.head_dropouts[0]) == 0.3
  assert len(a.head_dropouts) == 1 or getattr(config, a.head_dropouts[1]) == 0.2


@pytest.mark.parametrize('case', CASES)
def test_a_table_names_every_tensor_of_its_class_once_and_with_its_shape(case):
  family, _, _, special = CASES[case]
  a, (encoder, params) = of(family), of_case(case)
  tensors, config = export.convert(a, weights.flatten(params), encoder, special, TASK)
  with torch.device('meta'):
    theirs = getattr(transformers, a.name)(
      getattr(transformers, f'{family}Config')(**config)
    ).state_dict()
  ours = {k: v.shape for k, v in tensors.items() if k not in a.computes(encoder).unread}
  assert ours == {k: tuple(v.shape) for k, v in theirs.items()}


RELATIVE = dict(
  max_position_embeddings=40,
  relative_attention=True,
  position_biased_input=False,
  pos_att_type='c2p|p2c',
)
THEIRS = {
  'Bert': {},
  'Ernie': dict(hidden_act='relu'),
  'Roberta': dict(max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5),
  'Albert': dict(embedding_size=16, num_hidden_groups=2),
  'Electra': dict(embedding_size=16, hidden_act='gelu_new'),
  'Deberta': RELATIVE,
  'DebertaV2': {**RELATIVE, 'position_buckets': 8, 'norm_rel_ebd': 'layer_norm'},
  'XLNet': {},
}


def their_network(family, seed=0, outputs=3, **fields):
  """A network of transformers' own making, every parameter perturbed."""
  sizes = (WIDTH, 2, 4, 48)
  names = ('hidden_size', 'num_hidden_layers', 'num_attention_heads', 'intermediate_size')
  if family == 'XLNet':
    names = ('d_model', 'n_layer', 'n_head', 'd_inner')
  else:
    fields = {'max_position_embeddings': 40, **fields}
  config = getattr(transformers, f'{family}Config')(
    vocab_size=small.VOCAB, num_labels=outputs, **dict(zip(names, sizes)), **fields
  )
  config.id2label = dict(enumerate(f'class {i}' for i in range(outputs)))
  torch.manual_seed(seed)
  made = getattr(transformers, of(family).name)(config).eval()
  with torch.no_grad():
    for p in made.parameters():
      p.add_(0.2 * torch.randn_like(p))
  return made


def test_every_class_is_tried_in_both_directions():
  scoring = {name for name, a in architectures.ARCHITECTURES.items() if row_heads.kind(a)}
  assert {of(family).name for family, *_ in CASES.values()} == scoring
  assert {of(family).name for family in THEIRS} == scoring and len(scoring) == 8


@pytest.mark.parametrize(
  'family',
  [
    pytest.param(family, marks=[pytest.mark.slow] * (family in ('Ernie', 'Roberta', 'Deberta')))
    for family in THEIRS
  ],
)
def test_we_score_rows_the_same_from_what_transformers_writes(tmp_path, family):
  theirs, a = their_network(family, **THEIRS[family]), of(family)
  theirs.save_pretrained(tmp_path)
  params, report = hf.load(tmp_path)
  assert report.architecture == a.name and not report.ignored
  assert report.labels == ('class 0', 'class 1', 'class 2')
  assert params.keys() == {'encoder', 'row_head'}
  spare = {'vocab_multiple': 1} if a.part == 'disentangled' else {}
  section = {**(XLNET if a.part == 'two_stream' else small.SECTION), 'name': a.part}
  encoder = small.encoder(section=section, **spare, **report.encoder)
  pad = theirs.config.pad_token_id
  for batch in batches(encoder, pad):
    rows = compared(tmp_path, a, encoder, params, batch)
    assert len(rows) == 2 and all(r.holds for r in rows), verify.table(rows)
    assert float(rows[1].difference) < TOLERANCE


def _turned(name):
  def plant(tensors, config):
    tensors[name] = np.ascontiguousarray(tensors[name].T)

  return plant


def _other_order(name):
  def plant(tensors, config):
    tensors[name] = np.ascontiguousarray(tensors[name][::-1])

  return plant


def _set(**fields):
  return lambda tensors, config: config.update(fields)


@pytest.mark.parametrize(
  'case, plant',
  [
    ('bert', _turned('bert.pooler.dense.weight')),
    ('bert', _other_order('classifier.weight')),
    ('ernie', _turned('ernie.pooler.dense.weight')),
    ('albert', _other_order('classifier.bias')),
    ('roberta', _turned('classifier.dense.weight')),
    ('electra', _turned('classifier.dense.weight')),
    ('deberta', _set(pooler_hidden_act='tanh')),
    ('deberta v2', _set(pooler_hidden_act='gelu_new')),
    ('xlnet', _set(summary_activation='linear')),
    ('xlnet', _set(summary_type='first')),
  ],
)
def test_a_planted_mistake_is_seen_in_the_scores(tmp_path, case, plant):
  family, _, _, special = CASES[case]
  a, (encoder, params) = of(family), of_case(case)
  tensors, config = export.convert(a, weights.flatten(params), encoder, special, TASK)
  plant(tensors, config)
  weights.save(tmp_path / 'model.safetensors', tensors)
  (tmp_path / 'config.json').write_text(json.dumps(config))
  rows = compared(tmp_path, a, encoder, params, next(batches(encoder, special['pad'])))
  assert rows[0].holds and not rows[-1].holds and rows[-1].what.startswith('row')


@pytest.mark.parametrize('kind', ['linear', 'tanh'])
def test_a_head_that_a_class_cannot_hold_is_refused_with_the_field_that_fits(kind):
  a = of('Electra')
  encoder, params = network({**BERT, 'embedding_size': 16, 'activation': 'gelu'}, kind)
  with pytest.raises(
    errors.UserError,
    match=f'head={kind} has no place in {a.name}: .*--config.objective.head=gelu',
  ):
    export.convert(a, weights.flatten(params), encoder, small.BERT_IDS)
  note = hf.fitting_note(a.name, 'gelu', weights.flatten(params))
  assert f'head of the kind gelu, and objective.head is {kind}' in note
  other = 'AlbertForSequenceClassification' if kind == 'tanh' else a.name  # layers of their own
  assert architectures.fitting(a.name, 'gelu', weights.flatten(params)) == other


@pytest.mark.parametrize(
  'family, fields, message',
  [
    ('XLNet', dict(summary_type='mean'), 'summary_type=mean, and a head here has .*=last'),
    ('XLNet', dict(summary_use_proj=False), 'summary_use_proj=False'),
    ('Deberta', dict(pooler_hidden_act='tanh'), 'pooler_hidden_act=tanh'),
  ],
)
def test_a_head_that_computes_something_else_is_not_read(family, fields, message):
  with pytest.raises(errors.UserError, match=message):
    hf_architecture.encoder(of(family), fields)


def test_labels_that_are_not_as_many_as_the_outputs_are_refused():
  assert row_heads.config(of('Bert'), 2, row_heads.Task())['id2label'] == {
    '0': 'LABEL_0',
    '1': 'LABEL_1',
  }
  with pytest.raises(errors.UserError, match='3 outputs, and objective.labels are 2'):
    row_heads.config(of('Bert'), 3, row_heads.Task(labels=('a', 'b')))


def test_every_family_names_the_class_that_scores_rows_and_the_kind_of_its_head():
  kinds = {'Electra': 'gelu', 'Deberta': 'gelu', 'DebertaV2': 'gelu'}
  for family in THEIRS:
    a = of(family)
    relatives = [b for b in architectures.ARCHITECTURES.values() if b.model_type == a.model_type]
    assert len(relatives) > 1
    for name in (a.model_type, *(b.name for b in relatives)):
      expected = kinds[family] if family in kinds else 'tanh'
      assert hf.task_class_of(name) == (a.name, expected)
  with pytest.raises(errors.UserError, match="mean 'BertForPreTraining'"):
    hf.task_class_of('BertForPretraining')
