# One line for each framework.

from . import accelerate as accelerate
from . import fabric as fabric
from . import huggingface as huggingface
from . import ray as ray
from . import torchtitan as torchtitan
