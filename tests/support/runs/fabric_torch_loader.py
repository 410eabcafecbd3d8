"""examples/fabric_digits.py with torch's DataLoader and `fabric.setup_dataloaders` in place of the Loader."""

import sys
from pathlib import Path

from torch_loader import TorchLoader

import loaderkit as lk

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import fabric_digits

if __name__ == "__main__":
    lk.integrations.fabric.setup = lambda fabric, loader: TorchLoader(loader, fabric.setup_dataloaders)
    fabric_digits.main()
