"""Storage: what a list of addresses holds."""

import pytest

from bertzoo_jax.common import storage


@pytest.mark.parametrize(
  'text, parts',
  [
    ('a', ['a']),
    ('a,b', ['a', 'b']),
    ('x,y', ['x,y']),
    ('x,y/run@best', ['x,y/run@best']),
    ('hf:x,y/hf', ['hf:x,y/hf']),
    ('hf:x,y/hf,x,y/run@3', ['hf:x,y/hf', 'x,y/run@3']),
    ('a, x,y , b', ['a', 'x,y', 'b']),
    ('hf:O/N@r,x', ['hf:O/N@r', 'x']),
    ('gs://b/x,gs://b/y', ['gs://b/x', 'gs://b/y']),
    ('', ['']),
  ],
)
def test_addresses_are_parted_at_commas_but_for_those_of_a_name_that_is_there(
  tmp_path, monkeypatch, text, parts
):
  monkeypatch.chdir(tmp_path)
  for name in ('x,y/run', 'x,y/hf', 'a', 'b'):
    (tmp_path / name).mkdir(parents=True)
  assert storage.addresses(text) == parts
