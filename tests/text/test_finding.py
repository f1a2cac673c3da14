import types
from pathlib import Path

import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.text import finding
from tests.text import made

FOLDERS = (
  'data [1]/*.txt|data [1]/[a-t].txt|c#/*.txt|c#/**|a*b?/*.txt|[x/deep/*.txt|[x]/c#/*|x,y/*.txt'
)
BOTH = 'text/a.txt text/deep/b.txt'


@pytest.mark.parametrize('given', FOLDERS.split('|'))
def test_a_folder_that_is_there_is_found_under_its_own_name(tmp_path, given):
  folder = f'{tmp_path}/{given.rpartition("/")[0]}'
  Path(folder).mkdir(parents=True)
  (tmp_path / 'd').mkdir()
  for file in (f'{folder}/t.txt', f'{tmp_path}/d/t.txt'):
    Path(file).write_text('text')
  for source, option in ((f'{tmp_path}/{given}', ''), (f'{folder}/t.txt#a', 'a')):
    source = finding.find(source)
    assert (source.files, source.option) == ((f'{folder}/t.txt',), option)
  with pytest.raises(errors.UserError, match='is a folder: write ') as e:
    finding.find(folder)
  assert f'{folder}/**' in str(e.value)


def test_a_bracket_needs_another_and_a_number_and_a_star_are_no_weight(tmp_path, monkeypatch):
  with pytest.raises(errors.UserError, match=r'write \[\[\] for a \[ in a name'):
    finding.find(f'{tmp_path}/x[1]*.txt')
  (tmp_path / 'x[1].txt').touch()
  assert finding.find(f'{tmp_path}/x[[]1]*.txt').files == (f'{tmp_path}/x[1].txt',)
  monkeypatch.chdir(tmp_path)
  (tmp_path / '2015_a.txt').write_text('text')
  assert finding.find('20*_a.txt').files == ('2015_a.txt',)
  with pytest.raises(errors.UserError, match='corpus of its own: see config.mixture'):
    finding.find('2*2015_a.txt')


def _tree(root, files=('text/a.txt', 'text/deep/b.txt', 'other/c.txt'), **links):
  for file in files:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    made.write(root / file, file)
  for link, target in links.items():
    (root / link.replace('__', '/')).symlink_to(target)


@pytest.mark.parametrize(
  'pattern, links, found, again',
  [
    ('text/**', {}, BOTH, ''),
    ('text/**', dict(text__here='.', text__up='..'), f'{BOTH} text/up/other/c.txt', ''),
    ('**/*.txt', dict(text__here='.', text__deep__up='..'), f'other/c.txt {BOTH}', ''),
    ('**', dict(text__to='../other', other__to='../text'), f'other/c.txt {BOTH}', ''),
    ('**/deep/**', dict(x='text/deep'), 'text/deep/b.txt', ''),
    ('text/**', dict(text__linked='../other'), f'{BOTH} text/linked/c.txt', ''),
    ('hf:x/*', {'hf:x': 'text'}, 'hf:x/a.txt', ''),
    ('text/*', dict(text__z='a.txt'), 'text/a.txt', 'text/z'),
    ('text/**', dict(text__z='deep/b.txt'), BOTH, 'text/z'),
    ('text/*', dict(text__nothing='gone.txt', text__self='self'), 'text/a.txt', ''),
    ('text/**', dict(text__nothing='gone.txt', text__self='self'), BOTH, ''),
  ],
)
def test_a_folder_is_walked_once_and_a_file_is_read_once_whatever_links_there_are(
  tmp_path, monkeypatch, pattern, links, found, again
):
  monkeypatch.chdir(tmp_path)
  _tree(tmp_path, **links)
  source = finding.find(pattern)
  assert (source.files, source.again) == (tuple(found.split()), tuple(again.split()))
  reasons = {'file that links reach twice, read once': len(source.again)} if again else {}
  assert made.read(pattern) == ([[Path(f).read_text()] for f in source.files], reasons)


def test_a_link_to_a_file_that_git_annex_has_not_fetched_is_refused(tmp_path):
  _tree(tmp_path, text__z='../.git/annex/objects/Wx/2/SHA256E-s3--ab.txt')
  with pytest.raises(errors.UserError, match='z is a git-annex pointer.*git annex get'):
    finding.find(f'{tmp_path}/text/*')


def test_patterns_of_an_object_store_are_walked_level_by_level(tmp_path, monkeypatch):
  """The code path of gs://, on a local folder."""
  (tmp_path / 'AA').mkdir()
  (tmp_path / 'AA' / 'wiki_00').write_text('text')
  monkeypatch.setattr(finding.storage, 'is_remote', lambda _: True)
  for pattern in ('*/wiki_*', 'AA/wiki_00'):
    assert finding.find(f'{tmp_path}/{pattern}').files == (f'{tmp_path}/AA/wiki_00',)
  for pattern, words in (('BB/*', 'no file matches'), ('**', 'a \\* for every level')):
    with pytest.raises(errors.UserError, match=words):
      finding.find(f'{tmp_path}/{pattern}')
  # the facts of remote files are their names and sizes
  one, two = (finding.Source('gs://b/*', '', ('gs://b/a',), (n,)).facts() for n in (5, 6))
  assert one['digest'] != two['digest']


def test_the_facts_tell_texts_of_one_size_apart(tmp_path):
  file = tmp_path / 'a.txt'

  def facts(data):
    file.write_bytes(data)
    return finding.find(str(file)).facts()

  first = facts(b'a' * 200_000)
  assert facts(b'a' * 200_000) == first
  for at in (0, 65_535, 199_999, 200_000 - 65_536):
    changed = bytearray(b'a' * 200_000)
    changed[at] = 98
    assert {k: v == first[k] for k, v in facts(bytes(changed)).items()} == dict(
      source=True, files=True, bytes=True, digest=False
    )
  assert facts(b'b') != facts(b'c')


CRAWL = [
  ('c4/multilingual', 'multilingual/c4-LANG.*.json.gz'),
  ('c4', 'en/c4-train.*.json.gz'),
  ('mc4', 'multilingual/'),
  ('c4/webtextlike:2.0.0', 'no webtextlike'),
  ('c4/realnewslike', 'realnewslike/c4-train.*.json.gz'),
]


def test_a_dataset_made_of_all_common_crawl_is_refused_with_the_download_unless_it_is_prepared(
  tmp_path, monkeypatch
):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  for name, files in CRAWL:
    with pytest.raises(errors.UserError, match='hf download allenai/c4 .*--source') as e:
      finding.find(f'tfds:{name}')
    assert files in str(e.value)
  (tmp_path / 'c4/en/3.1.0').mkdir(parents=True)
  (tmp_path / 'c4/en/3.1.0/dataset_info.json').write_text('{}')
  for prepared in ('c4', 'c4/en', 'c4/en:3.1.0'):
    finding._refuse_common_crawl(f'tfds:{prepared}')
  with pytest.raises(errors.UserError, match='hf download'):
    finding._refuse_common_crawl('tfds:c4/multilingual')
  pytest.importorskip('tensorflow_datasets')
  with pytest.raises(errors.UserError, match='TensorFlow Datasets cannot bring it'):
    finding.find('tfds:no_such_dataset_at_all')


def test_a_dataset_that_only_beam_can_build_is_refused_before_it_starts(monkeypatch):
  tfds = pytest.importorskip('tensorflow_datasets')
  monkeypatch.setattr(tfds, 'is_dataset_on_gcs', lambda _: False)
  train = types.SimpleNamespace(num_bytes=5, filepaths=[])

  class Builder:  # this file names lazy_imports.apache_beam, as such datasets' files do
    info = types.SimpleNamespace(full_name='mine/1.0.0', splits={'train': train})
    data_dir, prepared = '/prepared', False
    is_prepared = lambda self: self.prepared

    def download_and_prepare(self):
      assert self.prepared, 'a job for a cluster was started'

  monkeypatch.setattr(tfds, 'builder', lambda _: Builder())
  with pytest.raises(errors.UserError, match='tfds:mine is not available prepared'):
    finding.find('tfds:mine')
  Builder.prepared = True
  assert finding.find('tfds:mine').bytes == 5
