"""In which order samples come and which batch they join: pure functions of (seed, epoch, position)."""

import lazy_loader

# Names load when they are used: few runs need plans by length.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
