"""prepare: one corpus for any number of workers and any number of kills."""

import json
import os
import shutil
import time

import pytest

from bertzoo_jax import prepare as prepare_lib
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import beam
from bertzoo_jax.corpus import corpus
from bertzoo_jax.corpus import shards
from bertzoo_jax.corpus import texts
from bertzoo_jax.text import finding
from bertzoo_jax.text import sentences
from tests.prepare import made


@pytest.mark.parametrize('workers', [2, 3])
def test_the_bytes_do_not_depend_on_the_number_of_workers(text, clean, tmp_path, workers):
  run = made.drive(text, tmp_path / 'corpus', workers)
  assert run.wait() == 0
  assert made.contents(tmp_path / 'corpus') == made.contents(clean[0])
  assert len(corpus.read_manifest(clean[0])['splits']['train']['shards']) > 5


def test_killed_again_and_again_it_ends_with_the_bytes_of_a_clean_run(text, clean, tmp_path):
  out, records = tmp_path / 'corpus', 0
  # Killed before anything is there, once the lock is, once the tokenizer is, and after some shards
  # more each time.
  for phase_run in ('.lock', 'tokenizer/tokenizer.json', 1, 3, 6, 9):
    run = made.drive(text, out)
    made.kill_at(run, out, phase_run)
    finished = len(list(out.glob('parts/*.json')))
    assert finished >= records  # nothing finished is lost
    records = finished
    assert not (out / 'manifest.json').exists()
  with pytest.raises(errors.UserError, match='unfinished'):
    corpus.open(out)
  kept = {p: p.stat().st_mtime_ns for p in out.glob('train/*.tokens.npy')}
  time.sleep(0.3)  # orphaned workers notice that their parent is gone
  run = made.drive(text, out)
  assert run.wait() == 0, run.communicate()[0]
  assert made.contents(out) == made.contents(clean[0])
  # and was not made twice
  assert sum(p.stat().st_mtime_ns == t for p, t in kept.items()) >= records


def test_a_damaged_shard_of_a_killed_run_is_made_again(text, clean, tmp_path):
  out = tmp_path / 'corpus'
  run = made.drive(text, out)
  made.kill_at(run, out, 4)
  time.sleep(0.3)
  shard = sorted(out.glob('train/*.tokens.npy'))[0]
  shard.write_bytes(shard.read_bytes()[:-2])
  (out / 'train' / '00001.tokens.npy.1.part').write_bytes(b'of a killed writer')
  assert made.drive(text, out).wait() == 0
  assert made.contents(out) == made.contents(clean[0])


def test_a_killed_parent_leaves_no_worker_behind(text, tmp_path):
  out = tmp_path / 'corpus'
  run = made.drive(text, out)
  while run.poll() is None and not (
    workers := open(f'/proc/{run.pid}/task/{run.pid}/children').read().split()
  ):
    time.sleep(0.001)
  made.kill_at(run, out, 1)
  assert workers
  for _ in range(200):
    if not any(os.path.exists(f'/proc/{w}') for w in workers):
      return
    time.sleep(0.05)
  raise AssertionError('workers outlive their parent by 10 s')


def test_a_finished_corpus_is_left_alone_and_another_plan_is_refused(text, clean, tmp_path):
  before = made.contents(clean[0])
  run = made.drive(text, clean[0])
  assert run.wait() == 0 and 'finished already' in run.communicate()[0]
  words = r'holds a corpus of other .*corpus.held_out: 0.1 → 0.2.*choose another --out'
  with pytest.raises(errors.UserError, match=words):
    made.make(made.tiny(held_out=0.2), text, clean[0])
  assert made.contents(clean[0]) == before


def test_a_corpus_of_another_version_of_a_splitter_is_not_resumed(text, tmp_path, monkeypatch):
  pytest.importorskip('sentencex')
  config = made.tiny()
  config.corpus.splitter = 'sentencex:en'
  manifest = made.make(config, text, tmp_path / 'out')
  assert manifest['splitter'].startswith('sentencex:en, version ')
  configuration.check_text('It', manifest, config.tokenizer, config.corpus)  # trains with it
  assert made.make(config, text, tmp_path / 'out') == manifest
  monkeypatch.setattr(sentences.metadata, 'version', lambda _: '99')
  with pytest.raises(errors.UserError, match='splitter: sentencex:en, version .* version 99'):
    made.make(config, text, tmp_path / 'out')


def test_language_and_licence_are_recorded_also_of_a_finished_corpus(
  text, clean, tmp_path, monkeypatch
):
  monkeypatch.setattr(prepare_lib, 'CHUNK_BYTES', (4_000, 4_000))  # as DRIVER
  shutil.copytree(clean[0], tmp_path / 'corpus')
  bare = corpus.read_manifest(tmp_path / 'corpus')
  assert corpus.origin(bare) == {'sources': [text], 'language': None, 'license': None}
  again = lambda **about: made.make(made.tiny(), text, tmp_path / 'corpus', about=about)
  again(language='en', license='cc-by-sa-4.0')
  again()  # which leaves it as it is
  told = corpus.read_manifest(tmp_path / 'corpus')
  assert told == bare | {'about': {'language': 'en', 'license': 'cc-by-sa-4.0'}}
  assert corpus.identity(told) == bare['hash']
  assert corpus.origin(told) == {'sources': [text], 'language': 'en', 'license': 'cc-by-sa-4.0'}


def test_two_at_a_time_in_one_folder_is_refused(text, tmp_path):
  with (
    prepare_lib._locked(tmp_path / 'corpus'),
    pytest.raises(errors.UserError, match='Another prepare'),
  ):
    made.make(made.tiny(), text, tmp_path / 'corpus')


def test_changed_text_of_the_same_size_is_other_text(text, tmp_path):
  file, out = tmp_path / 'a.txt', tmp_path / 'c'
  file.write_text(open(text).read())
  made.make(made.tiny(), [str(file)], out)
  file.write_text(open(text).read()[::-1])
  words = 'holds a corpus of other sources or settings .*digest'
  with pytest.raises(errors.UserError, match=words):
    made.make(made.tiny(), [str(file)], out)


@pytest.mark.parametrize('lost', ['train', 'tokenizer'])
def test_a_corpus_that_lost_a_folder_is_not_finished(text, clean, tmp_path, lost):
  out = shutil.copytree(clean[0], tmp_path / 'c')
  shutil.rmtree(out / lost)
  run = made.drive(text, out)
  said = run.communicate()[0]
  assert run.returncode
  assert 'finished already' not in said
  assert f'{out}/{lost}' in said
  assert 'UserError' in said


def test_a_damaged_plan_or_tokenizer_of_a_killed_run_is_one_sentence(text, tmp_path):
  out = tmp_path / 'c'
  made.kill_at(made.drive(text, out), out, 1)
  time.sleep(0.3)
  kept = (out / 'plan.json').read_text()
  for damaged in (kept[:50], '[]'):
    (out / 'plan.json').write_text(damaged)
    with pytest.raises(errors.UserError, match='plan.json is cut or damaged: delete'):
      made.make(made.tiny(), text, out)
  (out / 'plan.json').write_text(kept)
  (out / 'tokenizer' / 'bertzoo.json').write_text('{"section"')
  run = made.drive(text, out)
  assert 'bertzoo.json is not JSON, or cut short' in run.communicate()[0] and run.returncode


def test_a_damaged_record_of_a_shard_means_that_it_is_made_again(text, clean, tmp_path):
  out = tmp_path / 'corpus'
  made.kill_at(made.drive(text, out), out, 3)
  time.sleep(0.3)
  sorted(out.glob('parts/*.json'))[0].write_text('{"chu')
  assert made.drive(text, out).wait() == 0
  assert made.contents(out) == made.contents(clean[0])


def test_beam_makes_the_same_bytes_and_keeps_finished_shards(tmp_path, monkeypatch):
  for i in range(3):
    made.write_text(tmp_path / f't{i}.txt', documents=60, seed=i)
  monkeypatch.setattr(prepare_lib, 'CHUNK_BYTES', (4_000, 4_000))
  # repeats, and chunks over the borders of files
  source = [f'{tmp_path}/t0.txt', f'{tmp_path}/t*.txt']
  made.make(made.tiny(), source, tmp_path / 'local', workers=2)
  by_beam = lambda: made.make(
    made.tiny(), source, tmp_path / 'beam', beam_args=['--runner=BundleBasedDirectRunner']
  )
  written, write = [], shards.write
  monkeypatch.setattr(
    shards,
    'write',
    lambda *a: written.append(a[1].index) or write(*a) if len(written) < 9 else 1 / 0,
  )
  with pytest.raises(errors.UserError, match='finished shards are kept'):
    by_beam()
  monkeypatch.undo()
  monkeypatch.setattr(prepare_lib, 'CHUNK_BYTES', (4_000, 4_000))
  kept = {p: p.stat().st_mtime_ns for p in (tmp_path / 'beam').glob('train/*.tokens.npy')}
  by_beam()
  found = made.contents(tmp_path / 'beam')
  assert found == made.contents(tmp_path / 'local') and len(found) > 30
  assert len(kept) >= 8 and all(p.stat().st_mtime_ns == t for p, t in kept.items())


@pytest.mark.parametrize(
  'options, wrong',
  [
    (
      [
        '--runner=DataflowRunner',
        '--project=p',
        '--region=r',
        '--worker_machine_type=n2-standard-8',
        '--no_use_public_ips',
        '--experiment=use_runner_v2',
      ],
      None,
    ),
    (['--runner=FlinkRunner', '--flink_master=m:8081', '--environment_type=LOOPBACK'], None),
    (['--runer=DirectRunner'], '--runer, which'),
  ],
)
def test_options_of_beam_are_taken_and_others_named(options, wrong):
  options_lib = pytest.importorskip('apache_beam.options.pipeline_options')
  if wrong:
    with pytest.raises(errors.UserError, match=wrong):
      beam._options(options_lib, options)
  else:
    found = beam._options(options_lib, options).get_all_options()['runner']
    assert found == (options[0].partition('=')[2])


def test_repeats_are_looked_for_once_also_by_an_attempt_that_trained_its_tokenizer_and_was_stopped(
  text, clean, tmp_path, monkeypatch
):
  monkeypatch.setattr(prepare_lib, 'CHUNK_BYTES', (4_000, 4_000))
  with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
    stopped.setattr(prepare_lib, '_shards', lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    made.make(made.tiny(), text, tmp_path / 'c')
  for_others = texts.Text(
    [finding.find(text)], (), [], made.tiny().corpus, tmp_path / 'c', print
  ).for_workers()
  monkeypatch.setattr(prepare_lib.texts.duplicates, 'find', lambda *_: 1 / 0)
  assert len(list(for_others.documents(for_others.reader()))) == 120
  made.make(made.tiny(), text, tmp_path / 'c')
  assert made.contents(tmp_path / 'c') == made.contents(clean[0])


def test_conditions_and_excluded_texts_are_part_of_the_plan(tmp_path):
  rows = [
    dict(text=f'{i} ' + ' '.join(made.WORDS), lang='et' if i % 2 else 'de') for i in range(40)
  ]
  (tmp_path / 'a.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  (tmp_path / 'eval.txt').write_text(rows[1]['text'])
  make = lambda out, **more: made.make(
    made.tiny(vocab_size=70, held_out=0.0), tmp_path / 'a.jsonl', tmp_path / out, **more
  )
  manifest = make('c', where=['lang=et'], exclude=[str(tmp_path / 'eval.txt')])
  assert manifest['report']['documents'] == 19
  assert manifest['report']['dropped']['document of --exclude']['count'] == 1
  with pytest.raises(errors.UserError, match='other sources or settings'):
    make('c', where=['lang=de'])
  with pytest.raises(errors.UserError, match='key=value'):
    make('d', where=['lang'])
