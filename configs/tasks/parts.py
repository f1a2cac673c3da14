"""The constructors of a fine-tuning's parts; as configs/parts.py, of bertzoo_jax/parts/."""

from bertzoo_jax.parts.experiments import fine_tuning  # noqa: F401
from bertzoo_jax.parts.features import *  # noqa: F403
from bertzoo_jax.parts.ranges import TASK_SECTIONS as SECTIONS  # noqa: F401
from bertzoo_jax.parts.sources import *  # noqa: F403
from bertzoo_jax.parts.task_objectives import *  # noqa: F403
