import functools

import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import hf
from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture as hf_architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from bertzoo_jax.objectives import heads as head_table
from bertzoo_jax.objectives import networks
from bertzoo_jax.parts import fields
from bertzoo_jax.parts import ranges
from bertzoo_jax.tasks import kinds
from tests.hf import directories

transformers = pytest.importorskip('transformers', reason='parity needs transformers')
torch = pytest.importorskip('torch', reason='parity needs torch')

TOLERANCE = 1e-5
WIDTH, BEAMS = 32, 'XLNetForQuestionAnswering'
SIZES = dict(num_layers=2, hidden_size=WIDTH, num_heads=4, intermediate_size=48)
LABELS = ('schlecht', 'gut', 'weiß nicht')
TASK = task_heads.Task('single_label_classification', LABELS, (0.3, 0.2))

BERT = {**small.SECTION, **SIZES}
ROBERTA = {**BERT, 'activation': 'gelu', 'norm_eps': 1e-5, 'type_vocab_size': 0}
ELECTRA = {'embedding_size': 16, 'activation': 'gelu'}
V2 = {**BERT, **small.DISENTANGLED, 'activation': 'gelu', 'norm_eps': 1e-7}
V1 = dict(V2, buckets=0, norm_relative=False, shared_projections=False, key_bias=False)
XLNET = {**small.TWO_STREAM, **SIZES}
MODERN = {**small.MODERN, **SIZES, 'activation': 'gelu_tanh'}
EURO = {**MODERN, 'activation': 'silu', 'norm': 'rms', 'window': 0, 'embedding_norm': False}
CASES = {  # class, section of the encoder, whether with what only predictions use, special ids
  'bert': ('Bert', BERT, False, small.BERT_IDS),
  'bert without segments': ('Bert', {**BERT, 'type_vocab_size': 0}, False, small.BERT_IDS),
  'ernie': ('Ernie', {**BERT, 'activation': 'relu', 'norm_eps': 1e-5}, False, small.BERT_IDS),
  'roberta': ('Roberta', ROBERTA, False, small.ROBERTA_IDS),
  'albert': ('Albert', {**BERT, 'embedding_size': 16, 'sharing': 'all'}, False, small.BERT_IDS),
  'electra': ('Electra', {**BERT, **ELECTRA}, False, small.BERT_IDS),
  'deberta': ('Deberta', V1, False, small.BERT_IDS),
  'deberta v2': ('DebertaV2', {**V2, 'convolution_size': 3}, False, small.BERT_IDS),
  'deberta v2 with the table of its decoder': ('DebertaV2', V2, True, small.BERT_IDS),
  'xlnet': ('XLNet', XLNET, False, small.BERT_IDS),
  'xlnet with its query': ('XLNet', XLNET, True, small.BERT_IDS),
  'modern': ('ModernBert', MODERN, False, small.BERT_IDS),
  'euro': ('EuroBert', EURO, False, small.BERT_IDS),
}
OF_TOKENS_AND_OPTIONS = (
  *('bert', 'ernie', 'roberta', 'albert', 'electra', 'deberta', 'deberta v2', 'xlnet', 'modern'),
  *('euro', 'bert without segments', 'deberta v2 with the table of its decoder'),
)
# That transformers does not have.
NO_CLASS = (task_heads.CHOICE, 'deberta'), (task_heads.CHOICE, 'euro'), (task_heads.SPAN, 'euro')
TRIED = [
  (head, case)
  for head in task_heads.KINDS
  for case in (CASES if head in (task_heads.ROW, task_heads.SPAN) else OF_TOKENS_AND_OPTIONS)
  if (head, case) not in NO_CLASS
]


@pytest.fixture(autouse=True)
def _transformers_has_it(request):
  if 'euro' in request.node.name.lower() and not hasattr(transformers, 'EuroBertConfig'):
    pytest.skip('transformers 4 has no EuroBERT')


def of(family, head=task_heads.ROW):
  name = f'{family}{task_heads.KINDS[head].ends}'
  return architectures.choose('XLNetForQuestionAnsweringSimple' if name == BEAMS else name)


def network(section, head, predicts=False, seed=0):
  """(encoder, parameters), every leaf perturbed. head: an objectives.heads.Head."""
  encoder = small.encoder(section=section)

  def init(key):
    body = networks.init_encoder(encoder, key, predicts=predicts)
    return {'encoder': body, head.name: head.init(encoder, key)}

  return encoder, small.parameters_of(init, seed, 0.2)


@functools.lru_cache
def of_case(case, head=task_heads.ROW):
  family, section, predicts, _ = CASES[case]
  form = task_heads.form_of(of(family, head).places, head)
  made = {
    task_heads.ROW: head_table.row(form, len(LABELS)),
    task_heads.SPAN: head_table.span(form),
    task_heads.TAG: head_table.tag(form, len(LABELS)),
    task_heads.CHOICE: head_table.choice(form),
  }
  return network(section, made[head], predicts)


def written(case, head=task_heads.ROW):
  """(architecture, encoder, parameters, tensors, content of config.json) of a case."""
  a, (encoder, params) = of(CASES[case][0], head), of_case(case, head)
  files = export.convert(a, weights.flatten(params), encoder, CASES[case][3], TASK)
  return a, encoder, params, *files


def save(folder, a, params, encoder, special, task=TASK):
  directories.put(folder, *export.convert(a, weights.flatten(params), encoder, special, task))


def batches(encoder, pad, head=task_heads.ROW):
  """Rows of two texts and of one, with padding where the family has it: full ones, and for padding
  on the left, short ones.
  """
  for length in (40, 7) if head == task_heads.ROW and encoder.padding_side == 'left' else (40,):
    types = encoder.type_vocab_size
    made = verify.random_batch(small.VOCAB, length, types, pad, padding=encoder.padding_side)
    at = 0 if encoder.padding_side == 'left' else -1
    assert made['segment_ids'][:, at].min() == 0 and made['segment_ids'][:, ~at].min() == 1
    made = verify.with_single_texts(made)
    yield verify.as_options(made) if head == task_heads.CHOICE else made


BODY = None  # a class without a head
SAID = {task_heads.ROW: ['row'], task_heads.TAG: ['tag'], task_heads.CHOICE: ['choice']}
SAID |= {task_heads.SPAN: ['end', 'start'], BODY: ['vectors']}


@pytest.mark.parametrize('head, case', [*TRIED, *((BODY, x) for x in OF_TOKENS_AND_OPTIONS)])
def test_transformers_says_the_same_from_what_we_write(tmp_path, head, case):
  family, _, _, special = CASES[case]
  if head is BODY:
    a, (encoder, params) = architectures.choose(f'{family}Model'), of_case(case)
    params = {'encoder': params['encoder']}
    save(tmp_path, a, params, encoder, special)
  else:
    a, encoder, params, *files = written(case, head)
    directories.put(tmp_path, *files)
  for batch in batches(encoder, special['pad'], head):
    rows = directories.compared(tmp_path, a, encoder, params, batch)
    assert [r.what.split()[0] for r in rows] == ['tensors', *SAID[head]]
    assert all(r.holds for r in rows), verify.table(rows)
    assert head != task_heads.ROW or float(rows[1].difference) < TOLERANCE


@pytest.mark.parametrize('head, case', TRIED)
def test_a_written_head_is_read_back_with_its_labels(tmp_path, head, case):
  a, encoder, params, *files = written(case, head)
  directories.put(tmp_path, *files)
  loaded, report = hf.load(tmp_path)
  assert report.architecture == a.name and report.model_type == a.model_type
  assert report.labels == (LABELS if head in task_heads.LABELLED else ()) and report.ignored == ()
  there, here = weights.flatten(loaded), weights.flatten(params)
  assert {path for path in here if path.startswith(head)} <= there.keys()
  for path, x in here.items():
    if path in there and there[path].shape == x.shape:  # layers that share are written apart
      np.testing.assert_array_equal(there[path], x, err_msg=path)
  config = transformers.AutoConfig.from_pretrained(tmp_path)
  if head in task_heads.LABELLED:
    assert tuple(config.id2label[i] for i in range(3)) == LABELS and config.num_labels == 3
    assert config.label2id == {label: i for i, label in enumerate(LABELS)}
  if head == task_heads.ROW:
    assert config.problem_type == 'single_label_classification'
    assert a.head_dropouts or case == 'euro'
  for name, rate in zip(a.head_dropouts, TASK.dropouts):
    assert getattr(config, name) == rate


RELATIVE = dict(relative_attention=True, position_biased_input=False, pos_att_type='c2p|p2c')
THEIRS = {
  'Bert': {},
  'Ernie': dict(hidden_act='relu'),
  'Roberta': dict(max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5),
  'Albert': dict(embedding_size=16, num_hidden_groups=2),
  'Electra': dict(embedding_size=16, hidden_act='gelu_new'),
  'Deberta': RELATIVE,
  'DebertaV2': {**RELATIVE, 'position_buckets': 8, 'norm_rel_ebd': 'layer_norm'},
  'XLNet': {},
  'ModernBert': dict(local_attention=6, pad_token_id=0),
  'EuroBert': dict(classifier_pooling='bos', pad_token_id=0),
}


def their_network(family, outputs, head, **fields):
  names = ('hidden_size', 'num_hidden_layers', 'num_attention_heads', 'intermediate_size')
  if family == 'XLNet':
    names = ('d_model', 'n_layer', 'n_head', 'd_inner')
  else:
    fields = {'max_position_embeddings': 40, **fields}
  fields |= dict(zip(names, (WIDTH, 2, 4, 48)), num_labels=outputs)
  labels = {i: f'class {i}' for i in range(outputs)}
  return directories.theirs(of(family, head).name, 0.2, id2label=labels, **fields)


def test_every_class_is_tried_in_both_directions():
  for head in task_heads.KINDS:
    every = architectures.ARCHITECTURES.items()
    known = {name for name, a in every if task_heads.in_paths(a.places) == head}
    tried = {of(CASES[case][0], head).name for own, case in TRIED if own == head}
    assert known - tried == ({BEAMS} if head == task_heads.SPAN else set())
  assert {of(x).name for x in THEIRS} == {of(x).name for x, *_ in CASES.values()}
  assert len(THEIRS) == 10


@pytest.mark.parametrize(
  'head, family',
  [
    *((task_heads.ROW, x) for x in THEIRS if x not in ('Ernie', 'Roberta')),
    *((task_heads.SPAN, x) for x in ('Bert', 'XLNet', 'ModernBert')),
  ],
)
def test_we_say_the_same_from_what_transformers_writes(tmp_path, head, family):
  outputs = 2 if head == task_heads.SPAN else 3
  theirs, a = their_network(family, outputs, head, **THEIRS[family]), of(family, head)
  theirs.save_pretrained(tmp_path)
  params, report = hf.load(tmp_path)
  assert report.architecture == a.name and not report.ignored
  if head == task_heads.ROW:
    assert report.labels == ('class 0', 'class 1', 'class 2')
  assert params.keys() == {'encoder', head}
  spare = {'vocab_multiple': 1} if a.part == 'disentangled' else {}
  section = {'two_stream': XLNET, 'modern': small.MODERN}.get(a.part, small.SECTION)
  section = {**section, 'name': a.part}
  encoder = small.encoder(section=section, **spare, **report.encoder)
  batch = next(batches(encoder, theirs.config.pad_token_id))
  rows = directories.compared(tmp_path, a, encoder, params, batch)
  assert len(rows) == 1 + len(SAID[head]) and all(r.holds for r in rows), verify.table(rows)
  assert head != task_heads.ROW or float(rows[1].difference) < TOLERANCE


_turned = functools.partial(directories.changed, np.transpose)
_other_order = functools.partial(directories.changed, lambda x: x[::-1])
_mirrored = functools.partial(directories.changed, lambda x: x[..., ::-1])
_set = directories.with_fields
ROW, TAG, CHOICE = task_heads.ROW, task_heads.TAG, task_heads.CHOICE
PLANTED = [
  (ROW, 'bert', _turned('bert.pooler.dense.weight')),
  (ROW, 'bert', _other_order('classifier.weight')),
  (ROW, 'ernie', _turned('ernie.pooler.dense.weight')),
  (ROW, 'albert', _other_order('classifier.bias')),
  (ROW, 'roberta', _turned('classifier.dense.weight')),
  (ROW, 'electra', _turned('classifier.dense.weight')),
  (ROW, 'deberta', directories.with_fields(pooler_hidden_act='tanh')),
  (ROW, 'deberta v2', directories.with_fields(pooler_hidden_act='gelu_new')),
  (ROW, 'xlnet', directories.with_fields(summary_activation='linear')),
  (ROW, 'xlnet', directories.with_fields(summary_type='first')),
  (ROW, 'modern', _turned('head.dense.weight')),
  (TAG, 'modern', _mirrored('head.norm.weight')),
  (task_heads.SPAN, 'bert', _other_order('qa_outputs.weight')),  # a start is no end
  (TAG, 'bert', _mirrored('classifier.weight')),
  (TAG, 'deberta v2', _mirrored('classifier.bias')),
  (CHOICE, 'electra', _mirrored('sequence_summary.summary.bias')),
  (CHOICE, 'roberta', _mirrored('roberta.pooler.dense.bias')),
  (CHOICE, 'xlnet', _mirrored('logits_proj.weight')),
]


@pytest.mark.parametrize('head, case, plant', PLANTED)
def test_a_planted_mistake_is_seen(tmp_path, head, case, plant):
  a, encoder, params, tensors, config = written(case, head)
  plant(tensors, config)
  directories.put(tmp_path, tensors, config)
  batch = next(batches(encoder, CASES[case][3]['pad'], head))
  rows = directories.compared(tmp_path, a, encoder, params, batch)
  assert rows[0].holds and not any(row.holds for row in rows[1:])


KIND = 'of the kind gelu, and objective.head is'
BESIDE_A_CLASS = {  # case, head, why
  'another kind': ('deberta', head_table.row('tanh', 3), f'{KIND} tanh'),
  'no dense layer': ('electra', head_table.row('linear', 3), f'{KIND} linear'),
  'options of another kind': ('deberta', head_table.choice('tanh'), 'cannot hold choice_head'),
  'ends of another kind': ('xlnet', head_table.conditional_span('gelu', 0, True), 'span_head'),
  'ends of another width': ('xlnet', head_table.conditional_span('tanh', 16, True), 'this width'),
  'no score of no answer': ('xlnet', head_table.conditional_span('tanh', 0, False), 'span_head'),
  'ends given starts': ('bert', head_table.conditional_span('tanh', 0, True), 'span_head'),
}


@pytest.mark.parametrize('name', BESIDE_A_CLASS)
def test_a_head_that_no_class_of_its_family_holds_is_written_beside_the_encoder(tmp_path, name):
  case, head, why = BESIDE_A_CLASS[name]
  family, section, _, special = CASES[case]
  encoder, params = network(section, head)
  wished = BEAMS if case == 'xlnet' else f'{family}ForSequenceClassification'
  flat = weights.flatten(params)
  chosen = architectures.fitting(wished, encoder.activation, flat)
  assert chosen == f'{family}Model'
  note = hf.fitting_note(wished, encoder.activation, flat)
  assert why in note and f'export writes {chosen}, and {head.name} to {weights.HEADS_FILE}' in note
  a = architectures.choose(chosen)
  held = hf_architecture.placed(a, flat)
  aside = {k: x for k, x in flat.items() if k not in held}
  directories.put(tmp_path, *export.convert(a, held, encoder, special, TASK, aside))
  weights.save(tmp_path / weights.HEADS_FILE, aside)
  loaded, report = hf.load(tmp_path)
  assert report.labels == (LABELS if head.name == task_heads.ROW else ())
  loaded = weights.flatten(loaded)
  for path, x in flat.items():
    np.testing.assert_array_equal(loaded[path], x, err_msg=path)


@pytest.mark.parametrize(
  'case, wished, head, chosen',
  [
    ('electra', 'ElectraForSequenceClassification', head_table.row('tanh', 3), 'AlbertForSeque'),
    ('electra', 'ElectraForMultipleChoice', head_table.choice('tanh'), 'AlbertForMultipleChoice'),
    ('deberta', 'DebertaForSequenceClassification', head_table.choice('gelu'), 'DebertaV2ForMult'),
  ],
)
def test_a_class_of_another_family_that_holds_all_comes_first(case, wished, head, chosen):
  encoder, params = network(CASES[case][1], head)
  note = hf.fitting_note(wished, encoder.activation, weights.flatten(params))
  assert f'export writes {chosen}' in note


def test_xlnet_s_conditional_head_has_the_beam_and_the_odds_of_transformers(tmp_path):
  a, special = architectures.choose(BEAMS), CASES['xlnet'][3]
  encoder, params = network(XLNET, head_table.conditional_span('tanh', 0, True))
  assert architectures.fitting(BEAMS, encoder.activation, weights.flatten(params)) == BEAMS
  save(tmp_path, a, params, encoder, special)
  for batch in batches(encoder, special['pad']):
    rows = directories.compared(tmp_path, a, encoder, params, batch)
    beam = ['end_place', 'end_share', 'impossible', 'start_place', 'start_share']
    assert [r.what.split()[0] for r in rows[1:]] == beam
    assert all(r.holds for r in rows), verify.table(rows)
  loaded, _ = hf.load(tmp_path)
  for path, x in weights.flatten(params['span_head']).items():
    np.testing.assert_array_equal(weights.flatten(loaded['span_head'])[path], x, err_msg=path)


def test_labels_that_are_not_as_many_as_the_outputs_are_refused():
  params, bert = {'row_head/classifier/bias': np.zeros(3)}, of('Bert')
  numbered = {str(i): f'LABEL_{i}' for i in range(3)}
  assert task_heads.config(bert, params, task_heads.Task())['id2label'] == numbered
  with pytest.raises(errors.UserError, match='3 outputs, and objective.labels are 2'):
    task_heads.config(bert, params, task_heads.Task(labels=('a', 'b')))


def test_every_family_names_the_class_that_scores_rows_and_the_kind_of_its_head():
  kinds = {'Electra': 'gelu', 'Deberta': 'gelu', 'DebertaV2': 'gelu'}
  kinds |= {'ModernBert': 'transform', 'EuroBert': 'gelu'}
  for family in THEIRS:
    a = of(family)
    relatives = [b for b in architectures.ARCHITECTURES.values() if b.model_type == a.model_type]
    assert len(relatives) > 1
    for name in (a.model_type, *(b.name for b in relatives)):
      expected = kinds[family] if family in kinds else 'tanh'
      assert hf.task_class_of(name) == (a.name, expected)
  assert hf.task_class_of('deberta', task_heads.CHOICE) == ('deberta', 'gelu')
  with pytest.raises(errors.UserError, match="mean 'BertForPreTraining'"):
    hf.task_class_of('BertForPretraining')


def test_every_objective_takes_the_head_of_every_class():
  for name, kind in kinds.BY_NAME.items():
    own = fields.parameters(ranges.TASK_SECTIONS['objective'][name])
    if 'head' in own and own['head'].default == 'auto':
      holds = fields.get_range(own['head'].annotation).holds
      for a in architectures.ARCHITECTURES.values():
        assert holds(hf.task_class_of(a.name, kind.head)[1]), (name, a.name)


def test_a_head_takes_the_parameters_that_fit_of_another_task():
  _, choice = of_case('bert', task_heads.CHOICE)
  report = weights.Report('there', 'BertForMultipleChoice', {}, (), 'bert')
  pooler = choice['choice_head']['pooler']
  loaded = {'encoder': choice['encoder'], 'pair_head': {'pooler': pooler}}
  params, lines = weights.merge(choice, loaded, report)
  assert 'choice_head/pooler: the pooler of pair_head' in lines
  np.testing.assert_array_equal(params['choice_head']['pooler']['bias'], pooler['bias'])
  _, tags = of_case('bert', task_heads.TAG)
  other = {**tags, 'tag_head': {'classifier': {'kernel': np.ones((32, 5)), 'bias': np.ones(5)}}}
  params, lines = weights.merge(tags, other, report)
  assert any('tag_head/classifier: fresh, since the checkpoint has 5 outputs' in x for x in lines)


def test_fine_tuning_begins_with_the_layers_before_the_vocabulary_as_in_transformers():
  params = small.parameters(small.objective('mlm', section=small.MODERN))
  report = weights.Report('there', 'ModernBertForMaskedLM', {}, (), 'modernbert')
  transform = params['mlm_head']['transform']['kernel']
  classifier = {'kernel': np.zeros((48, 3)), 'bias': np.zeros(3)}
  for head in task_heads.KINDS:
    fresh = {**params, head: {**params['mlm_head'], 'classifier': classifier}}
    del fresh['mlm_head'], fresh[head]['bias']
    fresh[head]['transform'] = {'kernel': np.zeros_like(transform)}
    merged, lines = weights.merge(fresh, params, report)
    assert np.array_equal(merged[head]['transform']['kernel'], transform)
    assert f'{head}/transform: from mlm_head, with its norm' in lines
