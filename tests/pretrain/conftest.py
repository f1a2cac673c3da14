"""The world of a small corpus, and runs on it, for all files of this folder."""

from tests.pretrain.runs import here  # noqa: F401
from tests.pretrain.runs import untouched  # noqa: F401
from tests.pretrain.runs import world  # noqa: F401
