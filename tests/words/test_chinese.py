import pathlib
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from bertzoo_jax.common import errors
from bertzoo_jax.words import chinese
from tests import commands

pytest.importorskip('jieba', reason='jieba is not installed')
SAMPLE = pathlib.Path(__file__).parents[2] / 'data' / 'sample'
PIECES = (
  '北京|清华大学|研究生命|起源|的|和|小明|硕士|2015年|3.14%|iPhone|T恤|AT&T|C++|-|，|。| |\r\n|\n|'
  '龘|機器學習|이다|テスト|𠀀|嘿嘿嘿|e\u0301|·|%|＃|天-|人%'
).split('|') + ['\ud800', '一' * 200]


@pytest.fixture(scope='module')
def jieba():
  module = chinese.load()
  module.dt.FREQ, module.dt.total = module.dt.gen_pfdict(module.dt.get_dict_file())
  module.dt.initialized = True
  from jieba import posseg

  return {
    False: lambda text: [(w, '') for w in module.cut(text)],
    True: lambda text: [(p.word, p.flag) for p in posseg.cut(text)],
  }


@pytest.fixture(scope='module')
def ours():
  return {tags: chinese.Segmenter(tags) for tags in (False, True)}


def same(text, segmenter, reference, tags):
  starts_C, bits_C = segmenter(text)
  words = reference(text)
  assert ''.join(w for w, _ in words) == text
  wished = np.cumsum([0] + [len(w) for w, _ in words])[:-1]
  assert np.flatnonzero(starts_C).tolist() == wished.tolist()
  if tags:
    assert bits_C[wished].tolist() == [chinese.tag_bits(tag) for _, tag in words]


@pytest.mark.parametrize('tags', [False, True])
def test_words_of_real_text_are_those_of_jieba(ours, jieba, tags):
  for name in ('zh_laws.txt', 'zh_tang.txt'):
    text = (SAMPLE / name).read_text(encoding='utf-8')[: 6000 if tags else 60_000]
    same(text, ours[tags], jieba[tags], tags)


def test_ties_and_signs_are_cut_as_in_jieba(ours, jieba):
  # of equally probable chains the longer first word wins; such signs end a stretch with tags
  for text in ('球棍球，溧水霤，想想想，散朴散', '天-', '人%', '3.14%-天'):
    for tags in (False, True):
      same(text, ours[tags], jieba[tags], tags)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=8), st.booleans())
def test_words_and_parts_of_speech_of_mixed_scripts_are_those_of_jieba(ours, jieba, pieces, tags):
  text = ''.join([p for p in pieces if p in PIECES[:-2]][:5] if tags else pieces)
  same(text, ours[tags], jieba[tags], tags)


def test_long_stretches_are_cut_as_short_ones_and_no_word_is_forgotten(ours, jieba, monkeypatch):
  text = (SAMPLE / 'zh_tang.txt').read_text(encoding='utf-8')[:3000]
  stretch = ''.join(c for c in text if c not in '，。\n')
  same(stretch, ours[False], jieba[False], False)
  wished, whole = ours[False](stretch)[0], ours[False](text)[0]
  monkeypatch.setattr(chinese, '_SHORT', 1 << 14)
  assert (ours[False](stretch)[0] == wished).all()
  monkeypatch.setattr(chinese, '_REMEMBERED', 10)  # its memory is full
  for _ in range(2):
    assert (ours[False](text)[0] == whole).all()


def test_jieba_says_nothing_and_leaves_no_cache_and_without_it_the_remedy_is_said(
  tmp_path, monkeypatch
):
  code = 'from bertzoo_jax.words import chinese as c; '
  code += 'print(c.Segmenter(True)("我来到北京清华大学")[0].nonzero()[0].tolist())'
  out = commands.run('-c', code, env=commands.environment(TMPDIR=str(tmp_path)), check=True)
  assert out.stdout == '[0, 1, 3, 5]\n' and not list(tmp_path.iterdir())
  assert not any(word in out.stderr.lower() for word in ('jieba', 'warning'))
  monkeypatch.setitem(sys.modules, 'jieba', None)
  with pytest.raises(errors.UserError, match=r"pip install 'bertzoo-jax\[zh\]'"):
    chinese.Segmenter(False)
