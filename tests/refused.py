"""A mistake of a user's, or a stranger's file, ends in one sentence."""

import re

import pytest

from bertzoo_jax.common import errors


def refused(words, act, *arguments, kind=errors.UserError, **more):
  """The error of `act(…)`, whose one line has these words or fits them as a pattern."""
  with pytest.raises(kind) as e:
    act(*arguments, **more)
  text = str(e.value)
  assert '\n' not in text and (words in text or re.search(words, text)), (text, words)
  return e.value
