import contextlib
import io
import json
import math
import re
import shutil

import numpy as np
import pytest
import rich.console
import small_corpora

from bertzoo_jax import prepare
from bertzoo_jax import pretrain
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.corpus import opening
from bertzoo_jax.evaluate import scores
from bertzoo_jax.experiment import resolve
from bertzoo_jax.preflight import readiness
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import step_folders
from bertzoo_jax.show import __main__ as show
from configs import bert
from tests.pretrain import runs
from tests.runs import processes

BORDERS, STEPS = (4, 8), 11
ABOUT_A_HOST = {'batch_crc32', 'seconds', 'tokens_per_second'}
# a ramp of the batch, a falling rate, two corpora, a decay at the end
RECIPE = dict(
  length=32,
  batch_size=4,
  phases=((4, {}), (4, {'batch_size': 8, 'mixture': (0.5, 0.5)}), (3, {'batch_size': 16})),
  moving=(('masking.rate', 0.4, 0.15, 0, 9, 'linear'),),
  mixture=('size', 0.5),
)
SIZES = dict(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32)
RUN = dict(dtype='float32', log_every=1, eval_every=8, eval_batches=2, save_minutes=1000.0, keep=1)
RUN |= dict(keep_words='300,900', tensorboard=False)


def config(world, **changes):
  made = bert.get_config('base,schedule=warmup_stable_decay')
  made.update(RECIPE)
  made.schedule.update(dict(learning_rate=1e-2, warmup=3, decay=3))
  made.tokenizer.vocab_size, made.corpus.held_out = 200, 0.2
  made.encoder.update(SIZES)
  made.run.update({**RUN, 'compile_cache': str(world / 'cache')})
  made.update(changes)
  return made.lock()


@pytest.fixture(scope='session')
def world(tmp_path_factory):
  """Folder with the corpora large and small, of one tokenizer, and other, of another."""
  folder = tmp_path_factory.mktemp('mixture')
  words = (runs.ROOT / 'data/sample/time_machine.txt').read_text().split()[1000:]
  how = dict(workers=1, say=lambda line: None)
  small = 'small', words[1200:1600], str(folder / 'large/tokenizer')
  for name, some, tokenizer in (('large', words[:1200], None), small):
    text = '\n\n'.join(' '.join(some[i : i + 40]) for i in range(0, len(some), 40))
    (folder / f'{name}.txt').write_text(text)
    source = [str(folder / f'{name}.txt')]
    made = prepare.prepare(config(folder), source, folder / name, tokenizer, **how)
  shutil.copytree(folder / 'small', folder / 'other')
  small_corpora.seal(folder / 'other', {**made, 'tokenizer_hash': 'another'})
  return folder


def paths(world, *names):
  return [str(world / name) for name in names or ('large', 'small')]


@pytest.fixture(scope='module')
def whole(world, tmp_path_factory):
  """(workdir of an undisturbed run, its output)."""
  workdir = tmp_path_factory.mktemp('whole') / 'run'
  made = config(world).copy_and_resolve_references().unlock()
  made.run.keep = 9
  with pytest.MonkeyPatch.context() as patch:
    runs.on_one_device(patch)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
      pretrain.pretrain(made.lock(), str(workdir), corpus=paths(world))
  return workdir, out.getvalue()


def test_a_run_on_two_corpora_tells_epochs_and_held_out_losses_of_each(world, whole):
  workdir, said = whole
  assert re.search(r'phase 0 .* · large 0\.\d\d epochs of \d+ rows, small \d\.\d\d epochs', said)
  for row in (r for r in metrics.read(workdir) if 'held_out_loss' in r):
    ours = [row[f'held_out_mlm_loss/{name}'] for name in ('large', 'small')]
    assert min(ours) < row['held_out_mlm_loss'] < max(ours)
    texts = [corpora.read_manifest(path)['splits']['held_out'] for path in paths(world)]
    nats = sum(loss * text['tokens'] for loss, text in zip(ours, texts))
    bits = nats / sum(text['bytes'] for text in texts) / math.log(2)
    assert row['held_out_bits_per_byte'] == pytest.approx(bits)
  words = r'held out: masked-token loss .*, large masked-token loss \d.*, small masked'
  assert re.search(words, said)
  record = json.loads((workdir / 'corpus.json').read_text())
  assert list(record['corpora']) == ['large', 'small'] and record['hash'] not in record['corpora']


def test_a_run_goes_on_bit_for_bit_from_every_border_and_keeps_the_words_it_was_told(
  world, whole, tmp_path, monkeypatch, capsys
):
  runs.on_one_device(monkeypatch)
  for border in BORDERS:
    again = shutil.copytree(whole[0], tmp_path / str(border))
    runs.cut(again, border)
    pretrain.pretrain(config(world), str(again), corpus=paths(world))
    said = capsys.readouterr().out
    assert f'resuming from the checkpoint of step {border}' in said
    runs.check_same(again, whole[0], STEPS)
    [(few, many)] = re.findall(r'steps (\d+) \(300 words\), (\d+) \(900 words\)', said)
    assert {int(few), int(many), STEPS} <= {*step_folders.steps(again)}
    assert len(step_folders.steps(again)) <= 4  # those, and the best


def test_two_hosts_read_and_train_the_recipe_as_one(world, tmp_path):
  (world / 'config.py').write_text(
    'import pathlib\n'
    'from tests.pretrain import test_pretrain_mixture as recipe\n'
    'def get_config(argument=None):\n'
    '  made = recipe.config(pathlib.Path(__file__).parent)\n'
    '  return made.copy_and_resolve_references().unlock()\n'
  )
  text, places = [f'--corpus={path}' for path in paths(world)], f'{runs.ROOT}:{runs.ROOT}/tests'
  where = dict(text=text, lost_seconds=100, PYTHONPATH=places)
  with processes.two(world, tmp_path / 'two', '--config.run.mesh=(2, 2, 2)', **where) as both:
    assert [host.end() for host in both] == [0, 0], [host.said for host in both]
  on_all = config(world, run={'mesh': (2, 2, 2)})
  pretrain.pretrain(on_all, str(tmp_path / 'one'), corpus=paths(world))
  ours, theirs = (metrics.read(tmp_path / name) for name in ('two', 'one'))
  assert len(ours) == STEPS and sum('held_out_mlm_loss/small' in row for row in ours) == 2
  for row, other in zip(ours, theirs, strict=True):
    told = {key: value for key, value in other.items() if key not in ABOUT_A_HOST}
    assert told.keys() == row.keys() - ABOUT_A_HOST
    for key, value in told.items():
      np.testing.assert_allclose(row[key], value, rtol=1e-5, err_msg=f'{key} of {row["step"]}')
  ours, theirs = (processes.parameters(tmp_path / name) for name in ('two', 'one'))
  for path, x in ours.items():
    if not path.endswith('key/bias'):  # its gradient is 0 but for rounding, which Adam makes large
      np.testing.assert_allclose(x, theirs[path], atol=1e-4, err_msg=path)


def test_other_corpora_are_refused(world, whole, monkeypatch):
  runs.on_one_device(monkeypatch)
  for names, words in (
    ('small large', 'was trained on the corpus'),
    ('large', 'was trained on the corpus'),
    ('large other', 'different tokenizers: prepare the second one again with --tokenizer'),
    ('large large', 'the same folder twice'),
  ):
    with pytest.raises(errors.UserError, match=words):
      pretrain.pretrain(config(world), str(whole[0]), corpus=paths(world, *names.split()))


def test_each_corpus_of_a_run_is_scored_and_known_to_it(world, whole):
  found = scores.evaluate(str(whole[0]), str(world / 'small'), batches=1)
  assert not any('see that the run has not read' in note for note in found.notes)
  assert {s.rows for s in found.scores} >= {'mlm'}


def test_show_and_preflight_tell_a_mixture(world):
  for asked in (dict(stats=True), dict(stats=True, split='held_out')):
    out = io.StringIO()
    console = rich.console.Console(file=out, width=160, highlight=False, soft_wrap=True)
    show.show(config(world), paths(world), console=console, **asked)
    assert ('the phase reads large 0.' in out.getvalue()) == ('split' not in asked)
  findings = readiness.Findings()
  found = readiness.text(findings, resolve.run(config(world)), paths(world), 2)
  assert [r.name for r in found.read[1]] == ['large', 'small'] and not findings.problems
  assert found.hash == opening.open(paths(world), config(world)).hash
  readiness.text(findings, resolve.run(config(world)), paths(world, 'large', 'other'), 1)
  assert [f.code for f in findings.problems] == ['P06']
