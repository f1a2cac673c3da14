from tests.pretrain.runs import here  # noqa: F401
from tests.pretrain.runs import untouched  # noqa: F401
from tests.pretrain.runs import world  # noqa: F401
