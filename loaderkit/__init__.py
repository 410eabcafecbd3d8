"""Data loading for PyTorch that resumes anywhere: exactly once, bit for bit, on other hardware too."""

import lazy_loader

__version__ = "0.1.0"

# Names load when they are used, so that `import loaderkit` imports neither lightning nor torchvision.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
