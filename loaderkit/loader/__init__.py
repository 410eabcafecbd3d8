"""The Loader: settings, the position in the data, state in and out."""

import lazy_loader

# Names load when they are used: streams and lengths cost start-up time.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
