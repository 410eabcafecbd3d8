"""Where samples are: memory, files, object stores, streams; and what happens if one cannot be read."""

import lazy_loader

# Names load when they are used: pyarrow, PIL and the others cost start-up time.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
