import json
import os
import pathlib
import re
import shlex
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


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
  monkeypatch.setattr(prepare_lib, 'CHUNK_BYTES', (4_000, 4_000))  # as made.DRIVER


def test_the_bytes_do_not_depend_on_the_number_of_workers(text, clean, tmp_path):
  made.make(made.tiny(), text, tmp_path / 'corpus', workers=3)
  assert made.contents(tmp_path / 'corpus') == made.contents(clean[0])
  assert len(corpus.read_manifest(clean[0])['splits']['train']['shards']) > 5


def test_killed_again_and_again_it_ends_with_the_bytes_of_a_clean_run(text, clean, tmp_path):
  out, records = tmp_path / 'corpus', 0
  # earlier and later than any shard: test_killed.py
  for phase_run in (1, 6):
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


def test_what_a_killed_run_left_is_used_if_it_is_whole_and_no_worker_outlives_it(
  text, clean, tmp_path
):
  out = tmp_path / 'corpus'
  run, workers = made.drive(text, out), []
  while run.poll() is None and not workers:
    workers = open(f'/proc/{run.pid}/task/{run.pid}/children').read().split()
    time.sleep(0.001)
  made.kill_at(run, out, 4)
  end = time.monotonic() + 10
  while any(os.path.exists(f'/proc/{w}') for w in workers):
    assert time.monotonic() < end, 'workers outlive their parent by 10 s'
    time.sleep(0.05)
  assert workers
  again = lambda: made.make(made.tiny(), text, out, workers=2)
  for name, damaged, words in (
    ('plan.json', lambda x: x[:50], 'plan.json is cut or damaged: delete'),
    ('plan.json', lambda _: '[]', 'plan.json is cut or damaged: delete'),
    ('tokenizer/bertzoo.json', lambda x: x[:10], 'bertzoo.json is not JSON, or cut short'),
  ):
    kept = (out / name).read_text()
    (out / name).write_text(damaged(kept))
    with pytest.raises(errors.UserError, match=words):
      again()
    (out / name).write_text(kept)
  shard = sorted(out.glob('train/*.tokens.npy'))[0]
  shard.write_bytes(shard.read_bytes()[:-2])
  (out / 'train' / '00001.tokens.npy.1.part').write_bytes(b'of a killed writer')
  sorted(out.glob('parts/*.json'))[-1].write_text('{"chu')
  again()
  assert made.contents(out) == made.contents(clean[0])


def test_a_finished_corpus_is_left_alone_and_another_plan_or_a_lost_folder_is_refused(
  text, clean, tmp_path
):
  out, before, printed = clean[0], made.contents(clean[0]), []
  made.make(made.tiny(), text, out, say=printed.append)
  assert 'finished already' in printed[-1]
  words = r'holds a corpus of other .*corpus.held_out: 0.1 → 0.2.*choose another --out'
  with pytest.raises(errors.UserError, match=words):
    made.make(made.tiny(held_out=0.2), text, out)
  assert made.contents(out) == before
  for lost in ('train', 'tokenizer'):
    shutil.copytree(out, tmp_path / lost)
    shutil.rmtree(tmp_path / lost / lost)
    with pytest.raises(errors.UserError, match=f'{tmp_path}/{lost}/{lost}'):
      made.make(made.tiny(), text, tmp_path / lost)


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


def test_language_and_licence_are_recorded_also_of_a_finished_corpus(text, clean, tmp_path):
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


def test_two_at_a_time_and_changed_text_of_the_same_size_are_refused(text, tmp_path):
  file, out = tmp_path / 'a.txt', tmp_path / 'c'
  file.write_text(open(text).read())
  make = lambda: made.make(made.tiny(), [str(file)], out)
  with prepare_lib._locked(out), pytest.raises(errors.UserError, match='Another prepare'):
    make()
  make()
  file.write_text(open(text).read()[::-1])
  with pytest.raises(errors.UserError, match='a corpus of other sources or settings .*digest'):
    make()


def test_beam_makes_the_same_bytes_and_keeps_finished_shards(tmp_path, monkeypatch):
  for i in range(3):
    made.write_text(tmp_path / f't{i}.txt', documents=60, seed=i)
  # repeats, and chunks over the borders of files
  source = [f'{tmp_path}/t0.txt', f'{tmp_path}/t*.txt']
  made.make(made.tiny(), source, tmp_path / 'local', workers=2)
  runner = ['--runner=BundleBasedDirectRunner']
  by_beam = lambda: made.make(made.tiny(), source, tmp_path / 'beam', beam_args=runner)
  written, write = [], shards.write
  failing = lambda *a: written.append(a[1].index) or write(*a) if len(written) < 9 else 1 / 0
  with monkeypatch.context() as patch:
    patch.setattr(shards, 'write', failing)
    with pytest.raises(errors.UserError, match='finished shards are kept'):
      by_beam()
  kept = {p: p.stat().st_mtime_ns for p in (tmp_path / 'beam').glob('train/*.tokens.npy')}
  by_beam()
  found = made.contents(tmp_path / 'beam')
  assert found == made.contents(tmp_path / 'local') and len(found) > 30
  assert len(kept) >= 8 and all(p.stat().st_mtime_ns == t for p, t in kept.items())


def test_options_of_beam_are_taken_and_others_named():
  library = pytest.importorskip('apache_beam.options.pipeline_options')
  page = (pathlib.Path(__file__).parents[2] / 'docs/preparing_at_scale.md').read_text()
  lines = re.findall(r"--beam_args='(--runner=[A-Z][^']*)'", page)
  assert len(lines) == 4
  lines += ['--runner=DataflowRunner --worker_machine_type=n2-standard-8 --experiment=x']
  for line in lines:
    options = beam._options(library, shlex.split(line)).get_all_options()
    assert line.startswith(f'--runner={options["runner"]}')
  with pytest.raises(errors.UserError, match='--runer, which'):
    beam._options(library, ['--runer=DirectRunner'])


def test_repeats_are_looked_for_once_also_by_an_attempt_that_trained_its_tokenizer_and_was_stopped(
  text, clean, tmp_path, monkeypatch
):
  with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
    stopped.setattr(prepare_lib, '_shards', lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    made.make(made.tiny(), text, tmp_path / 'c')
  found = [finding.find(text)], (), [], made.tiny().corpus, tmp_path / 'c', print
  for_others = texts.Text(*found).for_workers()
  monkeypatch.setattr(prepare_lib.texts.duplicates, 'find', lambda *_: 1 / 0)
  assert len(list(for_others.documents(for_others.reader()))) == 120
  made.make(made.tiny(), text, tmp_path / 'c')
  assert made.contents(tmp_path / 'c') == made.contents(clean[0])


def test_conditions_and_excluded_texts_are_part_of_the_plan(tmp_path):
  words, config = ' '.join(made.WORDS), made.tiny(vocab_size=70, held_out=0.0)
  rows = [dict(text=f'{i} {words}', lang='et' if i % 2 else 'de') for i in range(40)]
  (tmp_path / 'a.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  (tmp_path / 'eval.txt').write_text(rows[1]['text'])
  make = lambda **more: made.make(config, tmp_path / 'a.jsonl', tmp_path / 'c', **more)
  report = make(where=['lang=et'], exclude=[str(tmp_path / 'eval.txt')])['report']
  assert report['documents'] == 19
  assert report['dropped']['document of --exclude']['count'] == 1
  for where, sentence in (('lang=de', 'other sources or settings'), ('lang', 'key=value')):
    with pytest.raises(errors.UserError, match=sentence):
      make(where=[where])
