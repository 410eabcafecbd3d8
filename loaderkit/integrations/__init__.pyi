# One line for each framework.

__all__ = ["accelerate", "fabric", "huggingface", "ray", "torchtitan"]

from . import accelerate as accelerate
from . import fabric as fabric
from . import huggingface as huggingface
from . import ray as ray
from . import torchtitan as torchtitan
