# One line for each framework.

__all__ = ["fabric", "torchtitan"]

from . import fabric as fabric
from . import torchtitan as torchtitan
