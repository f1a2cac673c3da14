import jax.numpy as jnp
import pytest

from bertzoo_jax import prepare
from bertzoo_jax import pretrain
from bertzoo_jax.objectives import span_boundary
from configs import spanbert
from tests.pretrain import runs

CONFIG = spanbert.get_config('tiny,steps=800')
CONFIG.batch_size = 16
CONFIG.run.update(dict(eval_every=800, tensorboard=False))
BELOW = 0.03  # nats, after a tenth of the text that the config trains on


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  path = str(tmp_path_factory.mktemp('corpus') / 'corpus')
  sample = runs.ROOT / 'data/sample'
  books = [str(sample / f'{book}.txt') for book in ('federalist', 'sherlock', 'time_machine')]
  prepare.prepare(CONFIG, books, path, say=lambda _: None)
  return path


@pytest.mark.slow
@pytest.mark.parametrize('seed', [0, 1, 2])
def test_the_vectors_beside_a_span_lower_the_boundary_loss(corpus, tmp_path, monkeypatch, seed):
  runs.on_one_device(monkeypatch)
  sums, config = span_boundary.boundary_sums, CONFIG.copy_and_resolve_references()
  config.seed = seed

  def without_them(head, encoder, params, hidden_BLD, *rest):
    return sums(head, encoder, params, jnp.zeros_like(hidden_BLD), *rest)

  def loss(name, boundary_sums):
    """Nats per token of a span on held-out text, after the training of the config."""
    monkeypatch.setattr(span_boundary, 'boundary_sums', boundary_sums)
    done = pretrain.pretrain(config.lock(), str(tmp_path / name), corpus=corpus)
    return done['held_out']['held_out_boundary_loss']

  with_them, with_zeros = loss('vectors', sums), loss('zeros', without_them)
  print(f'seed {seed}: {with_them:.3f} nats with the vectors, {with_zeros:.3f} with zeros')
  assert with_them < with_zeros - BELOW
