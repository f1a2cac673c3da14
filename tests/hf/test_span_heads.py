"""Classes that find answers, against transformers: both directions, every leaf perturbed, padding
on each family's side.
"""

import functools

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import hf
from bertzoo_jax.common import errors
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import span_heads
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from bertzoo_jax.objectives import networks
from tests.hf import test_row_heads as heads

transformers = pytest.importorskip('transformers', reason='parity needs transformers')
torch = pytest.importorskip('torch', reason='parity needs torch')

OTHER_NAME = {'XLNet': 'XLNetForQuestionAnsweringSimple'}


def of(family, conditional=False):
  """The class of a family that finds answers."""
  name = f'{family}ForQuestionAnswering'
  return architectures.choose(name if conditional else OTHER_NAME.get(family, name))


def network(section, predicts=False, conditional=None, seed=0):
  """(encoder, parameters), every leaf perturbed. conditional: arguments of such a head."""
  encoder = small.encoder(section=section)

  def init(key):
    own = (
      networks.init_span_head(encoder, key)
      if conditional is None
      else networks.init_conditional_span_head(encoder, key, *conditional)
    )
    return {'encoder': networks.init_encoder(encoder, key, predicts=predicts), 'span_head': own}

  shapes = jax.eval_shape(init, jax.random.key(0))
  start = jax.tree_util.tree_map_with_path(
    lambda path, x: np.full(x.shape, path[-1].key == 'scale', np.float32), shapes
  )
  return encoder, small.perturbed(start, seed, 0.2)


@functools.lru_cache
def of_case(case):
  _, section, predicts, _ = heads.CASES[case]
  return network(section, predicts)


@pytest.mark.parametrize('case', heads.CASES)
def test_transformers_scores_starts_and_ends_the_same_from_what_we_write(tmp_path, case):
  family, _, _, special = heads.CASES[case]
  a, (encoder, params) = of(family), of_case(case)
  heads.save(tmp_path, a, params, encoder, special)
  for batch in heads.batches(encoder, special['pad']):
    rows = heads.compared(tmp_path, a, encoder, params, batch)
    assert sorted(r.what.split()[0] for r in rows) == ['end', 'start', 'tensors']
    assert all(r.holds for r in rows), verify.table(rows)
  loaded, report = hf.load(tmp_path)
  assert report.architecture == a.name and report.ignored == ()
  for path, x in weights.flatten(params['span_head']).items():
    np.testing.assert_array_equal(weights.flatten(loaded['span_head'])[path], x)


def test_a_start_is_no_end(tmp_path):
  """The head's two outputs swapped, as a planted mistake: the comparison sees it."""
  family, _, _, special = heads.CASES['bert']
  a, (encoder, params) = of(family), of_case('bert')
  turned = jax.tree.map(lambda x: x[..., ::-1], params['span_head'])
  heads.save(tmp_path, a, {**params, 'span_head': turned}, encoder, special)
  batch = next(heads.batches(encoder, special['pad']))
  rows = heads.compared(tmp_path, a, encoder, params, batch)
  assert [r.holds for r in rows] == [True, False, False]


def test_every_class_is_tried():
  known = {a.name for a in architectures.ARCHITECTURES.values() if span_heads.finds(a)}
  tried = {of(family).name for family, *_ in heads.CASES.values()}
  assert known - tried == {'XLNetForQuestionAnswering'} and len(known) == 9


@pytest.mark.parametrize('family', ['Bert', 'XLNet'])
def test_we_find_the_same_answers_from_what_transformers_writes(tmp_path, family):
  sizes = (heads.WIDTH, 2, 4, 48)
  names = ('hidden_size', 'num_hidden_layers', 'num_attention_heads', 'intermediate_size')
  fields = dict(max_position_embeddings=40)
  if family == 'XLNet':
    names, fields = ('d_model', 'n_layer', 'n_head', 'd_inner'), {}
  config = getattr(transformers, f'{family}Config')(
    vocab_size=small.VOCAB, **dict(zip(names, sizes)), **fields
  )
  torch.manual_seed(0)
  theirs = getattr(transformers, of(family).name)(config).eval()
  with torch.no_grad():
    for p in theirs.parameters():
      p.add_(0.2 * torch.randn_like(p))
  theirs.save_pretrained(tmp_path)
  params, report = hf.load(tmp_path)
  a = of(family)
  assert report.architecture == a.name and not report.ignored
  assert params.keys() == {'encoder', 'span_head'}
  section = {**(heads.XLNET if family == 'XLNet' else small.SECTION), 'name': a.part}
  encoder = small.encoder(section=section, **report.encoder)
  for batch in heads.batches(encoder, config.pad_token_id):
    rows = heads.compared(tmp_path, a, encoder, params, batch)
    assert len(rows) == 3 and all(r.holds for r in rows), verify.table(rows)


def test_xlnet_s_conditional_head_has_the_beam_and_the_odds_of_transformers(tmp_path):
  a, special = of('XLNet', conditional=True), heads.CASES['xlnet'][3]
  encoder, params = network(heads.XLNET, conditional=('tanh', 0, True))
  heads.save(tmp_path, a, params, encoder, special)
  for batch in heads.batches(encoder, special['pad']):
    rows = heads.compared(tmp_path, a, encoder, params, batch)
    assert [r.what.split()[0] for r in rows[1:]] == [
      *('end_place', 'end_share', 'impossible', 'start_place', 'start_share')
    ]
    assert all(r.holds for r in rows), verify.table(rows)
  loaded, _ = hf.load(tmp_path)
  for path, x in weights.flatten(params['span_head']).items():
    np.testing.assert_array_equal(weights.flatten(loaded['span_head'])[path], x, err_msg=path)


@pytest.mark.parametrize(
  'case, conditional',
  [
    ('xlnet', ('gelu', 0, True)),
    ('xlnet', ('tanh', 16, True)),
    ('xlnet', ('tanh', 0, False)),
    ('bert', ('tanh', 0, True)),
  ],
)
def test_other_conditional_heads_are_refused_with_the_objective_that_fits(
  tmp_path, case, conditional
):
  family, section, _, special = heads.CASES[case]
  encoder, params = network(section, conditional=conditional)
  for a in (of(family), of(family, conditional=True)):
    with pytest.raises(errors.UserError, match='Fine-tune with objective=span to export'):
      heads.save(tmp_path, a, params, encoder, special)
