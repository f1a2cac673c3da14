import types

import ml_collections
import pytest

from bertzoo_jax import cli
from bertzoo_jax import parts
from bertzoo_jax import pretrain
from bertzoo_jax.common import errors
from bertzoo_jax.experiment import check
from bertzoo_jax.experiment import resolve
from configs import bert
from tests.pretrain.runs import refused

SIZES = dict(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32)
LANES = {
  'format': parts.memory_segments(reuse_length=16),
  'masking': parts.permutation(num_predictions=6, block=16),
  'encoder': parts.two_stream(**SIZES, memory_length=24, reuse_length=16),
  'objective': parts.permutation_lm(),
  'length': 40,
  'batch_size': 24,
  'phases': ((14, {}),),
}

NO_DROPOUT = {'encoder.dropout': 0.0, 'encoder.attention_dropout': 0.0}
FAR = parts.mlm_span_boundary(num_offsets=16)
HUGE = {'encoder.hidden_size': 2**18, 'encoder.num_layers': 1000}
HUGE_WORDS = r'has 275,034,580,483,630 parameters.* take 3,300,415.0 GB per device, and a device '
# Of the config; LATER of a phase still to come.
MISTAKES = [
  ({'tokenizer.vocab_size': 301}, 'vocabulary of 300, the config one of 301'),
  ({'tokenizer.lowercase': False}, 'tokenizer.lowercase: True → False'),
  ({'corpus.splitter': 'lines'}, 'corpus.splitter'),
  ({'batch_size': 12}, 'in phase 0, batch_size 12 does not divide'),
  ({'batch_tokens': 1024}, 'set one of them'),
  ({'run.accumulation': 3}, 'does not divide into 3 microbatches'),
  ({'run.mesh': (3, -1, 1)}, 'run.mesh'),
  ({'run.mesh': (4, 2)}, r'write \(4, 1, 2\)'),
  ({'encoder.num_heads': 3}, 'num_heads=3'),
  ({'encoder.max_positions': 32}, 'encoder.max_positions is 32'),
  ({'run.dtype': 'bfloat'}, "Did you mean 'bfloat16'"),
  ({'run.remat': 'half'}, 'remat'),
  ({'batch_size': -8}, 'config.batch_size is -8: a whole number'),
  (HUGE, HUGE_WORDS + 'here has'),
  ({'schedule.warmup': 14}, 'schedule.warmup is 14 of 14'),
  ({'optimizer.no_decay': ('nrom/',)}, 'matches no parameter'),
  ({'phases': ()}, 'at least one phase'),
  ({'phases': ((3, {'masking.rat': 0.2}),)}, 'masking.rat'),
  ({'format': parts.full_sentences()}, 'needs pair_labels, which format=full_sentences'),
  ({'masking': parts.span(), 'objective': FAR}, '=16 is above masking.max_pair_targets=15'),
  (LANES, 'has 409 tokens, too few for 24 lanes'),  # of the held-out text
  (NO_DROPOUT | {'objective': parts.contrastive()}, 'are 0: set --config.encoder.dropout=0.1'),
]
LATER = [
  ({'batch_tokens': 12 * 64}, 'in phase 1, batch_size 12 does not divide'),
  ({'format': parts.full_sentences()}, 'needs pair_labels'),
  ({'masking.rounding': 'neerest'}, "Did you mean 'nearest'"),
  ({'length': 4}, 'at least 5 tokens'),
  ({'masking': {'name': 'token', 'rate': 0.2}}, 'does not fit .*missing'),
  ({'objective': parts.mlm()}, 'Phase 1 does not train pair_head'),
]
MISTAKES += [({'phases': ((3, {'length': 32}), (3, over))}, words) for over, words in LATER]


@pytest.mark.parametrize('changes, words', MISTAKES)
def test_a_mistake_is_refused_in_one_sentence_and_nothing_is_written(
  world, tmp_path, changes, words
):
  refused(world, tmp_path / 'run', changes, words)
  assert not (tmp_path / 'run/config.json').exists()


def test_an_objective_that_compares_rows_refuses_a_batch_of_one():
  config = types.SimpleNamespace(batch_size=1, objective=parts.contrastive(), encoder={})
  with pytest.raises(errors.UserError, match='compares the rows of a batch, and batch_size is 1'):
    check._draws(config, types.SimpleNamespace(couple=True))


def test_a_workdir_in_a_corpus_is_refused(world):
  refused(world, world / 'corpus', {}, 'holds a corpus')


@pytest.mark.parametrize('error, code', [(errors.UserError, 2), (errors.Stopped, 3)])
def test_a_run_ends_with_one_sentence_and_the_exit_code_of_its_end(
  monkeypatch, capsys, error, code
):
  def stop(*args, **kw):
    raise error('because')

  monkeypatch.setattr(pretrain, 'pretrain', stop)
  with pytest.raises(SystemExit) as e:
    cli._guard(pretrain.main, types.SimpleNamespace())
  assert e.value.code == code and capsys.readouterr().err == 'error: because\n'


def test_the_tiny_config_of_the_repository_fits_its_own_checks():
  check.config(resolve.run(ml_collections.ConfigDict(bert.get_config('tiny')).lock()))
