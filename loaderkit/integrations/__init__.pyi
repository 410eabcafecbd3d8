# One line for each framework, such as `from . import fabric as fabric`, and its name here.

__all__ = ["torchtitan"]

from . import torchtitan as torchtitan
