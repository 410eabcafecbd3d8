"""The `loaderkit` command."""

import lazy_loader

# `loaderkit --help` imports neither torch nor numpy.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
