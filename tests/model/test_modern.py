# ruff: noqa: F811  a fixture of another file is an argument here

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import kernels
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.evaluate import scores
from bertzoo_jax.hf import architecture as hf
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from bertzoo_jax.hf.architectures import bert_like
from bertzoo_jax.training import sharding
from tests import toys
from tests.pretrain.runs import here  # noqa: F401  a fixture
from tests.pretrain.runs import world  # noqa: F401

SIZES = hf.Sizes(num_heads=4, num_layers=3, blocks=3, hidden_size=48, embedding_width=48)
# Their pairs of features are neighbours, ours lie half a head apart.
NEIGHBOURS = np.arange(12).reshape(2, 6).T.reshape(-1)


def _paired(row):
  if not any(f'attention/{name}/' in str(row.ours) for name in ('query', 'key')):
    return row
  plain = row.transform.to_theirs
  return row._replace(transform=hf.Transform(lambda x, s: plain(x[..., NEIGHBOURS], s), None))


RO_ROWS = tuple(
  _paired(row._replace(theirs=row.theirs.removeprefix('roformer.')))
  for row in bert_like.encoder('roformer', 2)
  if row.ours != hf.POSITION_TABLE
)
ROFORMER = dict(
  dict(num_layers=3, window=0, norms='after', feed_forward='plain', use_bias=True),
  **dict(type_vocab_size=2, norm_eps=1e-12, global_base=10_000.0),
)


def test_its_fields_make_roformer():
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  encoder = small.encoder(section={**small.MODERN, **ROFORMER})
  whole = small.parameters(objectives.BY_NAME['mlm'](encoder))
  params = {k: x for k, x in weights.flatten(whole).items() if k.startswith('encoder/')}
  made = hf.to_hf(hf.Architecture('RoFormerModel', '', RO_ROWS, *[None] * 3, ''), params, SIZES)
  config = transformers.RoFormerConfig(
    **dict(vocab_size=small.VOCAB, pad_token_id=0, type_vocab_size=2, embedding_size=48),
    **dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80),
    max_position_embeddings=40,
  )
  theirs = transformers.RoFormerModel(config).eval()
  tensors = {k: torch.tensor(np.ascontiguousarray(x)) for k, x in made.items()}
  missing, extra = theirs.load_state_dict(tensors, strict=False)
  assert not extra and all('embed_positions' in k for k in missing)
  batch = verify.random_batch(small.VOCAB, 40, 2, 0)
  vectors = verify.outputs(theirs, batch).last_hidden_state.numpy()
  ours = verify.our_logits(encoder, {'encoder': whole['encoder']}, batch)
  found = verify.compare_logits(ours, {'vectors': vectors, 'unloaded': []}, batch['segment_ids'])
  assert all(row.holds for row in found), verify.table(found)


def test_fields_that_do_not_go_together_are_refused():
  for changes, words in (
    (dict(hidden_size=36), 'make heads of 9: rotary positions need an even number'),
    (dict(window=7), 'an even number is needed'),
    (dict(norms='after', embedding_norm=False), 'would read unnormalised embeddings'),
    (dict(hidden_size=50), 'does not divide by num_heads=4'),
  ):
    with pytest.raises(errors.UserError, match=words):
      small.encoder(section=small.MODERN, **changes)


def test_a_run_goes_on_at_longer_rows_with_another_base_and_its_loss_is_told_by_place(
  here, world, tmp_path, capsys
):
  sizes = dict(num_layers=2, hidden_size=16, num_heads=2, intermediate_size=16, window=4)
  sections = dict(format=parts.full_sentences(), objective=parts.mlm(), hf='ModernBertForMaskedLM')
  encoder = lambda base: parts.modern(**sizes, max_positions=64, global_base=base)
  short, long = tmp_path / 'short', tmp_path / 'long'
  run = dict(sections, schedule__warmup=0, run__eval_every=0)
  here(short, encoder=encoder(100.0), length=16, phases=((2, {}),), **run)
  still = {**run, 'schedule__learning_rate': 0.0}
  made = dict(encoder=encoder(1600.0), length=64, phases=((1, {}),))
  here(long, init=str(short), **made, **still)
  found = {w: scores.evaluate(str(w), str(world / 'corpus'), batches=1) for w in (short, long)}
  for run, size in ((short, 2), (long, 8)):  # an eighth without a masked token is left out
    places = [s.places for s in found[run].places]
    assert set(places) <= {(size * i + 1, size * i + size) for i in range(8)} and len(places) > 4
  assert '9–16' in scores.table(found[long])
  whole = next(s for s in found[long].scores if (s.rows, s.measure) == ('mlm', 'loss'))
  of_parts = sum(s.value * s.count for s in found[long].places) / whole.count
  assert abs(of_parts - whole.value) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('length', [24, 600])
def test_losses_are_those_of_one_device_on_any_mesh_also_of_long_rows(length):
  rates = dict(dropout=0.1, attention_dropout=0.1, attention_output_dropout=0.1)
  encoder = small.encoder(section={**small.MODERN, **rates, 'max_positions': 600})

  def losses(mesh, chosen=kernels.XLA):
    devices = jax.devices()[: int(np.prod(mesh))]
    made = sharding.mesh(mesh, devices)
    mlm = objectives.BY_NAME['mlm']
    run = toys.of_an_encoder(mlm, encoder, made, chosen, rows=4, length=length)
    return toys.run(run, 2)[1]

  wanted = losses((1, 1, 1))
  fused = kernels.choose('fused', jax.devices()[0], 0.1)
  for mesh, chosen in (((1, 2, 2), kernels.XLA), ((2, 1, 2), fused)):
    np.testing.assert_allclose(losses(mesh, chosen), wanted, rtol=1e-5)
