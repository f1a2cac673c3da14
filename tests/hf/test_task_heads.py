"""Classes that tag tokens and that choose options, against transformers: both directions, every
leaf perturbed, padding on each family's side.
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
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import row_heads
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from bertzoo_jax.objectives import networks
from tests.hf import test_row_heads as rows_of

transformers = pytest.importorskip('transformers', reason='parity needs transformers')
torch = pytest.importorskip('torch', reason='parity needs torch')

LABELS = ('O', 'B-X', 'I-X')
TASK = row_heads.Task(None, LABELS, (0.3, 0.2))
HEADS = {'tag': task_heads.TAG, 'choice': task_heads.CHOICE}
CLASSES = {'tag': 'ForTokenClassification', 'choice': 'ForMultipleChoice'}
PLAIN = ('bert', 'ernie', 'roberta', 'albert', 'electra', 'deberta', 'deberta v2', 'xlnet')
FAST = ('bert', 'roberta', 'albert', 'electra', 'deberta', 'deberta v2', 'xlnet')
CASES = [
  (kind, case)
  for kind in HEADS
  for case in (*PLAIN, 'bert without segments', 'deberta v2 with the table of its decoder')
  if (kind, case) != ('choice', 'deberta')
]


def of(kind, case):
  return architectures.choose(rows_of.CASES[case][0] + CLASSES[kind])


@functools.lru_cache
def of_case(kind, case):
  """(encoder, parameters), every leaf perturbed."""
  _, section, predicts, _ = rows_of.CASES[case]
  encoder = small.encoder(section=section)
  form = row_heads.kind(of(kind, case), HEADS[kind])

  def init(key):
    body = {'encoder': networks.init_encoder(encoder, key, predicts=predicts)}
    if kind == 'tag':
      return {**body, 'tag_head': networks.init_tag_head(encoder, key, len(LABELS))}
    return {**body, 'choice_head': networks.init_row_head(encoder, key, form, 1)}

  shapes = jax.eval_shape(init, jax.random.key(0))
  start = jax.tree_util.tree_map_with_path(
    lambda path, x: np.full(x.shape, path[-1].key == 'scale', np.float32), shapes
  )
  return encoder, small.perturbed(start, 0, 0.2)


def batches(kind, encoder, pad):
  for batch in rows_of.batches(encoder, pad):
    yield verify.as_options(batch) if kind == 'choice' else batch


@pytest.mark.parametrize(
  'kind, case',
  [pytest.param(*own, marks=[] if own[1] in FAST else [pytest.mark.slow]) for own in CASES],
)
def test_transformers_says_the_same_from_what_we_write_and_we_read_it_back(tmp_path, kind, case):
  special = rows_of.CASES[case][3]
  a, (encoder, params) = of(kind, case), of_case(kind, case)
  rows_of.save(tmp_path, a, params, encoder, special, TASK)
  for batch in batches(kind, encoder, special['pad']):
    rows = rows_of.compared(tmp_path, a, encoder, params, batch)
    assert [r.what.split()[0] for r in rows] == ['tensors', kind]
    assert all(r.holds for r in rows), verify.table(rows)
  loaded, report = hf.load(tmp_path)
  assert report.architecture == a.name and report.ignored == ()
  assert report.labels == (LABELS if kind == 'tag' else ())
  there, here = weights.flatten(loaded), weights.flatten(params)
  own = {path for path in here if path.startswith(HEADS[kind])}
  assert own and own <= there.keys()
  for path in own:
    np.testing.assert_array_equal(there[path], here[path], err_msg=path)
  config = transformers.AutoConfig.from_pretrained(tmp_path)
  if kind == 'tag':
    assert tuple(config.id2label[i] for i in range(3)) == LABELS
  for name, rate in zip(a.head_dropouts, (0.3, 0.2)):
    assert getattr(config, name) == rate


@pytest.mark.parametrize('kind, case', CASES)
def test_a_table_names_every_tensor_of_its_class_once_and_with_its_shape(kind, case):
  special = rows_of.CASES[case][3]
  a, (encoder, params) = of(kind, case), of_case(kind, case)
  tensors, config = export.convert(a, weights.flatten(params), encoder, special, TASK)
  with torch.device('meta'):
    family = rows_of.CASES[case][0]
    theirs = getattr(transformers, a.name)(
      getattr(transformers, f'{family}Config')(**config)
    ).state_dict()
  ours = {k: v.shape for k, v in tensors.items() if k not in a.computes(encoder).unread}
  assert ours == {k: tuple(v.shape) for k, v in theirs.items()}


def test_every_class_is_tried():
  for kind, head in HEADS.items():
    known = {name for name, a in architectures.ARCHITECTURES.items() if row_heads.kind(a, head)}
    assert known == {of(k, case).name for k, case in CASES if k == kind}


@pytest.mark.parametrize(
  'kind, case, name',
  [
    ('tag', 'bert', 'classifier.weight'),
    ('tag', 'deberta v2', 'classifier.bias'),
    ('choice', 'electra', 'sequence_summary.summary.bias'),
    ('choice', 'roberta', 'roberta.pooler.dense.bias'),
    ('choice', 'xlnet', 'logits_proj.weight'),
  ],
)
def test_a_planted_mistake_is_seen(tmp_path, kind, case, name):
  special = rows_of.CASES[case][3]
  a, (encoder, params) = of(kind, case), of_case(kind, case)
  tensors, config = export.convert(a, weights.flatten(params), encoder, special, TASK)
  tensors[name] = np.ascontiguousarray(tensors[name][..., ::-1])
  weights.save(tmp_path / 'model.safetensors', tensors)
  (tmp_path / 'config.json').write_text(json.dumps(config))
  batch = next(batches(kind, encoder, special['pad']))
  rows = rows_of.compared(tmp_path, a, encoder, params, batch)
  assert rows[0].holds and not rows[-1].holds


def test_options_of_a_family_without_the_class_are_refused_with_the_reason():
  name, form = hf.task_class_of('deberta', task_heads.CHOICE)
  assert (name, form) == ('deberta', 'gelu')
  a = architectures.choose('DebertaForSequenceClassification')
  encoder, params = of_case('choice', 'deberta v2')
  with pytest.raises(errors.UserError, match='DeBERTa v1 has none'):
    export.convert(a, weights.flatten(params), encoder, small.BERT_IDS)
  electra = of('choice', 'electra')
  _, params = of_case('choice', 'bert')
  with pytest.raises(
    errors.UserError, match='head=tanh has no place .*--config.objective.head=gelu'
  ):
    export.convert(electra, weights.flatten(params), encoder, small.BERT_IDS)


def test_a_head_takes_what_fits_of_another_task():
  _, choice = of_case('choice', 'bert')
  report = weights.Report('there', 'BertForMultipleChoice', {}, (), 'bert')
  pooler = choice['choice_head']['pooler']
  loaded = {'encoder': choice['encoder'], 'pair_head': {'pooler': pooler}}
  params, lines = weights.merge(choice, loaded, report)
  assert 'choice_head/pooler: the pooler of pair_head' in lines
  np.testing.assert_array_equal(params['choice_head']['pooler']['bias'], pooler['bias'])
  _, tags = of_case('tag', 'bert')
  other = {**tags, 'tag_head': {'classifier': {'kernel': np.ones((32, 5)), 'bias': np.ones(5)}}}
  params, lines = weights.merge(tags, other, report)
  assert any('tag_head/classifier: fresh, since the checkpoint has 5 outputs' in x for x in lines)
